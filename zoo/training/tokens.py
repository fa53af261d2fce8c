"""The tokenizers of a model that a recipe trains, with their special ids."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from zoo.errors import Problem, TrainingError
from zoo.files.atomic import write_text
from zoo.files.of_model import SETTINGS, TARGET_TOKENIZER, TOKENIZER
from zoo.running.tokenizer_file import (
    MASKS,
    encoded,
    mask_of,
    read_tokenizer,
    token_of,
    tokenizer_code,
)
from zoo.training.published import UNPUBLISHED, Published
from zoo.training.reader_tokens import ReaderTokens
from zoo.training.sides import Reader, Sides
from zoo.training.tables import OfModel, Specials
from zoo.training.tables import Tokenizer as Table
from zoo.wording import did_you_mean, quoted

PAD = 0
"""The id of padding in learned tokenizers, whose special tokens come first."""


@dataclass(frozen=True)
class Tokens:
    """The tokenizers of a model, the same one for both sides if it has one vocabulary, and the
    special ids, some of which may be equal: where padding is, is known from lengths alone. `bos` is
    None if nothing begins a text. `first` is the id that each target has after `bos`, if there is
    one. `of_decoder` says whether they are of a decoder, for which a prompt and its answer are one
    text."""

    source: Any
    target: Any
    source_pad: int
    pad: int
    bos: int | None
    eos: int
    first: int | None = None
    of_decoder: bool = False

    @property
    def begin(self) -> list[int]:
        """The ids that each target, or text, begins with."""
        return [id_ for id_ in (self.bos, self.first) if id_ is not None]

    def encode_sources(self, texts: Sequence[str]) -> list[array[int]]:
        """The ids of sources, with the special tokens that their tokenizer adds."""
        return [array("i", encoding.ids) for encoding in encoded(self.source, texts)]

    def encode_targets(self, texts: Sequence[str]) -> list[array[int]]:
        """The ids of targets, without begin and end."""
        found = encoded(self.target, texts, add_special_tokens=False)
        return [array("i", encoding.ids) for encoding in found]

    def decode_targets(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The texts of rows of ids, special tokens left out. Raises `TrainingError` if the
        tokenizer cannot make them."""
        with tokenizer_code(_cannot_decode):
            decoded: list[str] = self.target.decode_batch([list(row) for row in rows])
        return decoded

    @property
    def end(self) -> str:
        """The token that ends a target, or text."""
        found = token_of(self.target, self.eos)
        assert found is not None  # `with_specials` has its id from it
        return found

    @property
    def ids(self) -> dict[str, int]:
        """The special ids, under the names of the settings of generation."""
        begins = ("bos_token_id", "decoder_start_token_id")
        begin = {} if self.bos is None else dict.fromkeys(begins, self.bos)
        return {**begin, "eos_token_id": self.eos, "pad_token_id": self.pad}

    @property
    def tokenizers(self) -> list[Any]:
        """Those of both sides."""
        return [self.source, self.target]

    def save(self, folder: Path) -> None:
        """Write the tokenizers and the special ids. Raises `ZooError` as `write_text`."""
        write_text(folder / TOKENIZER, self.source.to_str(pretty=True))
        if self.target is not self.source:
            write_text(folder / TARGET_TOKENIZER, self.target.to_str(pretty=True))
        write_text(folder / SETTINGS, json.dumps(self.ids, indent=2) + "\n")


AnyTokens = Tokens | ReaderTokens
"""The tokenizers of a model."""


def _cannot_decode(error: BaseException) -> TrainingError:
    return TrainingError(f"the tokenizer of the targets cannot make a text of ids: {error}")


def read_tokens(
    folder: Path, table: Table, sides: Sides, published: Published = UNPUBLISHED
) -> AnyTokens:
    """Read the tokenizers that `Tokens.save` wrote to a folder. The arguments and errors are those
    of `read_token_files`."""
    there = (folder / TARGET_TOKENIZER).is_file()
    target = folder / TARGET_TOKENIZER if there else None
    return read_token_files(folder / TOKENIZER, target, table, sides, published)


def read_token_files(
    source: Path,
    target: Path | None,
    table: Table,
    sides: Sides,
    published: Published = UNPUBLISHED,
) -> AnyTokens:
    """Read tokenizers.

    Args:
        source: the file for sources or, for text models, for the text.
        target: the file for targets, if it is a different one.
        table: the recipe's `[tokenizer]`.
        sides: what the model reads and predicts.
        published: the special ids of the saved model that training starts from.

    Raises:
        WeightsError: a file is missing or not a tokenizer.
        TrainingError: a tokenizer does not agree with the model.
    """
    one = read_tokenizer(source)
    other = one if target is None else read_tokenizer(target)
    if not isinstance(table, OfModel):
        return with_specials(one, other, table, sides)
    found = with_specials(one, other, _specials_of(table, other, sides, published), sides)
    return replace(found, first=published.first) if isinstance(found, Tokens) else found


class _Found(NamedTuple):
    """Special tokens, of which the first of a text may be missing."""

    pad: str
    bos: str | None
    eos: str


def _specials_of(table: OfModel, tokenizer: Any, sides: Sides, published: Published) -> _Found:
    """The special tokens that a recipe states, or else those that the model was published with, or
    else the usual ones. As no token sees padding, any token can stand for it: of a model that reads
    whole texts, the one of the lowest id. A decoder need not have a token that texts begin with:
    answers follow what its tokenizer makes of their prompts."""
    usual = Specials()
    pad_id = published.pad if sides.pad_id is None else sides.pad_id
    pad = table.pad or (None if pad_id is None else token_of(tokenizer, pad_id))
    if isinstance(sides, Reader):
        return _Found(pad or token_of(tokenizer, PAD) or usual.pad, usual.bos, usual.eos)
    ends = [end for id_ in published.ends if (end := token_of(tokenizer, id_))]
    if table.eos is None and len(ends) > 1:
        raise TrainingError(
            f"texts of the model end with any of {', '.join(map(quoted, ends))}",
            help="state in `[tokenizer]` with which one the examples end, as "
            f"`eos = {json.dumps(ends[0], ensure_ascii=False)}`",
        )
    eos = table.eos or next(iter(ends), None) or usual.eos
    begin = None if published.bos is None else token_of(tokenizer, published.bos)
    bos = table.bos or begin or usual.bos
    is_there = table.bos or sides.has_source or tokenizer.token_to_id(bos) is not None
    return _Found(pad or eos, bos if is_there else None, eos)


def with_specials(source: Any, target: Any, table: Specials | _Found, sides: Sides) -> AnyTokens:
    """The tokenizers with their special ids, checked against the model.

    Raises:
        TrainingError: a tokenizer lacks a special token, has more tokens than the model, or a
            different padding id; or there are two for a model that reads whole texts; or the model
            hides a token that it has to read, as padding.
    """
    if isinstance(sides, Reader):
        return _reading(source, target, table, sides)
    problems: list[Problem] = []

    def id_of(tokenizer: Any, token: str) -> int:
        found: int | None = tokenizer.token_to_id(token)
        if found is None:
            problems.append(_missing(token, tokenizer))
        return found or 0

    source_pad, pad = id_of(source, table.pad), id_of(target, table.pad)
    bos = None if table.bos is None else id_of(target, table.bos)
    eos = id_of(target, table.eos)
    if not problems:
        if sides.source_vocab is not None:
            problems += _disagreements(
                "source ", source, source_pad, sides.source_vocab, sides.source_pad_id
            )
        problems += _disagreements("target ", target, pad, sides.target_vocab, sides.pad_id)
        # An end is read only where texts are joined.
        if pad == sides.pad_id and (pad == bos or (pad == eos and not sides.has_source)):
            problems.append(_hidden(table.pad, pad))
    if problems:
        raise TrainingError(dict.fromkeys(problems))
    return Tokens(source, target, source_pad, pad, bos, eos, of_decoder=not sides.has_source)


def _hidden(token: str, id_: int) -> Problem:
    return Problem(
        f"the model hides {quoted(token)}, as its spec states `pad_id = {id_}`, and has to read "
        "it too",
        help="a spec without `pad_id` can use one token for both",
    )


def _reading(tokenizer: Any, other: Any, table: Specials | _Found, sides: Reader) -> ReaderTokens:
    """The tokenizer of a model that reads whole texts. Raises as `with_specials`."""
    if other is not tokenizer:
        message = "a second tokenizer is for targets, and this model has none"
        raise TrainingError(message, help="leave out `target`")
    problems: list[Problem] = []
    pad = tokenizer.token_to_id(table.pad)
    if pad is None:
        problems.append(_missing(table.pad, tokenizer))
    mask = mask_of(tokenizer)
    if mask is None and sides.classes is None:
        problems.append(
            Problem(
                f"the tokenizer has no mask token: neither `{MASKS[0]}` nor `{MASKS[1]}`",
                help="a model that fills in masked tokens reads it in their place",
            )
        )
    pad_id = None if pad is None else sides.pad_id
    problems += _disagreements("", tokenizer, pad or 0, sides.vocab, pad_id)
    tokens = ReaderTokens(tokenizer, sides, pad or 0, mask)
    masks = (mask,) if sides.classes is None else ()
    if pad_id is not None and pad_id in (*tokens.added(pairs=False), *masks):
        problems.append(_hidden(table.pad, pad_id))
    if problems:
        raise TrainingError(dict.fromkeys(problems))
    return tokens


def _disagreements(
    name: str, tokenizer: Any, pad: int, vocab: int, pad_id: int | None
) -> Iterable[Problem]:
    # The number of tokens, if no id is left out.
    size = 1 + max(tokenizer.get_vocab().values(), default=-1)
    if size > vocab:
        yield Problem(
            f"the tokenizer and the model disagree: {size:,} {name}tokens, and a vocabulary of "
            f"{vocab:,}",
            help=f"state the vocabulary's size in the spec: {size}",
        )
    yield from other_padding(name, pad, pad_id)


def other_padding(name: str, pad: int, pad_id: int | None) -> Iterable[Problem]:
    """The problem that padding has another id for a tokenizer than for the model, which names one;
    `name` is the side with a space, or empty."""
    if pad_id is not None and pad_id != pad:
        yield Problem(
            f"the tokenizer and the model disagree: padding is {pad} for the {name}tokenizer, and "
            f"{pad_id} for the model",
            help=f"state `pad_id = {pad}` in the spec",
        )


def check_not_empty(texts: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
    """Raise TrainingError for a text of which the tokenizer has made a row without ids."""
    for text, ids in zip(texts, rows, strict=True):
        if not ids:
            hint = "leave it out of the data, or take a tokenizer that makes some of it"
            raise TrainingError(f"no tokens are made of the text {quoted(text)}", help=hint)


def _missing(token: str, tokenizer: Any) -> Problem:
    added = [one.content for one in tokenizer.get_added_tokens_decoder().values()]
    return Problem(f"the tokenizer has no token `{token}`", help=did_you_mean(token, added))
