"""Where weights start: the `init` slot."""

from __future__ import annotations

import math

from zoo.component import PositiveFloat
from zoo.distribution import Constant, Distribution, Normal, Uniform
from zoo.layout import Tensor
from zoo.slots import Init


class XavierInit(Init):
    """Uniform on +- gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010); biases are 0."""

    gain: PositiveFloat = 1.0
    """What the bound is multiplied with."""

    def distribution(self, tensor: Tensor) -> Distribution:
        if tensor.role == "bias":
            return Constant(0.0)
        return Uniform(self.gain * math.sqrt(6 / (tensor.fan_in + tensor.fan_out)))


class NormalInit(Init):
    """Normal with mean 0 and the same deviation everywhere (Radford et al. 2018: 0.02); biases
    are 0."""

    std: PositiveFloat = 0.02
    """The standard deviation."""

    def distribution(self, tensor: Tensor) -> Distribution:
        return Constant(0.0) if tensor.role == "bias" else Normal(self.std)
