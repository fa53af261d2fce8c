"""How small numbers are stored in bytes and words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch

from zoo.weights.dtypes import TORCH_DTYPES

DTYPES = {
    **TORCH_DTYPES,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I32": torch.int32,
}
"""The torch dtypes of what is stored, by their safetensors names."""

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The values of floats of 4 bits (OCP Microscaling Formats 1.0, table 5)."""

_PAIRS = torch.tensor([(_E2M1[byte & 15], _E2M1[byte >> 4]) for byte in range(256)], device="cpu")
"""The two floats of 4 bits in each byte, (256, 2)."""

Numbers = Literal[
    "float8", "int8", "packed4", "packed8", "float4", "awq4", "gptq4", "gptq8", "codes4", "codes8"
]
"""How small numbers are stored: `float8` and `int8` as numbers of their dtype; `float4` two in a
byte, the first in the lower half; the others in words of 32 bits, the first in the lowest bits:
`packed4` and `packed8` with 8 or 128 added, `awq4` in the order of AutoAWQ, which takes the even
ones first, `gptq4` and `gptq8` those below each other and not those beside each other. `codes4`
and `codes8` are places in a table: two in a byte, the first in the upper half, or one."""


class Packing(NamedTuple):
    """The dtype of what is stored, and the numbers below and beside each other in one item."""

    dtype: str
    down: int
    across: int


PACKING: Mapping[Numbers, Packing] = {
    "float8": Packing("F8_E4M3", 1, 1),
    "int8": Packing("I8", 1, 1),
    "float4": Packing("U8", 1, 2),
    "packed4": Packing("I32", 1, 8),
    "packed8": Packing("I32", 1, 4),
    "awq4": Packing("I32", 1, 8),
    "gptq4": Packing("I32", 8, 1),
    "gptq8": Packing("I32", 4, 1),
    "codes4": Packing("U8", 1, 2),
    "codes8": Packing("U8", 1, 1),
}


CODES: Mapping[Numbers, int] = {"codes4": 16, "codes8": 256}
"""The sizes of the tables."""


def unpacked(
    stored: torch.Tensor, numbers: Numbers, table: torch.Tensor | None = None
) -> torch.Tensor:
    """Small numbers in float32, (rows, columns), from what is stored of them, and from the table,
    (codes,), if they are codes."""
    match numbers:
        case "codes4" | "codes8":
            assert table is not None  # `Quantized` ensures it
            if numbers == "codes4":  # the two numbers of each byte
                table = torch.cartesian_prod(table, table)
            return table[stored.int()].flatten(1)
        case "float8" | "int8":
            return stored.float()
        case "float4":
            pairs = _PAIRS.index_select(0, stored.flatten().int())
            return pairs.view(stored.shape[0], -1)
        case "packed4" | "packed8":
            bits = 4 if numbers == "packed4" else 8
            return words(stored, bits).flatten(-2).float() - float(1 << (bits - 1))
        case "awq4":
            return words(stored, 4)[..., _AWQ_ORDER].flatten(-2).float()
        case "gptq4" | "gptq8":
            bits = 4 if numbers == "gptq4" else 8
            return words(stored, bits).transpose(1, 2).flatten(0, 1).float()


def words(stored: torch.Tensor, bits: int) -> torch.Tensor:
    """The numbers of so many bits in words of 32, (...) to (..., 32 / bits)."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (stored[..., None] >> shifts) & ((1 << bits) - 1)


_AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]
"""The places in a word of AutoAWQ of the numbers in their order."""
