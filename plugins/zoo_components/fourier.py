"""Mixing tokens by a Fourier transform, in the `attention` slot."""

from typing import TYPE_CHECKING

from zoo_components.recurrent import WithoutSoftmax
from zoo_components.self_attention import WithinSequence

if TYPE_CHECKING:
    from torch import nn


class Fourier(WithoutSoftmax, WithinSequence):
    """The mixing of tokens of FNet (Lee-Thorp et al. 2021, arXiv:2105.03824, section 3.2): the real
    part of the discrete Fourier transform of the layer's input, over its features and over the
    tokens. Nothing in it is learned, and each token is mixed with all others, so it is for encoders
    alone. What the mask hides is no part of the sequence: a text has the same output beside padding
    as alone. Without a mask, padding is mixed in like other tokens."""

    @property
    def incremental(self) -> bool:
        return False

    @property
    def looks_ahead(self) -> bool:
        return True

    def build(self) -> "nn.Module":
        from zoo_components.modules.fourier import FourierMixing

        return FourierMixing()
