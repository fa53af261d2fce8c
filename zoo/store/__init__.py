"""Published models on this machine: from a name to the files that it means.

`zoo.load(name)` asks `resolve`; the commands are in `zoo.cli.store`.
"""

from zoo.store.resolving import resolve

__all__ = ["resolve"]
