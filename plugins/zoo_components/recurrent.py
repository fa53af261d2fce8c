"""What mixers of tokens with a state have in common, in the `attention` slot."""

from math import expm1, log
from typing import ClassVar

from zoo.slots import Attention
from zoo_components.self_attention import WithinSequence

FIRST_RATE = 0.05
"""The rate of decay at the start, for an input of zeros: a token fades to a half within 14 others.
It lies in the range from which Mamba-2 draws such rates."""
FIRST_STEP = log(expm1(FIRST_RATE))
"""The value whose softplus is that."""


class WithoutSoftmax(Attention):
    """What mixers of tokens have in common that sum up tokens instead of scoring each: they take
    neither a rotation nor a bias of scores, and generation keeps a state of fixed size."""

    recordable: ClassVar[bool] = True

    @property
    def takes_rotation(self) -> bool:
        return False

    @property
    def takes_bias(self) -> bool:
        return False

    @property
    def against_fused(self) -> str | None:
        return f"fused kernels compute a softmax, and `{self.kind}` has none"

    @property
    def incremental(self) -> bool:
        return True


class Recurrent(WithoutSoftmax, WithinSequence):
    """A mixer of tokens that goes through a sequence once, forwards."""

    @property
    def only_causal(self) -> bool:
        return True
