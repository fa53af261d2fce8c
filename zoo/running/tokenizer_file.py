"""Reading a `tokenizer.json`, as saved by the library `tokenizers`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zoo.endless_files import check_ends
from zoo.errors import Place, Problem, WeightsError
from zoo.wording import quoted

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def read_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer, and switch off its padding and truncation.

    A file may ask to pad every text to some length, which the model would take for words, and to
    truncate longer texts, which would go unnoticed.

    Raises:
        WeightsError: the file is missing or not a tokenizer.
    """
    import tokenizers

    try:
        check_ends(path)
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
