"""Which of attention's projections have a bias."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator

Projection = Literal["q", "k", "v", "o"]
ALL: tuple[Projection, ...] = ("q", "k", "v", "o")


def _listed(value: bool | tuple[Projection, ...]) -> tuple[Projection, ...]:
    """Replace `true` and `false` by the list of projections that they stand for."""
    return value if isinstance(value, tuple) else ALL if value else ()


if TYPE_CHECKING:
    Projections = tuple[Projection, ...]  # what a field holds after validation
else:
    Projections = Annotated[bool | tuple[Projection, ...], AfterValidator(_listed)]
"""Some of the projections, or `true` for all and `false` for none."""
