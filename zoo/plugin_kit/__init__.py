"""What plugin authors work with: `zoo init`, `zoo plugin new` and `zoo plugin check`.

`zoo.testing` offers the checks to their tests.
"""
