"""Multi-head latent attention to a few keys: the `attention` slot."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from zoo.component import Size, Slot, contradiction
from zoo.layout import Layout, linear
from zoo.slots import Norm
from zoo_components.latent import Latent
from zoo_components.moe import NotNegativeFloat
from zoo_components.norm import LayerNorm
from zoo_components.optional import number
from zoo_components.self_attention import WithinSequence

if TYPE_CHECKING:
    from torch import nn


class SparseLatent(WithinSequence, Latent):
    """The attention `latent`, in which each query attends to a few keys alone (DeepSeek Sparse
    Attention: DeepSeek-AI 2025, arXiv:2512.02556, section 2.1). An indexer, whose few narrow heads
    share one key, scores all keys for a query: I = sum over heads j of w_j ReLU(q_j k). The
    `index_topk` keys of the largest scores are those that all heads attend to; of equal scores, the
    earlier key comes first."""

    index_n_heads: Size
    """The number of heads of the indexer."""
    index_head_dim: Size
    """The width of a head of the indexer, of which the first qk_rope_head_dim numbers are
    rotated."""
    index_topk: Size
    """The number of keys that a query attends to, where there are more."""
    index_norm: Annotated[
        Norm, Slot("norm", default="layer_norm", inherit=False, width="index_head_dim")
    ] = Field(
        default_factory=lambda data: LayerNorm(kind="layer_norm", width=data["index_head_dim"])
    )
    """The norm of the indexer's keys."""
    index_halves: Literal["kept", "interleaved"] = "kept"
    """Whether the halves of what is rotated in the indexer are interleaved first: beside
    interleaved positions, k and k + qk_rope_head_dim / 2 are a pair then (DeepSeek-V3.2)."""
    auxiliary_loss: NotNegativeFloat = 1.0
    """The coefficient of the loss by which the indexer learns, and by which nothing else does:
    KL(p || softmax(I)) of the keys that are attended to, where p are the weights of all heads
    together, in the mean of all queries that see themselves, which padding does not. `zoo train`
    adds it to the loss; a training loop of your own adds `zoo.auxiliary_loss(model)`. With 0, the
    indexer learns nothing."""

    @model_validator(mode="after")
    def _check_index_head(self) -> Self:
        if self.index_head_dim < self.qk_rope_head_dim:
            raise contradiction(
                f"the indexer rotates qk_rope_head_dim = {self.qk_rope_head_dim} numbers of each "
                f"head, which index_head_dim = {self.index_head_dim} does not have",
                "index_head_dim",
                "qk_rope_head_dim",
            )
        if self.index_halves == "interleaved" and self.qk_rope_head_dim % 2:
            raise contradiction(
                f"qk_rope_head_dim = {self.qk_rope_head_dim} has no two halves to interleave",
                "index_halves",
                "qk_rope_head_dim",
            )
        return self

    @property
    def offers_keys(self) -> Literal["chosen"]:
        return "chosen"

    @property
    def rotation_key(self) -> str | None:
        return None if self.index_halves == "kept" else "index_halves"

    def layout(self) -> Layout:
        whole, n_heads = super().layout(), self.index_n_heads
        queried = number(self.q_lora_rank) or self.d_model
        indexer = {
            "q_proj": linear(queried, n_heads * self.index_head_dim, bias=False),
            "k_proj": linear(self.d_model, self.index_head_dim, bias=False),
            "k_norm": self.index_norm.layout(),
            "weights_proj": linear(self.d_model, n_heads, bias=False),
        }
        return replace(
            whole.with_parts(indexer=Layout(indexer)),
            label=f"{whole.label}, index_topk {self.index_topk}",
            cache=whole.cache + self.index_head_dim,
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.sparse_latent import Indexer, SparseLatentAttention

        module = self._module(SparseLatentAttention)
        module.add_indexer(
            Indexer(
                d_model=self.d_model,
                queried=number(self.q_lora_rank) or self.d_model,
                n_heads=self.index_n_heads,
                head_dim=self.index_head_dim,
                rope=self.qk_rope_head_dim,
                interleaved=self.index_halves == "interleaved",
                norm=self.index_norm.build(),
            ),
            topk=self.index_topk,
            auxiliary_loss=self.auxiliary_loss,
        )
        return module


class SharedSparseLatent(WithinSequence, Latent):
    """The attention `latent`, in which each query attends to the few keys that the last layer
    before it with the attention `sparse_latent` chose (arXiv:2603.12201; GLM-5)."""

    @property
    def needs_keys(self) -> Literal["chosen"]:
        return "chosen"

    def build(self) -> "nn.Module":
        from zoo_components.modules.sparse_latent import SharedSparseLatentAttention

        return self._module(SharedSparseLatentAttention)
