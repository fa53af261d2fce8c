"""What `zoo show`, `zoo list` and `zoo diff` print, as data and as text.

`zoo.drawing` draws what `parts.py` and `children.py` take apart.
"""
