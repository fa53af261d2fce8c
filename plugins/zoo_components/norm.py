"""Normalisation layers: the `norm` slot."""

import math
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import model_validator

from zoo.component import PositiveFloat, contradiction
from zoo.layout import Layout, Tensor, vector
from zoo.slots import Norm

if TYPE_CHECKING:
    from torch import nn


class LayerNorm(Norm):
    """Layer normalisation (Ba et al. 2016, arXiv:1607.06450):
    weight * (x - mean) / sqrt(variance + eps) + bias, with the biased variance."""

    broadcasts: ClassVar[bool] = True
    eps: PositiveFloat = 1e-5
    """Added to the variance, inside the root."""
    weight: bool = True
    """Whether there is a weight."""
    zero_centered_weight: bool = False
    """Whether the stored weight is the difference from 1: x is scaled by 1 + weight (NVIDIA's
    LayerNorm1P; Nemotron)."""
    bias: bool = True
    """Whether there is a bias."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_weight(self.weight, zero_centered_weight=self.zero_centered_weight)
        return self

    def layout(self) -> Layout:
        parts = _weight_parts(self.width, self.weight, zero_centered=self.zero_centered_weight)
        return Layout(parts | ({"bias": vector(self.width, "bias")} if self.bias else {}))

    def build(self) -> "nn.Module":
        from zoo_components.modules.norm import LayerNorm as Module

        return Module(
            self.width,
            eps=self.eps,
            weight=self.weight,
            zero_centered=self.zero_centered_weight,
            bias=self.bias,
        )


class RmsNorm(Norm):
    """Root mean square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467):
    weight * x / sqrt(mean(x**2) + eps)."""

    broadcasts: ClassVar[bool] = True
    eps: PositiveFloat = 1e-6
    """Added to the mean of squares, inside the root."""
    weight: bool = True
    """Whether there is a weight."""
    zero_centered_weight: bool = False
    """Whether the stored weight is the difference from 1: x is scaled by 1 + weight (Gemma)."""
    cast: Literal["before_weight", "after_weight"] = "after_weight"
    """When the normalised vector, computed in float32, is rounded to a lower precision of the
    model: before the multiplication by the weight (Llama) or after it (Gemma)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_weight(
            self.weight,
            zero_centered_weight=self.zero_centered_weight,
            cast=self.cast == "before_weight",
        )
        return self

    def layout(self) -> Layout:
        return Layout(
            _weight_parts(self.width, self.weight, zero_centered=self.zero_centered_weight)
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.norm import RmsNorm as Module

        return Module(
            self.width,
            eps=self.eps,
            weight=self.weight,
            zero_centered=self.zero_centered_weight,
            cast_first=self.cast == "before_weight",
        )


class StandardizedRmsNorm(Norm):
    """Root mean square normalisation without a weight of what is standardized before, by a mean and
    a scale of each element that were measured in training and are not learned (the states of images
    in Gemma 4): y / sqrt(mean(y**2) + eps) with y = scale * (sqrt(width) * x - mean)."""

    eps: PositiveFloat = 1e-6
    """Added to the mean of squares, inside the root."""

    def layout(self) -> Layout:
        return Layout(
            {
                "mean": Tensor((self.width,), "constant", buffer=True),
                "scale": Tensor((self.width,), "constant", value=1.0, buffer=True),
            }
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.norm import StandardizedRmsNorm as Module

        return Module(self.width, eps=self.eps)


class ScaleNorm(Norm):
    """Scaled l2 normalisation (Nguyen and Salazar 2019, arXiv:1910.05895):
    weight * x / max(|x|, eps) with one learned weight, which starts at sqrt(width)."""

    broadcasts: ClassVar[bool] = True
    eps: PositiveFloat = 1e-5
    """A lower bound of the norm that x is divided by."""

    def layout(self) -> Layout:
        return Layout({"weight": vector(1, value=math.sqrt(self.width))})

    def build(self) -> "nn.Module":
        from zoo_components.modules.norm import ScaleNorm as Module

        return Module(self.width, eps=self.eps)


class StdNorm(Norm):
    """Normalisation by the standard deviation, as in the Annotated Transformer (Rush 2018):
    weight * (x - mean) / (std + eps) + bias, with the unbiased std and eps outside the root."""

    broadcasts: ClassVar[bool] = True
    eps: PositiveFloat = 1e-6
    """Added to the standard deviation, outside the root."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width == 1:
            raise contradiction("one number has no unbiased standard deviation", "kind")
        return self

    def layout(self) -> Layout:
        return Layout({"weight": vector(self.width, value=1.0), "bias": vector(self.width, "bias")})

    def build(self) -> "nn.Module":
        from zoo_components.modules.norm import StdNorm as Module

        return Module(self.width, eps=self.eps)


class BatchNorm(Norm):
    """Batch normalisation over features (Ioffe and Szegedy 2015, arXiv:1502.03167), each feature
    over all positions of the batch, as Shen et al. (2020, arXiv:2003.07845) study in Transformers.
    In evaluation it uses the running statistics."""

    eps: PositiveFloat = 1e-5
    """Added to the variance, inside the root."""
    momentum: PositiveFloat = 0.1
    """The weight of the current batch in the update of the running statistics."""

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

    def build(self) -> "nn.Module":
        from zoo_components.modules.norm import BatchNorm as Module

        return Module(self.width, eps=self.eps, momentum=self.momentum)


class DynamicTanh(Norm):
    """Dynamic tanh in the place of a norm (DyT: Zhu et al. 2025, arXiv:2503.10622):
    weight * tanh(alpha * x) + bias, with one learned alpha. Each element is computed by itself."""

    broadcasts: ClassVar[bool] = True
    alpha: PositiveFloat = 0.5
    """The initial value of alpha. For language models, the paper has smaller ones the wider they
    are, and larger ones before attention than elsewhere."""

    def layout(self) -> Layout:
        return Layout(
            {
                "alpha": vector(1, value=self.alpha),
                "weight": vector(self.width, value=1.0),
                "bias": vector(self.width, "bias"),
            }
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.norm import DynamicTanh as Module

        return Module(self.width)


class NoNorm(Norm):
    """No normalisation: x is returned unchanged."""

    absent: ClassVar[bool] = True

    def build(self) -> "nn.Module":
        from torch.nn import Identity

        return Identity()


def of_width(norm: Norm, width: int) -> Norm:
    """The same norm for vectors of another width."""
    return norm.model_copy(update={"width": width})


def _check_weight(weight: bool, **states: bool) -> None:
    """Raise a contradiction if an option of the weight is stated and there is no weight."""
    for key, stated in states.items():
        if stated and not weight:
            raise contradiction(f"`{key}` speaks of a weight that is not there", key, "weight")


def _weight_parts(width: int, weight: bool, *, zero_centered: bool) -> dict[str, Tensor]:
    return {"weight": vector(width, value=0.0 if zero_centered else 1.0)} if weight else {}
