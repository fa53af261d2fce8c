"""From the likeliest token of each position to a text, as connectionist temporal classification
does it (Graves et al. 2006), with the letters of a model's folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from zoo.errors import Place, WeightsError
from zoo.files.of_model import ADDED_TOKENS, TOKENIZER_CONFIG, VOCABULARY
from zoo.json_files import read_json, read_json_if_there
from zoo.purpose import Transcription
from zoo.running.text import Tokens
from zoo.running.tokenizer_config import read_special_tokens
from zoo.wording import quoted

PAD, UNKNOWN, DELIMITER = "<pad>", "<unk>", "|"
"""What `transformers` calls these tokens if no file does."""


def without_blanks(ids: Iterable[int], blank: int) -> list[int]:
    """The ids of a text, of the likeliest one of each position: without repetitions of the one
    before, and then without blanks."""
    return [id_ for id_, _ in groupby(ids) if id_ != blank]


@dataclass(frozen=True, slots=True)
class Letters:
    """Text by letters.

    Args:
        letters: the tokens by their ids.
        delimiter: the token between words.
        space: what it becomes in a text.
        unknown: what an id without a token becomes.
        lower: whether texts are in lower case.
    """

    letters: Tokens
    delimiter: str
    space: str
    unknown: str
    lower: bool
    writes_ids = False

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids without blanks."""
        found = (self.letters.get(id_, self.unknown) for id_ in ids)
        text = "".join(self.space if one == self.delimiter else one for one in found).strip()
        return text.lower() if self.lower else text

    def special_tokens(self) -> dict[str, int]:
        """None: blanks are taken out before."""
        return {}


def read_letters(folder: Path, how: Transcription) -> Letters | None:
    """Read the tokens of the model in a folder, whose texts are read off like this: the
    `vocab.json` and `added_tokens.json`, and what `tokenizer_config.json` says of them. None if
    there is no `vocab.json`.

    Raises:
        WeightsError: a file is damaged, or the padding that it names is not the model's blank.
    """
    path = folder / VOCABULARY
    if not os.path.lexists(path):
        return None
    tokens = {id_: token for token, id_ in token_ids(path).items()}
    config = read_json_if_there(folder / TOKENIZER_CONFIG)
    if os.path.lexists(folder / ADDED_TOKENS):
        added = token_ids(folder / ADDED_TOKENS)
        tokens |= {id_: token for token, id_ in added.items() if id_ not in tokens}
    special = read_special_tokens(folder)
    pad = special.get("pad_token", PAD)
    if tokens.get(how.blank, pad) != pad and pad in tokens.values():
        message = f"the token {how.blank}, which stands for none by the model's spec, is "
        message += f"{quoted(tokens[how.blank])}, and not {quoted(pad)}, the padding"
        raise WeightsError(message, Place(str(path)))
    return Letters(
        tokens,
        delimiter=special.get("word_delimiter_token", DELIMITER),
        space=str(config.get("replace_word_delimiter_char", " ")),
        unknown=special.get("unk_token", UNKNOWN),
        lower=config.get("do_lower_case") is True,
    )


def token_ids(path: Path) -> dict[str, int]:
    """Read the ids of tokens, of a file that is a table of these. Raises WeightsError if it is
    none."""
    file = read_json(path)
    if wrong := [token for token, id_ in file.data.items() if type(id_) is not int]:
        message = f"{quoted(wrong[0])} has no number as its id: a vocabulary is a table of tokens "
        message += "and their ids"
        raise WeightsError(message, file.place(wrong[0]))
    return dict(file.data)
