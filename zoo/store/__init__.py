"""The local store of published models: from a name to its files.

`zoo.load(name)` calls `resolve`; the commands are in `zoo.cli.store`.
"""

from zoo.store.resolving import resolve

__all__ = ["resolve"]
