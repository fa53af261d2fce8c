"""A layer with a second mixer of tokens: the `block` slot."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from zoo.component import Slot, contradiction
from zoo.slots import Attention, FeedForward, Sublayer
from zoo_components.block import Residual

if TYPE_CHECKING:
    from torch import nn


def check_positionless(mixer: Attention, name: str, what: str) -> None:
    """Raise a contradiction if the mixer in the field `name`, `what` in a message, needs what the
    stack has for the self-attention of a layer."""
    if (
        mixer.takes_rotation
        or mixer.takes_bias
        or mixer.takes
        or mixer.needs_keys is not None
        or mixer.longest is not None
        or mixer.looks_ahead
    ):
        raise contradiction(
            f"`{mixer.kind}` cannot be {what}, which knows neither positions nor keys of other "
            "layers, and sees no later tokens: state it as `self_attn`",
            f"{name}.kind",
        )


class TwoMixers(Residual):
    """The layer `residual` with a second mixer of tokens after the attention to the sequence
    itself, with norms of its own. In RWKV-4 (Peng et al. 2023, arXiv:2305.13048), it takes the
    place of a feed-forward network (`ffn = "none"`)."""

    arrangement: ClassVar[Literal["sequential"]] = "sequential"  # type: ignore[misc]  # no field
    second_mixer: Annotated[Attention, Slot("attention", default="channel_mixing", inherit=False)]
    """The second mixer, one with a state or another that needs no positions."""

    @model_validator(mode="after")
    def _check_second(self) -> Self:
        if self.norm_placement == "parallel":
            raise contradiction(
                "the branches of a layer with two mixers run one after the other", "norm_placement"
            )
        second = self.second_mixer
        if second.absent:
            raise contradiction(
                "without a second mixer the layer is the block `residual`", "second_mixer.kind"
            )
        check_positionless(second, "second_mixer", "the second mixer")
        return self

    @property
    def only_causal(self) -> bool:
        return super().only_causal or self.second_mixer.only_causal

    def _mixing(self) -> list[tuple[str, Attention | FeedForward]]:
        second = self.second_mixer
        return [*super()._mixing(), (f"attention `{second.kind}`", second)]

    def _branches(self) -> dict[str, Sublayer | None]:
        return {
            "self_attn": self.self_attn,
            "second_mixer": self.second_mixer,
            "cross_attn": self.cross_attn,
            "ffn": self.ffn,
        }

    def build(self) -> "nn.Module":
        from zoo_components.modules.block import TwoMixersBlock

        return self._module(TwoMixersBlock)
