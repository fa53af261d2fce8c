"""Lightning attention, in the `attention` slot."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from zoo.component import Given, Slot
from zoo.layout import Layout, linear
from zoo.slots import Norm
from zoo_components.heads import OfHeads, heads_text
from zoo_components.norm import RmsNorm
from zoo_components.recurrent import Recurrent

if TYPE_CHECKING:
    from torch import nn


class Lightning(OfHeads, Recurrent):
    """Lightning attention, the linear attention of MiniMax-01 (Li et al. 2025, arXiv:2501.08313,
    section 2.2): each head has a state S, which a token with the key k and the value v turns into
    a S + k v^T, and reads as S^T q. Queries, keys and values are SiLU of linear maps, and the decay
    a of head h, counted from 1, is the same for all tokens: exp(-rate * 2^(-8 h / n_heads)). What
    all heads read is normalised as one vector and multiplied with sigmoid(gate_proj(x)). Whole
    sequences are computed in chunks, as products of matrices. Generation keeps the states."""

    rate: Annotated[float, Field(ge=0.0)] = 1.0
    """What the rates of decay of all heads are multiplied with; with 0, nothing fades. MiniMax-01
    has 1 - layer / (n_layers - 1), with layers counted from 0, so that later layers look back
    farther."""
    inner: Given[int] = Field(default_factory=lambda data: data["n_heads"] * data["head_dim"])
    inner_norm: Annotated[Norm, Slot("norm", default="rms_norm", inherit=False, width="inner")] = (
        Field(default_factory=lambda data: RmsNorm(kind="rms_norm", width=data["inner"]))
    )
    """The norm of what all heads read, before the gate."""

    def layout(self) -> Layout:
        to_heads = linear(self.d_model, self.inner, bias=False)
        return Layout(
            {
                "q_proj": to_heads,
                "k_proj": to_heads,
                "v_proj": to_heads,
                "gate_proj": to_heads,
                "inner_norm": self.inner_norm.layout(),
                "o_proj": linear(self.inner, self.d_model, bias=False, residual=True),
            },
            heads_text(self.n_heads, self.n_heads, self.head_dim),
            state=self.inner * self.head_dim,
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.lightning import Lightning as Module

        return Module(
            d_model=self.d_model,
            n_heads=self.n_heads,
            head_dim=self.head_dim,
            rate=self.rate,
            inner_norm=self.inner_norm.build(),
        )
