"""Quantized tensors of a published checkpoint, read as the floats that they stand for.

Of each quantized tensor a checkpoint holds several: small numbers, scales that blocks of them
share, and perhaps zero points. `dequantized` puts one `Quantized` in their place, under the name
that the tensor of floats has, so that families know of floats only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard

import torch

from zoo.errors import Place, Problem, WeightsError
from zoo.families.checkpoint import Stored
from zoo.json_files import JsonFile
from zoo.weights.file import ITEM_BYTES
from zoo.weights.held_tensors import TORCH_DTYPES, bytes_of
from zoo.weights.open_file import OpenFile
from zoo.wording import quoted

KEY = "quantization_config"
"""The key of config.json that says how the weights are quantized."""

CHUNK = 1 << 20
"""The number of floats that are made at a time."""

_STORED = {
    **TORCH_DTYPES,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I32": torch.int32,
}
"""The torch dtypes of what is stored, by their safetensors names."""

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""The dtypes that config.json may state for the floats, with their safetensors names."""

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The values of floats of 4 bits (OCP Microscaling Formats 1.0, table 5)."""

_PAIRS = torch.tensor([(_E2M1[byte & 15], _E2M1[byte >> 4]) for byte in range(256)], device="cpu")
"""The two floats of 4 bits in each byte, (256, 2)."""

Numbers = Literal["float8", "int8", "packed4", "packed8", "float4", "awq4", "gptq4", "gptq8"]
"""How small numbers are stored: `float8` and `int8` as numbers of their dtype; `float4` two in a
byte, the first in the lower half; the others in words of 32 bits, the first in the lowest bits:
`packed4` and `packed8` with 8 or 128 added, `awq4` in the order of AutoAWQ, which takes the even
ones first, `gptq4` and `gptq8` those below each other and not those beside each other."""

Read = Callable[[Stored, memoryview], None]
"""Reads a stored tensor into memory of its size."""


class _Packing(NamedTuple):
    """The dtype of what is stored, and the numbers below and beside each other in one item."""

    dtype: str
    down: int
    across: int


_PACKING: Mapping[Numbers, _Packing] = {
    "float8": _Packing("F8_E4M3", 1, 1),
    "int8": _Packing("I8", 1, 1),
    "float4": _Packing("U8", 1, 2),
    "packed4": _Packing("I32", 1, 8),
    "packed8": _Packing("I32", 1, 4),
    "awq4": _Packing("I32", 1, 8),
    "gptq4": _Packing("I32", 8, 1),
    "gptq8": _Packing("I32", 4, 1),
}


@dataclass(frozen=True, slots=True)
class Quantized:
    """A tensor of floats, (..., rows, columns), each the scale of its block times a small number,
    from which the block's zero point is subtracted first, if there is one.

    Args:
        dtype: the dtype of the floats, as safetensors names it. They are computed in float32, and
            rounded once.
        shape: their shape; if `transposed`, (..., columns, rows).
        numbers: how the small numbers are stored.
        values: the small numbers.
        scales: (..., rows of blocks, columns of blocks), or one for all.
        zeros: the zero points of the blocks, packed if the numbers are.
        block: the rows and columns of a block. The last block may be smaller.
        transposed: whether the tensor of floats has rows and columns exchanged.
        groups: the row of blocks that each row belongs to, where these are not in order.
        zeros_above: what the zero points are above what is stored.
    """

    dtype: str
    shape: tuple[int, ...]
    numbers: Numbers
    values: Stored
    scales: Stored
    zeros: Stored | None
    block: tuple[int, int]
    transposed: bool = False
    groups: Stored | None = None
    zeros_above: int = 0

    @property
    def path(self) -> Path:
        """The file of the small numbers."""
        return self.values.path

    @property
    def n_bytes(self) -> int:
        """The number of bytes of the floats."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def plane(self) -> tuple[int, int]:
        """The rows and columns of small numbers in a matrix."""
        rows, columns = self.shape[-2:]
        return (columns, rows) if self.transposed else (rows, columns)

    @property
    def items(self) -> tuple[int, int]:
        """The rows and columns of what is stored of a matrix."""
        (rows, columns), packing = self.plane, _PACKING[self.numbers]
        return -(-rows // packing.down), -(-columns // packing.across)

    @property
    def blocks(self) -> tuple[int, int]:
        """The rows and columns of blocks."""
        rows, columns = self.plane
        return -(-rows // self.block[0]), -(-columns // self.block[1])

    def steps(self, read: Read) -> Iterator[memoryview]:
        """Yield the bytes of the floats in chunks.

        Raises:
            WeightsError: a row is of no block; or what `read` raises.
        """
        rows, columns = self.plane
        n_matrices, across = prod(self.shape[:-2]), _PACKING[self.numbers].across
        blocks = _Blocks.of(self, read)
        for matrix in range(n_matrices):
            if not self.transposed:
                n_rows = max(1, CHUNK // max(1, columns))
                for first in range(0, rows, n_rows):
                    last = min(first + n_rows, rows)
                    found = _unpacked(self._stored(matrix, first, last, read), self.numbers)
                    at = slice(first, last), slice(columns)
                    yield self._bytes(blocks.applied(found[:, :columns], matrix, *at))
                continue
            stored = self._stored(matrix, 0, self.items[0], read)
            n_columns = max(1, CHUNK // max(1, rows) // across) * across
            for first in range(0, columns, n_columns):
                last = min(first + n_columns, columns)
                part = stored[:, first // across : -(-last // across)]
                found = _unpacked(part, self.numbers)[:rows, : last - first]
                at = slice(rows), slice(first, last)
                yield self._bytes(blocks.applied(found, matrix, *at).t())

    def _stored(self, matrix: int, first: int, last: int, read: Read) -> torch.Tensor:
        """Read these rows of what is stored of a matrix."""
        height, width = self.items
        row_bytes = width * _STORED[self.values.dtype].itemsize
        start = self.values.start + (matrix * height + first) * row_bytes
        n_bytes, shape = (last - first) * row_bytes, (last - first, width)
        return _read(replace(self.values, start=start, n_bytes=n_bytes, shape=shape), read)

    def _bytes(self, floats: torch.Tensor) -> memoryview:
        return bytes_of(floats.to(TORCH_DTYPES[self.dtype]).contiguous())


class _Blocks(NamedTuple):
    """The scales and zero points of all blocks, (matrices, rows of blocks, columns of blocks), the
    rows and columns of each, and the row of blocks of each row of numbers, if they are not in
    order."""

    scales: torch.Tensor
    zeros: torch.Tensor | None
    block: tuple[int, int]
    groups: torch.Tensor | None

    @classmethod
    def of(cls, tensor: Quantized, read: Read) -> _Blocks:
        """Read them. Raises as `Quantized.steps`."""
        shape = (prod(tensor.shape[:-2]), *tensor.blocks)
        zeros = None if tensor.zeros is None else _zero_points(tensor, _read(tensor.zeros, read))
        groups = None if tensor.groups is None else _read(tensor.groups, read).long()
        if groups is not None and not bool(((groups >= 0) & (groups < shape[1])).all()):
            message = "a row of quantized weights is of a group that has no scale"
            raise WeightsError(Problem(message, Place(str(tensor.path))))
        return cls(_floats(_read(tensor.scales, read)).view(shape), zeros, tensor.block, groups)

    def applied(
        self, numbers: torch.Tensor, matrix: int, rows: slice, columns: slice
    ) -> torch.Tensor:
        """scale * (number - zero point) for the numbers in these rows and columns of a matrix."""
        if self.zeros is not None:
            numbers = numbers - self._spread(self.zeros[matrix], rows, columns)
        return numbers * self._spread(self.scales[matrix], rows, columns)

    def _spread(self, by_block: torch.Tensor, rows: slice, columns: slice) -> torch.Tensor:
        """From one number for each block, one for each element."""
        of_rows = torch.arange(rows.start or 0, rows.stop) // self.block[0]
        of_columns = torch.arange(columns.start or 0, columns.stop) // self.block[1]
        return by_block[of_rows if self.groups is None else self.groups[rows]][:, of_columns]


def _zero_points(tensor: Quantized, stored: torch.Tensor) -> torch.Tensor:
    """The zero points of all blocks, (matrices, rows of blocks, columns of blocks)."""
    n_matrices, (down, across) = prod(tensor.shape[:-2]), tensor.blocks
    match tensor.numbers:
        case "packed4" | "packed8":  # those of a column in one word
            columns = stored.view(n_matrices, -1, across).transpose(1, 2).flatten(0, 1)
            found = _unpacked(columns, tensor.numbers)[:, :down]
            return found.view(n_matrices, across, down).transpose(1, 2)
        case "awq4":
            found = _unpacked(stored.flatten(0, -2), "awq4")[:, :across]
        case "gptq4" | "gptq8":
            bits = 4 if tensor.numbers == "gptq4" else 8
            found = _words(stored.flatten(0, -2), bits).flatten(-2).float()[:, :across]
        case _:
            found = stored.float()
    return found.view(n_matrices, down, across) + tensor.zeros_above


def dequantized(
    stored: Mapping[str, Stored], file: JsonFile
) -> tuple[dict[str, Stored | Quantized], str | None]:
    """Put tensors of floats in the place of quantized ones.

    Args:
        stored: all tensors of the checkpoint.
        file: its config.json.

    Returns:
        The tensors by name, and how the quantized ones were quantized; None if none were.

    Raises:
        WeightsError: they are quantized in a way that is not read, or scales and numbers do not fit
            together.
    """
    if file.data.get(KEY) is None:
        return dict(stored), None
    stated = _Stated.of(file)
    found = stated.method.find(stored, stated)
    used = {part for group in found.values() for part in group.names}
    left = {name: tensor for name, tensor in stored.items() if name not in used}
    kept = {name: t for name, t in left.items() if not name.endswith(stated.method.unused)}
    problems = [
        problem
        for name, group in found.items()
        if (problem := _problem_of(name, group.tensor)) is not None
    ]
    problems += [
        Problem(f"the tensor `{name}` is there beside its quantized numbers", file.place(KEY))
        for name in sorted(found.keys() & kept.keys())
    ]
    if problems:
        raise WeightsError(problems)
    tensors: dict[str, Stored | Quantized] = {**kept}
    tensors.update((name, group.tensor) for name, group in found.items())
    return tensors, stated.told if found else None


class _Group(NamedTuple):
    """A quantized tensor, and the names of the stored ones that it is made of."""

    tensor: Quantized
    names: tuple[str, ...]


class _Stated(NamedTuple):
    """What config.json says: the method by which the weights are quantized, its settings, the
    place of them, and the dtype of the floats."""

    method: _Method
    settings: Mapping[str, Any]
    file: JsonFile
    dtype: str
    told: str

    @classmethod
    def of(cls, file: JsonFile) -> _Stated:
        settings = file.data[KEY]
        name = settings.get("quant_method") if isinstance(settings, dict) else None
        method = _METHODS.get(name) if isinstance(name, str) else None
        if method is None:
            how = f" by `{name}`" if isinstance(name, str) else ""
            raise _refused(f"the weights are quantized{how}", file)
        layout = settings.get("format")
        if method.layouts and layout not in method.layouts:
            form = quoted(layout)
            raise _refused(f"the weights are quantized by `{name}` in the form {form}", file)
        dtype = file.data.get("dtype", file.data.get("torch_dtype"))
        known = _DTYPES.get(dtype, "BF16") if isinstance(dtype, str) else "BF16"
        told = f"{name}, {layout}" if method.layouts else str(name)
        return cls(method, settings, file, known, told)


def _refused(what: str, file: JsonFile) -> WeightsError:
    """The error for weights that are quantized in a way that is not read."""
    help_ = (
        f"read are {', '.join(f'`{one}`' for one in _METHODS)}; for others, take a checkpoint of "
        "floats, or make one where `transformers` can read this one: `model.dequantize()`, then "
        "`model.save_pretrained(...)`"
    )
    return WeightsError(Problem(f"{what}, which is not read", file.place(KEY), help_))


class _Method(NamedTuple):
    """A way to quantize. `find` finds the quantized tensors among all; names that end with one of
    `unused` are of tensors for quantized activations, which floats have no use for. `layouts` are
    the values of `format` that are read, where there is one."""

    find: Callable[[Mapping[str, Stored], _Stated], dict[str, _Group]]
    unused: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()


def _fp8(stored: Mapping[str, Stored], stated: _Stated) -> dict[str, _Group]:
    """Floats of 8 bits, with a scale for each block (DeepSeek-V3: arXiv:2412.19437, section
    3.3), or for the whole tensor."""
    size = stated.settings.get("weight_block_size")
    if size is not None and not _is_block(size):
        message = f"`weight_block_size` must be two numbers of rows and columns, not {size!r}"
        place = stated.file.place(KEY, "weight_block_size")
        raise WeightsError(Problem(message, place))
    found: dict[str, _Group] = {}
    for name in _that_end(stored, "_scale_inv"):
        base = name.removesuffix("_scale_inv")
        values = _beside(base, name, stored, stated.file)
        whole = prod(stored[name].shape) == 1
        block = _whole(values.shape) if whole or size is None else (size[0], size[1])
        tensor = Quantized(stated.dtype, values.shape, "float8", values, stored[name], None, block)
        found[base] = _Group(tensor, (base, name))
    return found


def _mxfp4(stored: Mapping[str, Stored], stated: _Stated) -> dict[str, _Group]:
    """Floats of 4 bits, 32 by 32 with a scale that is a power of 2 (OCP Microscaling Formats 1.0),
    as of gpt-oss: experts whose matrices are stored as (expert, out, in / 32, 16)."""
    found: dict[str, _Group] = {}
    for name in _that_end(stored, "_scales"):
        base = name.removesuffix("_scales")
        blocks = _beside(f"{base}_blocks", name, stored, stated.file)
        if len(blocks.shape) < 3 or blocks.shape[-1] != 16:
            message = f"`{base}_blocks` is {list(blocks.shape)}, not (..., rows, blocks, 16)"
            raise WeightsError(Problem(message, stated.file.place(KEY)))
        *lead, rows, n_blocks, _ = blocks.shape
        shape = (*lead, 32 * n_blocks, rows)
        tensor = Quantized(
            stated.dtype, shape, "float4", blocks, stored[name], None, (1, 32), transposed=True
        )
        found[base] = _Group(tensor, (f"{base}_blocks", name))
    return found


def _awq(stored: Mapping[str, Stored], stated: _Stated) -> dict[str, _Group]:
    """Numbers of 4 bits with scales and zero points for groups, as AutoAWQ writes them: matrices
    (in, out), eight columns in a word."""
    settings = stated.settings
    version = str(settings.get("version", "gemm")).lower()
    if settings.get("bits", settings.get("w_bit")) != 4 or version != "gemm":
        raise _refused("the weights are quantized by `awq` in another form", stated.file)
    found: dict[str, _Group] = {}
    for name in _that_end(stored, ".qweight"):
        base = name.removesuffix("qweight")
        zeros, scales = (_beside(f"{base}{n}", name, stored, stated.file) for n in _OF_GROUPS)
        rows, width = _two_sizes(name, stored)
        block = (_group_size(stated, "group_size", "q_group_size") or max(1, rows), 1)
        tensor = Quantized(
            stated.dtype,
            (8 * width, rows),
            "awq4",
            stored[name],
            scales,
            zeros,
            block,
            transposed=True,
        )
        found[f"{base}weight"] = _Group(tensor, (name, *(f"{base}{n}" for n in _OF_GROUPS)))
    return found


def _gptq(stored: Mapping[str, Stored], stated: _Stated) -> dict[str, _Group]:
    """Numbers of 4 or 8 bits with scales and zero points for groups of inputs, in order or by
    `g_idx`, as AutoGPTQ and GPTQModel write them: matrices (in, out), whose words hold rows."""
    bits, version = stated.settings.get("bits"), stated.settings.get("checkpoint_format", "gptq")
    if bits not in (4, 8) or version not in ("gptq", "gptq_v2"):
        raise _refused("the weights are quantized by `gptq` in another form", stated.file)
    found: dict[str, _Group] = {}
    for name in _that_end(stored, ".qweight"):
        base = name.removesuffix("qweight")
        zeros, scales = (_beside(f"{base}{n}", name, stored, stated.file) for n in _OF_GROUPS)
        height, columns = _two_sizes(name, stored)
        rows = height * 32 // bits
        names = [name, *(f"{base}{n}" for n in (*_OF_GROUPS, "g_idx") if f"{base}{n}" in stored)]
        tensor = Quantized(
            stated.dtype,
            (columns, rows),
            "gptq4" if bits == 4 else "gptq8",
            stored[name],
            scales,
            zeros,
            (_group_size(stated, "group_size") or max(1, rows), 1),
            transposed=True,
            groups=stored.get(f"{base}g_idx"),
            zeros_above=1 if version == "gptq" else 0,  # the first form stores them one lower
        )
        found[f"{base}weight"] = _Group(tensor, tuple(names))
    return found


_OF_GROUPS = ("qzeros", "scales")


def _two_sizes(name: str, stored: Mapping[str, Stored]) -> tuple[int, int]:
    """The shape of a matrix. Raises `WeightsError` if the tensor is none."""
    tensor = stored[name]
    if len(tensor.shape) != 2:
        message = f"`{name}` is {list(tensor.shape)}, which is no matrix"
        raise WeightsError(Problem(message, Place(str(tensor.path))))
    return tensor.shape[0], tensor.shape[1]


def _group_size(stated: _Stated, *keys: str) -> int | None:
    """The number of inputs with one scale; None for all.

    Raises:
        WeightsError: it is not stated, or no size.
    """
    key = next((key for key in keys if key in stated.settings), keys[0])
    size = stated.settings.get(key)
    if size == -1:
        return None
    if type(size) is not int or size < 1:
        message = f"`{key}` must be the number of inputs with one scale, or -1, not {size!r}"
        raise WeightsError(Problem(message, stated.file.place(KEY, key)))
    return size


def _compressed(stored: Mapping[str, Stored], stated: _Stated) -> dict[str, _Group]:
    """Numbers of 8 bits, or of 4 or 8 bits packed into 32, with scales for the whole tensor, each
    row, groups of a row, or blocks, as the library compressed-tensors writes them."""
    blocks = _stated_blocks(stated)
    found: dict[str, _Group] = {}
    for name in _that_end(stored, ".weight_scale"):
        base = name.removesuffix("_scale")
        zero_name = f"{base}_zero_point"
        names = [name, *([zero_name] if zero_name in stored else [])]
        if f"{base}_packed" in stored:
            values = stored[f"{base}_packed"]
            shape = _packed_shape(base, stored, stated.file)
            numbers: Numbers = "packed4" if values.shape[-1] == -(-shape[-1] // 8) else "packed8"
            names += [f"{base}_packed", f"{base}_shape"]
        else:
            values = _beside(base, name, stored, stated.file)
            numbers, shape = "int8" if values.dtype == "I8" else "float8", values.shape
            names.append(base)
        block = _fitting(blocks, shape, stored[name].shape)
        tensor = Quantized(
            stated.dtype, shape, numbers, values, stored[name], stored.get(zero_name), block
        )
        found[base] = _Group(tensor, tuple(names))
    return found


def _stated_blocks(stated: _Stated) -> list[tuple[int, int]]:
    """The blocks that share a scale, as `config_groups` says it of the weights; 0 is all rows or
    columns of a tensor.

    Raises:
        WeightsError: they are not stated, or tensors are changed in further ways.
    """
    for key in ("sparsity_config", "transform_config"):
        further = stated.settings.get(key)
        if further and not (isinstance(further, dict) and further.get("format") == "dense"):
            raise _refused(f"the weights have a `{key}`", stated.file)
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
            case "block" if _is_block(structure):
                blocks.append((structure[0], structure[1]))
            case other:
                raise _refused(f"the weights have scales by {quoted(other)}", stated.file)
    if not blocks:
        message = "`config_groups` must say how the weights are quantized"
        raise WeightsError(Problem(message, stated.file.place(KEY)))
    return blocks


def _fitting(
    blocks: list[tuple[int, int]], shape: tuple[int, ...], scales: tuple[int, ...]
) -> tuple[int, int]:
    """The block of these, or the first one, for which a tensor has as many scales as there are."""
    whole = rows, columns = _whole(shape)
    found = [(a or whole[0], b or whole[1]) for a, b in blocks]
    grids = [(-(-rows // a), -(-columns // b)) for a, b in found]
    n_matrices = prod(shape[:-2])
    fits = [
        block
        for block, grid in zip(found, grids, strict=True)
        if n_matrices * prod(grid) == prod(scales)
    ]
    return (fits or found)[0]


def _packed_shape(base: str, stored: Mapping[str, Stored], file: JsonFile) -> tuple[int, ...]:
    """The shape of a tensor whose numbers are packed, which is itself a small tensor.

    Raises:
        WeightsError: it is missing, or does not fit the packed numbers.
    """
    told = _beside(f"{base}_shape", f"{base}_packed", stored, file)
    packed = stored[f"{base}_packed"]
    if told.dtype == "I64" and told.shape == (len(packed.shape),) and len(packed.shape) > 1:
        with ExitStack() as stack:
            opened = OpenFile.open(told.path, stack)
            shape = _read(told, lambda tensor, buffer: opened.read(buffer, tensor.start)).tolist()
        of_rows = [-(-shape[-1] // 8), -(-shape[-1] // 4)]
        if tuple(shape[:-1]) == packed.shape[:-1] and packed.shape[-1] in of_rows:
            return tuple(shape)
        message = f"`{base}_packed` is {list(packed.shape)}, which does not hold {shape}"
    else:
        message = f"`{base}_shape` is no list of sizes"
    raise WeightsError(Problem(message, Place(str(told.path))))


def _beside(name: str, other: str, stored: Mapping[str, Stored], file: JsonFile) -> Stored:
    """The tensor of this name. Raises `WeightsError` if it is not there beside the other one."""
    if name not in stored:
        message = f"there is no tensor `{name}`, to which `{other}` belongs"
        raise WeightsError(Problem(message, Place(str(stored[other].path))))
    return stored[name]


def _problem_of(name: str, tensor: Quantized) -> Problem | None:
    """What does not fit together of a quantized tensor, or None."""
    place = Place(str(tensor.path))
    dtype = _PACKING[tensor.numbers].dtype
    if tensor.values.dtype != dtype:
        message = f"the numbers of `{name}` are {tensor.values.dtype}, not {dtype}"
        return Problem(message, place)
    if len(tensor.shape) < 2:
        return Problem(f"`{name}` is {list(tensor.shape)}; quantized are matrices", place)
    if tensor.scales.dtype not in _SCALES:
        message = f"the scales of `{name}` are {tensor.scales.dtype}, which is not read"
        return Problem(message, place, f"read are {', '.join(_SCALES)}")
    grid = [*tensor.shape[:-2], *tensor.blocks]
    if not _is_grid(tensor.scales.shape, grid):
        rows, columns = tensor.plane
        message = (
            f"the scales of `{name}` are {list(tensor.scales.shape)}; for {rows} x {columns} in "
            f"blocks of {tensor.block[0]} x {tensor.block[1]} they are {grid}"
        )
        return Problem(message, place)
    if tensor.zeros is not None and (trouble := _trouble_of_zeros(tensor.zeros, tensor, grid)):
        return Problem(f"the zero points of `{name}` are {trouble}", place)
    groups = tensor.groups
    if groups is not None and (groups.dtype, groups.shape) != ("I32", (tensor.plane[0],)):
        message = f"the groups of `{name}` are {groups.dtype} {list(groups.shape)}"
        return Problem(f"{message}, not I32 {[tensor.plane[0]]}", place)
    return None


def _trouble_of_zeros(zeros: Stored, tensor: Quantized, grid: list[int]) -> str | None:
    """What is wrong with zero points for blocks that form this grid, or None."""
    *lead, down, across = grid
    match tensor.numbers:
        case "packed4" | "packed8":
            expected = [*lead, -(-down // _PACKING[tensor.numbers].across), across]
        case "awq4" | "gptq4":
            expected = [*lead, down, -(-across // 8)]
        case "gptq8":
            expected = [*lead, down, -(-across // 4)]
        case _:
            expected = grid
    dtype = "I32" if _PACKING[tensor.numbers].dtype == "I32" else "I8"
    if zeros.dtype != dtype:
        return f"{zeros.dtype}, not {dtype}"
    return None if _is_grid(zeros.shape, expected) else f"{list(zeros.shape)}, not {expected}"


def _is_grid(shape: tuple[int, ...], expected: list[int]) -> bool:
    """Whether a tensor has one number for each block: a single one, or one for each row, may have
    fewer dimensions."""
    by_row = expected[:-1] if expected[-1] == 1 else expected
    return list(shape) in (expected, by_row) or prod(shape) == prod(expected) == 1


def _that_end(stored: Mapping[str, Stored], end: str) -> list[str]:
    """The names of tensors that end so."""
    return sorted(name for name in stored if name.endswith(end))


def _is_block(value: object) -> TypeGuard[Sequence[int]]:
    """Whether a value is two sizes."""
    return isinstance(value, list) and [type(n) is int and n > 0 for n in value] == [True, True]


def _whole(shape: tuple[int, ...]) -> tuple[int, int]:
    """The block that is a whole matrix."""
    rows, columns = shape[-2:] if len(shape) > 1 else (1, 1)
    return max(1, rows), max(1, columns)


def _read(tensor: Stored, read: Read) -> torch.Tensor:
    """Read a stored tensor."""
    data = torch.empty(tensor.n_bytes, dtype=torch.uint8)
    read(tensor, bytes_of(data))
    return data.view(_STORED[tensor.dtype]).view(tensor.shape)


def _floats(scales: torch.Tensor) -> torch.Tensor:
    """Scales in float32; bytes are powers of 2 with 127 added to the exponent."""
    if scales.dtype == torch.uint8:
        scales = scales.view(torch.float8_e8m0fnu)
    return scales.float()


def _unpacked(stored: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Small numbers in float32, (rows, columns), from what is stored of them."""
    match numbers:
        case "float8" | "int8":
            return stored.float()
        case "float4":
            pairs = _PAIRS.index_select(0, stored.flatten().int())
            return pairs.view(stored.shape[0], -1)
        case "packed4" | "packed8":
            bits = 4 if numbers == "packed4" else 8
            return _words(stored, bits).flatten(-2).float() - float(1 << (bits - 1))
        case "awq4":
            return _words(stored, 4)[..., _AWQ_ORDER].flatten(-2).float()
        case "gptq4" | "gptq8":
            bits = 4 if numbers == "gptq4" else 8
            return _words(stored, bits).transpose(1, 2).flatten(0, 1).float()


def _words(stored: torch.Tensor, bits: int) -> torch.Tensor:
    """The numbers of so many bits in words of 32, (...) to (..., 32 / bits)."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (stored[..., None] >> shifts) & ((1 << bits) - 1)


_AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]
"""The places in a word of AutoAWQ of the numbers in their order."""

_SCALES = ("F32", "BF16", "F16", "F8_E8M0", "U8")
"""The dtypes of scales that are read."""

_METHODS: Mapping[str, _Method] = {
    "fp8": _Method(_fp8, unused=("activation_scale", "input_scale")),
    "mxfp4": _Method(_mxfp4),
    "gptq": _Method(_gptq),
    "awq": _Method(_awq),
    "compressed-tensors": _Method(
        _compressed,
        unused=(
            *(f".{part}_scale" for part in ("input", "output", "k", "v", "q")),
            *(f".{part}_zero_point" for part in ("input", "output", "k", "v", "q")),
        ),
        layouts=("float-quantized", "int-quantized", "naive-quantized", "pack-quantized"),
    ),
}
"""The ways to quantize that are read, by `quant_method`."""
