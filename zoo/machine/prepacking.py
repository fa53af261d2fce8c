"""Copies of weights in the memory layouts that CPUs multiply with fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import flop_registry, register_flop_formula

from zoo.machine.memory import PAGE, collapse
from zoo.machine.processor import is_intel

AVAILABLE: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
"""Whether this torch has oneDNN; builds for Apple's processors do not."""

ONEDNN_DTYPES: tuple[torch.dtype, ...] = (torch.float32,)
"""The dtypes whose packed weights oneDNN multiplies on this processor."""

if AVAILABLE and torch.ops.mkldnn._is_mkldnn_bf16_supported():
    ONEDNN_DTYPES += (torch.bfloat16,)

HAS_BAGS: bool = "fbgemm" in torch.backends.quantized.supported_engines
"""Whether this torch has FBGEMM's fast embedding bags; builds for x86 do."""

AVX2_ONLY: bool = torch.backends.cpu.get_cpu_capability() == "AVX2"
"""Whether the processor has AVX2, but not AVX-512."""

HAS_MKL: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
"""Whether this torch has MKL; builds for ARM do not."""

INTEL: bool = HAS_MKL and is_intel()
"""Whether the processor is Intel's, for which MKL is written."""

MKL_ROWS = 3 if INTEL else 0
"""The number of rows up to which MKL is the fastest in float32. On Intel's processors it reads the
weight for up to three as fast as memory is read, and for four at half of that: oneDNN takes 1.1 to
1.6 of its time for one, and 0.5 to 0.9 for four, on two Sapphire Rapids cores."""

FEWEST_ROWS = 1 if AVX2_ONLY or INTEL else 6
"""Fewer rows are repeated until there are so many. With AVX-512, the product of oneDNN's layout
with six rows takes less time than with one, two or three: 0.83, 0.75 and 0.93 of it for 768 x 2,304
and its like on two Zen 4 cores. Without, it takes more: 1.4, 1.25 and 1.2 on two Zen 3 cores; and
so it does on Intel's."""

WIDTH = 48 if AVX2_ONLY else 32
"""The outputs of a bag. Of 16 to 448, this one reads weights of 768 x 768 to 4,096 x 14,336 fastest
or nearly so: with AVX-512, 32 take 0.96 of the time of 48 on two Zen 4 cores, and 0.87 when others
leave them more of the memory's rate."""


class Pointwise(NamedTuple):
    """How an activation is computed without memory for its result.

    Args:
        onednn: the name by which oneDNN applies it to a product, in the processor's cache.
        overwrite: torch's function that replaces the elements of a tensor.
    """

    onednn: str
    overwrite: Callable[..., torch.Tensor]


POINTWISE: dict[type[nn.Module], Pointwise] = {
    nn.ReLU: Pointwise("relu", torch.relu_),
    nn.SiLU: Pointwise("swish", partial(F.silu, inplace=True)),
    nn.Sigmoid: Pointwise("sigmoid", torch.sigmoid_),
    nn.Tanh: Pointwise("tanh", torch.tanh_),
    nn.GELU: Pointwise("gelu", torch.ops.aten.gelu_),
}


class ManyRows(NamedTuple):
    """A weight in the order in which oneDNN reads it fastest, in float32 or bfloat16.

    Args:
        weight: the weight; only oneDNN can read it.
        bias: the bias (out_features,), or None.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor | None) -> ManyRows:
        """Copy a weight (out_features, in_features)."""
        # If the number of rows is not stated, the order is fast for few and for many.
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        collapse(torch.ops.mkldnn.data_ptr(packed), torch.ops.mkldnn._nbytes(packed))
        return cls(packed, bias)

    def takes(self, x: torch.Tensor) -> bool:
        """Return whether x can be multiplied with this layout."""
        return x.dtype == self.weight.dtype

    def product(self, x: torch.Tensor, then: nn.Module | None = None) -> torch.Tensor:
        """Return then(x weight^T + bias). A few rows are repeated for speed."""
        times = FEWEST_ROWS * x.shape[-1] // x.numel()
        if x.dim() > 1 and times > 1:
            repeated = torch.cat([x] * times)
            return product(repeated, self.weight, self.bias, then).narrow(0, 0, x.shape[0])
        return product(x, self.weight, self.bias, then)


class OneRow(NamedTuple):
    """A weight for products with a single row, in float32, bfloat16 or float16.

    Such a product is the sum of the weight's columns, each times an element of x, and of the bias
    times 1. That is an embedding bag whose table holds the columns, and torch's kernel for bags
    reads memory faster than its products do; it adds in float32. The columns are cut into pieces of
    `WIDTH` outputs; the sum of a piece is a bag, kept in registers, and threads share the bags.

    Args:
        columns: the pieces (bags * columns, WIDTH), bag after bag; beyond the last output they are
            0.
        one: the factor of the bias (1, 1); None without a bias.
        out_features: the number of outputs.
    """

    columns: torch.Tensor
    one: torch.Tensor | None
    out_features: int

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor | None) -> OneRow:
        """Copy a weight (out_features, in_features)."""
        one = None
        if bias is not None:
            weight = torch.cat((weight, bias.unsqueeze(1)), 1)
            one = bias.new_ones(1, 1)
        out_features, n_columns = weight.shape
        whole = F.pad(weight, (0, 0, 0, -out_features % WIDTH))
        columns = whole.view(-1, WIDTH, n_columns).mT.contiguous().view(-1, WIDTH)
        collapse(columns.data_ptr(), columns.nbytes)
        return cls(columns, one, out_features)

    def takes(self, x: torch.Tensor) -> bool:
        """Return whether x can be multiplied with this layout."""
        return x.dtype == self.columns.dtype and x.numel() == x.shape[-1]

    def product(self, x: torch.Tensor, then: nn.Module | None = None) -> torch.Tensor:
        """Return then(x weight^T + bias) for one row."""
        factors = x.reshape(1, -1)
        if self.one is not None:
            factors = torch.cat((factors, self.one), 1)
        n_columns = factors.shape[1]
        n_bags = self.columns.shape[0] // n_columns
        rows, starts = bags(n_columns, n_bags)
        factors = factors.expand(n_bags, -1).reshape(-1)
        sums = torch.embedding_bag(self.columns, rows, starts, per_sample_weights=factors)[0]
        found = sums.view(-1)[: self.out_features].view(*x.shape[:-1], -1)
        return found if then is None else overwritten(found, then)


class Transposed(NamedTuple):
    """A weight for products with a single row in float32, on Intel's processors.

    MKL adds the weight's columns, each times an element of x, without the sums along rows that it
    needs for the weight as it is stored: that takes 0.75 to 1.05 of the time, and less than any
    other layout, on two Sapphire Rapids cores.

    Args:
        columns: the columns of the weight (in_features, out_features).
        bias: the bias (out_features,), or None.
    """

    columns: torch.Tensor
    bias: torch.Tensor | None

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor | None) -> Transposed:
        """Copy a weight (out_features, in_features)."""
        columns = weight.t().contiguous()
        collapse(columns.data_ptr(), columns.nbytes)
        return cls(columns, bias)

    def takes(self, x: torch.Tensor) -> bool:
        """Return whether x can be multiplied with this layout."""
        return x.dtype == self.columns.dtype and x.numel() == x.shape[-1]

    def product(self, x: torch.Tensor, then: nn.Module | None = None) -> torch.Tensor:
        """Return then(x weight^T + bias) for one row."""
        row = x.reshape(1, -1)
        bias = self.bias
        found = row @ self.columns if bias is None else torch.addmm(bias, row, self.columns)
        found = found.view(*x.shape[:-1], -1)
        return found if then is None else overwritten(found, then)


class FixedRows(NamedTuple):
    """A weight for products with one number of rows in float32, on Intel's processors.

    MKL packs a weight for that number, which takes 0.8 to 0.95 of the time of oneDNN's order for 4
    to 64 rows, and 0.9 to 0.95 for hundreds, on two Sapphire Rapids cores.

    Args:
        weight: the weight; only MKL can read it, at this address.
        shape: a tensor of the shape (out_features, in_features), in which no values are kept.
        bias: the bias (out_features,), or None.
        rows: the number of rows.
    """

    weight: torch.Tensor
    shape: torch.Tensor
    bias: torch.Tensor | None
    rows: int

    @classmethod
    def of(cls, rows: int, weight: torch.Tensor, bias: torch.Tensor | None) -> FixedRows:
        """Copy a weight (out_features, in_features) for a number of rows."""
        packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), rows)
        # MKL asks for some 8 MB more than the weight takes, and begins where a huge page does.
        begin = -(-torch.ops.mkldnn.data_ptr(packed) // PAGE) * PAGE
        collapse(begin, weight.nbytes // PAGE * PAGE)
        return cls(packed, weight.new_empty(1, 1).expand(weight.shape), bias, rows)

    def takes(self, x: torch.Tensor) -> bool:
        """Return whether x can be multiplied with this layout."""
        return x.dtype == torch.float32 and x.numel() == self.rows * x.shape[-1]

    def product(self, x: torch.Tensor, then: nn.Module | None = None) -> torch.Tensor:
        """Return then(x weight^T + bias)."""
        found: torch.Tensor = torch.ops.mkl._mkl_linear.default(
            x, self.weight, self.shape, self.bias, self.rows
        )
        return found if then is None else overwritten(found, then)


Layout = ManyRows | OneRow | Transposed | FixedRows

Arrange = Callable[[torch.Tensor, torch.Tensor | None], Layout]
"""Copies a weight (out_features, in_features) and takes its bias (out_features,), if any."""


def arrangement(rows: int, dtype: torch.dtype) -> Arrange | None:
    """Return what arranges a weight for products with a number of rows; None if there is nothing
    for a dtype, or nothing faster than the weight as it is stored."""
    if INTEL and dtype == torch.float32:
        if rows > MKL_ROWS:
            return partial(FixedRows.of, rows)
        return Transposed.of if rows == 1 else None
    if rows == 1 and HAS_BAGS and dtype in (torch.float32, torch.bfloat16, torch.float16):
        return OneRow.of
    return ManyRows.of if dtype in ONEDNN_DTYPES else None


def are_mkls(x: torch.Tensor) -> bool:
    """Return whether MKL is the fastest for so few rows."""
    return x.dtype == torch.float32 and x.numel() <= MKL_ROWS * x.shape[-1]


@cache
def bags(n_columns: int, n_bags: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of a table that each bag sums, and where each bag begins."""
    rows = torch.arange(n_bags * n_columns, dtype=torch.int32, device="cpu")
    return rows, rows[::n_columns].contiguous()


def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    then: nn.Module | None = None,
) -> torch.Tensor:
    """Return then(x weight^T + bias) by oneDNN, with the function that `torch.compile` uses.

    Args:
        x: (..., in_features), not empty, of a dtype in `ONEDNN_DTYPES`, on a CPU.
        weight: as it is stored (out_features, in_features), or in oneDNN's own order; of the dtype
            of x.
        bias: (out_features,), or None.
        then: an activation of a class in `POINTWISE`.
    """
    name = "none" if then is None else POINTWISE[type(then)].onednn
    variant = then.approximate if isinstance(then, nn.GELU) else None
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(
        x, weight, bias, name, [], variant
    )
    return found


def overwritten(x: torch.Tensor, activation: nn.Module) -> torch.Tensor:
    """Replace x, of any shape, by activation(x); the activation is of a class in `POINTWISE`. A new
    tensor for 1,024 x 3,072 numbers would take as long as the activation itself."""
    variant = {"approximate": activation.approximate} if isinstance(activation, nn.GELU) else {}
    return POINTWISE[type(activation)].overwrite(x, **variant)


# So that torch's FlopCounterMode counts these operators like any other product.
if AVAILABLE and torch.ops.mkldnn._linear_pointwise not in flop_registry:

    @register_flop_formula(torch.ops.mkldnn._linear_pointwise)
    def _flops(x: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
        return 2 * prod(x) * weight[0]


if HAS_MKL and torch.ops.mkl._mkl_linear not in flop_registry:

    @register_flop_formula(torch.ops.mkl._mkl_linear)
    def _flops_of_fixed_rows(
        x: Sequence[int], weight: Sequence[int], shape: Sequence[int], *_: Any, **__: Any
    ) -> int:
        return 2 * prod(x) * shape[0]


if torch.ops.aten._embedding_bag_forward_only not in flop_registry:

    @register_flop_formula(torch.ops.aten._embedding_bag_forward_only)
    def _flops_of_bags(
        table: Sequence[int],
        rows: Sequence[int],
        starts: Sequence[int],
        scale: bool = False,
        mode: int = 0,
        sparse: bool = False,
        factors: Sequence[int] | None = None,
        *_: Any,
        **__: Any,
    ) -> int:
        return 0 if factors is None else 2 * prod(rows) * table[1]
