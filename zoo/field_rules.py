"""Checks of the fields of a description. They run when its class is defined, so that a mistake is
reported there and not by its later consequences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from inspect import isfunction, signature
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic_core import PydanticKnownError, core_schema

from zoo.errors import Problem
from zoo.wording import did_you_mean, quoted

if TYPE_CHECKING:
    from pydantic import BaseModel

_TABLES = (dict, Mapping)
_LISTS = (list, set, frozenset)


def check_names(cls: type[BaseModel]) -> None:
    """Check that no field hides a constant, a property or a method of a base class, no method a
    property, and that a method can be called as that of the base class.

    Raises:
        TypeError: one does.
    """
    for name, value in vars(cls).items():
        owner = next((base for base in cls.__mro__[1:] if name in vars(base)), None)
        if owner is not None and isinstance(vars(owner)[name], property) and callable(value):
            raise TypeError(
                f"`{name}` of {cls.__name__} is a method, and a property of {owner.__name__}: "
                f"write `@property` above `def {name}(self)`"
            )
        if name.startswith("_") or owner is None:
            continue
        if isfunction(value) and isfunction(vars(owner)[name]):
            _check_arguments(cls, name, value, owner)
    for name, annotation in vars(cls).get("__annotations__", {}).items():
        owner = next((base for base in cls.__mro__[1:] if name in vars(base)), None)
        if owner is None or "ClassVar" in str(annotation):
            continue
        message = f"the field `{name}` of {cls.__name__} hides what {owner.__name__} states"
        if isinstance(vars(owner)[name], property):
            hint = f"it is a property there: write `@property` and `def {name}(self)`"
        elif name in getattr(owner, "__class_vars__", ()):
            hint = f"it is a constant there: write `{name}: ClassVar[...] = ...`"
        else:
            hint = "choose another name"
        raise TypeError(f"{message}; {hint}")


def _check_arguments(
    cls: type[BaseModel], name: str, method: Callable[..., Any], owner: type
) -> None:
    """Raise `TypeError` unless a method takes the arguments of that of the base class, by place."""
    parameters = signature(vars(owner)[name]).parameters.values()
    wanted = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    try:
        signature(method).bind(*wanted)
    except TypeError as error:
        arguments = ", ".join(parameter.name for parameter in wanted)
        raise TypeError(
            f"`{name}` of {cls.__name__} cannot be called as that of {owner.__name__}, {error}: "
            f"write `def {name}({arguments})`"
        ) from None


def undefined_type(cls: type[BaseModel], name: str) -> Problem:
    """Return the problem that `name`, in the type of a field, is not defined in the file."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    fields = [
        f"`{field}`"
        for base in cls.__mro__
        for field, annotation in vars(base).get("__annotations__", {}).items()
        if (isinstance(annotation, str) or "ForwardRef" in str(annotation))
        and word.search(str(annotation))
    ]
    where = f"{' and of '.join(fields) or 'a field'} of {cls.__name__}"
    return Problem(
        f"the type of {where} names {quoted(name)}, which is not defined",
        help="import it at the top of the file, and not under `TYPE_CHECKING`: values are checked "
        "by their types",
    )


def check_types(
    cls: type[BaseModel],
    bound: Mapping[str, Mapping[str, str] | None],
    component: type[BaseModel],
) -> None:
    """Check that each field declared by the class itself has a type that a spec can state, and that
    dimensions of components are bound to fields declared before.

    Args:
        bound: all fields in order. A field that holds a component is mapped to the earlier fields
            that its dimensions are bound to, by the dimensions; any other field to None.
        component: the base class of all descriptions.

    Raises:
        TypeError: a type is not allowed, or a dimension is bound to something other than an earlier
            field.
    """
    own, names = vars(cls).get("__annotations__", {}), list(bound)
    for name in filter(own.__contains__, names):
        sources, before = bound[name], names[: names.index(name)]
        what = f"the field `{name}` of {cls.__name__}"
        if sources is not None:
            for dimension, source in sources.items():
                first = source.partition(".")[0]
                if first not in before:
                    known = did_you_mean(first, before)
                    raise TypeError(f"{what} binds {dimension} to no field before it; {known}")
            continue
        types = list(types_in(cls.model_fields[name].annotation))
        if any(isinstance(one, type) and issubclass(one, component) for one in types):
            raise TypeError(f"{what} is a component: write `Annotated[..., Slot(...)]`")
        if any(one in _TABLES for one in types):
            raise TypeError(f"{what} is a table: make it a component, `Annotated[..., Part(...)]`")
        if any(one in _LISTS for one in types):
            raise TypeError(f"{what} can change: an array is a `tuple[..., ...]`")


def exact_choices(schema: Any) -> Any:
    """Return a pydantic schema, or a piece of one, in which a choice of numbers takes no value that
    only equals one of them in Python, as `true` and `1.0` equal 1."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(exact_choices, schema))
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "literal":
        if all(isinstance(one, str) for one in schema["expected"]):
            return schema
        refuse = partial(_refuse_equal, schema["expected"])
        return core_schema.no_info_before_validator_function(refuse, schema)
    kept = ("metadata", "default")
    return {k: piece if k in kept else exact_choices(piece) for k, piece in schema.items()}


def _refuse_equal(expected: list[Any], written: object) -> object:
    if type(written) in {type(one) for one in expected if one == written}:
        return written
    *others, last = map(repr, expected)
    names = f"{', '.join(others)} or {last}" if others else last
    raise PydanticKnownError("literal_error", {"expected": names})


def check_bound(what: str, dimensions: Iterable[str], held: type[BaseModel], given: object) -> None:
    """Check that the component in a field takes the dimensions that are bound there.

    Args:
        what: the field, for a message.
        dimensions: the names that are bound.
        held: the class of the component, which is that of the slot if a spec picks its kind.
        given: the mark of a field that a parent fills.

    Raises:
        TypeError: it does not: it would never be told the value.
    """
    if not held.__pydantic_fields_complete__:
        return  # its own types are not defined yet
    takes = [name for name, field in held.model_fields.items() if given in field.metadata]
    for name in dimensions:
        if name not in takes:
            taken = f"and {held.__name__} takes only its `Given` fields from its parent"
            raise TypeError(f"{what} binds `{name}`, {taken}; {did_you_mean(name, takes)}")


def types_in(annotation: Any) -> Iterator[Any]:
    """Yield the classes that an annotation is made of."""
    origin = get_origin(annotation)
    yield origin or annotation
    if origin not in (None, Literal):
        for part in get_args(annotation):
            yield from types_in(part)
