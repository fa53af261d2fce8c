"""Tools for plugin authors: `zoo init`, `zoo plugin new` and `zoo plugin check`.

`zoo.testing` makes the checks available to their tests.
"""
