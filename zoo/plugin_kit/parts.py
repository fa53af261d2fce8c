"""Parts that blocks and builders under test are built with, to see what these pass on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import model_validator

from zoo.component import missing_dimension
from zoo.layout import Layout, embedding, linear
from zoo.slots import Attention, Embedding, FeedForward, Head, KeyForm, Plugin, Position

if TYPE_CHECKING:
    from torch import nn

    from zoo.position import PositionScheme


class MixingAttention(Attention):
    """An attention that needs all tokens at once."""


class LooksAhead:
    """A part in which a token sees later ones."""

    @property
    def incremental(self) -> bool:
        return False

    @property
    def looks_ahead(self) -> bool:
        return True


class MixingNetwork(LooksAhead, FeedForward):
    """A network in which a token sees later ones."""

    recordable: ClassVar[bool] = False


class MixingEmbedding(LooksAhead, Embedding):
    """An embedding in which a token sees later ones."""


class FewPositions(Position):
    """Positions that end, and that are encoded differently in longer sequences."""

    rotates: ClassVar[bool] = True
    n_positions: ClassVar[int] = 7

    @property
    def longest(self) -> int:
        return self.n_positions

    def changes(self, before: int, after: int) -> bool:
        return True


MIXING: Mapping[str, type[Plugin]] = {
    "attention": MixingAttention,
    "ffn": MixingNetwork,
    "embedding": MixingEmbedding,
    "position": FewPositions,
}
"""Descriptions of what generation has to be told of, by their slots."""
MIXING_KIND = "check_mixing"


class HearingAttention(Attention):
    """An attention that takes all that a block can pass on, and notes it."""

    @property
    def takes(self) -> tuple[str, ...]:
        return "scheme", "global_tokens", "coordinates", "rotations"

    @property
    def needs_keys(self) -> KeyForm:
        return KeyForm(n_kv_heads=1, head_dim=1, v_head_dim=1)

    def layout(self) -> Layout:
        return Layout({})

    def build(self) -> nn.Module:
        from zoo.plugin_kit.part_modules import Hearing

        return Hearing()


class HearingNetwork(FeedForward):
    """A network that reads the ids of tokens, and notes what it is called with."""

    @property
    def takes_ids(self) -> bool:
        return True

    def layout(self) -> Layout:
        return Layout({})

    def build(self) -> nn.Module:
        from zoo.plugin_kit.part_modules import HearingIds

        return HearingIds()


class AveragingNetwork(FeedForward):
    """A network that takes the mean of a token and all earlier ones but padding."""

    @property
    def incremental(self) -> bool:
        return False

    @property
    def takes_mask(self) -> bool:
        return True

    def layout(self) -> Layout:
        return Layout({})

    def build(self) -> nn.Module:
        from zoo.plugin_kit.part_modules import Averaging

        return Averaging()


class AveragingEmbedding(Embedding):
    """An embedding that takes the mean of a token's vector and all earlier ones but padding's."""

    @model_validator(mode="after")
    def _check(self) -> AveragingEmbedding:
        if self.vocab is None:
            raise missing_dimension("vocab")
        return self

    @property
    def incremental(self) -> bool:
        return False

    def layout(self) -> Layout:
        return Layout({"tokens": embedding(self.vocab or 0, self.d_model)})

    def build(self, scheme: PositionScheme | None = None) -> nn.Module:
        from zoo.plugin_kit.part_modules import AveragedTokens

        return AveragedTokens(self.vocab or 0, self.d_model, scheme)


class TiedHead(Head):
    """A head whose map is the token table."""

    @model_validator(mode="after")
    def _check(self) -> TiedHead:
        if self.vocab is None:
            raise missing_dimension("vocab")
        return self

    @property
    def scores_tokens(self) -> bool:
        return True

    def ties(self, embedding: str) -> dict[str, str]:
        return {"out.weight": embedding}

    def layout(self) -> Layout:
        return Layout({"out": linear(self.d_model, self.vocab or 0, bias=False)})

    def build(self) -> nn.Module:
        from zoo.plugin_kit.part_modules import Out

        return Out(self.d_model, self.vocab or 0)


HEARING_KIND = "check_hearing"
AVERAGING_KIND = "check_averaging"
TIED_KIND = "check_tied"

PARTS: Mapping[str, Mapping[str, type[Plugin]]] = {
    MIXING_KIND: MIXING,
    HEARING_KIND: {"attention": HearingAttention, "ffn": HearingNetwork},
    AVERAGING_KIND: {"ffn": AveragingNetwork, "embedding": AveragingEmbedding},
    TIED_KIND: {"head": TiedHead},
}
"""The descriptions of all parts, by kind and slot."""
