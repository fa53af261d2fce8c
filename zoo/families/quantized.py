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
"""The number of floats that are made at a time, where rows can be read one by one."""

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

_PAIRS = torch.tensor([(_E2M1[byte & 15], _E2M1[byte >> 4]) for byte in range(256)])
"""The two floats of 4 bits in each byte, (256, 2)."""

Numbers = Literal["float8", "int8", "packed4", "packed8", "float4"]
"""How small numbers are stored: `packed4` and `packed8`, of 4 and 8 bits, in words of 32, the first
in the lowest bits, with 8 or 128 added; `float4` two in a byte, the first in the lower half; the
others as numbers of their dtype."""

Read = Callable[[Stored, memoryview], None]
"""Reads a stored tensor into memory of its size."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """A tensor of floats, (..., rows, columns), each the scale of its block times a small number,
    from which the block's zero point is subtracted first, if there is one.

    Args:
        dtype: the dtype of the floats, as safetensors names it. They are computed in float32, and
            rounded once.
        shape: their shape; if `transposed`, (..., columns, rows).
        numbers: how the small numbers are stored.
        values: the small numbers, (..., rows, what is stored of a row).
        scales: (..., rows of blocks, columns of blocks), or one for all.
        zeros: the zero points, of the shape of the scales; packed ones are packed by columns.
        block: the rows and columns of a block. The last block may be smaller.
        transposed: whether the tensor of floats has rows and columns exchanged.
    """

    dtype: str
    shape: tuple[int, ...]
    numbers: Numbers
    values: Stored
    scales: Stored
    zeros: Stored | None
    block: tuple[int, int]
    transposed: bool = False

    @property
    def path(self) -> Path:
        """The file of the small numbers."""
        return self.values.path

    @property
    def n_bytes(self) -> int:
        """The number of bytes of the floats."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    def steps(self, read: Read) -> Iterator[memoryview]:
        """Yield the bytes of the floats in chunks. Raises what `read` raises."""
        rows, columns = _plane(self.shape, transposed=self.transposed)
        n_matrices = prod(self.shape[:-2])
        scales = _floats(_read(self.scales, read)).view(n_matrices, *self.blocks())
        zeros = None if self.zeros is None else self._zero_points(_read(self.zeros, read), rows)
        row_bytes = self.values.n_bytes // max(1, n_matrices * rows)
        n_rows = rows if self.transposed else max(1, CHUNK // max(1, columns))
        for matrix in range(n_matrices):
            for first in range(0, rows, n_rows):
                last = min(first + n_rows, rows)
                start = self.values.start + (matrix * rows + first) * row_bytes
                part = replace(self.values, start=start, n_bytes=(last - first) * row_bytes)
                stored = _read(replace(part, shape=(last - first, -1)), read)
                found = _unpacked(stored, self.numbers)[:, :columns]
                if zeros is not None:
                    found -= self._spread(zeros[matrix], first, last, columns)
                found *= self._spread(scales[matrix], first, last, columns)
                floats = found.to(TORCH_DTYPES[self.dtype])
                yield bytes_of((floats.t() if self.transposed else floats).contiguous())

    def blocks(self) -> tuple[int, int]:
        """The numbers of rows and of columns of blocks."""
        rows, columns = _plane(self.shape, transposed=self.transposed)
        return -(-rows // self.block[0]), -(-columns // self.block[1])

    def _spread(self, by_block: torch.Tensor, first: int, last: int, columns: int) -> torch.Tensor:
        """From one number for each block, (rows of blocks, columns of blocks), one for each
        element of these rows."""
        rows = torch.arange(first, last) // self.block[0]
        return by_block[rows].repeat_interleave(self.block[1], 1)[:, :columns]

    def _zero_points(self, stored: torch.Tensor, rows: int) -> torch.Tensor:
        """The zero points of all blocks, (matrices, rows of blocks, columns of blocks)."""
        blocks = self.blocks()
        if not self.numbers.startswith("packed"):
            return stored.float().view(-1, *blocks)
        n_matrices = prod(self.shape[:-2])
        by_column = stored.view(n_matrices, -1, blocks[1]).transpose(1, 2).flatten(0, 1)
        unpacked = _unpacked(by_column.contiguous(), self.numbers)[:, : blocks[0]]
        return unpacked.view(n_matrices, blocks[1], blocks[0]).transpose(1, 2)


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
    if tensor.values.dtype != _VALUES[tensor.numbers]:
        expected = _VALUES[tensor.numbers]
        message = f"the numbers of `{name}` are {tensor.values.dtype}, not {expected}"
        return Problem(message, place)
    if len(tensor.shape) < 2:
        return Problem(f"`{name}` is {list(tensor.shape)}; quantized are matrices", place)
    if tensor.scales.dtype not in _SCALES:
        message = f"the scales of `{name}` are {tensor.scales.dtype}, which is not read"
        return Problem(message, place, f"read are {', '.join(_SCALES)}")
    grid = (*tensor.shape[:-2], *tensor.blocks())
    if prod(tensor.scales.shape) != prod(grid):
        message = (
            f"the scales of `{name}` are {list(tensor.scales.shape)}; for {list(tensor.shape)} in "
            f"blocks of {tensor.block[0]} x {tensor.block[1]} they are {list(grid)}"
        )
        return Problem(message, place)
    if tensor.zeros is not None and (trouble := _trouble_of_zeros(tensor.zeros, tensor, grid)):
        return Problem(f"the zero points of `{name}` are {trouble}", place)
    return None


def _trouble_of_zeros(zeros: Stored, tensor: Quantized, grid: tuple[int, ...]) -> str | None:
    """What is wrong with zero points for blocks that form this grid, or None."""
    packed = {"packed4": 8, "packed8": 4}.get(tensor.numbers)
    if packed is None:
        expected, dtype = list(grid), "I8"
    else:
        expected, dtype = [*grid[:-2], -(-grid[-2] // packed), grid[-1]], "I32"
    if zeros.dtype != dtype:
        return f"{zeros.dtype}, not {dtype}"
    if prod(zeros.shape) != prod(expected):
        return f"{list(zeros.shape)}, not {expected}"
    return None


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


def _plane(shape: tuple[int, ...], *, transposed: bool) -> tuple[int, int]:
    """The stored rows and columns of a tensor."""
    rows, columns = shape[-2:]
    return (columns, rows) if transposed else (rows, columns)


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
    """Small numbers in float32, from (rows, what is stored of a row) to (rows, columns)."""
    if numbers == "float4":
        pairs = _PAIRS.index_select(0, stored.flatten().int())
        return pairs.view(stored.shape[0], -1)
    if numbers in ("float8", "int8"):
        return stored.float()
    bits = 4 if numbers == "packed4" else 8
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    spread = (stored[..., None] >> shifts) & ((1 << bits) - 1)
    return spread.flatten(-2).float() - float(1 << (bits - 1))


_VALUES: Mapping[Numbers, str] = {
    "float8": "F8_E4M3",
    "int8": "I8",
    "packed4": "I32",
    "packed8": "I32",
    "float4": "U8",
}
"""The dtypes of small numbers, by how they are stored."""

_SCALES = ("F32", "BF16", "F16", "F8_E8M0", "U8")
"""The dtypes of scales that are read."""

_METHODS: Mapping[str, _Method] = {
    "fp8": _Method(_fp8, unused=("activation_scale", "input_scale")),
    "mxfp4": _Method(_mxfp4),
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
