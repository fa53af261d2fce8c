"""From ids to a text by the pieces of SentencePiece in a model's folder, for a model that writes
text and reads none, such as Speech2Text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zoo.errors import InputError
from zoo.files.of_model import PIECES, TOKENIZER, VOCABULARY
from zoo.running.letters import UNKNOWN, token_ids
from zoo.running.text import Tokens
from zoo.running.tokenizer_config import read_special_tokens, states
from zoo.wording import did_you_mean, quoted

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What stands for a space in a piece."""
NAMED = ("<s>", "</s>", "<pad>", UNKNOWN)
"""The special tokens if no file names others."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Text by pieces.

    Speech2Text begins a text of one of several languages with its token, `<lang:de>`.

    Args:
        pieces: the pieces by their ids.
        special: the ids of special tokens.
        upper: whether texts are in upper case.
    """

    pieces: Tokens
    special: dict[str, int]
    upper: bool = False
    writes_ids = False

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids, without special tokens unless `special`."""
        left = () if special else self.special.values()
        found = (self.pieces.get(id_, UNKNOWN) for id_ in ids if id_ not in left)
        text = "".join(found).replace(SPACE, " ").strip()
        return text.upper() if self.upper else text

    def special_tokens(self) -> dict[str, int]:
        """The ids of special tokens, which `decode` leaves out."""
        return self.special

    def language_id(self, language: str) -> int:
        """The id of the token of a language, such as `de`. Raises InputError if there is none."""
        known = {token.removeprefix("<lang:")[:-1]: id_ for token, id_ in self._languages.items()}
        if language not in known:
            hint = did_you_mean(language, known) if known else "it writes one language"
            raise InputError(f"the model has no language {quoted(language)}", help=hint)
        return known[language]

    @property
    def _languages(self) -> dict[str, int]:
        return {token: id_ for token, id_ in self.special.items() if token.startswith("<lang:")}


def read_pieces(folder: Path) -> Pieces | None:
    """Read the pieces of a folder, which are its `vocab.json`; None if it has none, or a tokenizer.

    Raises:
        WeightsError: a file is damaged.
    """
    there = [os.path.lexists(folder / name) for name in (PIECES, VOCABULARY, TOKENIZER)]
    if there != [True, True, False]:
        return None
    ids = token_ids(folder / VOCABULARY)
    named = {*NAMED, *read_special_tokens(folder).values()}
    special = {one: ids[one] for one in ids if one in named or one.startswith("<lang:")}
    upper = states(folder, "do_upper_case")
    return Pieces({id_: token for token, id_ in ids.items()}, special, upper)
