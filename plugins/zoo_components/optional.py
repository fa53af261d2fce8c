"""Numbers that a spec can switch off with the word "none", where an outer table states them."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Discriminator, Tag

from zoo.component import PositiveFloat, Size

T = TypeVar("T", int, float)


def _tag(value: Any) -> str | None:
    if value == "none":
        return "none"
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number_or_none(expected: str) -> Discriminator:
    # A plain union would report a problem for each alternative.
    return Discriminator(
        _tag,
        custom_error_type="number_or_none",
        custom_error_message=f'Input should be {expected} or "none"',
    )


SizeOrNone = Annotated[
    Annotated[Size, Tag("number")] | Annotated[Literal["none"], Tag("none")],
    _number_or_none("an integer"),
]
"""A count or a width, or "none"."""
PositiveFloatOrNone = Annotated[
    Annotated[PositiveFloat, Tag("number")] | Annotated[Literal["none"], Tag("none")],
    _number_or_none("a number"),
]


def number(value: T | Literal["none"]) -> T | None:
    """The number, or None for "none"."""
    return None if isinstance(value, str) else value
