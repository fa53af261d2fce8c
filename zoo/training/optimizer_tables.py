"""The tables of a recipe that name the optimiser and the schedule of its learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from zoo.component import Probability, Size, contradiction
from zoo.training.tables import Count, Decay, Positive, Share, Table


class Adam(Table):
    """Adam (Kingma and Ba 2014, arXiv:1412.6980)."""

    lr: Positive
    """The learning rate at the schedule's peak."""
    betas: Annotated[tuple[Probability, Probability], Field(strict=False)] = (0.9, 0.98)
    """The decay rates of the running means of the gradient and of its square."""
    eps: Positive = 1e-9
    """Added to the divisor of a step, the root of the mean square."""
    weight_decay: Decay = 0.0
    """The weights times this factor are added to their gradients (L2 regularisation)."""


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017, arXiv:1711.05101). Biases and
    the weights of norms do not decay."""

    weight_decay: Decay = 0.01
    """The weights times this factor and the learning rate are subtracted from them in each step."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lr * self.weight_decay > 1.0:
            message = (
                "`lr` times `weight_decay` is above 1: each step would turn the weights' signs"
            )
            raise contradiction(message, "weight_decay", "lr")
        return self


class Muon(AdamW):
    """Muon (Jordan et al. 2024) for the matrices of the layers: the mean of their gradients is made
    nearly orthogonal, and scaled to the size of AdamW's steps (Liu et al. 2025, arXiv:2502.16982),
    so that one `lr` and one `weight_decay` suit all. Everything else is AdamW's: tables of tokens
    and positions, heads, biases, norms, convolutions, and experts."""

    momentum: Probability = 0.95
    """The decay rate of the running mean of a matrix' gradient, which is Nesterov's."""


class Sgd(Table):
    """Stochastic gradient descent with momentum."""

    lr: Positive
    """The learning rate at the schedule's peak."""
    momentum: Probability = 0.0
    """The fraction of the previous step that is added to the next one."""
    weight_decay: Decay = 0.0
    """The weights times this factor are added to their gradients (L2 regularisation)."""


Optimizer = AdamW | Muon | Adam | Sgd
OPTIMIZERS: Mapping[str, type[Table]] = {
    "adamw": AdamW,
    "muon": Muon,
    "adam": Adam,
    "sgd": Sgd,
}


class Warmup(Table):
    """Base class of all schedules."""

    warmup: Count = 0
    """The number of steps over which the learning rate grows linearly from 0 to its peak."""


class Constant(Warmup):
    """The learning rate stays at its peak."""


class InverseSqrt(Warmup):
    """The learning rate falls with the inverse square root of the step: the schedule of Vaswani et
    al. 2017, section 5.3, whose peak is `d_model**-0.5 * warmup**-0.5`."""

    warmup: Size
    """The number of steps over which the learning rate grows linearly from 0 to its peak."""


class Falling(Warmup):
    """Base class of schedules whose learning rate falls to `final`."""

    final: Share = 0.0
    """The learning rate that it falls to, as a fraction of the peak: that of the step after the
    last one, so that no step is done in vain."""


class Linear(Falling):
    """The learning rate falls linearly to `final`."""


class Cosine(Falling):
    """The learning rate falls along half a cosine to `final` (Loshchilov and Hutter 2016,
    arXiv:1608.03983)."""


class WarmupStableDecay(Falling):
    """The learning rate stays at its peak, and falls to `final` in the last `decay` steps (Hu et
    al. 2024, arXiv:2404.06395). Before these, no step depends on the total number of steps."""

    decay: Size
    """The number of steps over which the learning rate falls."""
    shape: Literal["linear", "sqrt"] = "linear"
    """How it falls: by the share of these steps that is done, or by the root of that share, which
    is faster at first (Hägele et al. 2024, arXiv:2405.18392)."""


Schedule = Constant | InverseSqrt | Linear | Cosine | WarmupStableDecay
SCHEDULES: Mapping[str, type[Table]] = {
    "constant": Constant,
    "inverse_sqrt": InverseSqrt,
    "linear": Linear,
    "cosine": Cosine,
    "warmup_stable_decay": WarmupStableDecay,
}
