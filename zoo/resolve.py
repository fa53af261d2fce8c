"""Documents in, one complete tree of component tables out: `extends`, kinds, shared values.

Every leaf remembers the document and the key path where it was written, so that later problems,
and `zoo show --resolved`, can tell its origin. Nothing is validated here but names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.component import GIVEN, SHARED, Component, LayerRules, Part, Slot, fields_of
from zoo.document import Document, KeyPath, read_document
from zoo.errors import Place, Problem, SpecError, ZooError, did_you_mean, quoted
from zoo.layer_rules import SELECTORS, START, RuleError, groups, selected
from zoo.registry import Registry
from zoo.slots import Plugin

FORMAT = 1
ROOT_KEYS = ("format", "name", "builder", "extends")
_SPEC_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(eq=False, slots=True)
class Leaf:
    """A value as written, and where; `stated` is false for a default."""

    value: Any
    document: Document
    path: KeyPath
    stated: bool = True

    def place(self, *, value: bool = True) -> Place:
        return self.document.place(self.path, value=value)


@dataclass(eq=False, slots=True)
class Table:
    """A table as written: `kind` and the other keys. `merged` lists the tables it was made from."""

    entries: dict[str, Leaf | Table]
    document: Document
    path: KeyPath
    merged: tuple[Table, ...] = ()

    def written(self) -> Iterator[Table]:
        """This table, or the ones that it was made from."""
        yield self
        for table in self.merged:
            yield from table.written()

    def place(self, *, value: bool = False) -> Place:
        return self.document.place(self.path, value=value)


@dataclass(eq=False, slots=True)
class Node:
    """A component with its class found and its values collected; children are nodes.

    `path` is the component's place in the resolved spec, which may differ from where its values
    are written.
    """

    cls: type[Component]
    path: KeyPath
    table: Table
    kind: Leaf | None = None
    values: dict[str, Leaf | Node | list[Node] | None] = field(
        default_factory=dict[str, "Leaf | Node | list[Node] | None"]
    )


@dataclass(frozen=True, slots=True)
class Resolved:
    """A spec's name and its tree, ready to be validated."""

    name: str
    root: Node


def resolve(document: Document, registry: Registry) -> Resolved:
    """Find the parents, the plugins and the shared values of a spec.

    Raises:
        SpecError: every problem found: an unknown key or kind, a bad `format`, a cyclic `extends`.
        PluginError: a named plugin cannot be loaded.
    """
    table = _with_parents(document, registry, ())
    return _Resolver(registry).resolve(table)


# --- extends ------------------------------------------------------------------------------------


def _with_parents(document: Document, registry: Registry, chain: Sequence[Document]) -> Table:
    table = _as_table(document.data, document, ())
    parent = table.entries.pop("extends", None)
    if parent is None:
        return table
    place = parent.place(value=True)
    name = parent.value if isinstance(parent, Leaf) else None
    if not isinstance(name, str) or not _SPEC_NAME.fullmatch(name):
        raise SpecError(
            Problem(
                "`extends` names one spec, without folders or an ending",
                place,
                help="a spec file beside this one, or a model of the registry",
            )
        )
    path = _find_parent(name, document, registry, place)
    chain = (*chain, document)
    if any(Path(seen.name).resolve() == path.resolve() for seen in chain if seen.text is not None):
        story = " -> ".join(Path(seen.name).name for seen in chain)
        raise SpecError(Problem(f"cyclic `extends`: {story} -> {path.name}", place))
    return _merge(_with_parents(read_document(path), registry, chain), table)


def _find_parent(name: str, document: Document, registry: Registry, place: Place) -> Path:
    folder = Path(document.name).parent
    beside = folder / f"{name}.toml"
    if document.text is not None and beside.is_file():
        return beside
    if entry := registry.models.get(name):
        return entry.folder / entry.target
    near = [path.stem for path in folder.glob("*.toml")] if document.text is not None else []
    raise SpecError(
        Problem(
            f"there is no spec {quoted(name)} beside this one or in the registry",
            place,
            help=did_you_mean(name, [*near, *registry.models]),
        )
    )


def _as_table(data: Mapping[str, Any], document: Document, path: KeyPath) -> Table:
    entries: dict[str, Leaf | Table] = {}
    for key, value in data.items():
        here = (*path, key)
        if isinstance(value, dict):
            entries[key] = _as_table(value, document, here)  # pyright: ignore[reportUnknownArgumentType]
        else:
            entries[key] = Leaf(value, document, here)
    return Table(entries, document, path)


def _merge(outer: Table, inner: Table) -> Table:
    """`inner` over `outer`, key by key; another `kind` drops what `outer` said beside its own."""
    entries = dict(outer.entries)
    for key, value in inner.entries.items():
        below = entries.get(key)
        entries[key] = value if below is None else _merge_values(below, value)
    return Table(entries, inner.document, inner.path, (outer, inner))


def _merge_values(outer: Leaf | Table, inner: Leaf | Table) -> Leaf | Table:
    if isinstance(outer, Leaf) and isinstance(inner, Leaf):
        return inner
    below, above = _slot_table(outer), _slot_table(inner)
    if below is None or above is None:
        return inner
    kinds = below.entries.get("kind"), above.entries.get("kind")
    if isinstance(kinds[0], Leaf) and isinstance(kinds[1], Leaf) and kinds[0].value != kinds[1].value:
        return inner
    return _merge(below, above)


def _slot_table(value: Leaf | Table) -> Table | None:
    """`"mlp"` as the table `{ kind = "mlp" }` that it stands for."""
    if isinstance(value, Table):
        return value
    if isinstance(value.value, str):
        return Table({"kind": value}, value.document, value.path)
    return None


def _is_list_of_tables(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


# --- kinds and shared values --------------------------------------------------------------------


class _Resolver:
    """One walk over a spec. `scope` is the chain of tables from the top level to a component's own;
    `given` the dimensions that the components around it bind."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.problems: list[Problem] = []
        self.used: set[Leaf | Table] = set()
        self.known: dict[KeyPath, set[str]] = {}
        self.rules: list[Table] = []

    def resolve(self, root: Table) -> Resolved:
        name = self.root_value(root, "name", str, "a string")
        self.check_format(root)
        kind = self.root_value(root, "builder", str, "the name of a builder")
        node = None
        if isinstance(kind, str):
            leaf = root.entries["builder"]
            assert isinstance(leaf, Leaf)
            if cls := self.plugin("builder", leaf):
                node = self.node(cls, leaf, [root], (), frozenset())
                for table in (root, *self.rules):
                    self.check_unused(table)
        if self.problems or node is None:
            raise SpecError(self.problems)
        return Resolved(str(name), node)

    def root_value(self, root: Table, key: str, kind: type, expected: str) -> Any:
        self.remember(root, key)
        entry = root.entries.get(key)
        if entry is None:
            self.problems.append(
                Problem(f"the key `{key}` is missing", root.place(), f"add `{key} = ...` at the top")
            )
        elif not isinstance(entry, Leaf) or not isinstance(entry.value, kind):
            self.use(entry)
            self.problems.append(Problem(f"`{key}` must be {expected}", entry.place(value=True)))
        else:
            self.use(entry)
            if key == "name" and not _SPEC_NAME.fullmatch(entry.value):
                message = "`name` is made of letters, digits, `-`, `_` and `.`"
                self.problems.append(Problem(message, entry.place()))
            return entry.value
        return None

    def check_format(self, root: Table) -> None:
        value = self.root_value(root, "format", int, "an integer")
        if value is not None and (value != FORMAT or isinstance(value, bool)):
            place = root.entries["format"].place(value=True)
            hint = f"this zoo reads format {FORMAT}"
            self.problems.append(Problem(f"spec format {value} is not known", place, hint))

    def plugin(self, slot: str, kind: Leaf) -> type[Plugin] | None:
        try:
            return self.registry.plugin(slot, kind.value, kind.place)
        except ZooError as error:
            self.problems += [p for p in error.problems if p not in self.problems]
            return None

    def node(
        self,
        cls: type[Component],
        kind: Leaf | None,
        scope: list[Table],
        path: KeyPath,
        given: frozenset[str],
    ) -> Node:
        """Collect the values of `cls` from its own table, the last of `scope`, and those around."""
        node = Node(cls, path, scope[-1], kind)
        for name, mark in fields_of(cls).items():
            if name == "kind" or mark is GIVEN:
                continue
            if not isinstance(mark, Part):
                leaf = self.lookup(name, scope if mark is SHARED else scope[-1:])
                if leaf is not None:
                    node.values[name] = leaf
                continue
            inner = given | self.bound(node, mark)
            if isinstance(mark, LayerRules):
                node.values[name] = self.layer_rules(name, mark, node, scope, inner)
            elif isinstance(mark, Slot):
                if mark.needs is None or mark.needs in given:
                    node.values[name] = self.slot(name, mark, scope, (*path, name), inner)
            else:
                node.values[name] = self.part(cls, name, scope, (*path, name), inner)
        return node

    def bound(self, node: Node, mark: Part) -> set[str]:
        """The dimensions that the mark binds; one whose source is optional and absent does not."""
        optional = {
            name for name, info in node.cls.model_fields.items() if info.default is None
        } - node.values.keys()
        return {name for name, source in mark.given.items() if source not in optional}

    def lookup(self, name: str, tables: Sequence[Table]) -> Leaf | None:
        """The nearest value of a key; the tables run from the outermost in."""
        found: Leaf | Table | None = None
        for table in tables:
            self.remember(table, name)
            found = table.entries.get(name, found)
        if found is None:
            return None
        self.use(found)
        return found if isinstance(found, Leaf) else Leaf({}, found.document, found.path)

    def slot(
        self, name: str, slot: Slot, scope: list[Table], path: KeyPath, given: frozenset[str]
    ) -> Node | None:
        table = self.slot_table(name, slot, scope)
        if table is None:
            return None
        kind = table.entries.get("kind") or self.default_kind(slot, table)
        if not isinstance(kind, Leaf) or not isinstance(kind.value, str):
            where = ".".join(map(str, path))
            what = f"`{where}` needs a `kind`" if kind is None else "`kind` must be a string"
            self.problems.append(Problem(what, (kind or table).place(value=True), self.kinds(slot)))
            return None
        self.use(kind)
        cls = self.plugin(slot.slot, kind)
        if cls is None:
            self.use_all(table)
            return None
        self.remember(table, "kind")
        return self.node(cls, kind, [*scope, table], path, given)

    def kinds(self, slot: Slot) -> str:
        return did_you_mean("", self.registry.plugins[slot.slot])

    def slot_table(self, name: str, slot: Slot, scope: list[Table]) -> Table | None:
        """Merge what the tables in scope say of this slot, from the outermost in."""
        own = scope[-1]
        merged: Leaf | Table = Table({}, own.document, (*own.path, name))
        for table in scope if slot.inherit else scope[-1:]:
            for key in dict.fromkeys((slot.slot if slot.inherit else name, name)):
                entry = table.entries.get(key)
                self.remember(table, key)
                if entry is None:
                    continue
                self.use(entry)
                if _slot_table(entry) is None:
                    message = f"`{key}` must be the name of a {slot.slot} or a table with a `kind`"
                    place = entry.place(value=True)
                    self.problems.append(Problem(message, place, self.kinds(slot)))
                    return None
                merged = _merge_values(merged, entry)
        return _slot_table(merged)

    def default_kind(self, slot: Slot, table: Table) -> Leaf | None:
        if slot.default is not None:
            return Leaf(slot.default, table.document, table.path, stated=False)
        if default := self.registry.defaults.get(slot.slot):
            return Leaf(default.target, default.document, ("defaults", slot.slot), stated=False)
        return None

    def part(
        self,
        cls: type[Component],
        name: str,
        scope: list[Table],
        path: KeyPath,
        given: frozenset[str],
    ) -> Node | None:
        own = scope[-1]
        self.remember(own, name)
        entry = own.entries.get(name) or Table({}, own.document, (*own.path, name))
        self.use(entry)
        if not isinstance(entry, Table):
            self.problems.append(Problem(f"`{name}` must be a table", entry.place(value=True)))
            return None
        part_class: Any = cls.model_fields[name].annotation
        return self.node(part_class, None, [*scope, entry], path, given)

    def layer_rules(
        self,
        name: str,
        mark: LayerRules,
        node: Node,
        scope: list[Table],
        given: frozenset[str],
    ) -> list[Node]:
        """One node for each set of layers that the same rules speak of."""
        own = scope[-1]
        self.remember(own, name)
        entry = own.entries.get(name)
        count = node.values.get(mark.count)
        if entry is None or not isinstance(count, Leaf) or not isinstance(count.value, int):
            return []
        self.use(entry)
        if not isinstance(entry, Leaf) or not _is_list_of_tables(entry.value):
            message = f"`{name}` must be a list of tables"
            place = entry.place(value=True)
            hint = f"write [[{'.'.join(map(str, (*own.path, name)))}]]"
            self.problems.append(Problem(message, place, hint))
            return []
        rules = [
            _as_table(rule, entry.document, (*entry.path, index))
            for index, rule in enumerate(entry.value)
        ]
        self.rules += rules
        selections = [self.selected(rule, count.value) for rule in rules]
        found: list[Node] = []
        for numbers, layers in groups(selections).items():
            around = [*scope, *(rules[number] for number in numbers)]
            path = (*node.path, name, len(found))
            group = self.node(mark.group, None, around, path, given)
            group.values["at"] = Leaf(layers, around[-1].document, around[-1].path)
            found.append(group)
        return found

    def selected(self, rule: Table, n_layers: int) -> list[int]:
        stated: dict[str, Any] = {}
        for key in (*SELECTORS, START):
            self.remember(rule, key)
            entry = rule.entries.get(key)
            if entry is not None:
                self.use(entry)
                stated[key] = entry.value if isinstance(entry, Leaf) else None
        try:
            return selected(stated, n_layers)
        except RuleError as error:
            where = rule.entries[error.key] if error.key else rule
            self.problems.append(Problem(str(error), where.place(value=True)))
            return []

    # --- keys that nothing uses -----------------------------------------------------------------

    def remember(self, table: Table, name: str) -> None:
        """Note that some component looks for `name` in this table."""
        for source in table.written():
            self.known.setdefault(source.path, set()).add(name)

    def use(self, entry: Leaf | Table) -> None:
        self.used.update(entry.written() if isinstance(entry, Table) else [entry])

    def use_all(self, table: Table) -> None:
        """Note a whole table as used: its plugin is missing, so nothing can be said of its keys."""
        self.use(table)
        for entry in table.entries.values():
            if isinstance(entry, Table):
                self.use_all(entry)
            else:
                self.use(entry)

    def check_unused(self, table: Table) -> None:
        """Report keys that no component looks for, and values that never count."""
        known = self.known.get(table.path, set())
        inside = f" in `{'.'.join(map(str, table.path))}`" if table.path else ""
        for key, entry in table.entries.items():
            if entry in self.used:
                if isinstance(entry, Table):
                    self.check_unused(entry)
                continue
            place = entry.place(value=False)
            if key in known:
                message = f"{quoted(key)}{inside} has no effect: all that read it state their own"
                self.problems.append(Problem(message, place, "remove it, or the nearer values"))
            else:
                hint = did_you_mean(key, known)
                self.problems.append(Problem(f"unknown key {quoted(key)}{inside}", place, hint))


def nodes(root: Node) -> Iterator[Node]:
    """The tree's nodes, parents first."""
    yield root
    for value in root.values.values():
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, Node):
                yield from nodes(child)
