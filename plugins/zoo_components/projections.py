"""Which of attention's projections have a bias."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

Projection = Literal["q", "k", "v", "o"]


def _all_or_none(value: Any) -> Any:
    """`true` and `false` as the list of projections that they stand for."""
    return {True: ("q", "k", "v", "o"), False: ()}[value] if isinstance(value, bool) else value


Projections = Annotated[
    tuple[Projection, ...],
    Field(strict=False),
    BeforeValidator(_all_or_none, json_schema_input_type=bool | tuple[Projection, ...]),
]
"""Some of the projections, or `true` for all and `false` for none."""
