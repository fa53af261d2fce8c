"""Checkpoints of small floats with scales for blocks: `fp8` and `mxfp4`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from zoo.errors import WeightsError
from zoo.families.checkpoint import Stored
from zoo.families.quantized.stated import Group, Stated, beside, is_block, that_end, whole_matrix
from zoo.families.quantized.tensor import Quantized


def fp8(stored: Mapping[str, Stored], stated: Stated) -> dict[str, Group]:
    """Floats of 8 bits, with a scale for each block (DeepSeek-V3: arXiv:2412.19437, section
    3.3), or for the whole tensor, which AutoFP8 names `weight_scale`.

    Raises:
        WeightsError: the settings state a block that is none, or a scale has no values beside it.
    """
    size = stated.settings.get("weight_block_size")
    if size is not None and not is_block(size):
        message = f"`weight_block_size` must be two numbers of rows and columns, not {size!r}"
        place = stated.place("weight_block_size")
        raise WeightsError(message, place)
    found: dict[str, Group] = {}
    for name in [*that_end(stored, "_scale_inv"), *that_end(stored, ".weight_scale")]:
        base = name.removesuffix("_inv").removesuffix("_scale")
        values = beside(base, name, stored)
        whole = prod(stored[name].shape) == 1
        block = whole_matrix(values.shape) if whole or size is None else (size[0], size[1])
        tensor = Quantized(stated.dtype, values.shape, "float8", values, stored[name], block)
        found[base] = Group(tensor, (base, name))
    return found


def mxfp4(stored: Mapping[str, Stored], stated: Stated) -> dict[str, Group]:
    """Floats of 4 bits, 32 by 32 with a scale that is a power of 2 (OCP Microscaling Formats 1.0),
    as of gpt-oss: experts whose matrices are stored as (expert, out, in / 32, 16).

    Raises:
        WeightsError: the shape of values is another one, or scales have no values beside them.
    """
    found: dict[str, Group] = {}
    for name in that_end(stored, "_scales"):
        base = name.removesuffix("_scales")
        blocks = beside(f"{base}_blocks", name, stored)
        if len(blocks.shape) < 3 or blocks.shape[-1] != 16:
            message = f"`{base}_blocks` is {list(blocks.shape)}, not (..., rows, blocks, 16)"
            raise WeightsError(message, stated.place())
        *lead, rows, n_blocks, _ = blocks.shape
        shape = (*lead, 32 * n_blocks, rows)
        tensor = Quantized(
            stated.dtype, shape, "float4", blocks, stored[name], (1, 32), transposed=True
        )
        found[base] = Group(tensor, (f"{base}_blocks", name))
    return found
