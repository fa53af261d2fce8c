"""From text to ids and back, whatever does it; and ids written as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from zoo.errors import InputError
from zoo.files.of_model import TOKENIZER

if TYPE_CHECKING:
    import torch

    from zoo.running.chat import Chat, Tools
    from zoo.transformer import Spectrogram, TiledImage

_NUMBER = re.compile("-?[0-9]{1,99}")
"""An id as text. The number of digits is bounded, since Python makes no integers of thousands."""
PARTIAL = "\N{REPLACEMENT CHARACTER}"
"""The text of a part of a character."""


class Detokenizer(Protocol):
    """Converts ids to text for the user."""

    @property
    def writes_ids(self) -> bool:
        """Whether that text is the ids as numbers."""

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str: ...

    def special_tokens(self) -> dict[str, int]: ...


class Text(Detokenizer, Protocol):
    """Converts a user's text to ids too."""

    def encode(self, text: str, *, special: bool = True) -> list[int]: ...

    def encode_pair(self, pair: tuple[str, str], token_types: int) -> Input: ...

    def words(self, text: str) -> tuple[Word, ...]: ...

    def write_chat(
        self, chat: Chat, *, tools: Tools | None = None, places: Places | None = None
    ) -> str: ...

    def mask_id(self) -> int | None: ...

    @property
    def pad_id(self) -> int | None: ...

    def id_of(self, token: str) -> int | None: ...

    def token_of(self, id_: int) -> str: ...

    def tokens(self) -> tuple[Tokens, Tokens]: ...


class Places(NamedTuple):
    """The places in a chat of what is no text.

    Args:
        part: the `type` of the parts of messages that are such places: `image` or `audio`.
        number: how many there are.
    """

    part: str
    number: int


Tokens = dict[int, str]
"""The tokens of a tokenizer, by their ids."""


class Word(NamedTuple):
    """A word of a text: the place of its first token in the ids of the text, and its place in the
    characters of the text, `end` being exclusive."""

    token: int
    start: int
    end: int


class Input(NamedTuple):
    """What a model reads.

    Args:
        ids: the ids of a text, or of a pair of texts.
        types: the types of the tokens; None if all are 0.
        text: the text whose words are asked for, or the second of a pair.
        words: its words, or of the second of a pair its tokens; none if they are not asked for, or
            not known.
        images: the pixels of the images that stand in it, (channels, height, width) each, or with
            those of their tiles.
        sounds: the spectrograms of the sounds that do.
    """

    ids: list[int]
    types: list[int] | None = None
    text: str = ""
    words: tuple[Word, ...] = ()
    images: tuple[torch.Tensor | TiledImage, ...] = ()
    sounds: tuple[Spectrogram, ...] = ()

    def span(self, first: int, last: int) -> dict[str, Any]:
        """The part of the text from one of its words to another, both inclusive, and its place in
        the characters of the text, `end` being exclusive."""
        start, end = self.words[first].start, self.words[last].end
        return {"text": self.text[start:end], "start": start, "end": end}


class Numbers:
    """Ids written as numbers, for a model without a tokenizer. `older` is a file in its folder that
    a tokenizer can be made of, if there is one."""

    writes_ids = True
    pad_id: int | None = None

    def __init__(self, older: str | None = None) -> None:
        self.older = older

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """`5 9 33` to [5, 9, 33]. Raises InputError for anything else."""
        if not isinstance(text, str) or not all(map(_NUMBER.fullmatch, text.split())):
            raise self._no_text()
        return [int(word) for word in text.split()]

    def encode_pair(self, pair: tuple[str, str], token_types: int) -> Input:
        """Raise InputError: which ids stand between two texts is known to a tokenizer alone."""
        raise self._no_text()

    def words(self, text: str) -> tuple[Word, ...]:
        """None: without a tokenizer, only ids are known."""
        return ()

    def write_chat(
        self, chat: Chat, *, tools: Tools | None = None, places: Places | None = None
    ) -> str:
        """Raise InputError: messages are not ids."""
        raise self._no_text()

    def _no_text(self) -> InputError:
        hint = "numbers with spaces between them: `5 9 33`"
        if self.older is not None:
            hint += (
                f"; of `{self.older}`, transformers makes a {TOKENIZER} for most kinds of models: "
                '`AutoTokenizer.from_pretrained("CHECKPOINT").save_pretrained("CHECKPOINT")`, '
                "before another import"
            )
        message = f"the model's folder holds no {TOKENIZER}, so text is written as ids"
        return InputError(message, help=hint)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """[5, 9, 33] to `5 9 33`."""
        return " ".join(map(str, ids))

    def mask_id(self) -> int | None:
        """None: without a tokenizer, the id of the masked token is unknown."""
        return None

    def id_of(self, token: str) -> int | None:
        """None: without a tokenizer, no token is known by its text."""
        return None

    def token_of(self, id_: int) -> str:
        """The id, which is its own text."""
        return str(id_)

    def tokens(self) -> tuple[Tokens, Tokens]:
        """No token has a text without a tokenizer."""
        return {}, {}

    def special_tokens(self) -> dict[str, int]:
        """None: without a tokenizer, no token is special."""
        return {}


def pieces(text: Detokenizer, ids: Iterable[int]) -> Iterator[str]:
    """Decode ids as they come, and yield their text in pieces that together are the text of all.

    A piece is what new ids add to the text of the ids of the piece before, since an id may depend
    on its neighbours, such as the first word, which has no space before it. Ids that end inside a
    character wait for the rest. If later ids change a part of the text that was yielded already,
    the text of all ids follows at the end, on a new line.
    """
    read: list[int] = []
    told: list[str] = []
    last = new = 0  # where in `read` the ids of the last piece begin, and those after it
    before = ""  # the text of the last piece's ids alone
    for id_ in ids:
        read.append(id_)
        both = text.decode(read[last:])
        if len(both) > len(before) and both.startswith(before) and not both.endswith(PARTIAL):
            told.append(both[len(before) :])
            yield told[-1]
            last, new = new, len(read)
            before = text.decode(read[last:])
    whole, known = text.decode(read), "".join(told)
    if whole != known:
        yield whole[len(known) :] if whole.startswith(known) else f"\n{whole}"
