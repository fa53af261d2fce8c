"""What a model is for: what its builder tells those who run, train and drive it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

Task = Literal["translate", "generate", "embed", "fill_mask", "classify"]
"""What `zoo run` does with a model."""


class Generation(NamedTuple):
    """What `zoo.generate` has to know of a model that generates.

    Args:
        target_vocab: the ids that are generated are below this.
        source_vocab: those of the source are below this; None for a source of vectors.
        has_source: whether there is an encoder.
        needs_memory: whether the caller gives what cross-attention attends to.
        pad_id: padding of the target, which the model hides from itself.
        source_pad_id: the same of the source.
        longest: the most target tokens that the positions allow; None for no end.
        longest_source: the same of the source.
        not_incremental: the parts for whose sake each token is computed from all before it.
        looks_ahead: the parts by which a target's position sees later ones.
        changes: `changes(before, after)` is `Position.changes` of the target's positions.
    """

    target_vocab: int
    source_vocab: int | None = None
    has_source: bool = False
    needs_memory: bool = False
    pad_id: int | None = None
    source_pad_id: int | None = None
    longest: int | None = None
    longest_source: int | None = None
    not_incremental: tuple[str, ...] = ()
    looks_ahead: tuple[str, ...] = ()
    changes: Callable[[int, int], bool] = lambda before, after: False


class Reading(NamedTuple):
    """What is read by a model that is called with ids alone.

    Args:
        vocab: ids are below this.
        longest: the most tokens that the positions allow; None for no end.
    """

    vocab: int
    longest: int | None = None
