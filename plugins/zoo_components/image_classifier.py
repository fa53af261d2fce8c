"""Heads that classify images, of an encoder whose embedding is `patches`: the `head` slot."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from zoo.component import Shared
from zoo.layout import Layout, linear
from zoo_components.classifier import OfClasses

if TYPE_CHECKING:
    from torch import nn


class DistilledClassifier(OfClasses):
    """Scores of classes for each image, the mean of two classifiers' (DeiT: Touvron et al. 2020,
    arXiv:2012.12877, section 4): (out(x_0) + distillation(x_1)) / 2 of the states of the first two
    positions, of which the second learned from a teacher."""

    bias: bool = True
    """Whether the maps to the classes have biases."""

    def layout(self) -> Layout:
        out = linear(self.d_model, self.n_classes, bias=self.bias)
        return Layout({"out": out, "distillation": out}, f"n_classes {self.n_classes}")

    def build(self) -> "nn.Module":
        from zoo_components.modules.image_classifier import DistilledClassifier as Module

        return Module(d_model=self.d_model, n_classes=self.n_classes, bias=self.bias)


class PatchClassifier(OfClasses):
    """Scores of classes for each image, from the state of the class token beside the mean state of
    the patches (DINOv2: Oquab et al. 2023, arXiv:2304.07193, section 7.1):
    out([x_0, mean(patches)])."""

    n_registers: Shared[Annotated[int, Field(ge=0)]] = 0
    """The number of registers after the class token, which the mean leaves out."""
    bias: bool = True
    """Whether the map to the classes has a bias."""

    def layout(self) -> Layout:
        out = linear(2 * self.d_model, self.n_classes, bias=self.bias)
        return Layout({"out": out}, f"n_classes {self.n_classes}")

    def build(self) -> "nn.Module":
        from zoo_components.modules.image_classifier import PatchClassifier as Module

        return Module(
            d_model=self.d_model,
            n_classes=self.n_classes,
            n_registers=self.n_registers,
            bias=self.bias,
        )
