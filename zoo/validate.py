"""Make validated components of a resolved tree: pydantic checks every value by its plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from zoo.component import (
    FAILED,
    GIVEN,
    SHARED,
    Component,
    Part,
    fields_of,
    given_of,
    layer_rules_of,
)
from zoo.document import KeyPath
from zoo.errors import Place, PluginError, Problem
from zoo.field_rules import types_in
from zoo.registering.plugin_errors import describe_failure, plugin_code
from zoo.resolving.node import Node, Resolved
from zoo.resolving.tables import FOR_EACH_LAYER, FOR_SOME_LAYERS, Leaf
from zoo.slots import Builder
from zoo.spec import ModelSpec
from zoo.validating.idle_values import IdleValues, idle_placements
from zoo.validating.missing_keys import MissingKeys
from zoo.validating.value_errors import (
    deepest,
    nearest_literal,
    path_in,
    value_message,
)
from zoo.wording import dotted, quoted

# Errors that only follow from others: a child that failed, a value derived from it.
_DERIVED = {"default_factory_not_called"}
_CONSEQUENCES = {"zoo_child_failed", *_DERIVED}


def validate(resolved: Resolved) -> ModelSpec:
    """Make the components of a resolved spec.

    Raises:
        SpecError: with every problem found by `resolve` or here: wrong types, values out of range,
            missing keys, contradictions.
        PluginError: likewise, if a plugin could not be loaded or has failed.
    """
    validation = _Validation(resolved)
    model = validation.make(resolved.root, {})
    for problem in validation.idle.problems(resolved.root):
        validation.findings.add_once(problem)
    validation.findings.add(*idle_placements(resolved.root))
    validation.finish()
    if validation.findings or not isinstance(model, Builder):
        raise validation.findings.error()
    return ModelSpec(resolved.name, model, resolved.root)


class _Validation:
    """Makes components from the root down and collects the problems. It is pydantic's context, so
    that each child is made with the dimensions of its validated parent."""

    def __init__(self, resolved: Resolved) -> None:
        self.findings = resolved.findings
        self.enclosing: list[Node] = []
        self.missing = MissingKeys()
        self.not_given: list[Problem] = []
        self.root = resolved.root
        self.idle = IdleValues()

    def child(self, value: Any, given: Mapping[str, Any]) -> Component:
        component = self.make(value, given) if isinstance(value, Node) else None
        if component is None:
            raise PydanticCustomError("zoo_child_failed", "")
        return component

    def without_effect(self, name: str, reason: str) -> None:
        self.idle.add(self.enclosing[-1], name, reason)

    def make(self, node: Node, given: Mapping[str, Any]) -> Component | None:
        # If the parent has this dimension as a field and does not pass it, its value was wrong.
        outer = self.enclosing[-1].cls.model_fields if self.enclosing else {}
        values: dict[str, Any] = {
            name: given.get(name, FAILED)
            for name in given_of(node.cls)
            if name in given or name in outer
        }
        if node.kind is not None:
            values["kind"] = node.kind.value
        for name, value in node.values.items():
            found = _fixed(value.value) if isinstance(value, Leaf) else value
            values[name] = FAILED if value is None else found
        self.enclosing.append(node)
        try:
            with plugin_code(f"validating {_named(node)}", lambda: self.place_of(node)):
                try:
                    return _validated(node.cls, values, self)
                except ValidationError as error:
                    errors = error.errors(include_url=False)
                    self.add(node, errors)
                    return self.make_with_defaults(node, values, errors)
        except PluginError as error:
            self.findings.add_error(error)
            return None
        finally:
            self.enclosing.pop()

    def make_with_defaults(
        self, node: Node, values: Mapping[str, Any], errors: Sequence[ErrorDetails]
    ) -> Component | None:
        """Return the component with defaults in place of wrong values, so that its other values and
        the enclosing components can be checked too."""
        wrong = {str(e["loc"][0]) for e in errors if e["loc"] and e["type"] not in _DERIVED}
        for name in wrong:
            if not isinstance(node.values.get(name), Leaf):
                return None
        rest = {name: value for name, value in values.items() if name not in wrong}
        try:
            return _validated(node.cls, rest, self) if wrong else None
        except ValidationError as error:
            for details in error.errors(include_url=False):
                keys = details.get("ctx", {}).get("keys", ())
                if details["type"] == "contradiction" and wrong.isdisjoint(keys):
                    self.add_of_component(node, details)
            return None

    def add(self, node: Node, errors: Sequence[ErrorDetails]) -> None:
        """Record the errors of pydantic for one component, one problem for each value."""
        fields: dict[str, list[ErrorDetails]] = {}
        for details in errors:
            if details["type"] in _CONSEQUENCES:
                continue
            if not details["loc"]:
                self.add_of_component(node, details)
                continue
            fields.setdefault(str(details["loc"][0]), []).append(details)
        for name, found in fields.items():
            value = {name: getattr(node.values.get(name), "value", None)}
            by_path: dict[KeyPath, list[ErrorDetails]] = {}
            for details in deepest(value, found):
                by_path.setdefault(path_in(value, details["loc"])[1:], []).append(details)
            for path, same in by_path.items():
                self.add_of_field(node, name, path, same)

    def add_of_component(self, node: Node, details: ErrorDetails) -> None:
        context: Mapping[str, Any] = details.get("ctx", {})
        if details["type"] == "contradiction":
            self.add_contradiction(node, context)
        elif details["type"] == "missing_dimension":
            self.add_missing_dimension(node, **context)
        elif details["type"] == "assertion_error":
            self.add_assertion(node, context["error"])
        else:
            self.findings.add(Problem(value_message(details), self.place_of(node)))

    def add_missing_dimension(self, node: Node, name: str, otherwise: str) -> None:
        """Record the key that an optional dimension comes from, which is not stated."""
        key, source = self.source_of(name)
        also = f", or {otherwise}" if otherwise else ""
        self.missing.add(key, source, self.place_of(source), node.path, also=also)

    def source_of(self, name: str) -> tuple[str, Node]:
        """Return the field that a dimension of the component that is being made comes from, and the
        enclosing component that has this field."""
        source = self.enclosing[-1]
        for around in reversed(self.enclosing[:-1]):
            if fields_of(source.cls).get(name) is not GIVEN:
                break
            mark = fields_of(around.cls)[str(source.path[len(around.path)])]
            assert isinstance(mark, Part)
            name, source = mark.given.get(name, name), around
        return name, source

    @cached_property
    def read_differently(self) -> set[Leaf]:
        """The values that several components read, whose fields do not all take the same."""
        takes: dict[Leaf, set[str]] = {}
        for node in self.root.walk():
            for name, leaf in node.values.items():
                if isinstance(leaf, Leaf):
                    field = node.cls.model_fields[name]
                    takes.setdefault(leaf, set()).add(f"{field.annotation} {field.metadata}")
        return {leaf for leaf, found in takes.items() if len(found) > 1}

    def add_assertion(self, node: Node, error: BaseException) -> None:
        """Record a failed `assert`, which is a bug of the plugin and not a mistake of the user."""
        what = f"validating {_named(node)}"
        problem = describe_failure(what, error, self.place_of(node))
        self.findings.add_error(PluginError(problem))

    def add_of_field(
        self, node: Node, name: str, path: KeyPath, same: Sequence[ErrorDetails]
    ) -> None:
        leaf = node.values.get(name)
        missing = same[0]["type"] == "missing" and len(same[0]["loc"]) == 1
        if name in given_of(node.cls):
            who = f"`{node.kind.value}`" if node.kind else node.cls.__name__
            message = f"{who} needs the dimension `{name}`, which its parent does not give"
            if not missing:
                wrong = value_message(*same)
                message = f"{who} gets the dimension `{name}` from its parent: it {wrong}"
            hint = f"the plugin around it has to bind it: `Slot(..., {name}=...)`"
            self.not_given.append(Problem(message, self.place_of(node), hint))
        elif missing:
            shared = fields_of(node.cls)[name] is SHARED
            if not shared and self.findings.tells_of(self.place_of(node)):
                return  # its kind is unknown, and the class that needs the key is a guess
            path = (*node.path, name)
            self.missing.add(name, node, self.place_of(node), path, shared=shared)
        elif same[0]["type"] == "assertion_error":
            self.add_assertion(node, same[0].get("ctx", {})["error"])
        else:
            place = self.place_of(node)
            if isinstance(leaf, Leaf):  # a problem inside an array is shown at the item
                place = leaf.document.place((*leaf.path, *path), value=True)
            whose, help_ = "", nearest_literal(same)
            if isinstance(leaf, Leaf) and leaf in self.read_differently:
                whose = f" of `{dotted(node.path)}`"
                help_ = help_ or "the table of each component may state its own: the nearest counts"
            if self.is_for_each_layer(node, name):
                is_table = isinstance(same[0]["input"], dict)
                help_ = help_ or (FOR_SOME_LAYERS if is_table else FOR_EACH_LAYER)
            message = f"`{name}`{whose} {value_message(*same)}"
            self.findings.add_once(Problem(message, place, help_))

    def is_for_each_layer(self, node: Node, name: str) -> bool:
        """Return whether an array or a table is stated in place of a value that may differ between
        the layers of a stack, and that is neither."""
        leaf = node.values[name]
        has_several = isinstance(leaf, Leaf) and isinstance(leaf.value, list | tuple | dict)
        if not has_several or tuple in types_in(node.cls.model_fields[name].annotation):
            return False
        for around in self.enclosing:
            marks, inside = fields_of(around.cls), node.path[len(around.path) :]
            rules = layer_rules_of(around.cls)
            if rules and inside:
                name = str(inside[0])
                return marks[name] is rules or name in fields_of(rules.group)
        return False

    def finish(self) -> None:
        """Report the missing keys. If nothing else explains the failure, also report the first
        dimension that is missing; the others follow from it."""
        self.findings.add(*self.missing.problems())
        if not self.findings and self.not_given:
            self.findings.add_error(PluginError(self.not_given[0]))

    def add_contradiction(self, node: Node, context: Mapping[str, Any]) -> None:
        keys = cast("tuple[str, ...]", context["keys"])
        found = {key: leaf for key in keys if (leaf := self.find(key)) is not None}
        given = given_of(node.cls)  # such a key has another name where it is written
        places = {
            leaf.place(): str(leaf.path[-1]) if key in given else key
            for key, leaf in reversed(found.items())
        }
        first, *others = reversed(places) if places else [self.place_of(node)]
        related = tuple((f"`{places[place]}` is here", place) for place in others)
        self.findings.add(Problem(str(context["message"]), first, related=related))

    def find(self, key: str) -> Leaf | None:
        """Find where the value of a key was written: where the dimension of this name comes from,
        in the component that is being made, in an enclosing one, or otherwise in one beside it. A
        dotted key refers to a child; a number in it, to one of several."""
        given, source = self.source_of(key)
        if isinstance(leaf := source.values.get(given), Leaf) and leaf.stated:
            return leaf
        name, _, inner = key.partition(".")
        for node in reversed(self.enclosing):
            value = node.values.get(name)
            for step in inner.split(".") if inner else ():
                if isinstance(value, Node):
                    value = value.kind if step == "kind" else value.values.get(step)
                elif isinstance(value, list):
                    value = value[int(step)]
            if isinstance(value, Leaf) and value.stated:
                return value
        for around in self.enclosing[-2:-1] if not inner else ():
            for node in around.walk():
                value = node.values.get(name)
                if isinstance(value, Leaf):
                    return value
        return None

    def place_of(self, node: Node) -> Place:
        """Return the place that requests a component: its kind, its table, or an enclosing one."""
        for around in reversed(self.enclosing[: self.enclosing.index(node) + 1]):
            if around.kind is not None and around.kind.stated:
                return around.kind.place()
            if around.table.document.holds(around.table.path):
                return around.table.place()
        return node.table.place()


def _validated(cls: type[Component], values: Mapping[str, Any], context: _Validation) -> Component:
    found: object = cls.model_validate(values, context=context)
    if not isinstance(found, cls):
        hint = "a validator `after` ends with `return self`"
        raise TypeError(f"a validator of {cls.__name__} returned {quoted(found)}; {hint}")
    for name in values:
        if getattr(found, name) is not None:
            continue
        if type(None) not in get_args(cls.model_fields[name].annotation):
            hint = "a validator of a field ends with `return value`"
            raise TypeError(f"a validator of {cls.__name__} made None of `{name}`; {hint}")
    return found


def _fixed(value: Any) -> Any:
    """Return a value in the immutable form that descriptions hold: an array becomes a tuple."""
    return tuple(map(_fixed, value)) if isinstance(value, list | tuple) else value


def _named(node: Node) -> str:
    return f"`{dotted(node.path)}`" if node.path else "the spec"
