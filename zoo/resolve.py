"""Resolve documents into one complete tree of component tables: kinds, shared values, layer rules,
values for each layer.

Every leaf keeps the document and the key path where it was written, so that later errors and
`zoo show --resolved` can state its origin. Only names are validated here.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from zoo.budget import raising
from zoo.component import (
    GIVEN,
    SHARED,
    Component,
    LayerRules,
    Part,
    Slot,
    fields_of,
    layer_rules_of,
)
from zoo.document import Document, KeyPath
from zoo.errors import Findings, PluginError, Problem, ZooError
from zoo.extends import NAME_PATTERN, NAME_RULE, with_parents
from zoo.registry import Registry
from zoo.resolving.kinds import Kinds
from zoo.resolving.layer_rules import LayerRuleTables, alike, groups
from zoo.resolving.layer_values import Layer, LayerValues
from zoo.resolving.node import Node, Resolved
from zoo.resolving.tables import (
    FOR_EACH_LAYER,
    REFUSED,
    Leaf,
    Table,
    described,
    long_form,
    merge_values,
)
from zoo.resolving.usage import Usage
from zoo.spec import FORMAT
from zoo.wording import allowed, did_you_mean, dotted, nearest, quoted


def resolve(document: Document, registry: Registry) -> Resolved:
    """Find the parents, the plugins and the shared values of a spec.

    Problems with single names and values (unknown keys and kinds, a wrong `format`, a plugin that
    cannot be loaded) are collected in the result's findings, so that validation can add to them.

    Raises:
        SpecError: resolving cannot continue: there is no known builder, or `extends` is wrong.
        PluginError: the same, and a plugin could not be loaded.
    """
    findings = Findings()
    root = with_parents(document, registry, findings)
    return _Resolver(root, registry, findings).resolve()


class _Scope(NamedTuple):
    """Where the values of a component are looked up.

    Args:
        tables: the tables from the top level to the component's own.
        path: the key path of the component in the resolved spec.
        given: the dimensions that the enclosing components pass to it.
        layer: the layer that it is resolved for, inside what may differ between the layers of a
            stack; None elsewhere.
    """

    tables: tuple[Table, ...]
    path: KeyPath = ()
    given: frozenset[str] = frozenset()
    layer: Layer | None = None

    @property
    def own(self) -> Table:
        """The component's own table."""
        return self.tables[-1]

    def within(self, table: Table, *keys: str | int) -> _Scope:
        """Return the scope of the component at these keys, whose own table this is."""
        return self._replace(tables=(*self.tables, table), path=(*self.path, *keys))


class _Resolver:
    """Resolves one spec. `slots` maps the path of each table that was read, or could have been
    stated, to the slot that it fills."""

    def __init__(self, root: Table, registry: Registry, findings: Findings) -> None:
        self.root = root
        self.registry = registry
        self.findings = findings
        self.usage = Usage(self.of_other_kinds)
        self.slots: dict[KeyPath, str] = {(): "builder"}
        self.kinds = Kinds(registry, findings)
        self.rules = LayerRuleTables(self.usage, findings)
        self.values = LayerValues(self.usage, findings)

    def resolve(self) -> Resolved:
        name = self.top_level("name", str, "a string")
        if name is not None and not NAME_PATTERN.fullmatch(name.value):
            self.findings.add(Problem(f"`name` has {NAME_RULE}", name.place()))
        version = self.top_level("format", int, "an integer")
        if version is not None and version.value != FORMAT:
            message = f"spec format {version.value} is not known"
            hint = f"this zoo reads format {FORMAT}"
            self.findings.add(Problem(message, version.place(), hint))
        builder = self.top_level("builder", str, "the name of a builder")
        cls = self.kinds.plugin("builder", builder) if builder is not None else None
        if cls is None:
            raise self.findings.error()
        node = self.node(cls, builder, _Scope((self.root,)))
        for table in (self.root, *self.rules.tables, *self.values.tables):
            self.usage.report_unused(table, self.findings, self.is_of_parents)
        for problem in self.values.unread(lambda where: where in self.used_by_parents):
            self.findings.add(problem)
        return Resolved(name.value if name is not None else "", node, self.findings)

    def top_level(self, key: str, kind: type, expected: str) -> Leaf | None:
        """Return the value of a key that every spec must state; None, with a problem, if it is
        missing or not of type `kind`."""
        self.usage.remember(self.root, key)
        entry = self.root.entries.get(key)
        if entry is None:
            hint = f"add `{key} = {FORMAT if key == 'format' else '...'}` at the top"
            place = self.root.place()
            # Without a builder no component reads the other keys, and typos could not be found.
            if key == "builder" and (near := nearest(key, self.root.entries)):
                hint, place = f"did you mean `{key}`?", self.root.entries[near].place(value=False)
            self.findings.add(Problem(f"the key `{key}` is missing", place, hint))
            return None
        self.usage.use(entry)
        value = entry.value if isinstance(entry, Leaf) else {}
        if isinstance(entry, Leaf) and isinstance(value, kind) and not isinstance(value, bool):
            return entry
        message = f"`{key}` must be {expected}, not {described(value)}"
        kinds = allowed(self.registry.plugins["builder"]) if key == "builder" else None
        self.findings.add_once(Problem(message, entry.place(value=True), kinds))
        return None

    def of_other_kinds(self, table: KeyPath, key: str) -> str | None:
        """Return a help text that names the other kinds with a key for the slot that a table fills,
        if there are any. The top level is the table of the builder. For a key that nothing in the
        spec reads, the kinds for all its slots count."""
        own = self.slots.get(table)
        having = self.kinds.having(own, key) if own is not None else None
        if having or any(key in names for names in self.usage.known.values()):
            return f"{quoted(key)} is a key of {having}" if having else None
        others = [
            found
            for slot in sorted({*self.slots.values()})
            if (found := self.kinds.having(slot, key))
        ]
        return f"{quoted(key)} is a key of {', and of '.join(others)}" if others else None

    def node(
        self, cls: type[Component], kind: Leaf | None, scope: _Scope, *, without: str | None = None
    ) -> Node:
        """Collect the values of a component of class `cls`, but for that of the field `without`."""
        node = Node(cls, scope.path, scope.own, kind)
        marks, rules = fields_of(cls), layer_rules_of(cls)
        count = first = None
        if rules:
            count = self.within_budget(self.lookup(rules.count, marks[rules.count], scope))
            first = Layer(0, count)
        for name, mark in marks.items():
            if name in ("kind", without) or mark is GIVEN:
                continue
            if not isinstance(mark, Part):
                leaf = count if rules and name == rules.count else self.lookup(name, mark, scope)
                if leaf is not None:
                    node.values[name] = leaf
                continue
            inner = scope._replace(given=scope.given | self.bound(node, mark))
            if rules and name in fields_of(rules.group):
                # What may differ between layers: the stack's own is what its first layer has.
                inner = inner._replace(layer=first)
            if isinstance(mark, LayerRules) and first is not None:
                node.values[name] = self.layer_rules(name, mark, first, inner)
            elif isinstance(mark, Slot):
                if mark.needs is None or mark.needs in scope.given:
                    node.values[name] = self.slot(name, mark, inner)
            else:
                node.values[name] = self.part(name, mark.held_in(cls, name), inner)
        return node

    def bound(self, node: Node, mark: Part) -> set[str]:
        """Return the dimensions that the mark passes on, without those whose source is absent."""
        optional = {
            name for name, info in node.cls.model_fields.items() if info.default is None
        } - node.values.keys()
        return {name for name, source in mark.given.items() if source not in optional}

    def lookup(self, name: str, mark: object, scope: _Scope) -> Leaf | None:
        """Return the value of a field with this mark: if it is shared, the nearest one."""
        found: Leaf | Table | None = None
        for table in scope.tables if mark is SHARED else scope.tables[-1:]:
            self.usage.remember(table, name)
            nearer = table.entries.get(name)
            if nearer is None:
                continue
            if found is not None:
                self.usage.cover(found, nearer)
            found = nearer
        if found is None:
            return None
        found = self.values.of_layer(scope.layer, name, found)
        self.usage.use_all(found)
        # Validation will say that no table belongs here.
        return found if isinstance(found, Leaf) else Leaf({}, found.document, found.path)

    def slot(self, name: str, slot: Slot, scope: _Scope) -> Node | None:
        """Return the component of a slot; None, with a problem, if its plugin is unknown."""
        outer = scope.own.entries.get("kind") or scope.own
        if slot.slot not in self.registry.plugins:
            message = f"the field `{name}` of `{dotted(scope.path)}` is of the slot "
            message += f"{quoted(slot.slot)}, which there is not"
            hint = did_you_mean(slot.slot, self.registry.plugins)
            problem = Problem(message, outer.place(value=True), hint)
            self.findings.add_error(PluginError(problem))
            return None
        table = self.slot_table(name, slot, scope)
        inner = scope.within(table, name)
        limit = self.registry.budget.key_depth
        if len(inner.path) > limit:
            message = f"components are nested more than {limit} deep: `{dotted(inner.path[:6])}...`"
            self.findings.add(Problem(message, outer.place(value=True), raising("key_depth")))
            return None
        kind = self.kind(slot, table, inner.path)
        cls = self.kinds.plugin(slot.slot, kind) if kind is not None else None
        if kind is not None and any(around.entries.get("kind") is kind for around in scope.tables):
            # Inside, the same statement would be found again, without end.
            message = f"{quoted(kind.value)} would be its own `{name}`, which takes what is stated "
            message += f"for `{slot.slot}` around it"
            hint = f"state another kind for its `{name}`; a plugin rules this out by "
            hint += f'`Slot("{slot.slot}", inherit=False)`'
            self.findings.add_once(Problem(message, kind.place(value=True), hint))
        elif cls is not None:
            return self.node(cls, kind, inner)
        # The meaning of the table is unknown. Enclosing keys are read as by the default kind.
        self.usage.use_all(table)
        default = self.default_kind(slot, table)
        if default and (default_class := self.kinds.if_it_loads(slot.slot, default.value)):
            empty = Table({}, table.document, table.path)
            self.node(default_class, None, scope.within(empty, name))
        return None

    def kind(self, slot: Slot, table: Table, path: KeyPath) -> Leaf | None:
        """Return the kind that a slot's table names, or the default; None, with a problem, if it is
        not a name or there is none."""
        for source in table.written():
            self.usage.remember(source, "kind")
            if entry := source.entries.get("kind"):
                self.usage.use(entry)
        kind = table.entries.get("kind") or self.default_kind(slot, table)
        if kind is None:
            message = f"`{dotted(path)}` needs a `kind`"
            self.findings.add(Problem(message, table.place(value=True), self.allowed(slot)))
        elif not isinstance(kind, Leaf) or not isinstance(kind.value, str):
            message = f"`kind` must be a string, not {described(getattr(kind, 'value', {}))}"
            problem = Problem(message, kind.place(value=True), self.allowed(slot))
            self.findings.add_once(problem)
        else:
            return kind
        return None

    def allowed(self, slot: Slot) -> str:
        return allowed(self.registry.plugins[slot.slot])

    def slot_table(self, name: str, slot: Slot, scope: _Scope) -> Table:
        """Merge the tables of this slot in scope, from the outermost inwards."""
        merged = _empty(scope.own, name)
        self.slots[merged.path] = slot.slot
        for table in scope.tables if slot.inherit else scope.tables[-1:]:
            for key in dict.fromkeys((slot.slot if slot.inherit else name, name)):
                entry = table.entries.get(key)
                self.usage.remember(table, key)
                if entry is None:
                    continue
                entry = self.values.of_layer(scope.layer, key, entry)
                self.slots[entry.path] = slot.slot
                self.usage.cover(merged, long_form(entry) or entry)
                over = long_form(merge_values(merged, entry))
                if over is not None:
                    merged = over
                    continue
                message = f"`{key}` must be a name or a table with a `kind`"
                hint = self.allowed(slot)
                self.usage.use_all(entry)
                if isinstance(entry, Leaf):  # and not values for each layer, as the value for one
                    message += f", not {described(entry.value)}"
                    if scope.layer is not None and isinstance(entry.value, list | tuple):
                        hint = FOR_EACH_LAYER
                problem = Problem(message, entry.place(value=True), hint)
                self.findings.add_once(problem)
        self.usage.use(merged)
        return merged

    def default_kind(self, slot: Slot, table: Table) -> Leaf | None:
        if slot.default is not None:
            return Leaf(slot.default, table.document, table.path, stated=False)
        if default := self.registry.defaults.get(slot.slot):
            return Leaf(default.target, default.document, ("defaults", slot.slot), stated=False)
        return None

    def part(self, name: str, cls: type[Component], scope: _Scope) -> Node:
        """Return the component in a field whose class is known."""
        self.usage.remember(scope.own, name)
        table = scope.own.entries.get(name) or _empty(scope.own, name)
        self.usage.use(table)
        if not isinstance(table, Table):
            message = f"`{name}` must be a table, not {described(table.value)}"
            hint = f"write its keys below `[{dotted((*scope.path, name))}]`"
            self.findings.add_once(Problem(message, table.place(), hint))
            table = _empty(scope.own, name)
        return self.node(cls, None, scope.within(table, name))

    def layer_rules(self, name: str, mark: LayerRules, first: Layer, scope: _Scope) -> list[Node]:
        """Return one node for each set of layers to which the same rules apply, and for which the
        same is stated wherever there is a value for each layer. `first` is the first layer as the
        stack has it."""
        self.usage.remember(scope.own, name)
        entry = scope.own.entries.get(name)
        rules = [] if entry is None else self.rules.tables_of(name, entry)
        if first.n_layers is None:
            return []
        selections = self.rules.selections(rules, first)
        if selections is None:
            return []
        ruled = {layer for layers in selections for layer in layers}
        unruled = [layer for layer in range(first.n_layers) if layer not in ruled]
        # The stack's own values are those of layer 0. A layer without a rule needs a node of its
        # own only where a list states something else for it.
        of_stack, *others = alike([0, *unruled], first.lists.values())
        self.values.read(first, of_stack)
        # By their first layers, so that the full form of a spec is read as the same spec.
        left = [(layers, numbers) for numbers, layers in groups(selections).items()]
        left += [(layers, ()) for layers in others]
        heapify(left)
        found: list[Node] = []
        while left:
            layers, numbers = heappop(left)
            layer = Layer(layers[0], first.count)
            group = self.node(
                mark.group,
                None,
                scope._replace(
                    tables=(*scope.tables, *(rules[number] for number in numbers)),
                    path=(*scope.path, name, len(found)),
                    layer=layer,
                ),
                without="at",  # which no rule states for layers that differ by their values alone
            )
            same, *others = alike(layers, layer.lists.values())
            self.values.read(layer, same)
            for layers in others:
                heappush(left, (layers, numbers))
            group.values["at"] = Leaf(same, group.table.document, group.table.path)
            found.append(group)
        return found

    def within_budget(self, count: Leaf | None) -> Leaf | None:
        """Return a number of layers; if it is more than allowed, with a problem, a value that is no
        number, so that no description is made that lists so many."""
        limit = self.registry.budget.layers
        if count is None or type(count.value) is not int or count.value <= limit:
            return count
        message = f"the stack has {count.value:,} layers, more than {limit:,}"
        self.findings.add(Problem(message, count.place(), raising("layers")))
        return Leaf(REFUSED, count.document, count.path)

    @cached_property
    def used_by_parents(self) -> set[tuple[Document, KeyPath]]:
        """Return the values that the extended specs use on their own. If a spec picks another kind,
        these have no effect, which is not its mistake: it cannot remove them from their files."""
        found: set[tuple[Document, KeyPath]] = set()
        for parent in self.root.merged[:1]:
            alone = _Resolver(parent, self.registry, Findings())
            with suppress(ZooError):
                alone.resolve()
            found |= alone.usage.places() | alone.used_by_parents
        return found

    def is_of_parents(self, entry: Leaf | Table) -> bool:
        return (entry.document, entry.path) in self.used_by_parents


def _empty(own: Table, name: str) -> Table:
    """Return the table in place of one that is not written, at the key `name` of another."""
    return Table({}, own.document, (*own.path, name))
