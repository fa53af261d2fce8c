"""The resolved spec that `zoo.resolve` returns and `zoo.validate` takes: a tree of components with
their classes and values, each value with the place where it was written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from zoo.component import Component
from zoo.document import KeyPath
from zoo.errors import Findings
from zoo.resolving.tables import Leaf, Table


@dataclass(eq=False, slots=True)
class Node:
    """A component with its class and its values; its children are nodes.

    `path` is the key path of the component in the resolved spec, which may differ from where its
    values are written. A child whose plugin could not be found is None.
    """

    cls: type[Component]
    path: KeyPath
    table: Table
    kind: Leaf | None = None
    values: dict[str, Leaf | Node | list[Node] | None] = field(
        default_factory=dict[str, "Leaf | Node | list[Node] | None"]
    )

    def walk(self) -> Iterator[Node]:
        """Yield this node and all nodes below it, parents first."""
        yield self
        for value in self.values.values():
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, Node):
                    yield from child.walk()


class Resolved(NamedTuple):
    """The name of a spec and its tree, ready to be validated, and the problems found so far."""

    name: str
    root: Node
    findings: Findings
