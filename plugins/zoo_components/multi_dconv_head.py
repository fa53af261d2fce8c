"""Attention with short convolutions of queries, keys and values: the `attention` slot."""

from dataclasses import replace
from typing import TYPE_CHECKING

from zoo.component import Size
from zoo.layout import Layout
from zoo_components.convolution import convolution
from zoo_components.self_attention import SelfAttention, WithSoftmax

if TYPE_CHECKING:
    from torch import nn


class MultiDconvHead(SelfAttention, WithSoftmax):
    """Multi-head attention in which a convolution over the last few tokens follows the maps to
    queries, keys and values, with a kernel of its own for each channel of each head (Multi-DConv-
    Head Attention, that of Primer: So et al. 2021, arXiv:2109.08668, whose feed-forward network has
    the activation `relu_squared`). Rotary positions turn queries and keys after it. Generation also
    keeps the last inputs of the convolutions."""

    kernel_size: Size = 3
    """The number of tokens that each output of a convolution depends on, itself included."""

    @property
    def only_causal(self) -> bool:
        return True

    def layout(self) -> Layout:
        width = self.d_model
        conv = convolution(width, width, self.kernel_size, bias=False, groups=width)
        found = super().layout().with_parts(q_conv=conv, k_conv=conv, v_conv=conv)
        label = f"{found.label}, kernel {self.kernel_size}"
        return replace(found, label=label, state=3 * (self.kernel_size - 1) * width)

    def build(self) -> "nn.Module":
        from zoo_components.modules.multi_dconv_head import MultiDconvHeadAttention

        return MultiDconvHeadAttention(self._common, kernel_size=self.kernel_size)
