"""Multi-head latent attention: the `attention` slot."""

from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import Field

from zoo.component import PositiveFloat, Probability, Shared, Size, Slot
from zoo.layout import Layout, column_wise, linear, row_wise
from zoo.only_with import UNSTATED, OnlyWith
from zoo.slots import Norm
from zoo.wording import counted
from zoo_components.attention import NotNegativeInt
from zoo_components.heads import temperature_of
from zoo_components.norm import RmsNorm, of_width
from zoo_components.optional import SizeOrNone, number
from zoo_components.self_attention import WithSoftmax

if TYPE_CHECKING:
    from torch import nn

    from zoo_components.modules.latent import LatentAttention

Module = TypeVar("Module", bound="LatentAttention")


class Latent(WithSoftmax):
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434, section 2.1): keys and
    values of all heads are expanded from one narrow latent vector per token, which is all that
    generation keeps, beside one rotated key part that all heads share."""

    n_heads: Shared[Size]
    """The number of heads."""
    q_lora_rank: SizeOrNone = "none"
    """The width of the queries' latent; with "none", queries are projected directly from the
    input."""
    kv_lora_rank: Size
    """The width of the latent of keys and values."""
    qk_nope_head_dim: Size
    """The width of the part of a query and key head that is not rotated."""
    qk_rope_head_dim: Size
    """The width of the part of a query and key head that rotary positions rotate, and whose keys
    all heads share; with other positions, or none, it is not rotated (Kimi Linear,
    arXiv:2510.26692)."""
    v_head_dim: Size
    """The width of a value head."""
    bias: Shared[bool] = False
    """Whether the maps to the latents and the output projection have a bias."""
    latent_norm: Annotated[
        Norm, Slot("norm", default="rms_norm", inherit=False, width="kv_lora_rank")
    ] = Field(default_factory=lambda data: RmsNorm(kind="rms_norm", width=data["kv_lora_rank"]))
    """The norm of each latent."""
    scale: PositiveFloat = Field(
        default_factory=lambda data: (data["qk_nope_head_dim"] + data["qk_rope_head_dim"]) ** -0.5
    )
    """The factor that multiplies the scores; by default 1 / sqrt(qk_nope_head_dim +
    qk_rope_head_dim)."""
    q_temperature: Annotated[
        Literal["log", "power"] | None,
        OnlyWith(
            "key_width",
            None,
            because="is about positions in one sequence, and cross-attention sees another",
        ),
    ] = UNSTATED
    """The factor that multiplies a query by its position, as in `multi_head`; by default there is
    none."""
    q_temperature_scale: Annotated[
        PositiveFloat | None, OnlyWith("q_temperature", "log", "power", default=0.1)
    ] = UNSTATED
    """`scale` in its formula."""
    q_temperature_floor: Annotated[
        PositiveFloat | None, OnlyWith("q_temperature", "log", "power", default=8192.0)
    ] = UNSTATED
    """`floor` in its formula, in positions."""
    q_temperature_shift: Annotated[
        NotNegativeInt | None, OnlyWith("q_temperature", "log", "power", default=0)
    ] = UNSTATED
    """`shift` in its formula."""
    dropout: Shared[Probability] = 0.0
    """Dropout on the attention weights."""

    @property
    def head_dim(self) -> int:
        """The width of the part that the position scheme rotates."""
        return self.qk_rope_head_dim

    def layout(self) -> Layout:
        kv_width = self.n_heads * (self.qk_nope_head_dim + self.v_head_dim)
        kept = self.kv_lora_rank + self.qk_rope_head_dim
        parts = {
            **self._query_layout(),
            "kv_a_proj": linear(self.key_width or self.d_model, kept, bias=self.bias),
            "kv_a_norm": self.latent_norm.layout(),
            "kv_b_proj": linear(
                self.kv_lora_rank, kv_width, bias=False, cut=column_wise(self.n_heads)
            ),
            "o_proj": linear(
                self.n_heads * self.v_head_dim,
                self.d_model,
                bias=self.bias,
                residual=True,
                cut=row_wise(self.n_heads),
            ),
        }
        return Layout(
            parts,
            f"{counted(self.n_heads, 'head')}, kv_lora_rank {self.kv_lora_rank}",
            cache=0 if self.key_width else kept,
            memory_cache=kept if self.key_width else 0,
        )

    def _query_layout(self) -> dict[str, Layout]:
        width = self.n_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        rank, heads = number(self.q_lora_rank), column_wise(self.n_heads)
        if rank is None:
            return {"q_proj": linear(self.d_model, width, bias=False, cut=heads)}
        return {
            "q_a_proj": linear(self.d_model, rank, bias=self.bias),
            "q_a_norm": of_width(self.latent_norm, rank).layout(),
            "q_b_proj": linear(rank, width, bias=False, cut=heads),
        }

    def build(self) -> "nn.Module":
        from zoo_components.modules.latent import LatentAttention

        return self._module(LatentAttention)

    def _module(self, cls: "type[Module]") -> "Module":
        from zoo_components.modules.latent import LatentVector
        from zoo_components.modules.scores import Scoring

        of_queries = None
        if (rank := number(self.q_lora_rank)) is not None:
            of_queries = LatentVector(rank, of_width(self.latent_norm, rank).build())
        return cls(
            d_model=self.d_model,
            key_width=self.key_width or self.d_model,
            n_heads=self.n_heads,
            nope=self.qk_nope_head_dim,
            rope=self.qk_rope_head_dim,
            v_head_dim=self.v_head_dim,
            of_queries=of_queries,
            of_keys=LatentVector(self.kv_lora_rank, self.latent_norm.build()),
            bias=self.bias,
            temperature=temperature_of(self),
            scoring=Scoring(scale=self.scale, dropout=self.dropout),
        )
