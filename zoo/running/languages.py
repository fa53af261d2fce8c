"""The languages of a translator that knows many. A special token marks that of a text, and one that
of its translation."""

from __future__ import annotations

from copy import copy
from typing import Any

from zoo.errors import InputError
from zoo.running.settings import Settings
from zoo.running.tokenized import Mark, Tokenized
from zoo.running.tokenizer_config import read_special_tokens
from zoo.running.tokenizer_file import encode
from zoo.wording import did_you_mean, quoted


def from_language(text: Tokenized, language: str) -> Tokenized:
    """The tokenizers of a translator, for texts in another language: its token stands where the
    tokenizer puts that of the language that it was saved for.

    Raises:
        InputError: there is no such language, or the tokenizer marks no texts by one.
    """
    known = _languages(text, text.source)
    id_ = _id_of(language, known)
    around, whole = encode(text.source, "").ids, encode(text.source, "a").ids
    marks = [place for place, one in enumerate(around) if one in known.values()]
    if len(marks) != 1:
        raise InputError(
            "the tokenizer marks no text by its language: a model that is told the language in "
            "another way, as by a word before the text, reads it there"
        )
    (place,) = marks
    before = around[: place + 1] == whole[: place + 1]
    found = copy(text)
    found.mark = Mark(place if before else place - len(around), id_)
    return found


def into_language(settings: Settings, text: Tokenized, language: str) -> Settings:
    """The settings of a translator, for translations into another language: its token begins them,
    alone or after the token that begins all of them.

    Raises:
        InputError: there is no such language.
    """
    known = _languages(text, text.target)
    id_ = _id_of(language, known)
    alone = settings.decoder_start_token_id in known.values()
    name = "decoder_start_token_id" if alone else "forced_bos_token_id"
    return settings.model_copy(update={name: id_})


def _languages(text: Tokenized, tokenizer: Any) -> dict[str, int]:
    """The special tokens of a tokenizer that have no other use, by their text, and `__de__` by `de`
    too. Those in brackets, such as `</s>`, have one, whether the folder says so or not."""
    used = set(read_special_tokens(text.folder).values())
    found = {
        token.content: id_
        for id_, token in tokenizer.get_added_tokens_decoder().items()
        if token.special and token.content not in used and not token.content.startswith(("<", "["))
    }
    return {name.strip("_"): id_ for name, id_ in found.items()} | found


def _id_of(language: str, known: dict[str, int]) -> int:
    if not isinstance(language, str):
        raise InputError(f"a language is the text of its token, not {language!a:.80}")
    if language not in known:
        hint = "the languages are special tokens of the tokenizer, such as `eng_Latn` or `de_DE`"
        hint = did_you_mean(language, known, hint) if known else "it has no such tokens"
        raise InputError(f"the tokenizer has no language {quoted(language)}", help=hint)
    return known[language]
