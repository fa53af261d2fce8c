"""Initialisation of weights: the `init` slot."""

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from zoo.component import PositiveFloat, Shared, Size
from zoo.layout import Tensor
from zoo.slots import Init

if TYPE_CHECKING:
    from zoo.distribution import Distribution

Deviation = Annotated[float, Field(gt=0.0, le=1e6)]
"""A standard deviation, or a factor of one, that is always within the range of float32."""
Draw = Literal["uniform", "normal"]


class XavierInit(Init):
    """Uniform on +- gain * sqrt(6 / (fan_in + fan_out)), or normal with the same deviation (Glorot
    and Bengio 2010); biases are 0."""

    draw: Draw = "uniform"
    """The form of the distribution."""
    gain: Deviation = 1.0
    """The factor that multiplies the standard deviation."""
    embedding_std: Deviation | None = None
    """The standard deviation of embeddings, which are then drawn from a normal distribution; by
    default they are initialised like the other matrices."""

    def distribution(self, tensor: Tensor) -> "Distribution":
        from zoo.distribution import Constant, Normal, Uniform

        if tensor.role == "bias":
            return Constant(0.0)
        if tensor.role == "embedding" and self.embedding_std is not None:
            return Normal(self.embedding_std)
        fans = tensor.fan_in + tensor.fan_out
        if self.draw == "normal":
            return Normal(self.gain * math.sqrt(2 / fans))
        return Uniform(self.gain * math.sqrt(6 / fans))


class KaimingInit(Init):
    """Normal with deviation gain / sqrt(fan), or uniform with the same deviation (He et al. 2015,
    arXiv:1502.01852); embeddings are normal, biases are 0."""

    fan: Literal["in", "out"] = "in"
    """Whether fan is the number of inputs of a weight, which preserves the variance in the forward
    pass, or of its outputs, which preserves it in the backward pass."""
    draw: Draw = "normal"
    """The form of the distribution."""
    gain: Deviation = math.sqrt(2)
    """The factor that multiplies the standard deviation; the default, sqrt(2), compensates for a
    ReLU."""
    embedding_std: Deviation = 1.0
    """The standard deviation of embeddings; it is independent of fan, since their rows are not
    summed."""

    def distribution(self, tensor: Tensor) -> "Distribution":
        from zoo.distribution import Constant, Normal, Uniform

        if tensor.role == "bias":
            return Constant(0.0)
        if tensor.role == "embedding":
            return Normal(self.embedding_std)
        fan = tensor.fan_in if self.fan == "in" else tensor.fan_out
        if self.draw == "normal":
            return Normal(self.gain / math.sqrt(fan))
        return Uniform(self.gain * math.sqrt(3 / fan))


class TorchInit(Init):
    """The initialisation of PyTorch's own modules: maps and their biases uniform on
    +- 1 / sqrt(fan_in) (LeCun et al. 1998), tables standard normal, the biases of norms 0."""

    def distribution(self, tensor: Tensor) -> "Distribution":
        from zoo.distribution import Constant, Normal, Uniform

        if tensor.role == "embedding":
            return Normal(1.0)
        return Uniform(tensor.fan_in**-0.5) if tensor.fan_in else Constant(0.0)


class NormalInit(Init):
    """Normal with mean 0 and, unless stated, the same deviation everywhere (Radford et al. 2018:
    0.02); biases are 0."""

    std: Deviation = 0.02
    """The standard deviation of the weights."""
    residual_std: Deviation = Field(default_factory=lambda data: data["std"])
    """The standard deviation of the matrices whose output is added to the residual stream."""
    embedding_std: Deviation = Field(default_factory=lambda data: data["std"])
    """The standard deviation of embeddings."""

    def distribution(self, tensor: Tensor) -> "Distribution":
        from zoo.distribution import Constant

        if tensor.role == "bias":
            return Constant(0.0)
        by_role = {"residual": self.residual_std, "embedding": self.embedding_std}
        return self._normal(by_role.get(tensor.role, self.std))

    def _normal(self, std: float) -> "Distribution":
        from zoo.distribution import Normal

        return Normal(std)


class TruncatedNormalInit(NormalInit):
    """The distribution of `normal`, truncated at `cut` standard deviations (Devlin et al. 2018,
    arXiv:1810.04805). The standard deviations are those before the cut: with a cut of 2, that of
    the remaining values is 0.88 times as large."""

    cut: PositiveFloat = 2.0
    """The largest absolute value, in standard deviations."""

    def _normal(self, std: float) -> "Distribution":
        from zoo.distribution import TruncatedNormal

        return TruncatedNormal(std, self.cut)


class DepthScaledInit(Init):
    """Normal, with matrices whose output is added to the residual stream multiplied by
    1 / sqrt(number of residual branches), so that their sum does not grow with depth (Radford et
    al. 2019, section 2.3: GPT-2); biases are 0."""

    std: Deviation = 0.02
    """The standard deviation of the weights before scaling."""
    embedding_std: Deviation = Field(default_factory=lambda data: data["std"])
    """The standard deviation of embeddings."""
    n_layers: Shared[Size]
    """The number of layers of the stack."""
    branches_per_layer: Size = 2
    """The number of residual branches in a layer: 2 for attention and feed-forward network, 3 with
    cross-attention."""

    def distribution(self, tensor: Tensor) -> "Distribution":
        from zoo.distribution import Constant, Normal

        if tensor.role == "bias":
            return Constant(0.0)
        if tensor.role == "residual":
            return Normal(self.std / math.sqrt(self.n_layers * self.branches_per_layer))
        return Normal(self.embedding_std if tensor.role == "embedding" else self.std)
