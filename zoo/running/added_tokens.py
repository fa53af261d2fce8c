"""What the files beside a `tokenizer.json` say of it: further tokens, and flags."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from zoo.errors import Place, WeightsError
from zoo.files.of_model import ADDED_TOKENS, SPECIAL_TOKENS, TOKENIZER, TOKENIZER_CONFIG
from zoo.json_files import read_json_if_there
from zoo.wording import quoted

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""The special tokens that all tokenizers of `transformers` may have, in the order in which it adds
those that a tokenizer lacks."""
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
"""The keys of further special tokens: of these the first that has any counts."""
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""The classes of `transformers` that take a `tokenizer.json` as it is."""
_BERT_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Of a `BertNormalizer`, the fields in a `tokenizer.json` by the keys of a config."""


class _Token(BaseModel):
    """A token with the properties that it may have beside its text."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool = False

    def added(self, *, special: bool = False) -> AddedToken:
        from tokenizers import AddedToken

        stated = self.model_dump(exclude_none=True)
        return AddedToken(**{**stated, "special": self.special or special})


def complete(tokenizer: Tokenizer, folder: Path) -> None:
    """Give the tokenizer of a folder what is stated beside its `tokenizer.json`, as `AutoTokenizer`
    of `transformers` does: tokens that it lacks, whose ids follow its own, and whether special
    tokens in a text are read as other text.

    Raises:
        WeightsError: a file is damaged; or flags contradict the `tokenizer.json`.
    """
    config = read_json_if_there(folder / TOKENIZER_CONFIG)
    _check_flags(tokenizer, config, folder / TOKENIZER_CONFIG)
    for token in _stated(config, folder, tokenizer):
        tokenizer.add_tokens([token])
    tokenizer.encode_special_tokens = config.get("split_special_tokens") is True


def _stated(config: Mapping[str, Any], folder: Path, tokenizer: Tokenizer) -> Iterator[AddedToken]:
    """Yield the tokens that files state: those with ids by these, and after them the special ones
    that a tokenizer lacks by then."""
    source = folder / TOKENIZER_CONFIG
    named = {key: (value, source) for key, value in config.items()}
    if "added_tokens_decoder" in config:
        with_ids = config["added_tokens_decoder"]
        if not isinstance(with_ids, dict):
            message = "`added_tokens_decoder` must be a table of tokens by their ids"
            raise WeightsError(message, Place(str(source)))
        for key in sorted(with_ids, key=lambda key: _id(key, "added_tokens_decoder", source)):
            yield _token(with_ids[key], f"added_tokens_decoder.{key}", source).added()
    else:  # older checkpoints
        path = folder / SPECIAL_TOKENS
        named |= {key: (value, path) for key, value in read_json_if_there(path).items()}
        special = {one.content for one in _special(named)}
        path, own = folder / ADDED_TOKENS, tokenizer.get_added_tokens_decoder()
        ids = {text: _id(id_, text, path) for text, id_ in read_json_if_there(path).items()}
        for text in sorted((text for text in ids if ids[text] not in own), key=ids.__getitem__):
            yield _Token(content=text, special=text in special).added()
    for token in _special(named):
        known = tokenizer.get_added_tokens_decoder().values()
        if all(token.content != one.content for one in known):
            yield token.added(special=True)


def _special(stated: Mapping[str, tuple[Any, Path]]) -> Iterator[_Token]:
    """Yield the special tokens that are stated by name, and the others, each with its file. Raises
    WeightsError if one is no token."""
    by_name = [key for key in _NAMED if stated.get(key, (None,))[0] is not None]
    for key, (value, _) in stated.items():
        if key.endswith("_token") and key not in _NAMED and isinstance(value, str | dict):
            by_name.append(key)
    for key in by_name:
        value, path = stated[key]
        yield _token(value, key, path)
    for key in (key for key in _EXTRA if stated.get(key, (None,))[0]):
        more, path = stated[key]
        if isinstance(more, dict):
            more = list(more.values())
        if not isinstance(more, list):
            raise WeightsError(f"`{key}` must be a list of tokens", Place(str(path)))
        for number, value in enumerate(more):
            yield _token(value, f"{key}[{number}]", path)
        return


def _token(value: Any, key: str, path: Path) -> _Token:
    try:
        return _Token.model_validate({"content": value} if isinstance(value, str) else value)
    except ValidationError:
        message = f"`{key}` must be the text of a token, or a table with it under `content`"
        raise WeightsError(message, Place(str(path))) from None


def _id(value: Any, key: str, path: Path) -> int:
    """The id of a token, which may be written as text: keys of JSON are."""
    with suppress(TypeError, ValueError):
        return int(value)
    raise WeightsError(f"{quoted(key)}: {quoted(value)} is no id of a token", Place(str(path)))


def _check_flags(tokenizer: Tokenizer, config: Mapping[str, Any], path: Path) -> None:
    """Raise WeightsError if a flag contradicts the `tokenizer.json`. Most classes of `transformers`
    follow the flag, and some the file."""
    from tokenizers import normalizers, pre_tokenizers

    class_ = config.get("tokenizer_class")
    if class_ in _GENERIC:
        return
    found: dict[str, Any] = {}
    if isinstance(normalizer := tokenizer.normalizer, normalizers.BertNormalizer):
        found = {key: getattr(normalizer, field) for key, field in _BERT_NORMALIZER.items()}
        if found["strip_accents"] is None:  # which depends on the other then
            found["strip_accents"] = normalizer.lowercase
    splits: Any = tokenizer.pre_tokenizer
    several = isinstance(splits, pre_tokenizers.Sequence)
    for one in cast("list[Any]", splits) if several else [splits]:
        if isinstance(one, pre_tokenizers.ByteLevel):
            found["add_prefix_space"] = one.add_prefix_space
    for key, own in found.items():
        if (stated := config.get(key)) not in (None, own):
            raise WeightsError(
                f"`{key}` is {json.dumps(stated)}, and in the {TOKENIZER} beside it "
                f"{json.dumps(own)}: it is not known with which the model was trained",
                Place(str(path)),
                help=f'change one of them; with `"tokenizer_class": "{_GENERIC[0]}"`, which reads '
                f"the {TOKENIZER} alone, this key says nothing",
            )
