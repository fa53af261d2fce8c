"""The output of `zoo show`, `zoo list` and `zoo diff`, as data and as text.

`zoo.drawing` also uses the decomposition of models in `parts.py` and `children.py`.
"""
