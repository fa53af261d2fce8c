"""From a recipe to a trained model: `zoo train recipe.toml`.

    recipe.py -> data.py -> tokens.py -> batches.py -> loop.py -> results.py

`train.py` joins them. What reads a recipe imports no torch.
"""
