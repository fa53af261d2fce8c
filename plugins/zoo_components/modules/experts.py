"""Feed-forward experts whose maps are stacked, computed for the rows that were sent to each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import register_flop_formula

from zoo.linear import is_compiled, onednn_is_faster
from zoo.machine.prepacking import product
from zoo.sharding.parts import entering, local, summed
from zoo_components.modules.dropout import Dropout
from zoo_components.modules.norm import is_autocast

FEW = 16
"""Up to so many rows, a compiler makes a loop for each."""
COPIED = 32 * 2**20
"""The most bytes of matrices that are copied, one for each row."""


# Custom operators, because the number of rows of an expert depends on the data: a compiler then
# sees only the shapes, which do not.
@torch.library.custom_op("zoo_components::grouped_linear", mutates_args=())
def grouped_linear(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Multiply each run of rows by the matrix of its expert; no other product is computed.

    Args:
        x: (rows, n_in), the rows of the first expert before those of the second, and so on.
        weight: (n_experts, n_out, n_in).
        ends: (n_experts,), integers: where each expert's rows end.

    Returns:
        (rows, n_out).
    """
    y = x.new_empty(x.shape[0], weight.shape[1])
    start = 0
    for expert, end in enumerate(ends.tolist()):
        rows = x[start:end]
        if end > start and onednn_is_faster(rows, weight[expert]):
            y[start:end] = product(rows, weight[expert], None)
        elif end > start:
            torch.mm(rows, weight[expert].T, out=y[start:end])
        start = end
    return y


@torch.library.custom_op("zoo_components::grouped_outer", mutates_args=())
def grouped_outer(x: torch.Tensor, y: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The sum of the outer products of each expert's rows: x (rows, n) and y (rows, m) to
    (n_experts, n, m), with `ends` as in `grouped_linear`."""
    products = x.new_zeros(ends.shape[0], x.shape[1], y.shape[1])
    start = 0
    for expert, end in enumerate(ends.tolist()):
        if end > start:
            torch.mm(x[start:end].T, y[start:end], out=products[expert])
        start = end
    return products


@grouped_linear.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@grouped_outer.register_fake
def _(x: torch.Tensor, y: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x.new_empty(ends.shape[0], x.shape[1], y.shape[1])


@register_flop_formula(torch.ops.zoo_components.grouped_linear)
def _linear_flops(x: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * x[0] * weight[1] * weight[2]


@register_flop_formula(torch.ops.zoo_components.grouped_outer)
def _outer_flops(x: Sequence[int], y: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * x[0] * x[1] * y[1]


def _save(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _linear_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    x, weight, ends = ctx.saved_tensors
    return grouped_linear(grad, weight.mT, ends), grouped_outer(grad, x, ends), None


def _outer_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    x, y, ends = ctx.saved_tensors
    return grouped_linear(y, grad, ends), grouped_linear(x, grad.mT, ends), None


grouped_linear.register_autograd(_linear_backward, setup_context=_save)
grouped_outer.register_autograd(_outer_backward, setup_context=_save)


def row_by_row(x: torch.Tensor, weight: torch.Tensor, experts: torch.Tensor) -> torch.Tensor | None:
    """As `grouped_linear`, by tensor operations alone: without asking a GPU how many rows an expert
    has, which would wait for it; None where that is slower.

    Args:
        x: (rows, n_in).
        weight: (n_experts, n_out, n_in).
        experts: (rows,), the expert of each row.

    Returns:
        (rows, n_out).
    """
    if torch.is_grad_enabled():
        return None
    if is_compiled() and x.shape[0] <= FEW:  # a loop that reads the matrices where they are
        wide = torch.promote_types(x.dtype, torch.float32)
        return (weight[experts].to(wide) * x[:, None].to(wide)).sum(-1).to(x.dtype)
    if copies(x) and x.shape[0] * weight[0].nbytes <= COPIED:
        return torch.bmm(weight[experts], x[..., None]).squeeze(-1)
    return None


def copies(x: torch.Tensor) -> bool:
    """Whether the matrix of each row may be copied for a product: not in a graph for any number of
    rows."""
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined]
    return x.is_cuda and not (tracing or torch.compiler.is_exporting())


class GroupedLinear(nn.Module):
    """One linear map for each expert, stacked: weight (n_experts, n_out, n_in), bias
    (n_experts, n_out). A process that holds a part of the input dimension adds its products to
    those of the others; one that holds a part of the output dimension returns that part."""

    def __init__(self, n_experts: int, n_in: int, n_out: int, *, bias: bool) -> None:
        super().__init__()
        self.n_in = n_in
        self.weight = nn.Parameter(torch.empty(n_experts, n_out, n_in))
        self.bias = nn.Parameter(torch.empty(n_experts, n_out)) if bias else None

    def extra_repr(self) -> str:
        """The experts and the widths, as `print(model)` shows them."""
        n_experts, n_out, n_in = self.weight.shape
        return f"{n_experts} experts, in_features={n_in}, out_features={n_out}"

    def forward(self, x: torch.Tensor, experts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """(rows, n_in) to (rows, n_out); `experts` (rows,) names the expert of each row, in
        ascending order, and `ends` (n_experts,) says where each expert's rows end."""
        weight, bias = local(self.weight), self.bias if self.bias is None else local(self.bias)
        sums = weight.shape[2] < self.n_in
        if not sums:
            x = entering(x, self)
        if is_autocast(x):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        found = row_by_row(x, weight, experts)
        y = grouped_linear(x, weight, ends) if found is None else found
        if sums:
            y = summed(y, self)
        return y if bias is None else y + bias[experts]


class Expert(nn.Module):
    """A feed-forward network whose maps `linear` returns: one network, or one for each expert.

    Args:
        linear: returns a map, called with its input and output widths.
        form: "mlp": down(dropout(activation(up(x)))), "glu": down(dropout(activation(gate(x)) *
            up(x))), "clipped_glu": the same with the gate clamped to at most `limit`, and up(x)
            clamped to +- `limit`, or "clamped_glu": with the latter raised by 1 too.
    """

    def __init__(
        self,
        linear: Callable[[int, int], nn.Module],
        *,
        d_model: int,
        d_ff: int,
        form: str,
        activation: nn.Module,
        limit: float | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.form = form
        self.limit = limit
        if form != "mlp":
            self.gate_proj = linear(d_model, d_ff)
        self.activation = activation
        self.up_proj = linear(d_model, d_ff)
        self.dropout = Dropout(dropout)
        self.down_proj = linear(d_ff, d_model)

    def forward(self, x: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
        """(..., d_model) to the same; `rows` are the arguments that the maps take besides x."""
        up = self.up_proj(x, *rows)
        if self.form == "mlp":
            return self.down_proj(self.dropout(self.activation(up)), *rows)
        gate = self.gate_proj(x, *rows)
        if self.limit is not None:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
            up = up + 1 if self.form == "clamped_glu" else up
        return self.down_proj(self.dropout(self.activation(gate) * up), *rows)
