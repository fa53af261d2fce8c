"""The dtypes that tensors of a model can have: their names, and what casts lose."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import torch

from zoo.errors import InputError, Place, Problem
from zoo.wording import counted, did_you_mean, quoted

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
}
"""The torch dtypes that a model may hold, with their names in a header."""
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
"""The torch dtypes by their names in a header."""
FLOATS = {name: dtype for name, dtype in TORCH_DTYPES.items() if dtype.is_floating_point}
"""The floating-point dtypes, to which a whole model can be cast."""


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype, as options, arguments and reports have it: `bfloat16`."""
    return str(dtype).removeprefix("torch.")


_NAMES = {dtype_name(dtype): dtype for dtype in FLOATS.values()}


def usable_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return the dtype, which may be given by its name, such as "bfloat16".

    Raises:
        InputError: it is not the name of a dtype that a whole model can have.
        TypeError: it is not such a dtype.
    """
    if dtype in ("int8", torch.int8):
        help = "`zoo.quantize_weights(model)` keeps the weights of a loaded model in 8 bits"
        raise InputError("a model cannot have the dtype `int8`", help=help)
    if isinstance(dtype, str):
        if dtype not in _NAMES:
            message = f"a model cannot have the dtype {quoted(dtype)}"
            raise InputError(message, help=did_you_mean(dtype, _NAMES))
        return _NAMES[dtype]
    if dtype not in _NAMES.values():
        *others, last = map(str, _NAMES.values())
        raise TypeError(f"a model's dtype is {', '.join(others)} or {last}, not {dtype!r}")
    return dtype


def n_beyond(x: torch.Tensor, cast: torch.Tensor) -> int:
    """The number of finite values of `x` that are infinite in `cast`, the same tensor in another
    dtype, whose range is too small for them."""
    if not x.numel() or x.is_meta or cast.is_meta or not x.is_floating_point():
        return 0
    if torch.finfo(cast.dtype).max >= torch.finfo(x.dtype).max:
        return 0
    # Finds out in a twentieth of the time whether a value needs a closer look, or hides others.
    if all(bool(end.isfinite()) for end in torch.aminmax(cast)):
        return 0
    return int((cast.isinf() & x.to(cast.device).isfinite()).sum())


def beyond_range(n_values: int, name: str, dtype: torch.dtype, place: Place) -> Problem:
    """Return the problem of so many values of a tensor, as returned by `n_beyond`."""
    return Problem(
        f"{counted(n_values, 'value')} of {quoted(name)} would be infinite in {dtype_name(dtype)}",
        place,
        help='its range is too small for this model: "bfloat16" has almost that of "float32"',
    )


def widened(x: torch.Tensor) -> torch.Tensor:
    """`x` in float32, or as it is where its dtype is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def by_dtype(dtypes: Mapping[str, torch.dtype]) -> dict[torch.dtype, list[str]]:
    """Return the names of the tensors of each floating-point dtype, sorted, the most frequent dtype
    first."""
    found: dict[torch.dtype, list[str]] = {}
    for name, dtype in sorted(dtypes.items()):
        if dtype.is_floating_point:
            found.setdefault(dtype, []).append(name)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def several_dtypes(found: Mapping[torch.dtype, list[str]], message: str) -> Problem:
    """Return the problem of tensors of several dtypes, as returned by `by_dtype`, where one is
    needed; `message` begins its text."""
    usual, *others = found
    told = [
        f"{quoted(found[dtype][0])}{_and_others(len(found[dtype]) - 1)} {DTYPES[dtype]}"
        for dtype in others
    ]
    number = counted(len(found[usual]), "tensor")
    wide = dtype_name(reduce(torch.promote_types, found))
    return Problem(
        f"{message}: {number} {DTYPES[usual]}, but {', '.join(told)}",
        help=f'load it in one dtype: `--dtype {wide}`, or in Python `dtype="{wide}"`',
    )


def _and_others(n: int) -> str:
    return f" and {counted(n, 'other')}" if n else ""
