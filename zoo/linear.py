"""The linear map of which every model is mostly made."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Linear(nn.Linear):
    """`nn.Linear`, which in float32 on a CPU is computed by oneDNN.

    `nn.Linear` is computed by MKL there, which uses half the vector width on processors that are
    not Intel's, and reads the weight at half the speed of memory when there are few rows. On two
    Zen 4 cores a map of 768 to 3,072 takes by oneDNN 0.55 of that time for 1 row, 0.65 for 8 and
    32, and 0.8 for 512. `torch.backends.mkldnn.flags(enabled=False)` switches it off.
    """

    packed: torch.Tensor | None = None
    """The weight as `pack` laid it out."""
    _packed_of: tuple[int, int] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) to (..., out_features)."""
        if not self._takes(x):
            return F.linear(x, self.weight, self.bias)
        if torch.is_grad_enabled():
            return _Product.apply(x, self.weight, self.bias)
        return _product(x, self._laid_out(), self.bias)

    def _takes(self, x: torch.Tensor) -> bool:
        """Whether oneDNN is to compute it: not in other dtypes, and not for what only stands for a
        tensor, as in a graph, in a shard or under `torch.func`."""
        return (
            type(x) is torch.Tensor
            and type(self.weight) is nn.Parameter
            and x.dtype == self.weight.dtype == torch.float32
            and x.is_cpu
            and x.shape[-1] == self.in_features
            and torch.backends.mkldnn.enabled
            and not torch.compiler.is_compiling()
            and not torch.is_autocast_enabled("cpu")
        )

    def pack(self) -> None:
        """Keep a copy of the weight in the order in which oneDNN reads it fastest.

        It takes the weight's memory once more and is used while the weight stays as it is: not by
        training, and not after a step of it. It is no part of the state, of copies or of files.
        """
        if self.weight.is_cpu and self.weight.dtype == torch.float32:
            with torch.no_grad():
                self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)
            self._packed_of = self._now()

    def _laid_out(self) -> torch.Tensor:
        """The packed weight, if it still is that of the weight."""
        if self.packed is None or self._packed_of != self._now():
            return self.weight
        return self.packed

    def _now(self) -> tuple[int, int]:
        """Where the weight lies, and how often it was changed in place."""
        return self.weight.data_ptr(), self.weight._version

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold."""
        return {name: value for name, value in self.__dict__.items() if name != "packed"}


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x weight^T + bias by oneDNN; `torch.compile` puts the same function in its place."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], None)


class _Product(torch.autograd.Function):
    """The same with gradients, whose products oneDNN computes too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return _product(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows, grads = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
        return (
            _Product.apply(grad, weight.t(), None) if needs_x else None,
            _Product.apply(grads.t(), rows.t(), None) if needs_weight else None,
            grads.sum(0) if needs_bias else None,
        )
