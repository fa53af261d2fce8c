"""Text by the tokenizers in a model's folder."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from zoo.errors import InputError, Place, WeightsError
from zoo.files.of_model import PIECES, SENTENCE_CONFIG, TARGET_TOKENIZER, TOKENIZER
from zoo.running.sentence_texts import (
    CutWarning,
    default_prompt,
    is_sentence_folder,
    reading_of,
)
from zoo.running.text import Input, Numbers, Places, Text, Tokens, Word
from zoo.running.tokenizer_config import read_special_tokens, states
from zoo.running.tokenizer_file import (
    Strategy,
    cut_after,
    encode,
    is_bpe,
    lower_case,
    mask_of,
    no_pairs,
    read_tokenizer,
    tokenizer_code,
    truncated,
    types_of,
)
from zoo.wording import counted

if TYPE_CHECKING:
    from zoo.running.chat import Chat, ChatTemplate, Tools

_OLDER = (
    *("vocab.txt", "vocab.json", "spiece.model", "spm.model", "tokenizer.model"),
    PIECES,
)
"""The files of tokenizers of older checkpoints, of which transformers makes newer ones."""
_SPACED = {
    **{f" {mark}": mark for mark in ".?!,"},
    " ' ": "'",
    **{f" {end}": end for end in ("n't", "'m", "'s", "'ve", "'re")},
}
"""What `_tidied` replaces, in this order."""


class Mark(NamedTuple):
    """A token that a tokenizer puts beside every text: its place among the ids of a text, counted
    from the end if it is negative, and its id."""

    place: int
    id: int


class Tokenized:
    """Text by the tokenizers of a folder.

    Args:
        source: encodes the input.
        target: decodes the output.
        folder: that of the model.
        prompt: what precedes every text of the input, but not pairs and chats.
        tidies: whether spaces before punctuation are removed from the output.

    `mark` is the token of the language of the input, if it is another than the source's own. Ids
    from `hidden_from` on are left out of texts as special ones are, if it is not None. `why_cut`
    says why the end of a long text is not read, if it is not.
    """

    writes_ids = False
    mark: Mark | None = None
    why_cut = ""
    hidden_from: int | None = None

    def __init__(
        self, source: Any, target: Any, folder: Path, *, prompt: str = "", tidies: bool = False
    ) -> None:
        self.source, self.target, self.folder = source, target, folder
        self.prompt, self.tidies = prompt, tidies

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text, with the special tokens that the tokenizer adds, or without `special`,
        of the text as it is.

        Raises:
            InputError: it is not a string, contains half a character (a lone surrogate), or has a
                word for which the tokenizer has no token.

        Warns:
            CutWarning: the end of the text is not read.
        """
        if not special:
            plain: list[int] = encode(self.source, text, add_special_tokens=False).ids
            return plain
        if self.prompt and isinstance(text, str):
            text = self.prompt + text
        found = encode(self.source, text)
        self._warn_if_cut(found)
        ids: list[int] = found.ids
        if self.mark is not None:
            ids[self.mark.place] = self.mark.id
        return ids

    def encode_pair(self, pair: tuple[str, str], token_types: int) -> Input:
        """The ids of a pair of texts, as the tokenizer's own template for pairs joins them, the
        types of its tokens, of which the model tells so many apart, and the places of the tokens of
        the second text.

        Raises:
            InputError: as `encode`; or the tokenizer has no template for pairs.

        Warns:
            CutWarning: as `encode`.
        """
        if problem := no_pairs(self.source, token_types):
            raise InputError(problem)
        found = encode(self.source, *pair)
        self._warn_if_cut(found)
        tokens = (
            Word(token, start, end)
            for token, (side, offsets) in enumerate(
                zip(found.sequence_ids, found.offsets, strict=True)
            )
            for start, end in [_without_space(pair[1], *offsets)]
            if side == 1 and start < end
        )
        return Input(found.ids, types_of(found, token_types), pair[1], tuple(tokens))

    def _warn_if_cut(self, encoding: Any) -> None:
        if encoding.overflowing:
            message = f"{self.why_cut}, and of a longer text the end is not read"
            warnings.warn(message, CutWarning, stacklevel=3)

    def truncating(self, n_tokens: int, strategy: Strategy) -> Self:
        """The tokenizers, for texts and pairs that may be too long: only the first tokens are read,
        the special ones among them, and of a pair those that the strategy leaves.

        Raises:
            InputError: no tokens would be those of the text.
        """
        found = copy(self)
        found.source = truncated(self.source, n_tokens, strategy)
        if not self.why_cut or self.source.truncation["max_length"] > n_tokens:
            found.why_cut = f"{counted(n_tokens, 'token')} of each are read"
        return found

    def words(self, text: str) -> tuple[Word, ...]:
        """The words of a text, as the tokenizer divides it. Raises InputError as `encode`."""
        encoding = encode(self.source, text)
        found: dict[int, Word] = {}
        for token, (word, offsets) in enumerate(
            zip(encoding.word_ids, encoding.offsets, strict=True)
        ):
            start, end = _without_space(text, *offsets)
            if word is not None and start < end:
                first = found.setdefault(word, Word(token, start, end))
                found[word] = first._replace(end=end)
        return tuple(found.values())

    def write_chat(
        self, chat: Chat, *, tools: Tools | None = None, places: Places | None = None
    ) -> str:
        """The prompt that the answer to a chat continues, in which `tools` may be called. The chat
        template writes the special tokens, so the tokenizer is to add none; of a model that takes
        images or sounds in its texts, it also writes their `places` (`ChatTemplate.render`).

        Raises:
            InputError: the model has no chat template, or the template does not accept the chat.
            WeightsError: the chat template is damaged.
        """
        return self._chat_template.render(chat, tools=tools, places=places)

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        from zoo.running.chat import ChatTemplate  # Jinja is imported for chats alone

        return ChatTemplate(self.folder)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids, without special tokens unless `special`. Raises WeightsError if the
        tokenizer cannot make one."""
        if self.hidden_from is not None and not special:
            ids = [id_ for id_ in ids if id_ < self.hidden_from]
        with tokenizer_code(self._cannot_decode):
            text: str = self.target.decode(list(ids), skip_special_tokens=not special)
        return _tidied(text) if self.tidies else text

    def _cannot_decode(self, error: BaseException) -> WeightsError:
        return WeightsError(
            f"its tokenizer cannot make a text of ids: {error}", Place(str(self.folder))
        )

    def mask_id(self) -> int | None:
        """The id of the masked token, found by its names in published tokenizers."""
        return mask_of(self.source)

    @cached_property
    def pad_id(self) -> int | None:
        """The id of padding; None if no file states it. Raises WeightsError if one is damaged."""
        pad = read_special_tokens(self.folder).get("pad_token")
        return None if pad is None else self.id_of(pad)

    def id_of(self, token: str) -> int | None:
        """The id of a token of the input, by its text; None if there is no such token."""
        found: int | None = self.source.token_to_id(token)
        return found

    def token_of(self, id_: int) -> str:
        """The text of a token of the input; its id if the tokenizer has no such token."""
        found: str | None = self.source.id_to_token(id_)
        return str(id_) if found is None else found

    def tokens(self) -> tuple[Tokens, Tokens]:
        """The tokens of the input, and those of the output."""
        return _tokens_of(self.source), _tokens_of(self.target)

    def special_tokens(self) -> dict[str, int]:
        """The ids of the special tokens of the output, which `decode` leaves out."""
        added = self.target.get_added_tokens_decoder()
        return {token.content: id_ for id_, token in added.items() if token.special}


def _without_space(text: str, start: int, end: int) -> tuple[int, int]:
    """The place of a token in a text without the space before it, which many tokenizers count as a
    part of the token."""
    found = text[start:end]
    return end - len(found.lstrip()), end


def _tidied(text: str) -> str:
    """A text of English without the spaces that older tokenizers leave before punctuation, as
    `clean_up_tokenization_spaces` of transformers removes them."""
    for spaced, joined in _SPACED.items():
        text = text.replace(spaced, joined)
    return text


def _tokens_of(tokenizer: Any) -> Tokens:
    return {id_: token for token, id_ in tokenizer.get_vocab(with_added_tokens=True).items()}


def read_text(folder: Path) -> Text:
    """The tokenizers of a folder; `Numbers` if it has none.

    Raises:
        WeightsError: a file is not a tokenizer, or one that says how it is used is damaged.
    """
    path = folder / TOKENIZER
    if not os.path.lexists(path):
        return Numbers(next((name for name in _OLDER if os.path.lexists(folder / name)), None))
    source = read_tokenizer(path)
    other = folder / TARGET_TOKENIZER
    target = read_tokenizer(other) if os.path.lexists(other) else source
    # With byte pairs, a space belongs to the token after it, and transformers keeps it too.
    tidies = not is_bpe(target) and states(folder, "clean_up_tokenization_spaces")
    prompt = why_cut = ""
    if is_sentence_folder(folder):
        prompt = default_prompt(folder)
        reading = reading_of(folder)
        if reading.do_lower_case:
            lower_case(source)
        if reading.max_seq_length is not None:
            place = Place(str(folder / SENTENCE_CONFIG))
            cut_after(source, reading.max_seq_length, place)
            why_cut = f"{place.file}: `max_seq_length` is {reading.max_seq_length}"
    found = Tokenized(source, target, folder, prompt=prompt, tidies=tidies)
    found.why_cut = why_cut
    return found
