"""One layer of a stack: the `block` slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import model_validator

from zoo.component import Probability, Shared, Slot, contradiction
from zoo.layout import Layout
from zoo.slots import Attention, Block, FeedForward, Sublayer

if TYPE_CHECKING:
    from torch import nn


class Residual(Block):
    """Sublayers in a row, each a residual branch: x = out(x + dropout(post(f(pre(x))))) (Vaswani et
    al. 2017, section 3.1; the placements are compared by Xiong et al. 2020, arXiv:2002.04745)."""

    self_attn: Annotated[Attention, Slot("attention")]
    """Attention of the sequence to itself."""
    cross_attn: Annotated[
        Attention | None, Slot("attention", needs="memory_width", key_width="memory_width")
    ] = None
    """Attention to the memory; only in a stack that has one."""
    ffn: Annotated[FeedForward, Slot("ffn")]
    """The position-wise network."""
    dropout: Shared[Probability] = 0.0
    """Dropout on the output of each branch, before the sum."""

    @model_validator(mode="after")
    def _check(self) -> Residual:
        for name in ("self_attn", "cross_attn"):
            width = getattr(getattr(self, name), "d_out", self.d_model)
            if width != self.d_model:
                raise contradiction(
                    f"`{name}` is {width} wide at its output; the residual sum needs "
                    f"d_model = {self.d_model}",
                    f"{name}.d_out",
                    "d_model",
                )
        return self

    @property
    def n_heads(self) -> int | None:
        return getattr(self.self_attn, "n_heads", None)

    @property
    def head_dim(self) -> int | None:
        return getattr(self.self_attn, "head_dim", None)

    def sublayers(self) -> dict[str, Sublayer]:
        """The branches that are there, in order."""
        named = {"self_attn": self.self_attn, "cross_attn": self.cross_attn, "ffn": self.ffn}
        return {name: sublayer for name, sublayer in named.items() if sublayer is not None}

    def layout(self) -> Layout:
        return Layout({name: s.layout_with_norms() for name, s in self.sublayers().items()})

    def build(self) -> nn.Module:
        from zoo_components.modules.block import ResidualBlock, with_norms

        return ResidualBlock(
            {name: with_norms(s) for name, s in self.sublayers().items()}, dropout=self.dropout
        )
