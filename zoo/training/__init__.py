"""From a recipe to a trained model: `zoo train recipe.toml`.

    recipe.py -> data.py -> tokens.py -> encoding.py -> loop.py -> run.py

`train.py` joins them. The modules that read a recipe do not import torch.
"""
