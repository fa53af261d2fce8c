"""What mixers of tokens with a state have in common, in the `attention` slot."""

from typing import Self

from pydantic import model_validator

from zoo.component import Given, contradiction
from zoo.slots import Attention


class Recurrent(Attention):
    """A mixer of tokens that goes through a sequence once, forwards, with a state of fixed size."""

    causal: Given[bool] = True
    """Whether a token sees no later ones."""

    @model_validator(mode="after")
    def _check_direction(self) -> Self:
        if not self.causal:
            raise contradiction(
                f"`{self.kind}` goes through the tokens from the first to the last, so that none "
                "sees a later one: it has a place in a causal stack alone",
                "kind",
            )
        if self.key_width is not None:
            raise ValueError(
                f"`{self.kind}` sums up one sequence, and cannot attend to another: state it under "
                "`self_attn`"
            )
        return self

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
