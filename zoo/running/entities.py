"""Entities, such as names of persons and places, in the labels of words: the IOB2 scheme. `B-PER`
begins an entity of the type `PER`, `I-PER` goes on with it, and `O` is outside of all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

OUTSIDE = "O"
"""The label of words that are in no entity."""
_INSIDE = ("B-", "I-")


class Entity(NamedTuple):
    """Words `start` to `end`, which is exclusive, are an entity of the type `label`."""

    label: str
    start: int
    end: int


def marks_entities(labels: Collection[str]) -> bool:
    """Whether labels are of the IOB2 scheme, or of IOB1, which differs in where `B-` is stated."""
    inside = [label for label in labels if label != OUTSIDE]
    return bool(inside) and all(label.startswith(_INSIDE) for label in inside)


def entities(labels: Sequence[str]) -> list[Entity]:
    """The entities that the labels of words mark, in their order.

    An `I-` that continues no entity of its type begins one, as in the script that scored CoNLL-2003
    (Tjong Kim Sang and De Meulder 2003, arXiv:cs/0306050).
    """
    found: list[Entity] = []
    for place, label in enumerate(labels):
        if label == OUTSIDE:
            continue
        last = found[-1] if found else None
        kind = label[2:]
        if label.startswith("I-") and last is not None and last.end == place and last.label == kind:
            found[-1] = last._replace(end=place + 1)
        else:
            found.append(Entity(kind, place, place + 1))
    return found
