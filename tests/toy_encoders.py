"""Recipes for small encoders: one fills in masked words, one classifies."""

from __future__ import annotations

from pathlib import Path

from word_tokenizers import word_tokenizer

import zoo
from zoo.running.tokenizer_file import read_tokenizer
from zoo.training.reader_tokens import ReaderTokens
from zoo.training.sides import sides_of
from zoo.training.tables import TokenizerFiles
from zoo.training.tokens import with_specials

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = [f"{a} {b} is {c}" for a in "abcd" for b in "xyz" for c in "uvw"]
LINES = ["one two three four", "five six seven eight", "nine ten eleven twelve", "red blue green"]
"""Lines without a common word, so that each word follows from each other one of its line."""
VOCAB = [*SPECIALS, *sorted({word for line in [*TEXTS, *LINES] for word in line.split()})]
LABELLED = [(text, {"u": "under", "v": "over", "w": "beside"}[text[-1]]) for text in TEXTS]
"""Texts and their labels, which follow from the last word."""

MODEL = f"""\
format = 1
name = "filler"
builder = "encoder"
vocab = {len(VOCAB)}
pad_id = 0
n_layers = 1
d_model = 16
n_heads = 2
d_ff = 32
position = {{ kind = "learned", max_length = 12 }}
head = {{ kind = "mlm", tied = true }}
dropout = 0.1
"""
CLASSES = MODEL.replace("filler", "classes").replace(
    '{ kind = "mlm", tied = true }', '{ kind = "classifier", n_classes = 3 }'
)
RECIPE = """\
format = 1
name = "filler"
model = "model.toml"

[data]
kind = "text"
train = "lines.txt"
valid = "valid.txt"

[tokenizer]
kind = "files"
source = "words.json"
pad = "[PAD]"

[optimizer]
kind = "adamw"
lr = 1e-2

[schedule]
kind = "constant"

[training]
steps = 8
batch_tokens = 60
max_length = 12
log_every = 2
valid_every = 4
checkpoint_every = 3
"""
RECIPE_OF_CLASSES = (
    RECIPE.replace('name = "filler"', 'name = "classes"')
    .replace('"text"', '"tsv"')
    .replace("lines.txt", "labels.tsv")
    .replace('valid = "valid.txt"', "valid = 6")
)


def words(path: Path) -> None:
    """Write a tokenizer of whole words, with BERT's special tokens."""
    both = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B:1 [SEP]:1"}
    word_tokenizer(VOCAB, "[UNK]", special=SPECIALS, **both).save(str(path))


def reader_tokens(model: zoo.Transformer, path: Path, pad: str = "[PAD]") -> ReaderTokens:
    """The tokenizer of a file, for a model that reads whole texts."""
    tokenizer, sides = read_tokenizer(path), sides_of(model.spec, model.origin)
    assert sides is not None
    found = with_specials(tokenizer, tokenizer, TokenizerFiles(source="", pad=pad), sides)
    assert isinstance(found, ReaderTokens)
    return found


def write_encoder(folder: Path, recipe: str = RECIPE, model: str = MODEL) -> Path:
    """Write a recipe, its spec, its tokenizer and the data of both; return the recipe's path."""
    words(folder / "words.json")
    (folder / "lines.txt").write_text("".join(f"{line}\n" for line in [*TEXTS, *LINES]))
    (folder / "valid.txt").write_text("".join(f"{line}\n" for line in TEXTS[::3]))
    (folder / "labels.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in LABELLED))
    (folder / "model.toml").write_text(model)
    path = folder / "recipe.toml"
    path.write_text(recipe)
    return path
