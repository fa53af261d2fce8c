"""What the fields of a description may be: a mistake is told at its `class` line, when the file is
imported, and not by what it leads to later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args, get_origin

from zoo.errors import did_you_mean

if TYPE_CHECKING:
    from zoo.component import Component, Part

_TABLES = (dict, Mapping)
_LISTS = (list, set, frozenset)


def check_names(cls: type[Component]) -> None:
    """No field hides what a class above states otherwise: a constant, a property or a method.

    Raises:
        TypeError: one does.
    """
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


def check_types(
    cls: type[Component], marks: Mapping[str, Part | None], component: type[Component]
) -> None:
    """Each field that a class itself states can hold what a spec says, and each component in one is
    given what it needs.

    Args:
        marks: for each field in order, its mark if that is of a component.
        component: the class of all descriptions.

    Raises:
        TypeError: one cannot, or a dimension is bound to what is no field before it.
    """
    own, names = vars(cls).get("__annotations__", {}), list(marks)
    for name in filter(own.__contains__, names):
        mark, before = marks[name], names[: names.index(name)]
        types = list(_types(cls.model_fields[name].annotation))
        what = f"the field `{name}` of {cls.__name__}"
        if mark is not None:
            for dimension, source in mark.sources.items():
                first = source.partition(".")[0]
                if first not in before:
                    known = did_you_mean(first, before)
                    raise TypeError(f"{what} binds {dimension} to no field before it; {known}")
        elif any(isinstance(one, type) and issubclass(one, component) for one in types):
            raise TypeError(f"{what} is a component: write `Annotated[..., Slot(...)]`")
        elif any(one in _TABLES for one in types):
            raise TypeError(f"{what} is a table: make it a component, `Annotated[..., Part(...)]`")
        elif any(one in _LISTS for one in types):
            raise TypeError(f"{what} can change: an array is a `tuple[..., ...]`")


def _types(annotation: Any) -> Iterator[Any]:
    """The classes that an annotation is made of."""
    yield get_origin(annotation) or annotation
    for part in get_args(annotation):
        yield from _types(part)
