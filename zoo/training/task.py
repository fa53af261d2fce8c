"""What a model is trained for, as its spec tells: to translate, or to continue text."""

from __future__ import annotations

from dataclasses import dataclass

from zoo.errors import SpecError
from zoo.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a model: the tokens of its vocabulary, and the id of padding if it is stated."""

    vocab: int
    pad_id: int | None


@dataclass(frozen=True, slots=True)
class Task:
    """The sides of a model. Without a source, it continues text."""

    source: Side | None
    target: Side


def task_of(spec: ModelSpec) -> Task:
    """What a model can be trained for.

    Raises:
        SpecError: it has no decoder over a vocabulary.
    """
    target = _side(spec, "decoder")
    has_encoder = "encoder" in spec.to_dict()
    source = _side(spec, "encoder") if has_encoder else None
    if target is None or (has_encoder and source is None):
        raise SpecError(
            f"{spec.name} cannot be trained: it takes a decoder, or an encoder and a decoder, with "
            "vocabularies"
        )
    return Task(source, target)


def _side(spec: ModelSpec, stack: str) -> Side | None:
    try:
        table = spec.layout.find(f"{stack}.embed.tokens.weight")
    except KeyError:
        return None
    return Side(table.shape[0], spec.to_dict()[stack].get("pad_id"))
