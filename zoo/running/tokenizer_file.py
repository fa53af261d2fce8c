"""Reading a `tokenizer.json`, as saved by the library `tokenizers`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.endless_files import check_ends
from zoo.errors import InputError, Place, Problem, WeightsError
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
    except (OSError, ValueError) as error:  # a ValueError is not UTF-8, or a name with a null byte
        reason = getattr(error, "strerror", None) or error
        message = f"the tokenizer {quoted(path)} cannot be read: {reason}"
        raise WeightsError(message) from None
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the package raises nothing narrower
        raise WeightsError(Problem(f"this is not a tokenizer: {error}", Place(str(path)))) from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def encoded(
    tokenizer: Any,
    texts: Sequence[str | tuple[str, str]],
    *,
    add_special_tokens: bool = True,
) -> list[Any]:
    """Encode texts, and pairs of texts, that can be written in UTF-8: the `Encoding` of each.
    Raises `InputError` as `cannot_encode` makes it."""
    try:
        found: list[Any] = tokenizer.encode_batch(
            list(texts), add_special_tokens=add_special_tokens
        )
    except Exception as error:  # the package raises nothing narrower
        raise cannot_encode(error) from None
    return found


def cannot_encode(error: Exception) -> InputError:
    """The error of a tokenizer that cannot encode a text, such as one with an unknown word if it
    has no token for these."""
    return InputError(f"the tokenizer cannot encode the text: {error}")
