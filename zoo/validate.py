"""A resolved tree in, a `ModelSpec` out: every component is made by its own pydantic model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from zoo.component import Component, given_of
from zoo.errors import Place, Problem, SpecError, did_you_mean, quoted
from zoo.plugin_errors import describe_failure
from zoo.errors import PluginError, ZooError
from zoo.resolve import Leaf, Node, Resolved
from zoo.slots import Builder
from zoo.spec import ModelSpec

# Errors that only follow from another problem: a child that failed, a value derived from it.
_CONSEQUENCES = {"zoo_child_failed", "default_factory_not_called"}

_EXPECTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "`true` or `false`",
    "string_type": "a string",
    "tuple_type": "an array",
    "list_type": "an array",
}


def validate(resolved: Resolved) -> ModelSpec:
    """Make the components of a resolved spec.

    Raises:
        SpecError: every wrong type, value out of range, missing key and contradiction found.
        PluginError: a plugin's own validator failed with something else than a `ValueError`.
    """
    validation = _Validation()
    model = validation.make(resolved.root, {})
    if validation.problems or not isinstance(model, Builder):
        raise SpecError(validation.problems)
    return ModelSpec(resolved.name, model, resolved.root)


class _Validation:
    """Makes components from the root down and collects the problems. It is pydantic's context, so
    that each child is made with the dimensions of its already validated parent."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.enclosing: list[Node] = []

    def child(self, value: Any, given: Mapping[str, Any]) -> Component:
        component = self.make(value, given) if isinstance(value, Node) else None
        if component is None:
            raise PydanticCustomError("zoo_child_failed", "")
        return component

    def make(self, node: Node, given: Mapping[str, Any]) -> Component | None:
        wanted = given_of(node.cls)
        values: dict[str, Any] = {name: given[name] for name in wanted & given.keys()}
        if node.kind is not None:
            values["kind"] = node.kind.value
        for name, value in node.values.items():
            values[name] = value.value if isinstance(value, Leaf) else value
        self.enclosing.append(node)
        try:
            return node.cls.model_validate(values, context=self)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                if problem := self.problem(node, details):
                    self.problems.append(problem)
        except (ZooError, KeyboardInterrupt):
            raise
        except BaseException as error:
            what = f"validating {'.'.join(map(str, node.path)) or 'the spec'}"
            raise PluginError(describe_failure(what, error)) from error
        finally:
            self.enclosing.pop()
        return None

    def problem(self, node: Node, details: ErrorDetails) -> Problem | None:
        kind, path = details["type"], details["loc"]
        if kind in _CONSEQUENCES or (path and path[0] in given_of(node.cls)):
            return None
        if kind == "contradiction":
            return self.contradiction(node, details.get("ctx", {}))
        if not path:
            return Problem(_message(details), self.place_of(node))
        name = str(path[0])
        where = ".".join(map(str, (*node.path, name)))
        if kind == "missing":
            return Problem(
                f"the key `{name}` is missing: `{where}` needs it",
                self.place_of(node),
                help=f"add `{name} = ...`",
            )
        place = None
        value = node.values.get(name)
        if isinstance(value, Leaf):
            # A problem inside an array is shown at the item.
            place = value.document.place((*value.path, *path[1:]), value=True)
        return Problem(f"`{name}` {_message(details)}", place or self.place_of(node))

    def contradiction(self, node: Node, context: Mapping[str, Any]) -> Problem:
        keys = cast("tuple[str, ...]", context["keys"])
        found = {key: leaf for key in keys if (leaf := self.find(key)) is not None}
        places = [(key, leaf.place()) for key, leaf in found.items()]
        first = places[0][1] if places else self.place_of(node)
        related = tuple((f"`{key}` is here", place) for key, place in places[1:])
        return Problem(str(context["message"]), first, related=related)

    def find(self, key: str) -> Leaf | None:
        """Where a key's value was written, from the component that is being made outwards. A
        dotted key reaches into a child."""
        name, _, inner = key.partition(".")
        for node in reversed(self.enclosing):
            value = node.values.get(name)
            if isinstance(value, Node) and inner:
                value = value.values.get(inner)
            if isinstance(value, Leaf):
                return value
        return None

    def place_of(self, node: Node) -> Place:
        """Where a component was asked for: its kind, or its table."""
        return (node.kind or node.table).place()


def _message(details: ErrorDetails) -> str:
    kind, value = details["type"], details["input"]
    context: Mapping[str, Any] = details.get("ctx", {})
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}, not {_describe(value)}"
    if kind == "literal_error":
        allowed = str(context["expected"])
        names = [name.strip(" '") for name in allowed.replace(" or ", ", ").split(",")]
        return f"cannot be {_describe(value)}; {did_you_mean(str(value), names)}"
    message = details["msg"].removeprefix("Value error, ").removeprefix("Input ")
    message = message.replace("should be", "must be", 1)
    return message if kind in ("value_error", "contradiction") else f"{message}, not {_describe(value)}"


def _describe(value: object) -> str:
    if isinstance(value, bool):
        return f"the boolean `{str(value).lower()}`"
    if isinstance(value, str):
        return f"the string {quoted(value)}"
    if isinstance(value, int | float):
        return f"the {'integer' if isinstance(value, int) else 'float'} {quoted(value)}"
    return "an array" if isinstance(value, list | tuple) else "a table"
