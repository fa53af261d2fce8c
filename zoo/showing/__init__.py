"""A spec as text: its parts and sizes, as `zoo show` prints them, and its full form.

show.py, data.py        what `zoo show` prints, as text and as data
parts.py, children.py   the decomposition of models, which `zoo.drawing` uses too
alike.py                layers that differ in numbers alone
full_form.py            `zoo show --resolved`
"""
