"""Support for hand-written TOML: the positions of values, error messages, and merging of tables.

limits.py, places.py, errors.py    work on the text, for `zoo.document`
tables.py, extends.py, usage.py    work on its tables, for `zoo.resolve`
value_errors.py                    works on its values, for `zoo.validate`
format.py                          is a type for tables that pydantic reads
"""
