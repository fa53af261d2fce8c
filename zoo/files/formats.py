"""Formats of weights that the zoo does not read: how their files begin, and what to do instead."""

from __future__ import annotations

import re
from typing import NamedTuple


class Format(NamedTuple):
    """A format that is not read.

    Attributes:
        name: the format, with its article, for messages.
        begins: matches the first bytes of its files.
        help: how to get what the zoo reads.
    """

    name: str
    begins: re.Pattern[bytes]
    help: str


_OF_TORCH = (
    "build the model, give it `load_state_dict(torch.load(...))`, and save it with `zoo.save`; "
    "`zoo import` reads checkpoints of `transformers`, whose `save_pretrained` writes safetensors"
)
HEAD = 9
"""The number of bytes by which formats are told apart: of safetensors, a length and a brace."""
FORMATS: tuple[Format, ...] = (
    Format(
        "a GGUF file",
        re.compile(rb"GGUF[\x01-\x7f]\0\0\0"),
        "`zoo import` reads the checkpoint that it was made of: a folder with a config.json and "
        "safetensors",
    ),
    Format(
        "an HDF5 file, as Keras writes",
        re.compile(rb"\x89HDF\r\n\x1a\n"),
        "`zoo import` reads checkpoints of safetensors; `transformers` before version 5 makes one "
        "of a `tf_model.h5`, by `from_pretrained(..., from_tf=True)` and `save_pretrained`",
    ),
    Format("an archive, as `torch.save` writes", re.compile(rb"PK\x03\x04"), _OF_TORCH),
    Format("a pickle", re.compile(rb"\x80[\x02-\x05]"), _OF_TORCH),
    Format(
        "an ONNX file",
        # The number of the format, and then the name, or the version, of what wrote the file.
        re.compile(rb"\x08[\x01-\x20]\x12[\x01-\x7f][\x20-\x7e]"),
        "a graph has no spec: `zoo import` reads the checkpoint that it was made of",
    ),
)


def format_of(head: bytes) -> Format | None:
    """Return the format of a file that begins with these bytes, `HEAD` of them; None for others."""
    return next((one for one in FORMATS if one.begins.match(head)), None)
