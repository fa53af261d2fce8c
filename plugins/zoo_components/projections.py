"""Which of attention's projections have a bias."""

from typing import Annotated, Literal

from pydantic import AfterValidator

Projection = Literal["q", "k", "v", "o"]
ALL: tuple[Projection, ...] = ("q", "k", "v", "o")


def _listed(value: bool | tuple[Projection, ...]) -> tuple[Projection, ...]:
    """`true` and `false` as the list of projections that they stand for."""
    return value if isinstance(value, tuple) else ALL if value else ()


Projections = Annotated[bool | tuple[Projection, ...], AfterValidator(_listed)]
"""Some of the projections, or `true` for all and `false` for none."""
