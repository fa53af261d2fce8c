"""A spec as text: its parts and sizes, as `zoo show` prints them, and its full form.

`zoo.drawing` also uses the decomposition of models in `parts.py` and `children.py`.
"""
