"""Recipes for small encoders: one fills in masked words, one classifies."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors

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
    tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(VOCAB)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.save(str(path))


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
