"""What must fit together of a quantized tensor."""

from __future__ import annotations

from math import prod

from zoo.errors import Place, Problem
from zoo.families.checkpoint import Stored
from zoo.families.quantized.packing import CODES, PACKING
from zoo.families.quantized.tensor import Quantized

_SCALES = ("F32", "BF16", "F16", "F8_E8M0", "U8")
"""The dtypes of scales that are read."""


def problem_of(name: str, tensor: Quantized) -> Problem | None:
    """What does not fit together of a quantized tensor, or None."""
    place = Place(str(tensor.path))
    dtype = PACKING[tensor.numbers].dtype
    if tensor.values.dtype != dtype:
        message = f"the numbers of `{name}` are {tensor.values.dtype}, not {dtype}"
        return Problem(message, place)
    if len(tensor.shape) < 2 and not tensor.flat:
        return Problem(f"`{name}` is {list(tensor.shape)}; quantized are matrices", place)
    if tensor.flat and tensor.values.n_bytes != prod(tensor.items):
        held = f"hold {tensor.values.n_bytes} bytes, not the {prod(tensor.items)} of"
        return Problem(f"the numbers of `{name}` {held} {list(tensor.shape)}", place)
    if (table := tensor.table) is not None:
        expected = [CODES[tensor.numbers]]
        if (table.dtype, list(table.shape)) != ("F32", expected):
            message = f"the table of `{name}` is {table.dtype} {list(table.shape)}"
            return Problem(f"{message}, not F32 {expected}", place)
    if isinstance(tensor.scales, Quantized):
        return problem_of(f"{name} (scales)", tensor.scales)
    if tensor.scales.dtype not in _SCALES:
        message = f"the scales of `{name}` are {tensor.scales.dtype}, which is not read"
        return Problem(message, place, f"read are {', '.join(_SCALES)}")
    grid = [*tensor.shape[:-2], *tensor.blocks]
    if tensor.flat:
        grid = [prod(tensor.blocks)]
    if not _is_grid(tensor.scales.shape, grid):
        rows, columns = tensor.plane
        message = (
            f"the scales of `{name}` are {list(tensor.scales.shape)}; for {rows} x {columns} in "
            f"blocks of {tensor.block[0]} x {tensor.block[1]} they are {grid}"
        )
        return Problem(message, place)
    if tensor.zeros is not None and (trouble := _trouble_of_zeros(tensor.zeros, tensor, grid)):
        return Problem(f"the zero points of `{name}` are {trouble}", place)
    groups, n_inputs = tensor.groups, tensor.plane[0 if tensor.transposed else 1]
    if groups is not None and (groups.dtype, groups.shape) != ("I32", (n_inputs,)):
        message = f"the groups of `{name}` are {groups.dtype} {list(groups.shape)}"
        return Problem(f"{message}, not I32 {[n_inputs]}", place)
    return None


def _trouble_of_zeros(zeros: Stored, tensor: Quantized, grid: list[int]) -> str | None:
    """What is wrong with zero points for blocks that form this grid, or None."""
    *lead, down, across = grid
    match tensor.numbers:
        case "packed4" | "packed8":
            expected = [*lead, -(-down // PACKING[tensor.numbers].across), across]
        case "awq4" | "gptq4":
            expected = [*lead, down, -(-across // 8)]
        case "gptq8":
            expected = [*lead, down, -(-across // 4)]
        case _:
            expected = grid
    dtype = "I32" if PACKING[tensor.numbers].dtype == "I32" else "I8"
    if zeros.dtype != dtype:
        return f"{zeros.dtype}, not {dtype}"
    return None if _is_grid(zeros.shape, expected) else f"{list(zeros.shape)}, not {expected}"


def _is_grid(shape: tuple[int, ...], expected: list[int]) -> bool:
    """Whether a tensor has one number for each block: a single one, or one for each row, may have
    fewer dimensions."""
    by_row = expected[:-1] if expected[-1] == 1 else expected
    return list(shape) in (expected, by_row) or prod(shape) == prod(expected) == 1
