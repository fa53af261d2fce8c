"""Attention whose heads are mixed before and after the softmax: the `attention` slot."""

from typing import TYPE_CHECKING, ClassVar

from zoo.layout import Cut, Layout, Tensor
from zoo_components.attention import MultiHead
from zoo_components.heads import against_fused

if TYPE_CHECKING:
    from torch import nn


class TalkingHeads(MultiHead):
    """The attention `multi_head` with two learned linear maps across heads (Talking-Heads
    Attention: Shazeer et al. 2020, arXiv:2003.02436): of the scores of all heads for a query and a
    key, before a bias is added to them, and of the weights after the softmax, with which the values
    are summed. The paper calls the maps P_l and P_w; here there are as many heads before, between
    and after the two. Weights that are returned are those of the softmax."""

    global_tokens: ClassVar[None] = None  # type: ignore[misc]  # no field: they have other heads

    @property
    def against_fused(self) -> str | None:
        return against_fused(sinks=False, softcap=False, mixing=True)

    def _by_heads(self, cut: Cut) -> None:
        return None  # one process needs all heads

    def layout(self) -> Layout:
        mixing = Tensor((self.n_heads,) * 2, fan_in=self.n_heads, fan_out=self.n_heads)
        return super().layout().with_parts(scores_proj=mixing, weights_proj=mixing)

    def build(self) -> "nn.Module":
        from zoo_components.modules.talking_heads import TalkingHeadsAttention

        module = self._module(TalkingHeadsAttention)
        module.add_mixing(self.n_heads)
        return module
