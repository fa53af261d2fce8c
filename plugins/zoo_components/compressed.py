"""Attention to the last tokens and to summaries of those before: the `attention` slot."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

from pydantic import Field, model_validator

from zoo.component import Given, PositiveFloat, Probability, Shared, Size, Slot, contradiction
from zoo.layout import Layout, Tensor, linear, vector
from zoo.slots import Norm
from zoo_components.attention import NotNegativeInt
from zoo_components.heads import against_fused, check_divisible, heads_text
from zoo_components.moe import NotNegativeFloat
from zoo_components.norm import RmsNorm, of_width
from zoo_components.self_attention import WithinSequence

if TYPE_CHECKING:
    from torch import nn

    from zoo_components.modules.compressed import Compressor, SharedKeyValueAttention

Module = TypeVar("Module", bound="SharedKeyValueAttention")


class SharedKeyValue(WithinSequence):
    """Attention in which one vector of each token is both the key and the value of all heads, and
    whose queries and outputs have low rank (DeepSeek-AI 2026, DeepSeek-V4, section 2.3). A token
    attends to the last ones, in a `window`, and to a sink of each head, a key with a learned logit
    and the value zero. The last `rope_head_dim` numbers of keys, values and queries are rotated by
    rotary positions; those of each head's output are rotated back by the position of the query, so
    that what a value adds depends on its distance."""

    example: ClassVar[Mapping[str, Any]] = {"o_groups": 1}
    rotates_elsewhere: ClassVar[bool] = True
    n_heads: Shared[Size]
    """The number of heads."""
    q_lora_rank: Size
    """The width of the latent that queries are made of."""
    nope_head_dim: NotNegativeInt
    """The number of elements of a head that are not rotated, which come first."""
    rope_head_dim: Size
    """The number of those that rotary positions rotate."""
    window: Size
    """The number of tokens, itself included, that a token attends to."""
    o_groups: Size
    """The number of groups of heads, of which each has a map of its own to `o_lora_rank` numbers; a
    second one maps all of these to the output."""
    o_lora_rank: Size
    """The width that each group of heads is mapped to."""
    # What norms are bound to: no parent states it.
    kv_dim: Given[int] = Field(
        default_factory=lambda data: data["nope_head_dim"] + data["rope_head_dim"]
    )
    latent_norm: Annotated[
        Norm, Slot("norm", default="rms_norm", inherit=False, width="kv_dim")
    ] = Field(default_factory=lambda data: RmsNorm(kind="rms_norm", width=data["kv_dim"]))
    """The norm of keys, and that of the latent of the queries."""
    q_norm: Annotated[Norm, Slot("norm", default="rms_norm", inherit=False, width="kv_dim")] = (
        Field(default_factory=lambda data: RmsNorm(kind="rms_norm", width=data["kv_dim"]))
    )
    """The norm of each query head; without a weight in DeepSeek-V4."""
    scale: PositiveFloat = Field(default_factory=lambda data: data["kv_dim"] ** -0.5)
    """The factor that multiplies the scores; 1 / sqrt(nope_head_dim + rope_head_dim) by default."""
    dropout: Shared[Probability] = 0.0
    """Dropout on the attention weights."""

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        check_divisible(n_heads=self.n_heads, o_groups=self.o_groups)
        return self

    @property
    def head_dim(self) -> int:
        """The width of the part that the position scheme rotates."""
        return self.rope_head_dim

    @property
    def takes_bias(self) -> bool:
        return False

    @property
    def only_causal(self) -> bool:
        return True

    @property
    def incremental(self) -> bool:
        return True

    @property
    def against_fused(self) -> str | None:
        return against_fused(sinks=True, softcap=False)

    def layout(self) -> Layout:
        width, n_out = self.n_heads * self.kv_dim, self.o_groups * self.o_lora_rank
        of_group = width // self.o_groups
        maps = Tensor((n_out, of_group), fan_in=of_group, fan_out=self.o_lora_rank)
        return Layout(
            {
                "q_a_proj": linear(self.d_model, self.q_lora_rank, bias=False),
                "q_a_norm": of_width(self.latent_norm, self.q_lora_rank).layout(),
                "q_b_proj": linear(self.q_lora_rank, width, bias=False),
                "q_norm": self.q_norm.layout(),
                "kv_proj": linear(self.d_model, self.kv_dim, bias=False),
                "kv_norm": self.latent_norm.layout(),
                "sinks": vector(self.n_heads),
                "o_a_proj": Layout({"weight": maps}),
                "o_b_proj": linear(n_out, self.d_model, bias=False, residual=True),
            },
            f"{heads_text(self.n_heads, 1, self.kv_dim)}, window {self.window}",
            cache=self.kv_dim,
            cache_window=self.window,
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.compressed import SharedKeyValueAttention as Module

        return self._module(Module)

    def _module(self, cls: "type[Module]") -> "Module":
        from zoo_components.modules.scores import Scoring

        return cls(
            d_model=self.d_model,
            n_heads=self.n_heads,
            nope=self.nope_head_dim,
            rope=self.rope_head_dim,
            q_norms=(of_width(self.latent_norm, self.q_lora_rank).build(), self.q_norm.build()),
            q_lora_rank=self.q_lora_rank,
            kv_norm=self.latent_norm.build(),
            window=self.window,
            o_groups=self.o_groups,
            o_lora_rank=self.o_lora_rank,
            scoring=Scoring(scale=self.scale, dropout=self.dropout),
        )


class HeavilyCompressed(SharedKeyValue):
    """The attention `shared_kv`, in which a token also attends to summaries of all earlier tokens,
    one of every `compress_rate` (Heavily Compressed Attention: DeepSeek-AI 2026, DeepSeek-V4,
    section 2.3.2): the norm of the mean of their projections, weighted by a softmax over gates, for
    each element, and rotated by the position of the first. Generation keeps the summaries, the last
    tokens, and what those of an unfinished summary come to."""

    example: ClassVar[Mapping[str, Any]] = {"o_groups": 1, "compress_rate": 2}
    overlaps: ClassVar[bool] = False
    """Whether a summary is also made of the tokens of the one before."""
    compress_rate: Size
    """The number of tokens that become one summary."""

    def layout(self) -> Layout:
        whole = super().layout()
        return replace(
            whole.with_parts(compressor=self._compressor(self.kv_dim)),
            label=f"{whole.label}, compress_rate {self.compress_rate}",
            state=1,  # the position of the first token of the unfinished summary
        )

    def _compressor(self, width: int) -> Layout:
        """The layout of what makes summaries of this width."""
        n_series = 2 if self.overlaps else 1
        parts: dict[str, Tensor | Layout] = {
            "kv_proj": linear(self.d_model, n_series * width, bias=False),
            "gate_proj": linear(self.d_model, n_series * width, bias=False),
            "position_bias": Tensor((self.compress_rate, n_series * width), "constant"),
            "norm": of_width(self.latent_norm, width).layout(),
        }
        return Layout(
            parts, cache=width, cache_every=self.compress_rate, state=2 * n_series * width
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.compressed import HeavilyCompressedAttention as Module

        module = self._module(Module)
        module.add_compressor(self._build_compressor(self.kv_dim), every=self.compress_rate)
        return module

    def _build_compressor(self, width: int) -> "Compressor":
        from zoo_components.modules.compressed import Compressor

        return Compressor(
            d_model=self.d_model,
            width=width,
            every=self.compress_rate,
            overlaps=self.overlaps,
            norm=of_width(self.latent_norm, width).build(),
        )


class CompressedSparse(HeavilyCompressed):
    """The attention `heavily_compressed` with summaries that overlap, each made of the tokens of
    the one before too, by projections of their own, and of which a token attends to a few alone
    (Compressed Sparse Attention: DeepSeek-AI 2026, DeepSeek-V4, section 2.3.1). An indexer, whose
    heads share narrower summaries of the same tokens as keys, scores them for a query: I = sum over
    heads j of w_j ReLU(q_j k). The `index_topk` summaries of the largest scores are those that all
    heads attend to; of equal scores, the earlier summary comes first."""

    example: ClassVar[Mapping[str, Any]] = {
        **HeavilyCompressed.example,
        "index_head_dim": 5,
        "index_topk": 2,
    }
    overlaps: ClassVar[bool] = True
    index_n_heads: Size
    """The number of heads of the indexer."""
    index_head_dim: Size
    """The width of a head of the indexer, of which the last rope_head_dim numbers are rotated."""
    index_topk: Size
    """The number of summaries that a query attends to, where there are more."""
    auxiliary_loss: NotNegativeFloat = 1.0
    """The coefficient of the loss by which the indexer learns, and by which nothing else does:
    KL(p || softmax(I)) of the summaries that are attended to, where p are the weights of all heads
    together, in the mean of all queries but padding for which there are summaries (as in
    `sparse_latent`; DeepSeek-AI 2025, arXiv:2512.02556). `zoo train` adds it to the loss; a
    training loop of your own adds `zoo.auxiliary_loss(model)`. With 0, the indexer learns
    nothing."""

    @model_validator(mode="after")
    def _check_index_head(self) -> Self:
        if self.index_head_dim < self.rope_head_dim:
            raise contradiction(
                f"the indexer rotates rope_head_dim = {self.rope_head_dim} numbers of each head, "
                f"which index_head_dim = {self.index_head_dim} does not have",
                "index_head_dim",
                "rope_head_dim",
            )
        return self

    def layout(self) -> Layout:
        whole, n_heads, width = super().layout(), self.index_n_heads, self.index_head_dim
        indexer = {
            "q_proj": linear(self.q_lora_rank, n_heads * width, bias=False),
            "weights_proj": linear(self.d_model, n_heads, bias=False),
            "compressor": self._compressor(width),
        }
        return replace(
            whole.with_parts(indexer=Layout(indexer)),
            label=f"{whole.label}, index_topk {self.index_topk}",
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.compressed import CompressedSparseAttention, Indexer

        module = self._module(CompressedSparseAttention)
        module.add_compressor(self._build_compressor(self.kv_dim), every=self.compress_rate)
        module.add_indexer(
            Indexer(
                d_model=self.d_model,
                q_lora_rank=self.q_lora_rank,
                n_heads=self.index_n_heads,
                head_dim=self.index_head_dim,
                compressor=self._build_compressor(self.index_head_dim),
            ),
            topk=self.index_topk,
            auxiliary_loss=self.auxiliary_loss,
        )
        return module
