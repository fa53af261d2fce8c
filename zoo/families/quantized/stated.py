"""What a checkpoint says of its quantized tensors, and the tensors that belong together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeGuard

import torch

from zoo.errors import Place, WeightsError
from zoo.families.checkpoint import Stored
from zoo.families.origin import stated_dtype
from zoo.families.quantized.tensor import Quantized, read_stored
from zoo.json_files import JsonFile
from zoo.weights.open_file import OpenFile

KEY = "quantization_config"
"""The key of config.json that says how the weights are quantized."""


FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""The dtypes that config.json may state for the floats, with their safetensors names."""


class Group(NamedTuple):
    """A quantized tensor, and the names of the stored ones that it is made of."""

    tensor: Quantized
    names: tuple[str, ...]


class Stated(NamedTuple):
    """What config.json says: the method by which the weights are quantized, its settings, the
    place of them, and the dtype of the floats. `read` are the methods that are read."""

    method: str | None
    settings: Mapping[str, Any]
    file: JsonFile
    dtype: str
    read: Collection[str]

    @classmethod
    def of(cls, file: JsonFile, read: Collection[str]) -> Stated:
        """Read the statement."""
        found = file.data[KEY]
        settings = found if isinstance(found, dict) else {}
        method = settings.get("quant_method")
        dtype = stated_dtype(file.data)
        known = dtype if dtype is not None and dtype in FLOATS.values() else "BF16"
        return cls(method if isinstance(method, str) else None, settings, file, known, read)

    def place(self, *keys: str) -> Place:
        """The place of the statement, or of one of its settings."""
        return self.file.place(KEY, *keys)

    def refused(self, how: str) -> WeightsError:
        """The error for weights that `how` says to be quantized in a way that is not read."""
        help_ = (
            f"read are {', '.join(f'`{one}`' for one in self.read)}; for others, take a checkpoint "
            "of floats, or make one where `transformers` can read this one: `model.dequantize()`, "
            "then `model.save_pretrained(...)`"
        )
        message = f"the weights {how}, which is not read"
        return WeightsError(message, self.place(), help_)


def beside(name: str, other: str, stored: Mapping[str, Stored]) -> Stored:
    """The tensor of this name. Raises `WeightsError` if it is not there beside the other one."""
    if name not in stored:
        message = f"there is no tensor `{name}`, to which `{other}` belongs"
        raise WeightsError(message, Place(str(stored[other].path)))
    return stored[name]


def that_end(stored: Mapping[str, Stored], end: str) -> list[str]:
    """The names of tensors that end so."""
    return sorted(name for name in stored if name.endswith(end))


def two_sizes(name: str, stored: Mapping[str, Stored]) -> tuple[int, int]:
    """The shape of a matrix. Raises `WeightsError` if the tensor is none."""
    tensor = stored[name]
    if len(tensor.shape) != 2:
        message = f"`{name}` is {list(tensor.shape)}, which is no matrix"
        raise WeightsError(message, Place(str(tensor.path)))
    return tensor.shape[0], tensor.shape[1]


def is_block(value: object) -> TypeGuard[Sequence[int]]:
    """Whether a value is two sizes."""
    return isinstance(value, list) and [type(n) is int and n > 0 for n in value] == [True, True]


def whole_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """The block that is a whole matrix."""
    rows, columns = shape[-2:] if len(shape) > 1 else (1, 1)
    return max(1, rows), max(1, columns)


def read_now(tensor: Stored) -> torch.Tensor:
    """Read a small tensor that says something about others."""
    with ExitStack() as stack:
        opened = OpenFile.open(tensor.path, stack)
        return read_stored(tensor, lambda part, buffer: opened.read(buffer, part.start))
