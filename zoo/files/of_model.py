"""The names of the files that belong to a model; no other files do.

Bundles, `zoo push`, `zoo pull` and `zoo import` use these lists. A pattern is relative to the
folder of the model, and its `*` matches within one part of a path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

from zoo.errors import Place, Problem
from zoo.wording import quoted

CONFIG = "config.json"
"""What kind of model a published checkpoint is, and its sizes."""
WEIGHTS = "model.safetensors"
"""The weights in one file."""
WEIGHTS_INDEX = "model.safetensors.index.json"
"""The index of weights in several files."""
TOKENIZER = "tokenizer.json"
"""The tokenizer of the model's input."""
TARGET_TOKENIZER = "tokenizer_target.json"
"""The tokenizer of the model's output, if it is a different one."""
SETTINGS = "generation_config.json"
"""How text is generated, and its special ids, under the names that `transformers` gives them."""
TOKENIZER_CONFIG = "tokenizer_config.json"
"""The texts of the special tokens, and often the chat template."""
SPECIAL_TOKENS = "special_tokens_map.json"
"""The texts of the special tokens, in older checkpoints."""
CHAT_TEMPLATE = "chat_template.jinja"
"""How the messages of a chat are written as a prompt."""
TOOLS_TEMPLATE = "additional_chat_templates/tool_use.jinja"
"""The same for chats with tools, of a model that has a template of its own for them."""
OLDER_CHAT_TEMPLATE = "chat_template.json"
"""The same in older checkpoints of models that take images, under `chat_template`."""
PREPROCESSOR_SETTINGS = "preprocessor_config.json"
"""How images become pixels, or sounds waveforms, as the processors of `transformers` save it."""
PROCESSOR_SETTINGS = "processor_config.json"
"""How all inputs are prepared; newer checkpoints state how images and sounds are here."""
SENTENCE_CONFIG = "sentence_bert_config.json"
"""How the Transformer of sentence-transformers reads texts."""
SENTENCE_PROMPTS = "config_sentence_transformers.json"
"""The prompts of a model of sentence-transformers."""
VOCABULARY = "vocab.json"
"""The tokens of some tokenizers with their ids, such as letters."""
PIECES = "sentencepiece.bpe.model"
"""The tokens of some tokenizers, by SentencePiece."""
ADDED_TOKENS = "added_tokens.json"
"""The tokens that were added to these."""
RECIPE = "recipe.toml"
"""How the model was trained."""
ADAPTER_CONFIG = "adapter_config.json"
"""What an adapter changes in the weights of another folder. `transformers` merges an adapter that
is beside weights, so that these alone would be another model."""

COMPANIONS = (
    TOKENIZER,
    TARGET_TOKENIZER,
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS,
    ADDED_TOKENS,
    "vocab.txt",
    VOCABULARY,
    "target_vocab.json",
    "merges.txt",
    "bpe.codes",
    "normalizer.json",
    "spiece.model",
    "spm.model",
    "tokenizer.model",
    PIECES,
    "source.spm",
    "target.spm",
    CHAT_TEMPLATE,
    TOOLS_TEMPLATE,
    OLDER_CHAT_TEMPLATE,
    SETTINGS,
    PREPROCESSOR_SETTINGS,
    PROCESSOR_SETTINGS,
    SENTENCE_CONFIG,
    SENTENCE_PROMPTS,
)
"""The files copied when a checkpoint is imported: its tokenizer, and how it is used."""
LIST_OF_MODULES = "modules.json"
"""Which modules of sentence-transformers a model has."""
MODULES = (LIST_OF_MODULES, f"[0-9]*_*/{CONFIG}")
"""The modules of sentence-transformers: their list, and the configuration of each."""
TERMS = (
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
    "NOTICE.txt",
    "NOTICE.md",
    "USE_POLICY.md",
)
"""The terms of use."""
BESIDES = (*TERMS, *COMPANIONS, *MODULES, RECIPE)
"""All files allowed beside the weights, the spec, the card and the lock."""
CARDS = ("README.md", *TERMS)
"""The files for human readers, which are kept as they were published."""
SELECTED = (
    "README.md",
    "spec.toml",
    "zoo.lock",
    "model.sig",
    CONFIG,
    WEIGHTS,
    "model-*-of-*.safetensors",
    WEIGHTS_INDEX,
    "[0-9]*_Dense/model.safetensors",
    *BESIDES,
)
"""The files that are published, and downloaded on first use: weights as safetensors and the files
that belong to them. No pickles, and no second copies in other formats."""

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")


def safe_path(path: str) -> str:
    """Return a path with `/` that stays in its folder and is not hidden, or raise `ValueError`."""
    parts = path.split("/")
    if len(parts) > 8 or not all(_PART.fullmatch(part) for part in parts):
        raise ValueError(f"{quoted(path)} is not a valid path for a model's file")
    return path


def published_path(path: str) -> str:
    """Return the path if a published model may have such a file, or raise `ValueError`."""
    if not selected(safe_path(path), SELECTED):
        raise ValueError(f"{quoted(path)} is not a file of a model")
    return path


def selected(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a path is safe and matches one of the patterns."""
    try:
        safe_path(path)
    except ValueError:
        return False
    same_depth = (pattern for pattern in patterns if pattern.count("/") == path.count("/"))
    return any(PurePosixPath(path).match(pattern) for pattern in same_depth)


def find_files(folder: Path, patterns: Collection[str]) -> list[str]:
    """Return the paths, with `/`, of the files in a folder that match one of the patterns."""
    found = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    paths = (path.relative_to(folder).as_posix() for path in found)
    return sorted(path for path in paths if selected(path, patterns))


def link_problem(folder: Path, path: str) -> Problem | None:
    """Return the problem of a file that is copied out of a model's folder and is a link, or lies
    behind one, that leads out of the folder: what it leads to may be secret. None for others.

    A folder in the cache of the Hugging Face hub, `snapshots/COMMIT`, is made of links to
    `../../blobs/DIGEST`, which belong to it.
    """
    root = Path(os.path.realpath(folder))
    target = Path(os.path.realpath(root / path))
    is_blob = root.parent.name == "snapshots" and target.parent == root.parents[1] / "blobs"
    if target.is_relative_to(root) or is_blob:
        return None
    hint = "put a copy of the file there, if it belongs to the model"
    return Problem("it is a link that leads out of the folder", Place(str(folder / path)), hint)
