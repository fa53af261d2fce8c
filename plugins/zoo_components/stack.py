"""A stack: embedding, positions, a number of blocks, a final norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from zoo.component import Component, Given, Shared, Size, Slot
from zoo.layout import Layout
from zoo.slots import Block, Embedding, Norm, NormPlacement, Position

if TYPE_CHECKING:
    from torch import nn


class Stack(Component):
    """What an encoder and a decoder have in common."""

    vocab: Given[int | None] = None
    memory_width: Given[int | None] = None
    d_model: Shared[Size]
    """The width of the residual stream."""
    n_layers: Shared[Size]
    """How many blocks there are."""
    norm_placement: Shared[NormPlacement] = "pre"
    """Where the sublayers' norms are, unless a sublayer states its `norms`."""
    final_norm: bool = Field(default_factory=lambda data: data["norm_placement"] != "post")
    """Whether a norm follows the last block."""
    causal: bool
    """Whether a position attends to no later one."""
    pad_id: Shared[int | None] = Field(default=None, ge=0)
    """The id of padding: such tokens are hidden from attention."""
    block: Annotated[Block, Slot("block", memory_width="memory_width")]
    """The layer that is repeated."""
    position: Annotated[
        Position, Slot("position", n_heads="block.n_heads", head_dim="block.head_dim")
    ]
    """How positions are told apart."""
    embedding: Annotated[Embedding, Slot("embedding")]
    """What makes the vectors that enter."""
    norm: Annotated[Norm, Slot("norm", width="d_model")]
    """The final norm."""

    def layout(self) -> Layout:
        embed, position = self.embedding.layout(), self.position.layout()
        parts = dict(embed.parts)
        if self.position.site == "embed.positions" and position.parts:
            parts["positions"] = position
        layout = {
            "embed": Layout(parts, embed.label),
            "layers": Layout(self.block.layout().parts, self.block.kind, repeat=self.n_layers),
        }
        if self.position.site != "embed.positions" and position.parts:
            layout[self.position.site] = position
        if self.final_norm and (norm := self.norm.layout()).parts:
            layout["norm"] = norm
        parts = {name: part for name, part in layout.items() if part.parts}
        return Layout(parts, generates=self.causal)

    def build(self) -> nn.Module:
        from zoo_components.modules.stack import Stack as Module

        scheme = self.position.build()
        embedded = self.position.site == "embed.positions"
        return Module(
            embed=self.embedding.build(scheme if embedded else None),
            layers=[self.block.build() for _ in range(self.n_layers)],
            norm=self.norm.build() if self.final_norm else None,
            scheme=None if embedded else (self.position.site, scheme),
            causal=self.causal,
            pad_id=self.pad_id,
        )


class EncoderStack(Stack):
    """A stack in which every position attends to every other."""

    causal: bool = False
    """Whether a position attends to no later one."""


class DecoderStack(Stack):
    """A stack in which a position attends to no later one."""

    causal: bool = True
    """Whether a position attends to no later one."""
