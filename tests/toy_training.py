"""A recipe small enough to train in a second, and runs of it."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

MODEL = """\
format = 1
name = "toy"
builder = "encoder_decoder"
source_vocab = 300
target_vocab = 300
share_embeddings = true
pad_id = 0
n_layers = 1
d_model = 16
n_heads = 2
d_ff = 32
head = { kind = "linear", tied = true }
dropout = 0.1
"""
RECIPE = """\
format = 1
name = "toy"
model = "model.toml"

[data]
kind = "tsv"
train = "toy.tsv"
valid = 4

[tokenizer]
kind = "bpe"

[optimizer]
kind = "adamw"
lr = 1e-2

[schedule]
kind = "inverse_sqrt"
warmup = 4

[training]
steps = 12
batch_tokens = 300
label_smoothing = 0.1
clip_norm = 1.0
log_every = 2
valid_every = 6
checkpoint_every = 4
average = 2
"""
WORDS = [
    [("ein", "a"), ("kein", "no"), ("mein", "my"), ("dein", "your")],
    [("Hund", "dog"), ("Bier", "beer"), ("Haus", "house"), ("Buch", "book")],
    [("groß", "big"), ("klein", "small"), ("alt", "old"), ("neu", "new")],
]
PAIRS = [(f"{a[0]} {b[0]} ist {c[0]}", f"{a[1]} {b[1]} is {c[1]}") for a, b, c in product(*WORDS)]


def write_toy(folder: Path, recipe: str = RECIPE, model: str = MODEL) -> Path:
    """Write the toy's recipe, spec and data; return the path of the recipe."""
    (folder / "toy.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), "utf-8")
    (folder / "model.toml").write_text(model)
    path = folder / "recipe.toml"
    path.write_text(recipe)
    return path


def command(*arguments: object, processes: int = 1) -> list[str]:
    """Return the command line of `zoo`, under torchrun for several processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [
        sys.executable,
        *(launcher if processes > 1 else []),
        "-m",
        "zoo",
        *map(str, arguments),
    ]


def in_processes(*arguments: object, processes: int = 1, **options: Any) -> str:
    """Run `zoo` in processes of its own, each with one thread; return its stderr."""
    done = subprocess.run(
        command(*arguments, processes=processes),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr
