"""Checkpoints that the library compressed-tensors writes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from zoo.errors import Place, WeightsError
from zoo.families.checkpoint import Stored
from zoo.families.quantized.packing import Numbers
from zoo.families.quantized.stated import (
    Group,
    Stated,
    beside,
    is_block,
    read_now,
    that_end,
    whole_matrix,
)
from zoo.families.quantized.tensor import Quantized
from zoo.wording import quoted


def compressed(stored: Mapping[str, Stored], stated: Stated) -> dict[str, Group]:
    """Numbers of 8 bits, or of 4 or 8 bits packed into 32, with scales for the whole tensor, each
    row, groups of a row, in order or by `weight_g_idx`, or blocks, as the library
    compressed-tensors writes them."""
    blocks = _stated_blocks(stated)
    found: dict[str, Group] = {}
    for name in that_end(stored, ".weight_scale"):
        base = name.removesuffix("_scale")
        zero_name, group_name = f"{base}_zero_point", f"{base}_g_idx"
        names = [name, *(one for one in (zero_name, group_name) if one in stored)]
        if f"{base}_packed" in stored:
            values = stored[f"{base}_packed"]
            shape = _packed_shape(base, stored)
            numbers: Numbers = "packed4" if values.shape[-1] == -(-shape[-1] // 8) else "packed8"
            names += [f"{base}_packed", f"{base}_shape"]
        else:
            values = beside(base, name, stored)
            numbers, shape = "int8" if values.dtype == "I8" else "float8", values.shape
            names.append(base)
        block = _fitting(blocks, shape, stored[name].shape)
        tensor = Quantized(
            stated.dtype,
            shape,
            numbers,
            values,
            stored[name],
            block,
            stored.get(zero_name),
            groups=_groups(stored.get(group_name)),
        )
        found[base] = Group(tensor, tuple(names))
    return found


def _groups(stored: Stored | None) -> Stored | None:
    """The group of each column; None if they are in order, for which -1 stands too."""
    if stored is None or bool((read_now(stored) == -1).all()):
        return None
    return stored


def _stated_blocks(stated: Stated) -> list[tuple[int, int]]:
    """The blocks that share a scale, as `config_groups` says it of the weights; 0 is all rows or
    columns of a tensor.

    Raises:
        WeightsError: they are not stated, or tensors are changed in further ways.
    """
    for key in ("sparsity_config", "transform_config"):
        further = stated.settings.get(key)
        if further and not (isinstance(further, dict) and further.get("format") == "dense"):
            raise stated.refused(f"have a `{key}`")
    groups = stated.settings.get("config_groups")
    blocks: list[tuple[int, int]] = []
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        how = weights if isinstance(weights, dict) else {}
        size, structure = how.get("group_size"), how.get("block_structure")
        match how.get("strategy"):
            case "tensor":
                blocks.append((0, 0))
            case "channel":
                blocks.append((1, 0))
            case "group" if type(size) is int and size > 0:
                blocks.append((1, size))
            case "block" if is_block(structure):
                blocks.append((structure[0], structure[1]))
            case other:
                raise stated.refused(f"have scales by {quoted(other)}")
    if not blocks:
        message = "`config_groups` must say how the weights are quantized"
        raise WeightsError(message, stated.place())
    return blocks


def _fitting(
    blocks: list[tuple[int, int]], shape: tuple[int, ...], scales: tuple[int, ...]
) -> tuple[int, int]:
    """The block of these, or the first one, for which a tensor has as many scales as there are."""
    whole = rows, columns = whole_matrix(shape)
    found = [(a or whole[0], b or whole[1]) for a, b in blocks]
    grids = [(-(-rows // a), -(-columns // b)) for a, b in found]
    n_matrices = prod(shape[:-2])
    fits = [
        block
        for block, grid in zip(found, grids, strict=True)
        if n_matrices * prod(grid) == prod(scales)
    ]
    return (fits or found)[0]


def _packed_shape(base: str, stored: Mapping[str, Stored]) -> tuple[int, ...]:
    """The shape of a tensor whose numbers are packed, which is itself a small tensor.

    Raises:
        WeightsError: it is missing, or does not fit the packed numbers.
    """
    told = beside(f"{base}_shape", f"{base}_packed", stored)
    packed = stored[f"{base}_packed"]
    if told.dtype == "I64" and told.shape == (len(packed.shape),) and len(packed.shape) > 1:
        shape = read_now(told).tolist()
        of_rows = [-(-shape[-1] // 8), -(-shape[-1] // 4)]
        if tuple(shape[:-1]) == packed.shape[:-1] and packed.shape[-1] in of_rows:
            return tuple(shape)
        message = f"`{base}_packed` is {list(packed.shape)}, which does not hold {shape}"
    else:
        message = f"`{base}_shape` is no list of sizes"
    raise WeightsError(message, Place(str(told.path)))
