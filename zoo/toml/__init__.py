"""TOML as people write it: where each value stands, what is wrong with it, and how one table goes
over another.

    limits.py, places.py, errors.py    the text, for `zoo.document`
    tables.py, extends.py, usage.py    its tables, for `zoo.resolve`
    value_errors.py                    its values, for `zoo.validate`
"""
