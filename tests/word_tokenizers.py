"""Tokenizers of whole words, for models of a few of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, models, pre_tokenizers, processors


def word_tokenizer(
    words: Iterable[str],
    unknown: str | None,
    *,
    special: Sequence[str] = (),
    single: str | None = None,
    pair: str | None = None,
) -> Tokenizer:
    """A tokenizer of texts with white space between their words.

    Args:
        words: the tokens, whose ids are their places.
        unknown: the token for all other words; None if it cannot encode a text with one.
        special: the special tokens.
        single, pair: the templates of a text and of a pair of texts, such as `<s> $A`; none by
            default.
    """
    ids = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(ids, **({} if unknown is None else {"unk_token": unknown})))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(list(special))
    if single is not None:
        around = dict.fromkeys(word for word in single.split() if word in ids)
        made.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=[(word, ids[word]) for word in around]
        )
    return made
