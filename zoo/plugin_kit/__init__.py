"""Tools for plugin authors: `zoo init`, `zoo plugin new` and `zoo plugin check`.

    check.py -> hosts.py (a small model around the component) -> structure.py
             -> promises.py (calls of its module) -> drivers.py -> inputs.py, assertions.py

`project.py` makes new projects. `zoo.testing` makes the checks available to the tests of authors.
"""
