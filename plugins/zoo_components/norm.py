"""Normalisation: the `norm` slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.component import PositiveFloat
from zoo.layout import Layout, Tensor, vector
from zoo.slots import Norm

if TYPE_CHECKING:
    from torch import nn


class LayerNorm(Norm):
    """Layer normalisation (Ba et al. 2016, arXiv:1607.06450):
    weight * (x - mean) / sqrt(variance + eps) + bias, with the biased variance."""

    eps: PositiveFloat = 1e-5
    """Added to the variance, inside the root."""
    bias: bool = True
    """Whether there is a bias."""

    def layout(self) -> Layout:
        weight = {"weight": vector(self.width, value=1.0)}
        return Layout(weight | ({"bias": vector(self.width, "bias")} if self.bias else {}))

    def build(self) -> nn.Module:
        from torch.nn import LayerNorm as Module

        return Module(self.width, eps=self.eps, bias=self.bias)


class StdNorm(Norm):
    """Normalisation by the standard deviation, as in the Annotated Transformer (Rush 2018):
    weight * (x - mean) / (std + eps) + bias, with the unbiased std and eps outside the root."""

    eps: PositiveFloat = 1e-6
    """Added to the standard deviation, outside the root."""

    def layout(self) -> Layout:
        return Layout(
            {"weight": vector(self.width, value=1.0), "bias": vector(self.width, "bias")}
        )

    def build(self) -> nn.Module:
        from zoo_components.modules.norm import StdNorm as Module

        return Module(self.width, eps=self.eps)


class RmsNorm(Norm):
    """Root mean square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467):
    weight * x / sqrt(mean(x**2) + eps)."""

    eps: PositiveFloat = 1e-6
    """Added to the mean of squares, inside the root."""

    def layout(self) -> Layout:
        return Layout({"weight": vector(self.width, value=1.0)})

    def build(self) -> nn.Module:
        from torch.nn import RMSNorm as Module

        return Module(self.width, eps=self.eps)


class BatchNorm(Norm):
    """Batch normalisation over features (Ioffe and Szegedy 2015, arXiv:1502.03167), each feature
    over all positions of the batch, as Shen et al. (2020, arXiv:2003.07845) study in Transformers.
    In evaluation it uses the running statistics."""

    eps: PositiveFloat = 1e-5
    """Added to the variance, inside the root."""
    momentum: PositiveFloat = 0.1
    """How fast the running statistics follow the batch's."""

    def layout(self) -> Layout:
        return Layout(
            {
                "weight": vector(self.width, value=1.0),
                "bias": vector(self.width, "bias"),
                "running_mean": Tensor((self.width,), "constant", buffer=True),
                "running_var": Tensor((self.width,), "constant", value=1.0, buffer=True),
                "num_batches_tracked": Tensor((), "constant", buffer=True, dtype="int64"),
            }
        )

    def build(self) -> nn.Module:
        from zoo_components.modules.norm import BatchNorm as Module

        return Module(self.width, eps=self.eps, momentum=self.momentum)


class NoNorm(Norm):
    """No normalisation: x."""

    def build(self) -> nn.Module:
        from torch.nn import Identity

        return Identity()
