"""Attention to the keys and values of an earlier layer: the `attention` slot."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from zoo.component import Given, Shared, contradiction
from zoo.layout import Layout
from zoo.slots import KeyForm, Norm
from zoo_components.attention import MultiHead
from zoo_components.projections import Projection, Projections

if TYPE_CHECKING:
    from torch import nn


def _of_own_maps(stated: tuple[Projection, ...]) -> tuple[Projection, ...]:
    """Leave out the projections that the layer does not have, whatever is stated around it."""
    return tuple(name for name in stated if name in ("q", "o"))


class CrossLayer(MultiHead):
    """The attention `multi_head` without keys and values of its own: the layer attends to those of
    the last layer before it that has some, sees as far (the same `window` or `chunk`) and has the
    same positions (Cross-Layer Attention: Brandon et al. 2024, arXiv:2405.12981; YOCO: Sun et al.
    2024, arXiv:2405.05254; the last layers of Gemma 3n and 4). They are used as that layer uses
    them, normalised and rotated, and a cache keeps them once."""

    d_out: Given[int] = Field(default_factory=lambda data: data["d_model"])
    """The width of the output, which in a layer is d_model."""
    bias: Annotated[Shared[Projections], AfterValidator(_of_own_maps)] = ("q", "o")
    """Which projections have a bias: a list of `q` and `o`, or `true` for both or `false` for none.
    A list for other layers may stand around this one: its `k` and `v` mean nothing here."""
    # No fields: they are about keys and values, which are those of another layer.
    values: ClassVar[Literal["projected"]] = "projected"  # type: ignore[misc]
    v_norm: ClassVar[None] = None  # type: ignore[misc,assignment]
    rotate_values: ClassVar[None] = None  # type: ignore[misc]
    global_tokens: ClassVar[None] = None  # type: ignore[misc]

    @model_validator(mode="after")
    def _check_memory(self) -> Self:
        if self.key_width is not None:
            raise contradiction(
                "the keys and values of a cross-attention are those of the memory, which are not "
                "shared between layers",
                "kind",
            )
        return self

    @property
    def offers_keys(self) -> None:
        return None

    @property
    def needs_keys(self) -> KeyForm:
        return self._key_form

    def _norms(self) -> dict[str, Norm]:
        own = ("q_norm", "sub_norm")
        return {name: norm for name, norm in super()._norms().items() if name in own}

    def _norms_per_head(self) -> dict[str, int]:
        return {name: n for name, n in super()._norms_per_head().items() if name == "q_norm"}

    @property
    def _maps(self) -> str:
        return "q"

    def layout(self) -> Layout:
        return replace(super().layout(), cache=0, cache_window=None)

    def build(self) -> "nn.Module":
        from zoo_components.modules.cross_layer import CrossLayerAttention

        return self._module(CrossLayerAttention)
