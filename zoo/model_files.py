"""The names of the files that stand beside a model's weights."""

from __future__ import annotations

TOKENIZER = "tokenizer.json"
"""The tokenizer of the model's input."""
TARGET_TOKENIZER = "tokenizer_target.json"
"""That of its output, where it is another one."""
SPECIAL_IDS = "generation_config.json"
"""The ids of special tokens, under the names that `transformers` gives them."""

COMPANIONS = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "bpe.codes",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "target.spm",
    "chat_template.jinja",
    SPECIAL_IDS,
    "preprocessor_config.json",
)
"""The files that belong to a model as hubs publish it: its tokenizer, and how it is used."""
