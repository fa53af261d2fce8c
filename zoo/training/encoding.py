"""Examples as rows of ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from zoo.training.batches import Row
from zoo.training.split import Example
from zoo.training.tokens import Tokens


def encode(
    examples: Sequence[Example], tokens: Tokens, *, max_length: int, packed: bool = False
) -> list[Row]:
    """Encode examples as ids. Pairs with a side longer than `max_length`, begin or end included,
    are left out. Text is cut into pieces, the last of which has the end token. With `packed`, texts
    are joined in their order before they are cut, so that all rows but the last are equally long;
    one token between two texts both ends and begins, if these tokens are the same.
    """
    found = tokens.encode_targets([example.target for example in examples])
    targets = [[*tokens.begin, *ids, tokens.eos] for ids in found]
    sources = [example.source for example in examples if example.source is not None]
    if not sources:
        if packed and tokens.bos == tokens.eos:
            targets = [ids[number > 0 :] for number, ids in enumerate(targets)]
        texts = [list(chain.from_iterable(targets))] if packed else targets
        return [Row(None, piece) for ids in texts for piece in _pieces(ids, max_length)]
    pairs = zip(tokens.encode_sources(sources), targets, strict=True)
    rows = (Row(source, target) for source, target in pairs)
    return [row for row in rows if row.length <= max_length]


def _pieces(ids: Sequence[int], length: int) -> Iterator[Sequence[int]]:
    """Cut ids into pieces in which `length` tokens are predicted, each token in one piece."""
    for start in range(0, len(ids) - 1, length):
        yield ids[start : start + length + 1]
