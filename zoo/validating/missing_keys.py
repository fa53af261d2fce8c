"""The keys that a spec lacks: which components need each, and where to write it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from zoo.document import KeyPath
from zoo.errors import Place, Problem
from zoo.resolving.node import Node
from zoo.wording import dotted


class MissingKeys:
    """Collects missing keys, each of which is told once for all components that need the same
    line."""

    def __init__(self) -> None:
        self._needed_by: dict[_Missing, list[KeyPath]] = {}

    def add(
        self,
        name: str,
        node: Node,
        place: Place,
        needed_by: KeyPath,
        *,
        shared: bool = False,
        also: str = "",
    ) -> None:
        """Record a key that is missing in a component, which is requested at this place; `also`
        continues the help text."""
        missing = _Missing(name, place, _home(node, shared=shared), also)
        self._needed_by.setdefault(missing, []).append(needed_by)

    def problems(self) -> Iterator[Problem]:
        """Yield a problem for the keys that the same components need, at the same place."""
        together: dict[tuple[_Missing, tuple[KeyPath, ...]], list[_Missing]] = {}
        for missing, paths in self._needed_by.items():
            of = tuple(path[:-1] if path[-1:] == (missing.name,) else path for path in paths)
            together.setdefault((missing._replace(name=""), of), []).append(missing)
        for (_, of), keys in together.items():
            first, names = keys[0], [missing.name for missing in keys]
            needed = self._needed_by[first] if len(keys) == 1 else of
            few = " and ".join(f"`{dotted(path)}`" for path in needed[:2])
            more = f" and {len(needed) - 2} more" if len(needed) > 2 else ""
            verb = "needs" if len(needed) == 1 else "need"
            what, them = f"the key `{names[0]}` is missing", "it"
            if len(names) > 1:
                *others, last = (f"`{name}`" for name in names)
                what, them = f"the keys {', '.join(others)} and {last} are missing", "them"
            message = f"{what}: {few}{more} {verb} {them}"
            yield Problem(message, first.place, first.home.hint(names) + first.also)


class _Home(NamedTuple):
    """Where a missing key is written: `where` follows the line; or in a new table of this `kind`,
    at `key`, or for an item of an array in place of the kind's name."""

    where: str = ""
    kind: str | None = None
    key: str | None = None

    def hint(self, names: Sequence[str]) -> str:
        """The help text for keys that are missing there."""
        lines = [f"{name} = ..." for name in names]
        if self.kind is None:
            return f"add {' and '.join(f'`{line}`' for line in lines)}{self.where}"
        table = f'{{ kind = "{self.kind}", {", ".join(lines)} }}'
        if self.key is None:
            return f'write `{table}` in place of `"{self.kind}"`'
        return f"write `{self.key} = {table}`"


class _Missing(NamedTuple):
    """A missing key: its name, the place that requests the component, where to write it, and what
    continues the help text."""

    name: str
    place: Place
    home: _Home
    also: str


def _home(node: Node, *, shared: bool) -> _Home:
    """Return where to write a missing key: beside the `kind`, which may stand in a table around
    many components. A kind stated as a word, as in `ffn = "moe"`, has no table to which a key could
    be added."""
    kind = node.kind
    if shared or not node.path:
        return _Home()
    if kind is None or not kind.stated:
        return _Home(f" in `[{dotted(node.path)}]`")
    at = kind.path[-1]
    if at == "kind":
        return _Home(" beside this `kind`")
    return _Home(kind=str(kind.value), key=at if isinstance(at, str) else None)
