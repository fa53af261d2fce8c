"""Values for each layer: lists that stand in the place of a value, `{ per_layer = [...] }`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from zoo.document import Document, KeyPath
from zoo.errors import Findings, Place, Problem
from zoo.resolving.tables import PER_LAYER, REFUSED, Leaf, Table, as_table, described
from zoo.resolving.usage import IN_SINGLE_LAYERS, Usage
from zoo.wording import counted

Where = tuple[Document, KeyPath]
"""Where a list stands."""

_SOME = "values for some layers alone stand in a rule: `layers = [{ at = [3], ... }]`"


@dataclass(eq=False, slots=True)
class Layer:
    """The layer of a stack whose components are resolved: its number, the stated number of layers,
    and the lists of values for each layer that were read for it."""

    number: int
    count: Leaf | None
    lists: dict[Where, Sequence[Any]] = field(default_factory=dict[Where, Sequence[Any]])

    @property
    def n_layers(self) -> int | None:
        """The number of layers; None if what is stated is none."""
        value = None if self.count is None else self.count.value
        return value if type(value) is int and value >= 1 else None

    def count_elsewhere(self, document: Document) -> tuple[tuple[str, Place], ...]:
        """The note for a mistake in a document: where the number of layers is stated, if another
        document does, such as a spec that extends it."""
        if self.count is None or self.count.document is document:
            return ()
        return (("the number of layers is stated here", self.count.place()),)


class LayerValues:
    """The lists that a spec states, and which of their items some component reads."""

    def __init__(self, usage: Usage, findings: Findings) -> None:
        self.usage = usage
        self.findings = findings
        self._items: dict[Where, Leaf | Table] = {}
        self._unread: dict[Where, dict[int, Any]] = {}

    def of_layer(self, layer: Layer | None, name: str, entry: Leaf | Table) -> Leaf | Table:
        """Return the value for a layer of an entry that states one for each layer, and any other
        entry as it is. `layer` is None outside what may differ between layers."""
        if not isinstance(entry, Table) or PER_LAYER not in entry.entries:
            return entry
        stated = entry.entries[PER_LAYER]
        self.usage.remember(entry, PER_LAYER)
        self.usage.use(entry)
        self.usage.use_all(stated)
        values = stated.value if isinstance(stated, Leaf) else {}
        where = stated.document, stated.path
        hint = None
        notes: tuple[tuple[str, Place], ...] = ()
        if layer is None:
            message = f"`{name}` is read outside the layers of a stack too, where it is one value"
            hint = f"`{PER_LAYER}` is for what only layers read, such as what a `block` states"
            hint += IN_SINGLE_LAYERS.get(name, "")
        elif not isinstance(values, list | tuple):
            message = f"`{PER_LAYER}` must be a list with a value for each layer"
            message += f", not {described(values)}"
        elif not values or len(values) != (layer.n_layers or len(values)):
            message = f"`{name}` has {counted(len(values), 'value')}, one for each layer"
            if layer.n_layers is not None:
                message += f", and there are {counted(layer.n_layers, 'layer')}"
                notes = layer.count_elsewhere(stated.document)
        else:
            layer.lists[where] = values
            if layer.n_layers is not None:
                self._unread.setdefault(where, dict(enumerate(values)))
            return self._item(*where, layer.number, values[layer.number])
        self.findings.add_once(Problem(message, stated.place(value=True), hint, notes))
        return Leaf(REFUSED, *where)

    def _item(self, document: Document, lists: KeyPath, number: int, value: Any) -> Leaf | Table:
        """Return an item of the list at a path, always as the same object."""
        path = (*lists, number)
        if (document, path) not in self._items:
            self._items[document, path] = (
                as_table(value, document, path, self.findings)
                if isinstance(value, dict)
                else Leaf(value, document, path)
            )
        return self._items[document, path]

    @property
    def tables(self) -> list[Table]:
        """The items that are tables."""
        return [item for item in self._items.values() if isinstance(item, Table)]

    def read(self, layer: Layer, layers: Sequence[int]) -> None:
        """Record that these layers take effect as they stand, with the lists that `layer` reads."""
        for where in layer.lists:
            for number in layers:
                self._unread[where].pop(number, None)

    def unread(self, excused: Callable[[Where], bool]) -> Iterator[Problem]:
        """Yield a problem for each value that no component of its layer reads, but for lists that
        are `excused`."""
        for where, values in self._unread.items():
            if excused(where):
                continue
            document, path = where
            for number, value in values.items():
                message = f"the value for layer {number} has no effect: nothing in it reads it"
                place = Leaf(value, document, (*path, number)).place(value=True)
                yield Problem(message, place, _SOME)
