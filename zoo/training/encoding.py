"""Examples as rows of ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from zoo.errors import Problem, TrainingError
from zoo.training.batches import IGNORED, AnyRow, Labelled, Row
from zoo.training.reader_tokens import ReaderTokens
from zoo.training.split import Example
from zoo.training.tokens import AnyTokens, Tokens
from zoo.wording import quoted


def encode(
    examples: Sequence[Example], tokens: Tokens, *, max_length: int, packed: bool = False
) -> list[Row]:
    """Encode examples as ids. Pairs with a side longer than `max_length`, begin or end included,
    are left out. Text is cut into pieces, the last of which has the end token. With `packed`, texts
    are joined in their order before they are cut, so that all rows but the last are equally long;
    one token between two texts both ends and begins, if these tokens are the same.

    Raises:
        TrainingError: no tokens are made of a source.
    """
    found = tokens.encode_targets([example.target for example in examples])
    targets = [[*tokens.begin, *ids, tokens.eos] for ids in found]
    sources = [example.source for example in examples if example.source is not None]
    if not sources:
        if packed and tokens.bos == tokens.eos:
            targets = [ids[number > 0 :] for number, ids in enumerate(targets)]
        texts = [list(chain.from_iterable(targets))] if packed else targets
        return [Row(None, piece) for ids in texts for piece in _pieces(ids, max_length)]
    pairs = zip(_not_empty(sources, tokens.encode_sources(sources)), targets, strict=True)
    rows = (Row(source, target) for source, target in pairs)
    return [row for row in rows if row.length <= max_length]


def encode_any(
    examples: Sequence[Example],
    tokens: AnyTokens,
    *,
    max_length: int,
    labels: Sequence[str] = (),
    packed: bool = False,
) -> Sequence[AnyRow]:
    """Encode examples as what the model reads: `encode_read`, or else `encode`."""
    if isinstance(tokens, ReaderTokens):
        return encode_read(examples, tokens, max_length=max_length, labels=labels, packed=packed)
    return encode(examples, tokens, max_length=max_length, packed=packed)


def encode_read(
    examples: Sequence[Example],
    tokens: ReaderTokens,
    *,
    max_length: int,
    labels: Sequence[str] = (),
    packed: bool = False,
) -> list[Labelled]:
    """Encode the examples of a model that reads whole texts.

    A text with a label is truncated to `max_length` tokens, and its class is the number of the
    label in `labels`. Other text is cut into pieces, each with the special tokens that the
    tokenizer adds. With `packed`, texts with their special tokens are joined in their order, and
    cut. What is predicted of such a text is not drawn yet: its labels are all `IGNORED`. Texts of
    special tokens alone are left out, as nothing could be drawn from them.

    Raises:
        TrainingError: no tokens are made of a text with a label.
    """
    texts = [example.source_or_text for example in examples]
    found = tokens.encode(texts, longest=None if packed else max_length)
    if tokens.reader.classes is not None:
        number = {label: place for place, label in enumerate(labels)}
        rows = _not_empty(texts, [one.first for one in found])
        return [
            Labelled(ids, (number[example.target],))
            for example, ids in zip(examples, rows, strict=True)
        ]
    pieces: Iterable[Sequence[int]] = chain.from_iterable((one.first, *one.others) for one in found)
    if packed:
        joined = list(chain.from_iterable(pieces))
        pieces = (joined[at : at + max_length] for at in range(0, len(joined), max_length))
    return [
        Labelled(ids, (IGNORED,) * len(ids)) for ids in pieces if not tokens.special.issuperset(ids)
    ]


def _not_empty(texts: Sequence[str], rows: list[list[int]]) -> list[list[int]]:
    """The rows of ids of these texts. Raises TrainingError for a row without ids."""
    for text, ids in zip(texts, rows, strict=True):
        if not ids:
            hint = "leave it out of the data, or take a tokenizer that adds special tokens"
            raise TrainingError(
                Problem(f"no tokens are made of the text {quoted(text)}", help=hint)
            )
    return rows


def _pieces(ids: Sequence[int], length: int) -> Iterator[Sequence[int]]:
    """Cut ids into pieces in which `length` tokens are predicted, each token in one piece."""
    for start in range(0, len(ids) - 1, length):
        yield ids[start : start + length + 1]
