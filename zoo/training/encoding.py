"""Examples as rows of ids."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

from zoo.errors import Problem, TrainingError
from zoo.running.tokenizer_file import encoded
from zoo.training.batches import IGNORED, AnyRow, Labelled, Row, Valued
from zoo.training.data_tables import is_packed
from zoo.training.reader_tokens import Encoded, EncodedWords, ReaderTokens
from zoo.training.recipe import Recipe
from zoo.training.split import Example, Splits
from zoo.training.tokens import AnyTokens, Tokens
from zoo.wording import quoted


class Parts(NamedTuple):
    """The three parts of the data as rows of ids."""

    train: Sequence[AnyRow]
    valid: Sequence[AnyRow]
    test: Sequence[AnyRow]


def encode_parts(
    splits: Splits, tokens: AnyTokens, recipe: Recipe, labels: Sequence[str] = ()
) -> Parts:
    """Encode all data of a recipe by `encode_read` or `encode`, whose errors it raises. Texts of
    `test` are measured one by one, as by `zoo score`, and so are not packed."""
    longest = recipe.training.max_length

    def part(examples: Sequence[Example], *, packed: bool) -> Sequence[AnyRow]:
        if isinstance(tokens, ReaderTokens):
            return encode_read(examples, tokens, max_length=longest, labels=labels, packed=packed)
        if examples and examples[0].source is not None and tokens.of_decoder:
            return [row for row in encode_answers(examples, tokens) if row.length <= longest]
        return encode(examples, tokens, max_length=longest, packed=packed)

    packed = is_packed(recipe.data)
    return Parts(
        train=part(splits.train, packed=packed),
        valid=part(splits.valid, packed=packed),
        test=part(splits.test, packed=False),
    )


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
    found = tokens.encode_targets([example.target_text for example in examples])
    targets = [array("i", [*tokens.begin, *ids, tokens.eos]) for ids in found]
    sources = [example.source_text for example in examples if example.source is not None]
    if not sources:
        if packed and tokens.bos == tokens.eos:
            targets = [ids[number > 0 :] for number, ids in enumerate(targets)]
        texts = [array("i", chain.from_iterable(targets))] if packed else targets
        return [Row(None, piece) for ids in texts for piece in _pieces(ids, max_length)]
    read = tokens.encode_sources(sources)
    _check_not_empty(sources, read)
    rows = (Row(source, target) for source, target in zip(read, targets, strict=True))
    return [row for row in rows if row.length <= max_length]


def encode_answers(examples: Sequence[Example], tokens: Tokens) -> list[Row]:
    """Encode prompts and their answers, or chats, for a decoder that learns the answers.

    A prompt and its answer are one text. Its ids are those that `zoo run` makes of it, with the
    special tokens that the tokenizer puts before a text, and the end token behind it. In a chat,
    the template has written these. A token that belongs to the prompt and the answer is learned.

    Raises:
        InputError: the tokenizer cannot encode a text.
        TrainingError: no tokens are made of a text.
    """
    pieces = [
        tuple(chain.from_iterable(zip(one.prompts, one.targets, strict=True))) for one in examples
    ]
    chats = examples[0].opening is not None
    texts = ["".join(one) for one in pieces]
    found = encoded(tokens.target, texts, add_special_tokens=not chats)
    end = [] if chats else [tokens.eos]
    rows = [
        _learned(encoding, [*accumulate(map(len, one))], end)
        for encoding, one in zip(found, pieces, strict=True)
    ]
    _check_not_empty(texts, [row.target[: len(row.target) - len(end)] for row in rows])
    return rows


def _learned(encoding: Any, ends: Sequence[int], end: Sequence[int]) -> Row:
    """A text whose answers are learned.

    Args:
        encoding: the text, as its tokenizer encodes it.
        ends: where its pieces end: prompts and answers in turns.
        end: the id that is put behind it.
    """
    n = len(encoding.ids)
    while n and encoding.special_tokens_mask[n - 1]:
        n -= 1  # the tokenizer's own end
    ids, stops = array("i", encoding.ids[:n]), [stop for _, stop in encoding.offsets[:n]]
    labels = array("i", [IGNORED]) * n
    for first, last in zip(ends[::2], ends[1::2], strict=True):
        # An end token may also have taken the white space behind it, and the bytes of a character
        # may be tokens that all stop with it.
        after = max(bisect_left(stops, last) + 1, bisect_right(stops, last))
        learned = slice(bisect_right(stops, first), after)
        labels[learned] = ids[learned]
    return Row(None, ids + array("i", end), labels + array("i", end))


def special_spellings(examples: Sequence[Example], tokens: AnyTokens) -> list[str]:
    """The first special token that is spelled out in each example that has one in its texts: the
    tokenizer reads it as the token."""
    tokenizers: list[Any] = (
        [tokens.tokenizer] if isinstance(tokens, ReaderTokens) else [tokens.source, tokens.target]
    )
    added = chain.from_iterable(one.get_added_tokens_decoder().values() for one in tokenizers)
    spellings = sorted({re.escape(token.content) for token in added if token.special})
    if not spellings:
        return []
    pattern, found = re.compile("|".join(spellings)), list[str]()
    for example in examples:
        texts = [example.source_or_text, example.second or ""]
        texts += [] if isinstance(tokens, ReaderTokens) else [example.target_text]
        if match := pattern.search("\n".join(texts)):
            found.append(match[0])
    return found


def encode_read(
    examples: Sequence[Example],
    tokens: ReaderTokens,
    *,
    max_length: int,
    labels: Sequence[str] = (),
    packed: bool = False,
) -> list[Labelled] | list[Valued]:
    """Encode the examples of a model that reads whole texts.

    A text, or a pair of texts, with a label is truncated to `max_length` tokens, and its class is
    the number of the label in `labels`; with a list of labels, or a number, it has values instead.
    Words with a label each are truncated too, and the first token of each word has the class; words
    without a token in the truncated text are left out, and so are texts without such a word. Other
    text is cut into pieces, each with the special tokens that the tokenizer adds. With `packed`,
    texts with their special tokens are joined in their order, and cut. What is predicted of such a
    text is not drawn yet: its labels are all `IGNORED`. Texts of special tokens alone are left out,
    as nothing could be drawn from them.

    Raises:
        TrainingError: no tokens are made of a text with a label, or a number.
    """
    number = {label: place for place, label in enumerate(labels)}
    match tokens.reader.predicts:
        case "class":
            return [
                Labelled(one.first, (number[example.target_text],), one.types)
                for example, one in _read_whole(examples, tokens, max_length)
            ]
        case "classes" | "number" as kind:
            return [
                Valued(
                    one.first,
                    [float(example.target_text)]
                    if kind == "number"
                    else [float(label in example.targets) for label in labels],
                    one.types,
                )
                for example, one in _read_whole(examples, tokens, max_length)
            ]
        case "classes_of_words":
            words = tokens.encode_words([example.words for example in examples], longest=max_length)
            rows = (
                Labelled(one.ids, _at_first(one, [number[label] for label in example.targets]))
                for example, one in zip(examples, words, strict=True)
            )
            return [row for row in rows if row.n_labels]
        case "masked_tokens":
            texts = [example.source_or_text for example in examples]
            pieces = _text_pieces(texts, tokens, max_length=max_length, packed=packed)
            return [
                Labelled(ids, array("i", [IGNORED]) * len(ids))
                for ids in pieces
                if not tokens.special.issuperset(ids)
            ]


def _at_first(words: EncodedWords, labels: Sequence[int]) -> Sequence[int]:
    """The labels of all tokens, of which the first one of each word has that of the word."""
    found = array("i", [IGNORED]) * len(words.ids)
    for place, label in zip(words.first, labels, strict=True):
        if place is not None:
            found[place] = label
    return found


def _text_pieces(
    texts: Sequence[str], tokens: ReaderTokens, *, max_length: int, packed: bool
) -> Iterator[Sequence[int]]:
    found = tokens.encode(texts, longest=None if packed else max_length)
    if not packed:
        yield from chain.from_iterable((one.first, *one.others) for one in found)
        return
    joined = array("i", chain.from_iterable(one.first for one in found))
    yield from (joined[at : at + max_length] for at in range(0, len(joined), max_length))


def _read_whole(
    examples: Sequence[Example], tokens: ReaderTokens, max_length: int
) -> Iterator[tuple[Example, Encoded]]:
    """Encode texts that are read as a whole, each with its example. Raises TrainingError as
    `encode_read`."""
    found = tokens.encode([example.texts for example in examples], longest=max_length)
    texts = [example.source_text for example in examples]
    _check_not_empty(texts, [one.first for one in found])
    return zip(examples, found, strict=True)


def _check_not_empty(texts: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
    """Raise TrainingError for a row without ids."""
    for text, ids in zip(texts, rows, strict=True):
        if not ids:
            hint = "leave it out of the data, or take a tokenizer that makes some of it"
            raise TrainingError(
                Problem(f"no tokens are made of the text {quoted(text)}", help=hint)
            )


def _pieces(ids: Sequence[int], length: int) -> Iterator[Sequence[int]]:
    """Cut ids into pieces in which `length` tokens are predicted, each token in one piece."""
    for start in range(0, len(ids) - 1, length):
        yield ids[start : start + length + 1]
