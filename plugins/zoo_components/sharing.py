"""Which layers of a stack use the same weights."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

Number = Annotated[int, Field(ge=0)]


def _checked(value: bool | tuple[int, ...], info: ValidationInfo) -> bool | tuple[int, ...]:
    """A list that says what `true` or `false` says becomes that, so that the same model has the
    same digest."""
    n_layers = info.data.get("n_layers")
    if isinstance(value, bool) or n_layers is None:  # it has a problem of its own
        return value
    if len(value) != n_layers:
        raise ValueError(f"has {len(value)} numbers for {n_layers} layers; each layer needs one")
    used = set(value)
    if max(used) >= len(used):
        missing = next(number for number in range(n_layers) if number not in used)
        raise ValueError(
            f"names the weights {max(used)} and never {missing}: they are numbered from 0, "
            "without gaps"
        )
    if value == tuple(range(n_layers)):
        return False
    return True if used == {0} else value


SharedLayers = Annotated[
    bool | Annotated[tuple[Number, ...], Field(strict=False)], AfterValidator(_checked)
]
"""Whether all layers use the same weights, or for each layer the number of those that it uses. It
goes beside a field `n_layers` that is declared before it."""
