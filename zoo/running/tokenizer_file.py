"""Tokenizers of the library `tokenizers`: read from a `tokenizer.json`, asked for their tokens, and
encoding."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zoo.errors import InputError, Place, Problem, WeightsError, ZooError
from zoo.files.endless import check_ends
from zoo.files.of_model import TOKENIZER
from zoo.running.added_tokens import complete
from zoo.wording import counted, quoted

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MASKS = ("[MASK]", "<mask>", "<|mask|>")
"""The names of the mask token in published tokenizers."""


Strategy = Literal["longest_first", "only_second"]
"""Which side of a pair is cut: always the longer one, or the second."""


def read_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer, with what is stated beside it, and switch off its padding and truncation.

    A file may ask to pad every text to some length, which the model would take for words, and to
    truncate longer texts, which would go unnoticed.

    Raises:
        WeightsError: the file is missing or not a tokenizer; or as `complete`.
    """
    import tokenizers

    try:
        check_ends(path)
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:  # a ValueError is not UTF-8, or a name with a null byte
        reason = getattr(error, "strerror", None) or error
        raise WeightsError(f"the tokenizer {quoted(path)} cannot be read: {reason}") from None
    with tokenizer_code(lambda error: _no_tokenizer(error, path)):
        tokenizer = tokenizers.Tokenizer.from_str(text)
    if path.name == TOKENIZER:
        complete(tokenizer, path.parent)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def lower_case(tokenizer: Tokenizer) -> None:
    """Let a tokenizer read every text in small letters."""
    from tokenizers import normalizers

    own = tokenizer.normalizer
    small = normalizers.Lowercase()
    tokenizer.normalizer = normalizers.Sequence([small] if own is None else [small, own])


def cut_after(tokenizer: Tokenizer, n_tokens: int, place: Place) -> None:
    """Let a tokenizer read so many tokens of a text, its special ones among them; `overflowing` of
    an `Encoding` says what is left. Raises WeightsError if no tokens would be those of the text,
    with `place` as that of the number."""
    if problem := _special_alone(tokenizer, n_tokens):
        raise WeightsError(problem, place)
    tokenizer.enable_truncation(min(n_tokens, sys.maxsize))


def truncated(tokenizer: Tokenizer, n_tokens: int, strategy: Strategy) -> Tokenizer:
    """Return a copy of a tokenizer that reads so many tokens of a text or a pair, its special ones
    among them, or as many as it did if that is fewer. The strategy says which side of a pair is
    cut. Raises InputError if no tokens would be those of the text."""
    if problem := _special_alone(tokenizer, n_tokens, is_pair=strategy == "only_second"):
        raise InputError(problem)
    own = tokenizer.truncation
    copied = type(tokenizer).from_str(tokenizer.to_str())
    copied.encode_special_tokens = tokenizer.encode_special_tokens  # which is not in the text
    copied.enable_truncation(
        min(n_tokens, own["max_length"]) if own else n_tokens, strategy=strategy
    )
    return copied


def _special_alone(tokenizer: Tokenizer, n_tokens: int, *, is_pair: bool = False) -> str | None:
    """Why so many tokens are too few, if all of them are special ones around a text."""
    if n_tokens > tokenizer.num_special_tokens_to_add(is_pair=is_pair):
        return None
    return f"{counted(n_tokens, 'token')} would be those that are put around a text alone"


def is_bpe(tokenizer: Tokenizer) -> bool:
    """Whether the tokens are byte pairs, as those of GPT-2 and Llama."""
    from tokenizers import models

    return isinstance(tokenizer.model, models.BPE)


def token_of(tokenizer: Tokenizer, id_: int) -> str | None:
    """The token of an id as texts have it; None if there is none. Of an added token that is
    normalized before it is looked for, `id_to_token` gives the normal form."""
    added = tokenizer.get_added_tokens_decoder().get(id_)
    return tokenizer.id_to_token(id_) if added is None else added.content


def mask_of(tokenizer: Any) -> int | None:
    """The id of a tokenizer's mask token; None if it has none of these names."""
    found = (tokenizer.token_to_id(name) for name in MASKS)
    return next((id_ for id_ in found if id_ is not None), None)


@contextmanager
def tokenizer_code(failed: Callable[[BaseException], ZooError]) -> Generator[None]:
    """Run code of the package, with `failed` making the error of what it raises: it has no errors
    of its own. Some files, and texts that match a pattern in too many ways, make it panic. A panic
    derives from `BaseException` alone, so that a service would end by it."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise failed(error) from None
        raise


def encode(
    tokenizer: Any, text: str, second: str | None = None, *, add_special_tokens: bool = True
) -> Any:
    """Encode a text, or a pair of texts: its `Encoding`.

    Raises:
        InputError: a text is not a string, contains half a character (a lone surrogate), or cannot
            be encoded, such as one with an unknown word by a tokenizer without a token for these.
    """
    for one in (text,) if second is None else (text, second):
        check_text(one)
    with tokenizer_code(_cannot_encode):
        return tokenizer.encode(text, second, add_special_tokens=add_special_tokens)


def check_text(text: object) -> None:
    """Raise InputError if this is not a string, or contains half a character (a lone surrogate)."""
    if not isinstance(text, str):
        raise InputError(f"a text is a string, not {text!a:.80}")
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"{text!a:.80} is not a text that can be written in UTF-8"
        hint = (
            "it has half a character, as of a text in another encoding: `iconv -t utf-8` converts "
            "one; the locale says how a command reads its arguments"
        )
        raise InputError(message, help=hint) from None


_AT_ONCE = 1000
"""How many texts are encoded together. An `Encoding` takes far more memory than its ids, and lives
until the next ones are asked for."""


def encoded(
    tokenizer: Any,
    texts: Sequence[str | tuple[str, str]],
    *,
    add_special_tokens: bool = True,
) -> Iterator[Any]:
    """Encode texts, and pairs of texts, that can be written in UTF-8: the `Encoding` of each.
    Raises `InputError` as `_cannot_encode` makes it."""
    for start in range(0, len(texts), _AT_ONCE):
        with tokenizer_code(_cannot_encode):
            found: list[Any] = tokenizer.encode_batch(
                list(texts[start : start + _AT_ONCE]), add_special_tokens=add_special_tokens
            )
        yield from found


def _cannot_encode(error: BaseException) -> InputError:
    """The error of a tokenizer that cannot encode a text."""
    return InputError(f"the tokenizer cannot encode the text: {error}")


def no_pairs(tokenizer: Any, token_types: int) -> Problem | None:
    """Why a tokenizer cannot join pairs of texts for a model that tells so many types of tokens
    apart; None if it can. Raises InputError if it cannot encode any."""
    with tokenizer_code(_cannot_encode):
        single, pair = (tokenizer.num_special_tokens_to_add(is_pair=pair) for pair in (False, True))
    if single and not pair:
        return Problem(
            "the tokenizer has no template for pairs of texts: it puts its special tokens around a "
            "single text alone",
            help='state `pair` in the `post_processor` of its file, such as "[CLS] $A [SEP] $B:1 '
            '[SEP]:1"',
        )
    found = max(encode(tokenizer, "a", "a").type_ids, default=0)
    if 2 <= token_types <= found:
        return Problem(
            f"the tokenizer gives a token of a pair the type {found}, and the model has "
            f"{token_types} types"
        )
    return None


def types_of(encoding: Any, token_types: int) -> list[int] | None:
    """The types of the tokens of an encoding, for a model that tells so many apart; None if all are
    0, or if it tells none apart."""
    types: list[int] = encoding.type_ids
    return types if token_types > 1 and any(types) else None


def _no_tokenizer(error: BaseException, path: Path) -> WeightsError:
    return WeightsError(f"this is not a tokenizer: {error}", Place(str(path)))
