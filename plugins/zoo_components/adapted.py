"""Maps with low-rank adapters, in an attention and in a feed-forward network: the `attention` and
`ffn` slots."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from zoo.component import Size
from zoo.layout import Layout, linear
from zoo_components.attention import MultiHead
from zoo_components.ffn import Glu

if TYPE_CHECKING:
    from torch import nn


class AdaptedMultiHead(MultiHead):
    """The attention `multi_head` with a low-rank adapter of each map to queries, keys and values:
    q_proj(x) + q_adapter.up_proj(q_adapter.down_proj(x)), which has the form of LoRA (Hu et al.
    2021, arXiv:2106.09685). Layers that share the weights of the attention (`share_parts`) have an
    adapter each, by which they differ (Zamba2: Glorioso et al. 2024, arXiv:2411.15242)."""

    example: ClassVar[Mapping[str, Any]] = {"adapter_rank": 2}
    adapter_rank: Size
    """The inner width of each adapter."""
    global_tokens: ClassVar[None] = None  # type: ignore[misc]  # no field: their maps have none

    @property
    def adapters(self) -> tuple[str, ...]:
        return tuple(f"{name}_adapter" for name in self._maps)

    def layout(self) -> Layout:
        whole, maps = super().layout(), self._projections()
        adapters: dict[str, Layout] = {}
        for name, proj in zip(self.adapters, maps.values(), strict=True):
            n_out, n_in = proj.find("weight").shape
            down = linear(n_in, self.adapter_rank, bias=False)
            up = linear(self.adapter_rank, n_out, bias=False, cut=proj.cut)
            adapters[name] = Layout({"down_proj": down, "up_proj": up})
        return whole.with_parts(**adapters)

    def build(self) -> "nn.Module":
        from zoo_components.modules.adapted import AdaptedMultiHeadAttention

        module = self._module(AdaptedMultiHeadAttention)
        module.add_adapters(self.adapter_rank)
        return module


class AdaptedGlu(Glu):
    """The gated linear unit `glu` with a low-rank adapter of its maps to the hidden units, which
    have its first map in common: gate_proj(x) + adapter.gate_proj(adapter.down_proj(x)), and
    likewise `up_proj`. Layers that share the weights of the network (`share_parts`) have an adapter
    each, by which they differ (Zamba2: Glorioso et al. 2024, arXiv:2411.15242)."""

    example: ClassVar[Mapping[str, Any]] = {"adapter_rank": 2}
    adapter_rank: Size
    """The inner width of the adapter."""

    @property
    def adapters(self) -> tuple[str, ...]:
        return ("adapter",)

    def layout(self) -> Layout:
        to = linear(self.adapter_rank, self.d_ff, bias=False, cut=self._cuts()[0])
        down = linear(self.d_model, self.adapter_rank, bias=False)
        adapter = Layout({"down_proj": down, "gate_proj": to, "up_proj": to})
        return super().layout().with_parts(adapter=adapter)

    def build(self) -> "nn.Module":
        from zoo_components.modules.adapted import AdaptedGlu as Module

        module = self._module(Module)
        module.add_adapter(self.adapter_rank)
        return module
