"""Low-rank updates of linear maps (LoRA: Hu et al. 2021, arXiv:2106.09685), which are trained while
the weights of the maps stay as they are."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import nn

from zoo.distribution import Uniform
from zoo.errors import TrainingError
from zoo.fill import fill
from zoo.linear import Linear
from zoo.training.tables import Lora
from zoo.transformer import Transformer


class LowRankLinear(Linear):
    """A linear map with W + scale B A in the place of its weight W (out_features, in_features).

    `lora_a` is A, (rank, in_features), and `lora_b` is B, (out_features, rank). The sum is not
    computed in training: it would be kept for the gradients, and its own gradient, of the size of
    W, be computed. `dropout` is the share of the inputs of A that are left out in training.
    """

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    scale: float
    dropout: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) to (..., out_features): W x + bias + B (scale A x)."""
        kept = F.dropout(x, self.dropout, self.training)
        inner = F.linear(kept, self.lora_a) * self.scale
        return super().forward(x) + F.linear(inner, self.lora_b)

    def updated(self) -> torch.Tensor:
        """W + scale B A, (out_features, in_features)."""
        return torch.addmm(self.weight, self.lora_b, self.lora_a, alpha=self.scale).detach()


def add_updates(model: Transformer, names: Collection[str], lora: Lora, *, seed: int) -> None:
    """Give linear maps low-rank updates, in place. A starts as `nn.Linear` would, uniform within
    1 / sqrt(in_features), and B from 0.

    Args:
        model: the model, on the CPU.
        names: the names of the maps' weights.
        lora: the rank, the factor and the dropout.
        seed: the seed of A, which also depends on the name of the weight.

    Raises:
        TrainingError: a weight is not that of a `zoo.linear.Linear` alone.
    """
    holders: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            holders.setdefault(id(parameter), []).append(module)
    for name in sorted(names):
        path, _, own = name.rpartition(".")
        module, weight = model.get_submodule(path), model.get_parameter(name)
        if type(module) is nn.Linear and own == "weight":
            message = f"`{name}` cannot be adapted: it is the weight of an `nn.Linear`"
            hint = (
                "leave it out of `weights` in `[lora]`; in a plugin of your own, a "
                "`zoo.linear.Linear` can be adapted"
            )
            raise TrainingError(message, help=hint)
        if type(module) is not Linear or own != "weight" or len(holders[id(weight)]) > 1:
            message = f"`{name}` cannot be adapted: it is not the weight of one linear map alone"
            raise TrainingError(message, help="leave it out of `weights` in `[lora]`")
        n_out, n_in = weight.shape
        a, b = weight.new_empty(lora.rank, n_in), weight.new_zeros(n_out, lora.rank)
        fill({factors_of(name)[0]: (a, Uniform(1 / math.sqrt(n_in)))}, seed=seed)
        module.__class__ = LowRankLinear
        module.register_parameter("lora_a", nn.Parameter(a))
        module.register_parameter("lora_b", nn.Parameter(b))
        vars(module).update(scale=lora.alpha / lora.rank, dropout=lora.dropout)


def factors_of(name: str) -> tuple[str, str]:
    """The names of A and B of the weight `name` of a map."""
    path = name.rpartition(".")[0]
    return f"{path}.lora_a", f"{path}.lora_b"


def updated(model: Transformer, name: str) -> torch.Tensor:
    """The weight `name` with its update."""
    module = model.get_submodule(name.rpartition(".")[0])
    assert isinstance(module, LowRankLinear)
    return module.updated()
