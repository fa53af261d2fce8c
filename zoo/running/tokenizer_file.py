"""A `tokenizer.json`, as the library tokenizers saves it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zoo.errors import Place, Problem, WeightsError, quoted

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def read_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer that gives the ids of a text, all of them and no others.

    Files may also say to fill every text up with padding to some length, which the model would take
    for words, and to cut longer ones off, which would go unnoticed. Neither is done.

    Raises:
        WeightsError: the file is missing or no tokenizer.
    """
    import tokenizers

    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"the tokenizer {quoted(path)} cannot be read: {error}"
        raise WeightsError(message) from None
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the package raises nothing narrower
        raise WeightsError(Problem(f"this is not a tokenizer: {error}", Place(str(path)))) from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
