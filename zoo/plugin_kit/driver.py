"""The common base of all drivers, and the models of hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from zoo.plugin_kit.assertions import SAME, close, expect
from zoo.plugin_kit.inputs import BATCH, LENGTH, WIDTH, Tensors, vectors
from zoo.plugin_kit.report import PromiseError
from zoo.position import PositionScheme
from zoo.spec import ModelSpec
from zoo.transformer import Transformer

Way = Callable[..., Tensors]
"""One way of calling a module: from its inputs to its outputs."""


class Hosted(Transformer):
    """A model that holds the module of one component and, for an attention that reads a position
    scheme, the module of that scheme."""

    def __init__(self, part: nn.Module, scheme: nn.Module | None = None) -> None:
        super().__init__()
        self.part = part
        self.scheme = scheme


class Ramp(PositionScheme):
    """A position scheme whose effect is easily detected: it adds positions times channels."""

    def embed(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x (..., length, width), positions (..., length)."""
        channels = torch.arange(x.shape[-1], device=x.device)
        return x + (positions[..., None] * channels).to(x.dtype)


class Bare(Transformer):
    """A model that has only parameters."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            *path, attribute = name.split(".")
            owner: nn.Module = self
            for step in path:
                if step not in dict(owner.named_children()):
                    owner.add_module(step, nn.Module())
                owner = owner.get_submodule(step)
            owner.register_parameter(attribute, nn.Parameter(torch.empty(shape)))


class Driver:
    """Calls the module of one slot: `model.part`, or the model itself if a builder is checked. The
    model, and with it the inputs, are of the dtype."""

    names: Sequence[str] = ("x",)
    """Names of the inputs, for messages."""
    outputs: ClassVar[Sequence[str]] = ("the output",)
    """Names of the outputs, for messages."""

    def __init__(self, spec: ModelSpec, model: Any, dtype: torch.dtype) -> None:
        self.spec, self.model, self.dtype = spec, model, dtype

    @property
    def described(self) -> Any:
        """The description of the component under test."""
        host: Any = self.spec.model
        return host.part

    def inputs(self, seed: int = 0) -> Tensors:
        """Return the inputs of the module, which are the same for each dtype up to rounding."""
        return (vectors(self.dtype, seed),)

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        """Return the outputs of the module for these inputs."""
        return (self.model.part(*inputs),)

    def ways(self, inputs: Tensors) -> Mapping[str, Way]:
        """Return the ways in which the module is called with inputs like these, any number of rows
        of them, by what messages say after "a call"."""
        return {"": self.__call__}

    def in_every_way(self, *inputs: torch.Tensor) -> Tensors:
        """Return the outputs of all ways for these inputs."""
        return every(self.ways(inputs).values())(*inputs)

    def learning_ways(self, inputs: Tensors) -> Mapping[str, Way]:
        """The ways in which gradients must reach every parameter."""
        return self.ways(inputs)

    def traced_ways(self, inputs: Tensors) -> Sequence[Way]:
        """Return those that are traced, as by `torch.compile`, which takes longer than all other
        checks: the plain one and the one with the most options."""
        ways = list(self.ways(inputs).values())
        return ways if len(ways) < 3 else [ways[0], ways[-1]]

    def with_cache(self, *inputs: torch.Tensor) -> Tensors:
        """Return the outputs of a few steps with a cache; none if the module takes none."""
        return ()

    def rows(self) -> None:
        """Raises PromiseError unless each row of a batch has the output that it has alone. The
        model is in float64."""
        inputs = self.inputs()
        for told, way in self.ways(inputs).items():
            together = way(*inputs)
            for row in range(BATCH):
                alone = way(*(t[row : row + 1] for t in inputs))
                for one, all_rows in zip(alone, together, strict=True):
                    if one.shape[1:] != all_rows.shape[1:]:
                        raise PromiseError(
                            f"in a call{told}, a row alone gives {tuple(one.shape)}, and each of "
                            f"{BATCH} rows {(1, *all_rows.shape[1:])}",
                            help="any number of rows may come, also one, whose dimension a "
                            "`squeeze()` of all leaves out: go by `x.shape`",
                        )
                    if not close(one, all_rows[row : row + 1], SAME):
                        raise PromiseError(
                            f"in a call{told}, a row of the batch has another output than alone",
                            help="rows are independent: nothing is computed over the first "
                            "dimension, such as the mean of a batch",
                        )

    def check(self, inputs: Tensors) -> None:
        """Raises PromiseError unless the module returns what the slot specifies."""
        expect("the output", self(*inputs)[0], BATCH, LENGTH, WIDTH)

    def expect_finite_at_zero(self, inputs: Tensors) -> None:
        """Raises PromiseError unless states of zeros, as of padding and silence, give numbers, and
        their gradients too."""
        if not finite(self(*inputs)):
            return  # `precision` tells
        zeros = torch.zeros_like(inputs[0]).requires_grad_()
        outputs = self(zeros.clone(), *inputs[1:])  # which may change it in place
        help = (
            "what is divided by is kept above 0 by an `eps`, and so is what the root is taken of, "
            "inside the root, whose slope at 0 is infinite"
        )
        if not finite(outputs):
            raise PromiseError("a token of zeros gives NaN or infinity", help=help)
        total = torch.stack([output.sum() for output in outputs]).sum()
        if not total.requires_grad:
            return
        total.backward()  # type: ignore[no-untyped-call]
        found = {"its input": zeros, **{f"`{n}`": t for n, t in self.model.named_parameters()}}
        for name, tensor in found.items():
            if tensor.grad is not None and not bool(tensor.grad.isfinite().all()):
                raise PromiseError(
                    f"a token of zeros gives the gradient of {name} NaN or infinity", help=help
                )
        self.model.zero_grad(set_to_none=True)

    @torch.no_grad()
    def expect_residual(self, inputs: Tensors) -> None:
        """Raises PromiseError if the output is that of a matrix, and no tensor has the role of one
        whose output is added to the residual stream."""
        tensors = self.spec.tensors
        if any(tensor.role == "residual" for tensor in tensors.values()):
            return
        matrices = [n for n, t in tensors.items() if t.role == "weight" and len(t.shape) == 2]
        for name in reversed(matrices):  # the last one first: it is the one, more likely
            weight = self.model.get_parameter(name)
            value = weight.clone()
            outputs = []
            for factor in (1.0, -1.0, 0.0):
                weight.copy_(factor * value)
                outputs.append(self(*inputs)[0])
            weight.copy_(value)
            one, other, without = outputs
            if not close(one, without, 1e-5) and close(one + other, 2 * without, 1e-5):
                raise PromiseError(
                    "no tensor of the layout is `residual`, and the output is linear in "
                    f"`{name}`: an init that goes by depth would scale nothing",
                    help="state the map whose output is returned by `linear(..., residual=True)`",
                )

    @torch.no_grad()
    def expect_no_skip(self, inputs: Tensors) -> None:
        """Raises PromiseError if a branch adds its input, which the block around it does.

        Without the matrices whose output is added to the residual stream, nothing of x is left in
        what a branch returns, unless it is x itself.
        """
        residual = [name for name, t in self.spec.tensors.items() if t.role == "residual"]
        weights = [self.model.get_parameter(name) for name in residual]
        before = [weight.clone() for weight in weights]
        for weight in weights:
            weight.zero_()
        x, *others = inputs
        one, other = self(x, *others)[0], self(x.flip(1), *others)[0]
        for weight, value in zip(weights, before, strict=True):
            weight.copy_(value)
        if weights and close(one - other, x - x.flip(1), 1e-5):
            raise PromiseError(
                "the output holds x itself, which the block adds, so that it would be added twice",
                help="return what is added to x alone",
            )

    def tokens(self) -> None:
        """Raises PromiseError unless the output for a token depends only on that token, if the slot
        requires that. The model is in float64."""

    def positioned(self) -> None:
        """Raises PromiseError unless the rotation and bias of a position scheme are applied. The
        model is in float64."""

    def continues(self) -> None:
        """Raises PromiseError unless the output token by token, with a cache, equals the output for
        all tokens at once. The model is in float64."""

    def rounded(self) -> None:
        """Raises PromiseError if something that has to be exact, such as a position, is rounded to
        the dtype of the model, which is bfloat16."""

    def leaks(self) -> Iterator[str]:
        """Yield a message for each dependence of the output on masked inputs. The model is in
        float64."""
        return iter(())

    def leaks_of_padding(self) -> Iterator[str]:
        """Yield those for a mask of padding."""
        return self.leaks()


def weighted_sum(outputs: Iterable[torch.Tensor], random: torch.Generator) -> torch.Tensor:
    """Return the sum of all elements of the floating-point outputs, each with a weight that is
    drawn, so that no gradients cancel out."""
    total = torch.zeros((), dtype=torch.float64)
    for output in outputs:
        if output.is_floating_point():
            weights = torch.randn(output.shape, generator=random, dtype=torch.float64)
            total = total + (output * weights).sum()
    return total


def every(ways: Iterable[Way]) -> Way:
    """Return the call of a module in all of these ways, one after the other."""

    def call(*inputs: torch.Tensor) -> Tensors:
        outputs: Tensors = ()
        for way in ways:
            outputs += way(*inputs)
        return outputs

    return call


def finite(outputs: Tensors) -> bool:
    """Return whether all numbers of outputs are finite."""
    return all(bool(output.isfinite().all()) for output in outputs)
