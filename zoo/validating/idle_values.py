"""Values of a spec that are read and have no effect."""

from __future__ import annotations

from collections.abc import Iterator

from zoo.errors import Problem
from zoo.resolving.node import Node
from zoo.resolving.tables import Leaf
from zoo.slots import Sublayer
from zoo.wording import dotted


class IdleValues:
    """Collects the fields of components whose values have no effect, each with the reason."""

    def __init__(self) -> None:
        self._reasons: dict[tuple[Node, str], str] = {}

    def add(self, node: Node, name: str, reason: str) -> None:
        """Record that a field of a component has no effect; `reason` follows its name."""
        where = f" of `{dotted(node.path)}`" if node.path else ""
        self._reasons[node, name] = f"`{name}`{where} {reason}"

    def problems(self, root: Node) -> Iterator[Problem]:
        """Yield a problem for each value that has an effect in none of the components that read it,
        one for each field. Values of extended specs are accepted, since this spec cannot remove
        them from their files; so are the values of a stored spec."""
        if not self._reasons or root.table.document.stored:
            return
        counted: set[Leaf] = set()
        idle: dict[str, list[Leaf]] = {}
        for leaf, reason in self._leaves(root, None):
            if reason is None:
                counted.add(leaf)
            elif leaf.stated and leaf.document is root.table.document:
                idle.setdefault(reason, []).append(leaf)
        for reason, leaves in idle.items():
            if left := [leaf for leaf in leaves if leaf not in counted]:
                yield Problem(reason, left[0].place())

    def _leaves(self, node: Node, reason: str | None) -> Iterator[tuple[Leaf, str | None]]:
        """Yield the values in a node and below, each with the reason why it has no effect, or None
        if it has one."""
        if node.kind is not None:
            yield node.kind, reason
        for name, value in node.values.items():
            why = reason or self._reasons.get((node, name))
            for item in value if isinstance(value, list | tuple) else [value]:
                if isinstance(item, Node):
                    yield from self._leaves(item, why)
                elif item is not None:
                    yield item, why


def idle_placements(root: Node) -> Iterator[Problem]:
    """Yield a problem for each `norm_placement` over that of a saved spec which this one extends. A
    full form holds both the placement and the norms of each sublayer, and only these count."""
    for node in root.walk():
        leaf = node.values.get("norm_placement")
        if not isinstance(leaf, Leaf) or not leaf.stated or leaf.document.stored:
            continue
        branches = [one for one in node.walk() if issubclass(one.cls, Sublayer)]
        norms = [one for branch in branches if (one := branch.values.get("norms")) is not None]
        if norms and all(isinstance(one, Leaf) and one.document.stored for one in norms):
            message = (
                "`norm_placement` changes nothing: the saved spec that this one extends states "
                "the norms of each sublayer"
            )
            where = dotted((*branches[-1].path, "norms"))
            hint = f"state these, such as `{where}`, and `final_norm`; or extend the short form"
            yield Problem(message, leaf.place(), hint)
