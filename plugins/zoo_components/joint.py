"""Heads of encoders that share a space of texts and images: the `head` slot."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.component import Shared, Size, Slot, contradiction, missing_dimension
from zoo.layout import Layout, Tensor, linear
from zoo.only_with import UNSTATED, NotWith, OnlyWith
from zoo.slots import Norm
from zoo.wording import counted
from zoo_components.activation import Activated, Activation
from zoo_components.attention import MultiHead
from zoo_components.classifier import OfVectors
from zoo_components.ffn import Mlp
from zoo_components.heads import check_divisible
from zoo_components.optional import SizeOrNone, number

if TYPE_CHECKING:
    from torch import nn

JointPooling = Literal["first", "mean_after_first", "last_position", "end_token", "highest_id"]
"""The vector of a sequence: the state of its first position; the mean state of the others that are
not padding, which are the patches of an image after a class token; the state of its last position,
padding or not; that of the first token `end_id`, or without one of the first position; that of the
first token with the highest id in the sequence, which is how CLIP found the end of a text."""


class JointEmbedding(OfVectors):
    """A vector for each text or image in a space that both share (CLIP: Radford et al. 2021,
    arXiv:2103.00020, figure 3): normalize(proj(norm(pool(x))))."""

    pooling: JointPooling = "first"
    """How the states become one vector."""
    end_id: Annotated[int | None, Field(ge=0), OnlyWith("pooling", "end_token")] = UNSTATED
    """With `end_token`: the id of the token that ends a text."""
    norm: Annotated[Norm, Slot("norm", default="none", inherit=False, width="d_model")]
    """A norm of the pooled state."""
    d_out: SizeOrNone = "none"
    """The width of the space, to which a linear map leads; with `none` there is no such map."""
    bias: Annotated[bool | None, NotWith("d_out", "none", default=False)] = UNSTATED
    """Whether the linear map has a bias."""
    normalize: bool = True
    """Whether vectors are scaled to length 1, so that their dot products are cosines."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pooling == "end_token" and self.end_id is None:
            raise contradiction(
                '`pooling = "end_token"` needs the id of the token that ends a text: state '
                "`end_id`",
                "pooling",
            )
        if self.takes_ids and self.vocab is None:
            raise missing_dimension("vocab", "choose another `pooling`")
        if self.end_id is not None and self.end_id >= (self.vocab or 0):
            raise contradiction(
                f"end_id = {self.end_id} is beyond the vocabulary of {self.vocab} tokens",
                "end_id",
                "vocab",
            )
        return self

    @property
    def takes_ids(self) -> bool:
        return self.pooling in ("end_token", "highest_id")

    @property
    def reads_padding(self) -> bool:
        return self.pooling == "last_position"

    @property
    def vector_width(self) -> int:
        return number(self.d_out) or self.d_model

    def _maps(self) -> dict[str, tuple[int, int, bool]]:
        """The widths, from and to, of each map, and whether it has a bias."""
        width = number(self.d_out)
        return {} if width is None else {"proj": (self.d_model, width, bool(self.bias))}

    def layout(self) -> Layout:
        maps = {name: linear(a, b, bias=bias) for name, (a, b, bias) in self._maps().items()}
        return Layout({"norm": self.norm.layout(), **maps})

    def build(self) -> "nn.Module":
        from zoo.linear import Linear
        from zoo_components.modules.joint import JointEmbedding as Module

        maps = {name: Linear(a, b, bias=bias) for name, (a, b, bias) in self._maps().items()}
        return Module(
            pooling=self.pooling,
            end_id=self.end_id,
            norm=self.norm.build(),
            hidden_proj=maps.get("hidden_proj"),
            proj=maps.get("proj"),
            normalize=self.normalize,
        )


class TwoMapEmbedding(JointEmbedding):
    """The head `joint_embedding` with one more linear map, to the width that the states of a
    teacher have: normalize(proj(hidden_proj(norm(pool(x))))) (AltCLIP: Chen et al. 2022,
    arXiv:2211.06679, section 3.1)."""

    example: ClassVar[Mapping[str, Any]] = {"d_hidden": 6, "d_out": 5}
    d_hidden: Size
    """The width between the two maps."""
    d_out: Size  # never `none`
    """The width of the space."""
    hidden_bias: bool = True
    """Whether the first of the two maps has a bias."""
    bias: bool = False
    """Whether the second one has a bias."""

    def _maps(self) -> dict[str, tuple[int, int, bool]]:
        return {
            "hidden_proj": (self.d_model, self.d_hidden, self.hidden_bias),
            "proj": (self.d_hidden, self.d_out, self.bias),
        }


class PooledByQuery(OfVectors):
    """What heads have in common in which a learned query gathers the states by attention."""

    n_heads: Shared[Size]
    """The number of heads of the attention."""
    normalize: bool = True
    """Whether vectors are scaled to length 1, so that their dot products are cosines."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        check_divisible(d_model=self.d_model, n_heads=self.n_heads)
        return self

    @property
    def _query(self) -> Tensor:
        return Tensor((self.d_model,), "embedding", fan_in=1, fan_out=self.d_model)


class AttentionPooling(Activated, PooledByQuery):
    """A vector for each sequence, which a learned query gathers by attention (Zhai et al. 2021,
    arXiv:2106.04560, section 3.2; SigLIP): normalize(y + ffn(norm(y))) with
    y = attn(query, x, x)."""

    d_ff: Shared[Size]
    """The inner width of the feed-forward network."""
    activation: Activation = "gelu_tanh"
    """The activation of the feed-forward network."""
    norm: Annotated[Norm, Slot("norm", width="d_model")]
    """The norm before the feed-forward network."""

    @property
    def _attention(self) -> MultiHead:
        """The attention of the query to all states."""
        width = self.d_model
        return MultiHead(
            kind="multi_head",
            d_model=width,
            key_width=width,
            n_heads=self.n_heads,
            norms=(),
            norm=None,
        )

    @property
    def _ffn(self) -> Mlp:
        """The feed-forward network."""
        return Mlp(
            kind="mlp",
            d_model=self.d_model,
            d_ff=self.d_ff,
            activation=self.activation,
            slope=self.slope,
            beta=self.beta,
            norms=(),
            norm=None,
        )

    def layout(self) -> Layout:
        parts: dict[str, Tensor | Layout] = {
            "query": self._query,
            "attn": self._attention.layout(),
            "norm": self.norm.layout(),
            "ffn": self._ffn.layout(),
        }
        return Layout(parts, generates=False)

    def build(self) -> "nn.Module":
        from zoo_components.modules.joint import AttentionPooling as Module

        return Module(
            d_model=self.d_model,
            attn=self._attention.build(),
            norm=self.norm.build(),
            ffn=self._ffn.build(),
            normalize=self.normalize,
        )


class QueryPooling(PooledByQuery):
    """A vector for each sequence, which a learned query gathers by attention without a map of its
    own: normalize(out(attend(query, k(x), v(x)))) (AIMv2: Fini et al. 2024, arXiv:2411.14402)."""

    bias: bool = True
    """Whether the maps to keys and values have a bias; that of the output has one."""

    def layout(self) -> Layout:
        to = linear(self.d_model, self.d_model, bias=self.bias)
        out = linear(self.d_model, self.d_model)
        return Layout(
            {"query": self._query, "k_proj": to, "v_proj": to, "out": out},
            counted(self.n_heads, "head"),
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.joint import QueryPooling as Module

        return Module(
            d_model=self.d_model, n_heads=self.n_heads, bias=self.bias, normalize=self.normalize
        )
