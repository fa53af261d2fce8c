"""Track which keys of a spec are looked up, and report those that nothing uses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from zoo.document import Document, KeyPath
from zoo.errors import MAX_SHOWN, Findings, Problem
from zoo.resolving.tables import PER_LAYER, Leaf, Table, is_list_of_tables, same_kind
from zoo.wording import did_you_mean, dotted, meant, quoted

MAX_NOTES = 2
"""The most nearer values that are noted for a value without effect."""
MAX_HOMES = 4
"""The most tables of any kind that a hint names for one key."""
IN_SINGLE_LAYERS = {
    "norm_placement": "; a rule states the norms of each branch, as in "
    "`self_attn = { norms = [...] }`",
}
"""What states the same as a key for all layers, in a rule for single ones."""


class Usage:
    """Records the lookups of components.

    `known` maps the path of each table to the keys that some component looks up there. `used` holds
    the values and tables that took effect. `nearer` maps a stated value to the values that some
    component found in its place, nearer to itself. `elsewhere` returns a hint for a key that the
    table at a path could have, if it were of another kind.
    """

    def __init__(self, elsewhere: Callable[[KeyPath, str], str | None]) -> None:
        self.elsewhere = elsewhere
        self.known: dict[KeyPath, set[str]] = defaultdict(set)
        self.used: set[Leaf | Table] = set()
        self.nearer: dict[Leaf | Table, dict[tuple[Document, KeyPath], Leaf | Table]] = {}

    def remember(self, table: Table, name: str) -> None:
        """Record that some component looks up `name` in this table."""
        for source in table.written():
            self.known[source.path].add(name)

    def use(self, entry: Leaf | Table) -> None:
        """Record that a value takes effect, or that a table is read."""
        self.used.update(entry.written() if isinstance(entry, Table) else [entry])

    def cover(self, outer: Leaf | Table, inner: Leaf | Table) -> None:
        """Record that some component finds `inner` before `outer`. For two tables that are merged,
        it is recorded for each key that both have."""
        if isinstance(outer, Table) and isinstance(inner, Table) and same_kind(outer, inner):
            for key in outer.entries.keys() & inner.entries.keys():
                self.cover(outer.entries[key], inner.entries[key])
            return
        covered = outer.written() if isinstance(outer, Table) else [outer]
        for entry in covered:
            known = self.nearer.setdefault(entry, {})
            if len(known) == MAX_NOTES or (inner.document, inner.path) in known:
                continue  # bounds how often each entry is visited
            known[inner.document, inner.path] = inner
            if isinstance(entry, Table):
                for inside in entry.entries.values():
                    self.cover(inside, inner)

    def use_all(self, entry: Leaf | Table) -> None:
        """Record a value, or a table with everything in it, as used, where it cannot be checked."""
        self.use(entry)
        if isinstance(entry, Table):
            for inside in entry.entries.values():
                self.use_all(inside)

    def places(self) -> set[tuple[Document, KeyPath]]:
        """Return the positions of everything that is used."""
        return {(entry.document, entry.path) for entry in self.used}

    def report_unused(
        self, table: Table, findings: Findings, excused: Callable[[Leaf | Table], bool]
    ) -> None:
        """Report the keys of a table that no component looks up, and the values that have no
        effect, except those that are `excused`."""
        known = self.known.get(table.path, set())
        inside = f" in `{dotted(table.path)}`" if table.path else ""
        for key, entry in table.entries.items():
            if entry in self.used:
                if isinstance(entry, Table):
                    self.report_unused(entry, findings, excused)
            elif excused(entry):
                continue
            elif key in known:
                message = f"{quoted(key)}{inside} has no effect: all that read it state their own"
                nearer = list(self.nearer.get(entry, {}).values())
                hint = self._over(table.path, nearer) or _in_saved(nearer)
                notes = tuple(
                    (f"{quoted(key)} is stated nearer here", other.place(value=False))
                    for other in nearer
                )
                findings.add(Problem(message, entry.place(value=False), hint, notes))
            else:
                # Only the first problems are shown, and the search for similar names is slow.
                home = self._home_of(key, entry, table) if len(findings) < MAX_SHOWN else None
                message = f"unknown key {quoted(key)}{inside}"
                findings.add(Problem(message, entry.place(value=False), home))

    def _over(self, table: KeyPath, nearer: Sequence[Leaf | Table]) -> str | None:
        """Return a hint for overriding a table of the stack in a rule for single layers: write the
        same path inside the rule. None if that does not apply."""
        numbers = [place for place, part in enumerate(table) if isinstance(part, int)]
        if not numbers:
            return None
        rule, stack = table[: numbers[0] + 1], table[: numbers[0] - 1]
        for other in nearer:
            inside = other.path[len(stack) :]
            if other.path[: len(stack)] == stack and inside[0] in self.known.get(rule, ()):
                if PER_LAYER in (*inside, *(other.entries if isinstance(other, Table) else ())):
                    return "the list there has a value for each layer: write it there"
                return (
                    f"to go over that in these layers, write `{dotted(inside)} = ...` in the rule"
                )
        return None

    def _home_of(self, key: str, entry: Leaf | Table, around: Table) -> str:
        """Return a hint for an unknown key: the kinds that have it, the table that it belongs in,
        or the most similar name.

        For an unknown key in a layer rule, the hint shows how to write it inside the rule.
        """
        table = around.path
        known = self.known.get(table, set())
        for name in dict.fromkeys((key, meant(key))):
            if name in known:
                break
            *outer, last = name.split(".")
            if outer and last in self.known.get((*table, *outer), ()):
                return f"write `{_nested(outer, last)}`"
            if home := self.elsewhere(table, name) or self._table_with(name, entry, around):
                return home
        if known == {"kind"}:  # a kind without keys, such as `none`
            return "what is here has no keys; state another `kind`"
        return did_you_mean(key, known)

    def _table_with(self, key: str, entry: Leaf | Table, around: Table) -> str | None:
        """Return a hint with the tables, nearest to `around`, where some component looks up a key,
        which has this value; None if there are none."""
        table = around.path
        homes = [path for path, names in self.known.items() if key in names]
        if not homes:
            return None
        known = self.known.get(table, set())
        common = max(_common(home, table) for home in homes)
        nearest = [home for home in homes if _common(home, table) == common]
        if table[:common] in nearest:
            nearest = [table[:common]]
        if table and isinstance(table[-1], int):
            stack = table[:-2]
            of_stack = [home[len(stack) :] for home in homes if home[: len(stack)] == stack]
            inside = [home for home in of_stack if known.intersection(home[:1])]
            if len(inside) == 1:
                return f"write `{dotted((*inside[0], key))} = ...`"
            if not inside and stack in homes:
                single = IN_SINGLE_LAYERS.get(key, "")
                return f"{quoted(key)} is for all layers: write it in `[{dotted(stack)}]`{single}"
            nearest = inside or nearest
        if nearest == [()]:
            return f"{quoted(key)} stands at the top of the spec, before all tables"
        # A slot that may be stated here needs no path, and rules for single layers can go over it.
        slots = list(dict.fromkeys(dotted(home[-1:]) for home in nearest))
        if known.issuperset(slots):
            told = f"{quoted(key)} is a key of {_and_of(slots)}"
            if len(slots) > 1:
                return told
            path, stated = (*table, slots[0]), around.entries.get(slots[0])
            if stated is None or path in homes:  # and not another kind, which has no such key
                return f"{told}: {_written(path, key, entry, stated)}"
        alike = nearest
        if len(nearest) > MAX_HOMES:
            # Name the same place in other stacks too, as `decoder` beside `encoder`.
            alike = [home for home in nearest if home[1:] == nearest[0][1:]]
        return f"{quoted(key)} is a key of {_and_of(map(dotted, alike))}"


def _in_saved(nearer: Sequence[Leaf | Table]) -> str:
    """Return a hint for a value that nearer ones leave without effect. Those of a saved spec, which
    this one extends, cannot be removed."""
    saved = [f"`{dotted(other.path)}`" for other in nearer if other.document.stored]
    if not saved:
        return "remove it, or the nearer values"
    return f"a saved spec states each value in its own table: write it there, {' and '.join(saved)}"


def _written(path: KeyPath, key: str, entry: Leaf | Table, stated: Leaf | Table | None) -> str:
    """Return how to write a key, which has the value `entry`, in the table at a path, which is
    `stated` already, or not."""
    if isinstance(entry, Leaf) and entry.value and is_list_of_tables(entry.value):
        return f"write `[[{dotted((*path, key))}]]`"
    if stated is None or stated.document is not entry.document:
        return f"write `{path[-1]} = {{ {key} = ... }}`"
    if isinstance(stated, Leaf):
        return f'write `{path[-1]} = {{ kind = "{stated.value}", {key} = ... }}`'
    return "write it there"


def _and_of(names: Iterable[str]) -> str:
    return " and of ".join(map(quoted, names))


def _nested(outer: Sequence[str], key: str) -> str:
    """Return a key inside these tables as TOML: `decoder = { block = { key = ... } }`."""
    text = f"{key} = ..."
    for name in reversed(outer):
        text = f"{name} = {{ {text} }}"
    return text


def _common(one: KeyPath, other: KeyPath) -> int:
    """Return the number of parts with which both paths begin."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
