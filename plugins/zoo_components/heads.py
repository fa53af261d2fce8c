"""The numbers and widths of attention heads, and the temperature of their queries."""

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from zoo.component import Shared, Size, contradiction
from zoo.only_with import stated
from zoo.slots import Attention

if TYPE_CHECKING:
    from zoo_components.attention import MultiHead
    from zoo_components.latent import Latent
    from zoo_components.modules.heads import Temperature


def default_head_dim(data: dict[str, Any]) -> int:
    """d_model / n_heads, of the fields before `head_dim`."""
    return max(1, data["d_model"] // data["n_heads"])


def check_default_head_dim(attention: Attention, n_heads: int) -> None:
    """Raise a contradiction if an attention does not state its `head_dim`, and d_model is not
    divisible by n_heads."""
    if "head_dim" not in attention.model_fields_set and attention.d_model % n_heads:
        raise contradiction(
            f"d_model = {attention.d_model} is not divisible by n_heads = {n_heads}; state "
            "`head_dim`, or change one of the two",
            "n_heads",
            "d_model",
        )


class OfHeads(Attention):
    """What kinds of attention have in common whose heads are all of one width."""

    n_heads: Shared[Size]
    """The number of heads."""
    head_dim: Shared[Size] = Field(default_factory=default_head_dim)
    """The width of a head; d_model / n_heads by default."""

    @model_validator(mode="after")
    def _check_head_dim(self) -> Self:
        check_default_head_dim(self, self.n_heads)
        return self


def check_divisible(**numbers: int) -> None:
    """Raise a contradiction if the first of two fields, given by their names, is not divisible by
    the other."""
    (whole, n_whole), (parts, n_parts) = numbers.items()
    if n_whole % n_parts:
        message = f"{whole} = {n_whole} is not divisible by {parts} = {n_parts}"
        raise contradiction(message, parts, whole)


def against_fused(*, sinks: bool, softcap: bool, mixing: bool = False) -> str | None:
    """Return what of attention no fused kernel computes, for a message; None if one can."""
    if mixing:
        return "fused kernels mix no heads"
    if sinks:
        return "fused kernels know no `sinks`"
    return "fused kernels know no `softcap`" if softcap else None


def heads_text(n_heads: int, n_kv_heads: int, head_dim: int) -> str:
    """The heads in words: `8 heads of 64`, or `32 over 8 heads of 128`."""
    groups = "" if n_kv_heads == n_heads else f" over {n_kv_heads}"
    return f"{n_heads}{groups} {'head' if n_kv_heads == 1 else 'heads'} of {head_dim}"


def temperature_of(attention: "MultiHead | Latent") -> "Temperature | None":
    """The temperature that a description states; None if it states none."""
    from zoo_components.modules.heads import Temperature

    form = attention.q_temperature
    if form is None or form == "none":
        return None
    return Temperature(
        form=form,
        scale=stated(attention.q_temperature_scale),
        floor=stated(attention.q_temperature_floor),
        shift=stated(attention.q_temperature_shift),
    )
