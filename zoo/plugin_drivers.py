"""How the module of each slot is called, on small random inputs: the interfaces of `zoo.slots`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from zoo.component import fields_of
from zoo.context import LayerContext
from zoo.plugin_hosts import HOSTS, MEMORY_WIDTH, SIZES, Host
from zoo.spec import ModelSpec
from zoo.transformer import Transformer

Tensors = tuple[torch.Tensor, ...]
BATCH, LENGTH, MEMORY_LENGTH = 2, 6, 5
WIDTH, VOCAB = SIZES["d_model"], SIZES["vocab"]


class PromiseError(Exception):
    """What a plugin promises and does not keep."""


class Hosted(Transformer):
    """A model that holds one component's module."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part


class Bare(Transformer):
    """A model of parameters and nothing else."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            owner, _, attribute = name.rpartition(".")
            if owner not in dict(self.named_children()):
                self.add_module(owner, nn.Module())
            self.get_submodule(owner).register_parameter(attribute, nn.Parameter(torch.empty(shape)))


class Driver:
    """Calls the module of one slot: `model.part`, or the model itself where a builder made it."""

    names: ClassVar[Sequence[str]] = ("x",)
    """What the inputs are called in messages."""

    def __init__(self, spec: ModelSpec, model: Any) -> None:
        self.spec = spec
        self.model = model

    def inputs(self, dtype: torch.dtype, seed: int = 0) -> Tensors:
        """What the module is called with, for each dtype the same up to rounding."""
        return (vectors(dtype, seed),)

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        """What the module computes from the inputs."""
        return (self.model.part(*inputs),)

    def check(self, inputs: Tensors) -> None:
        """Raises PromiseError unless the module returns what the slot says."""
        expect("the output", self(*inputs)[0], BATCH, LENGTH, WIDTH)

    def leaks(self) -> Iterator[str]:
        """What a mask hides and the output depends on nevertheless. The model is in float64."""
        return iter(())


class FeedForwardDriver(Driver):
    def check(self, inputs: Tensors) -> None:
        expect_branch(self.model.part)
        super().check(inputs)


class PositionDriver(Driver):
    names = ("x", "heads")

    def inputs(self, dtype: torch.dtype, seed: int = 0) -> Tensors:
        heads = vectors(dtype, seed + 1).unflatten(-1, (SIZES["n_heads"], -1)).transpose(1, 2)
        return vectors(dtype, seed), heads

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        x, heads = inputs
        positions = torch.arange(LENGTH)
        rotation = self.model.part.rotation(positions, x.dtype)
        bias = self.model.part.bias(positions, positions, x.dtype)
        outputs = self.model.part.embed(x, positions), heads if rotation is None else rotation(heads)
        return outputs if bias is None else (*outputs, bias)

    def check(self, inputs: Tensors) -> None:
        embedded, turned, *bias = self(*inputs)
        expect("what `embed` returns", embedded, BATCH, LENGTH, WIDTH)
        expect("what a rotation returns", turned, *inputs[1].shape)
        for added in bias:
            expect("what `bias` returns", added, SIZES["n_heads"], LENGTH, LENGTH)


class EmbeddingDriver(Driver):
    def inputs(self, dtype: torch.dtype, seed: int = 0) -> Tensors:
        layout = self.spec.model.layout()
        by_id = any(tensor.role == "embedding" for _, tensor in layout.tensors())
        return (ids(seed),) if by_id else (vectors(dtype, seed),)

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        return (self.model.part(inputs[0], torch.arange(LENGTH), token_types=None, mask=None),)


class HeadDriver(Driver):
    def check(self, inputs: Tensors) -> None:
        output = self(*inputs)[0]
        if output.dim() == 2:
            expect("the output", output, BATCH, None)  # one for each sequence
        else:
            expect("the output", output, BATCH, LENGTH, None)


class BuilderDriver(Driver):
    names = ("source", "target")

    @property
    def arguments(self) -> list[str]:
        """What `forward` must be given: `source`, `target`."""
        parameters = inspect.signature(self.model.forward).parameters
        return [name for name, p in parameters.items() if p.default is p.empty]

    def inputs(self, dtype: torch.dtype, seed: int = 0) -> Tensors:
        by_id = any(name.endswith("vocab") for name in fields_of(type(self.spec.model)))
        lengths = [LENGTH, MEMORY_LENGTH][: len(self.arguments)]
        if by_id:
            return tuple(ids(seed + i, length) for i, length in enumerate(lengths))
        return tuple(vectors(dtype, seed + i, length) for i, length in enumerate(lengths))

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        return (self.model(*inputs),)

    def check(self, inputs: Tensors) -> None:
        output = self(*inputs)[0]
        expect("the output", output, BATCH, *[None] * (output.dim() - 1))
        again, maps = self.model(*inputs, return_attention=True)
        if not close(output, again, 1e-5):
            raise PromiseError("the output is another when `return_attention` is set")

    def leaks(self) -> Iterator[str]:
        inputs = self.inputs(torch.float64)
        parameters = inspect.signature(self.model.forward).parameters
        for number, name in enumerate(self.arguments):
            if f"{name}_mask" not in parameters:
                continue
            changed = list(inputs)
            changed[number] = with_another_end(inputs[number])
            mask = torch.ones(BATCH, inputs[number].shape[1], dtype=torch.bool)
            mask[:, -1] = False
            one, other = (self.model(*i, **{f"{name}_mask": mask}) for i in (inputs, changed))
            # What stands at the hidden position itself may differ.
            own = number == len(inputs) - 1 and one.dim() == 3
            seen = slice(-1) if own else slice(None)
            if not close(one[:, seen], other[:, seen], 1e-9):
                yield f"a token that `{name}_mask` hides changes the output at others"
            mask[:] = False
            if not bool(self.model(*inputs, **{f"{name}_mask": mask}).isfinite().all()):
                yield f"a `{name}_mask` that hides everything gives NaN"


class AttendingDriver(Driver):
    """Calls what attends, to the sequence itself or to a memory."""

    names = ("x", "memory")

    @property
    def crosses(self) -> bool:
        """Whether there is a memory."""
        return getattr(self.spec.model, "memory_width", None) is not None

    @property
    def n_keys(self) -> int:
        """How many positions may be attended to."""
        return MEMORY_LENGTH if self.crosses else LENGTH

    def inputs(self, dtype: torch.dtype, seed: int = 0) -> Tensors:
        x = vectors(dtype, seed)
        return (x, vectors(dtype, seed + 1, MEMORY_LENGTH, MEMORY_WIDTH)) if self.crosses else (x,)

    def attend(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        causal: bool = False,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The output, and the weights if asked for. `mask` is over the memory if there is one."""
        raise NotImplementedError

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        fused, _ = self.attend(*inputs)
        output, weights = self.attend(*inputs, return_weights=True)
        return fused, output, *weights.values()

    def check(self, inputs: Tensors) -> None:
        fused, weights = self.attend(*inputs)
        if weights:
            raise PromiseError("weights are returned although `return_weights` is not set")
        output, weights = self.attend(*inputs, return_weights=True)
        expect("the output", output, BATCH, LENGTH, WIDTH)
        if not close(fused, output, 1e-5):
            raise PromiseError("the output is another when `return_weights` is set")
        for values in weights.values():
            expect("the weights", values, BATCH, None, LENGTH, None)

    def leaks(self) -> Iterator[str]:
        inputs = self.inputs(torch.float64)
        changed = (*inputs[:-1], with_another_end(inputs[-1]))
        others = slice(None) if self.crosses else slice(-1)

        def depends(queries: slice, **options: Any) -> bool:
            pairs = [
                [self.attend(*i, return_weights=asked, **options)[0] for i in (inputs, changed)]
                for asked in (False, True)
            ]
            return any(not close(one[:, queries], two[:, queries], 1e-9) for one, two in pairs)

        mask = torch.ones(BATCH, 1, 1, self.n_keys, dtype=torch.bool)
        mask[..., -1] = False
        if depends(others, mask=mask):
            yield "a key that a mask (batch, 1, 1, key) hides changes the output"
        _, weights = self.attend(*inputs, mask=mask, return_weights=True)
        if any(w[..., -1].any() for w in weights.values() if w.shape[-1] == self.n_keys):
            yield "the weight of a key that the mask hides is not 0"
        mask = torch.ones(BATCH, 1, LENGTH, self.n_keys, dtype=torch.bool)
        mask[:, :, 2, -1] = False
        if depends(slice(2, 3), mask=mask):
            yield "a key that a mask (batch, 1, query, key) hides from a query changes its output"
        if not self.crosses and depends(others, causal=True):
            yield "a later position changes the output, although `causal` is set"
        mask[:, :, 2] = False
        outputs = [self.attend(*inputs, mask=mask, return_weights=asked)[0] for asked in (False, True)]
        if not all(bool(output.isfinite().all()) for output in outputs):
            yield "a query that may attend to nothing gives NaN"


class AttentionDriver(AttendingDriver):
    def attend(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        causal: bool = False,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        output, weights = self.model.part(
            x,
            memory,
            mask=mask,
            causal=causal,
            rotation=None,
            bias=None,
            return_weights=return_weights,
        )
        return output, {} if weights is None else {"": weights}

    def check(self, inputs: Tensors) -> None:
        expect_branch(self.model.part)
        super().check(inputs)


class BlockDriver(AttendingDriver):
    def attend(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        causal: bool = False,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        context = LayerContext(
            mask=None if self.crosses else mask,
            causal=causal,
            positions=torch.arange(LENGTH),
            memory=memory,
            memory_mask=mask if self.crosses else None,
            return_weights=return_weights,
        )
        output, weights = self.model.part(x, context)
        return output, dict(weights)


DRIVERS: Mapping[str, type[Driver]] = {
    "block": BlockDriver,
    "attention": AttentionDriver,
    "ffn": FeedForwardDriver,
    "norm": Driver,
    "position": PositionDriver,
    "embedding": EmbeddingDriver,
    "head": HeadDriver,
}
"""The driver of each slot that has a host with a module."""


def driver_for(spec: ModelSpec, model: Transformer) -> Driver:
    """The driver for a model of a component's host, or of a builder."""
    if not isinstance(spec.model, Host):
        return BuilderDriver(spec, model)
    slot = next(slot for slot, host in HOSTS.items() if type(spec.model) is host)
    return DRIVERS[slot](spec, model)


def vectors(dtype: torch.dtype, seed: int, length: int = LENGTH, width: int = WIDTH) -> torch.Tensor:
    """Standard normal vectors, (batch, length, width)."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, length, width, generator=random, dtype=torch.float32).to(dtype)


def ids(seed: int, length: int = LENGTH) -> torch.Tensor:
    """Ids of tokens, (batch, length), none of them 0, which may mean padding."""
    return torch.randint(1, VOCAB, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def with_another_end(x: torch.Tensor) -> torch.Tensor:
    """`x` with other values at the last position."""
    changed = x.clone()
    changed[:, -1] = -x[:, -1] if x.is_floating_point() else x[:, -1] % (VOCAB - 1) + 1
    return changed


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    """Whether the largest difference is below this share of the largest value."""
    scale = max(float(b.detach().abs().max()), 1e-30) if b.numel() else 1.0
    return a.shape == b.shape and float((a - b).detach().abs().max()) <= tolerance * scale


def expect(what: str, found: object, *shape: int | None) -> None:
    """Raises PromiseError unless `found` is a tensor of that shape; None stands for any size."""
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    if not isinstance(found, torch.Tensor):
        raise PromiseError(f"{what} must be a tensor ({sizes}), not {type(found).__name__}")
    fits = len(shape) == found.dim() and all(
        want in (None, size) for want, size in zip(shape, found.shape, strict=True)
    )
    if not fits:
        raise PromiseError(f"{what} must be ({sizes}), not {tuple(found.shape)}")


def expect_branch(module: nn.Module) -> None:
    """Raises PromiseError if a block could not register norms inside."""
    if isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        raise PromiseError(
            f"`build` returns a bare {type(module).__name__}, which would run the norms that the "
            "block registers inside; return a module of a class of your own"
        )
