"""What mixers of tokens with a state have in common, in the `attention` slot."""

from math import expm1, log
from typing import ClassVar, Self

from pydantic import model_validator

from zoo.slots import Attention

FIRST_RATE = 0.05
"""The rate of decay at the start, for an input of zeros: a token fades to a half within 14 others.
It lies in the range from which Mamba-2 draws such rates."""
FIRST_STEP = log(expm1(FIRST_RATE))
"""The value whose softplus is that."""


class Recurrent(Attention):
    """A mixer of tokens that goes through a sequence once, forwards, with a state of fixed size."""

    recordable: ClassVar[bool] = True

    @model_validator(mode="after")
    def _check_own_sequence(self) -> Self:
        if self.key_width is not None:
            raise ValueError(
                f"`{self.kind}` sums up one sequence, and cannot attend to another: state it under "
                "`self_attn`"
            )
        return self

    @property
    def only_causal(self) -> bool:
        return True

    @property
    def takes_rotation(self) -> bool:
        return False

    @property
    def takes_bias(self) -> bool:
        return False

    @property
    def against_fused(self) -> str:
        return f"fused kernels compute a softmax, and `{self.kind}` has none"

    @property
    def incremental(self) -> bool:
        return True
