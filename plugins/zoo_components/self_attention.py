"""What kinds of attention have in common, within one sequence or with a softmax, and a simple one:
the `attention` slot."""

from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import model_validator

from zoo.component import Probability, Shared, Size
from zoo.layout import Layout, Tensor, linear
from zoo.slots import Attention
from zoo_components.heads import check_divisible, heads_text
from zoo_components.projections import ALL, Projections

if TYPE_CHECKING:
    from torch import nn

    from zoo_components.modules.self_attention import Common


class WithinSequence(Attention):
    """What kinds of attention have in common that are about the places of tokens in one
    sequence."""

    @model_validator(mode="after")
    def _check_one_sequence(self) -> Self:
        if self.key_width is not None:
            raise ValueError(
                f"`{self.kind}` is about one sequence, and cannot attend to another: state it "
                "under `self_attn`, and choose another kind for `cross_attn`"
            )
        return self


class WithSoftmax(Attention):
    """What kinds of attention have in common whose weights are a softmax over all keys that a query
    sees, which fused kernels compute, and whose generation keeps something of each token."""

    recordable: ClassVar[bool] = True

    @property
    def against_fused(self) -> None:
        return None

    @property
    def incremental(self) -> bool:
        return True


class SelfAttention(WithinSequence):
    """Multi-head attention of a sequence to itself, with heads that are d_model / n_heads wide, to
    which kinds of attention to positions add what they have of their own."""

    n_heads: Shared[Size]
    """The number of heads, each d_model / n_heads wide."""
    bias: Shared[Projections] = ALL
    """Which projections have a bias: a list of `q`, `k`, `v` and `o`, or `true` for all or `false`
    for none."""
    dropout: Shared[Probability] = 0.0
    """Dropout on the attention weights."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_divisible(d_model=self.d_model, n_heads=self.n_heads)
        return self

    @property
    def head_dim(self) -> int:
        """The width of a head."""
        return self.d_model // self.n_heads

    @property
    def against_fused(self) -> None:
        return None

    def layout(self) -> Layout:
        width = self.d_model
        return Layout(
            {
                **{f"{p}_proj": linear(width, width, bias=p in self.bias) for p in "qkv"},
                **self._own_parts(),
                "o_proj": linear(width, width, bias="o" in self.bias, residual=True),
            },
            heads_text(self.n_heads, self.n_heads, self.head_dim),
            cache=2 * width,
        )

    def _own_parts(self) -> dict[str, Tensor | Layout]:
        """The parts beside the maps to queries, keys, values and the output."""
        return {}

    @property
    def _common(self) -> "Common":
        from zoo_components.modules.scores import Scoring
        from zoo_components.modules.self_attention import Common

        scoring = Scoring(scale=self.head_dim**-0.5, dropout=self.dropout)
        return Common(self.d_model, self.n_heads, self.head_dim, self.bias, scoring)


class RotatedInput(SelfAttention, WithSoftmax):
    """Multi-head attention in which rotary positions turn the layer's input before its maps to
    queries and keys, not these: the part of the input at each head's place is turned as its queries
    and keys are in RoFormer (Su et al. 2021, arXiv:2104.09864), and values are made of the input as
    it is. So are the rotary models of wav2vec 2.0 with Conformer layers (Wang et al. 2020,
    arXiv:2010.05171, fairseq S2T)."""

    @property
    def rotation_key(self) -> str:
        return "kind"  # without a rotation it is `multi_head`

    def build(self) -> "nn.Module":
        from zoo_components.modules.self_attention import RotatedInputAttention

        return RotatedInputAttention(self._common)
