"""The tokenizers that a recipe asks for: learned from the training data, or read from files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tokenizers

from zoo.errors import TrainingError, placing
from zoo.files.of_model import TOKENIZER
from zoo.running.tokenizer_file import MASKS
from zoo.training.example import Example
from zoo.training.sides import Reader, Sides
from zoo.training.start import Start
from zoo.training.tables import Bpe, OfModel, TokenizerFiles
from zoo.training.tokens import (
    PAD,
    AnyTokens,
    other_padding,
    read_token_files,
    read_tokens,
    with_specials,
)

_MASK = tokenizers.AddedToken(MASKS[1], lstrip=True, rstrip=True, special=True)
"""Takes the spaces around it, as a token has the one before it, and each piece of text gets one."""
_ALPHABET = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
"""What a byte-level encoding writes the 256 bytes as."""


def make_tokens(start: Start, examples: Sequence[Example]) -> AnyTokens:
    """Read the tokenizers that a recipe asks for, or learn them from these examples. Raises as
    `known_tokens` and `learn_tokens`."""
    known, table = known_tokens(start), start.recipe.tokenizer
    if not isinstance(table, Bpe):
        assert known is not None
        return known
    with placing(start.recipe.place("tokenizer")):
        return learn_tokens(table, examples, start.sides)


def known_tokens(start: Start) -> AnyTokens | None:
    """Read the tokenizers that a recipe asks for; None if they are to be learned. Of these, what
    can be checked before is checked: the weights of a saved model know the ids of its tokenizer,
    and a new one would give each id to another token.

    Raises:
        WeightsError: a file is missing or not a tokenizer.
        TrainingError: a tokenizer does not agree with the model, or no learned one could; those of
            the saved model are asked for, and there is none; or new ones, and it has some.
    """
    table, saved, folder = start.recipe.tokenizer, start.saved, start.recipe.folder
    with placing(start.recipe.place("tokenizer")):
        match table:
            case TokenizerFiles():
                target = None if table.target is None else folder / table.target
                return read_token_files(folder / table.source, target, table, start.sides)
            case OfModel():
                if saved is None:
                    raise TrainingError(
                        "the recipe wants the tokenizer of the model that training starts "
                        "from, and starts from a spec",
                        help='name a saved model, or a tokenizer: `kind = "bpe"`',
                    )
                return read_tokens(saved.folder, table, start.sides, saved.published)
            case Bpe():
                if saved is not None and (saved.folder / TOKENIZER).is_file():
                    raise TrainingError(
                        "the model that training starts from has a tokenizer, and this would "
                        "learn another one, with other ids than its weights know",
                        help='`kind = "of_model"` takes the tokenizer of the model; '
                        '`kind = "files"` names another one, if that is meant',
                    )
                check_fit(table, start.sides)
                return None


def check_fit(table: Bpe, sides: Sides) -> None:
    """Raise TrainingError if no tokenizer that is learned could fit a model."""
    if isinstance(sides, Reader):
        if MASKS[1] in (table.pad, table.bos, table.eos):
            raise TrainingError(f"`{MASKS[1]}` is the mask token", help="name another token")
        _check_size(table, sides.vocab, encloses=True)
        problems = [*other_padding("", PAD, sides.pad_id)]
    else:
        if table.shared and sides.source_vocab not in (None, sides.target_vocab):
            raise TrainingError(
                f"one vocabulary cannot serve {sides.source_vocab:,} source and "
                f"{sides.target_vocab:,} target tokens",
                help="give the spec one size, or the recipe's tokenizer `shared = false`",
            )
        for size in (sides.source_vocab, sides.target_vocab):
            if size is not None:
                _check_size(table, size)
        problems = [
            *other_padding("source ", PAD, sides.source_pad_id),
            *other_padding("target ", PAD, sides.pad_id),
        ]
    if problems:
        raise TrainingError(problems)


def learn_tokens(table: Bpe, examples: Sequence[Example], sides: Sides) -> AnyTokens:
    """Learn byte-pair encodings of the sizes of a model's vocabularies, which `check_fit` has
    found to fit. Raises TrainingError if the data does not yield as many tokens as these have."""
    if isinstance(sides, Reader):
        texts = [example.source_or_text for example in examples]
        texts += [example.second for example in examples if example.second is not None]
        one = _learn(table, texts, sides.vocab, encloses=True)
        return with_specials(one, one, table, sides)
    targets = [example.target_text for example in examples]
    sources = [example.source_text for example in examples]
    if sides.source_vocab is None:
        texts = [f"{prompt}{text}" for prompt, text in zip(sources, targets, strict=True)]
        one = _learn(table, texts, sides.target_vocab, begins=True)
        return with_specials(one, one, table, sides)
    if table.shared:
        one = _learn(table, [*sources, *targets], sides.target_vocab)
        return with_specials(one, one, table, sides)
    source = _learn(table, sources, sides.source_vocab)
    return with_specials(source, _learn(table, targets, sides.target_vocab), table, sides)


def _check_size(table: Bpe, size: int, *, encloses: bool = False) -> None:
    """Raise TrainingError if a vocabulary is smaller than that of a tokenizer that has learned
    nothing."""
    least = len({*_specials(table, encloses=encloses), *_ALPHABET})
    if size < least:
        raise TrainingError(
            f"the bytes and the special tokens are {least} tokens, and the model's vocabulary "
            f"is {size:,}",
            help="state a larger one in the spec",
        )


def _specials(table: Bpe, *, encloses: bool) -> list[Any]:
    return [table.pad, table.bos, table.eos, *[_MASK] * encloses]


def _learn(
    table: Bpe, texts: Iterable[str], size: int, *, begins: bool = False, encloses: bool = False
) -> Any:
    """Learn a byte-level encoding with `size` tokens. It appends `eos` to a text, as for sources;
    with `begins`, it prepends `bos` instead, as for text to be continued; with `encloses`, it does
    both, and there is a mask token, as for text that is read as a whole. Then a second text of a
    pair has `eos` too, and tokens of the type 1.

    A space is put before each text and taken off again, so that its first word is the token that
    it is elsewhere. `add_prefix_space` would not do for a text that begins with a space: that one
    would be taken off."""
    tokenizer: Any = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFC(), tokenizers.normalizers.Prepend(" ")]
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteLevel(), tokenizers.decoders.Strip(" ", 1, 0)]
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=_specials(table, encloses=encloses),
        initial_alphabet=_ALPHABET,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if (learned := tokenizer.get_vocab_size()) != size:
        raise TrainingError(
            f"the data yields {learned:,} tokens, and the model's vocabulary is {size:,}",
            help=f"state the vocabulary's size in the spec: {learned}",
        )
    before, after = begins or encloses, encloses or not begins
    edges = [table.bos] * before + [table.eos] * after
    single = " ".join([*[table.bos] * before, "$A", *[table.eos] * after])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=single,
        pair=f"{single} $B:1 {table.eos}:1" if encloses else "$A:0 $B:1",  # which is the default
        special_tokens=[(edge, tokenizer.token_to_id(edge)) for edge in edges],
    )
    return tokenizer
