"""Weights in 8 bits: matrices of integers, and the modules that compute with them on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import flop_registry, register_flop_formula

from zoo.errors import InputError
from zoo.linear import Linear, is_compiled
from zoo.machine.memory import collapse
from zoo.machine.prepacking import HAS_BAGS, bags

WIDTH = 128
"""The rows of a block. Of 48 to 256, blocks of 192 are read fastest on two Zen 4 cores; these take
up to 1.1 of their time, and more matrices have a multiple of 128 rows."""

TAIL = 8
"""The bytes behind each column of a block: the factor and the summand that turn its other bytes
into numbers, as FBGEMM's kernels for embeddings read them."""

FEW_ROWS = 8
"""The number of rows of x up to which the codes themselves are read, once for each row. For more,
blocks are written out as floats. On two Zen 4 cores, 768 x 2,304 and its like take 0.3 to 0.4 of
the time of arranged weights in float32 for one row, 0.5 to 0.7 for 2, 0.7 to 0.9 for 4 and 1.3 to
1.4 for 8; as floats, 1.1 to 2.2 for 8, 1.2 to 1.9 for 32, and 1.2 for 256."""

AT_ONCE = 16
"""The blocks that are floats at the same time, few enough for the processor's cache."""

_BAGS = torch.ops.quantized.embedding_bag_byte_rowwise_offsets
_UNPACKED = torch.ops.quantized.embedding_bag_byte_unpack


class Int8Matrix(nn.Module):
    """A matrix w (rows, columns) as integers q of 8 bits and a scale s of each row: s is max |w| /
    127, and q is w / s, rounded to nearest, ties to even. So |w - q s| <= s / 2.

    Products with few rows are embedding bags, as in `zoo.machine.prepacking.OneRow`, of the tables
    of bytes that FBGEMM reads. Inputs are not quantized, and sums are added in float32.

    `codes`, (blocks, columns, WIDTH + TAIL), holds q + 128 of the columns of every `WIDTH` rows,
    and FBGEMM's factor 1 and summand -128; beyond the last row, q is 0. `scale` is (rows,), in
    float32 even if the model is cast. `like` is an empty parameter that is cast like the model,
    which may have no other parameters left.
    """

    codes: torch.Tensor
    scale: torch.Tensor

    def __init__(self, weight: torch.Tensor) -> None:
        """Quantize a weight (rows, columns), block by block, so that there is no other copy."""
        super().__init__()
        weight = weight.detach()
        wide = torch.promote_types(weight.dtype, torch.float32)
        n_blocks = -(-weight.shape[0] // WIDTH)
        shape = n_blocks, weight.shape[1], WIDTH + TAIL
        codes = torch.full(shape, 128, dtype=torch.uint8, device="cpu")
        tail = torch.tensor([1.0, -128.0], dtype=torch.float32, device="cpu")
        codes[..., WIDTH:] = tail.view(torch.uint8)
        scales = []
        for block, rows in zip(codes, torch.split(weight, WIDTH), strict=True):
            w = rows.to(wide)
            scale = (w.abs().amax(1) / 127).float()
            q = (w / scale.where(scale > 0, 1)[:, None]).round().clamp(-127, 127)
            block[:, : len(rows)] = (q + 128).t()
            scales.append(scale)
        collapse(codes.data_ptr(), codes.nbytes)
        self.register_buffer("codes", codes)
        self.register_buffer("scale", torch.cat(scales))
        self.like = nn.Parameter(weight.new_empty(0), requires_grad=False)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        scale = self.scale
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.scale = scale.to(self.scale.device)
        return self

    def dequantized(self) -> torch.Tensor:
        """The matrix of q s, (rows, columns), in the dtype of the model."""
        codes = self.codes[..., :WIDTH].mT.flatten(0, 1)[: len(self.scale)]
        return self._numbers(codes, self.scale[:, None])

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """The rows of these numbers, (...), of q s: (..., columns), in the dtype of the model.

        Raises:
            IndexError: there is no such row.
        """
        scale = F.embedding(numbers, self.scale[:, None])  # which refuses other numbers
        return self._numbers(self.codes[numbers // WIDTH, :, numbers % WIDTH], scale)

    def _numbers(self, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """What codes mean, (codes - 128) * scale, rounded once to the dtype of the model."""
        wide = torch.promote_types(self.like.dtype, torch.float32)
        return ((codes.to(wide) - 128) * scale).to(self.like.dtype)

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x w^T + bias, (..., rows), of x (..., columns) with elements, in the dtype of the model.
        Only where there are FBGEMM's kernels."""
        each = x.reshape(-1, x.shape[-1])
        few = len(each) <= FEW_ROWS and x.dtype != torch.float64
        sums = self._sums_of_bags(each.float()) if few else self._sums_of_blocks(each)
        y = sums * self.scale if bias is None else torch.addcmul(bias, sums, self.scale)
        return y.to(x.dtype).view(*x.shape[:-1], -1)

    def _sums_of_bags(self, x: torch.Tensor) -> torch.Tensor:
        """x q^T for x (n, columns) in float32: a bag for each row of x and each block."""
        n_blocks, n_columns, _ = self.codes.shape
        rows, starts = bags(n_columns, n_blocks)
        if len(x) > 1:
            rows = rows.view(n_blocks, 1, -1).expand(-1, len(x), -1).reshape(-1)
            starts = torch.arange(0, len(rows), n_columns, dtype=rows.dtype, device=rows.device)
        factors = x.reshape(1, -1).expand(n_blocks, -1).reshape(-1)
        table = self.codes.view(-1, WIDTH + TAIL)
        sums = _BAGS(table, rows, starts, per_sample_weights=factors)
        return _beside(sums.view(n_blocks, -1, WIDTH), len(self.scale))

    def _sums_of_blocks(self, x: torch.Tensor) -> torch.Tensor:
        """x q^T for x (n, columns), with blocks of floats."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        sums = x.new_empty(len(x), len(self.scale))
        parts = torch.split(sums, AT_ONCE * WIDTH, 1)
        for part, codes in zip(parts, torch.split(self.codes, AT_ONCE), strict=True):
            blocks = _UNPACKED(codes).to(x.dtype)
            products = torch.bmm(x.expand(len(blocks), -1, -1), blocks)
            part.copy_(_beside(products, part.shape[1]))
        return sums


def _beside(results: torch.Tensor, n_rows: int) -> torch.Tensor:
    """The results of blocks (blocks, n, WIDTH) side by side, (n, n_rows)."""
    return results.transpose(0, 1).flatten(1)[:, :n_rows]


class Int8Linear(Linear):
    """A `Linear` with its weight in 8 bits, in `matrix`. It has no gradients."""

    matrix: Int8Matrix

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """The weight with which it computes, made anew by each use, (out_features, in_features)."""
        return self.matrix.dequantized()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) to (..., out_features).

        Raises:
            InputError: gradients are recorded.
        """
        if x.requires_grad and torch.is_grad_enabled():
            message = (
                "a model with weights in 8 bits is not trained, and a call here records gradients"
            )
            raise InputError(message, help="train the model before `zoo.quantize_weights`")
        if HAS_BAGS and self.fits(x) and x.dtype == self.matrix.like.dtype:
            return self.matrix.product(x, self.bias)
        if is_compiled() and x.numel() == self.in_features:
            return self.as_a_sum(x)
        return F.linear(x, self.weight, self.bias)


class Int8Embedding(nn.Embedding):
    """An `nn.Embedding` with its weight in 8 bits, in `matrix`."""

    matrix: Int8Matrix

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """The weight from which it takes rows, made anew by each use."""
        return self.matrix.dequantized()

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(...) to (..., embedding_dim)."""
        return self.matrix.rows(input)


def has_int8(model: nn.Module) -> bool:
    """Return whether a model has weights in 8 bits."""
    return any(isinstance(module, Int8Matrix) for module in model.modules())


# So that torch's FlopCounterMode counts products with few rows like any other product.
if _BAGS not in flop_registry:

    @register_flop_formula(_BAGS)
    def _flops(table: Sequence[int], rows: Sequence[int], *_: Any, **__: Any) -> int:
        return 2 * prod(rows) * (table[1] - TAIL)
