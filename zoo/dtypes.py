"""The dtype of a model."""

from __future__ import annotations

import torch

from zoo.errors import InputError, Problem
from zoo.weights.held_tensors import FLOATS
from zoo.wording import did_you_mean, quoted

_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in FLOATS.values()}


def usable_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return the dtype, which may be given by its name, such as "bfloat16".

    Raises:
        InputError: it is not the name of a dtype that a whole model can have.
        TypeError: it is not such a dtype.
    """
    if isinstance(dtype, str):
        if dtype not in _NAMES:
            message = f"a model cannot have the dtype {quoted(dtype)}"
            raise InputError(Problem(message, help=did_you_mean(dtype, _NAMES)))
        return _NAMES[dtype]
    if dtype not in _NAMES.values():
        *others, last = map(str, _NAMES.values())
        raise TypeError(f"a model's dtype is {', '.join(others)} or {last}, not {dtype!r}")
    return dtype
