"""How the module of each slot is called and what it must return: the interfaces of `zoo.slots`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from zoo.cache import Cache, LayerCache
from zoo.component import fields_of
from zoo.context import LayerContext
from zoo.plugin_kit.driver import (
    BATCH,
    LENGTH,
    MEMORY_LENGTH,
    WIDTH,
    Driver,
    PromiseError,
    Tensors,
    close,
    expect,
    expect_branch,
    ids,
    vectors,
    with_another,
)
from zoo.plugin_kit.hosts import HOSTS, MEMORY_WIDTH, SIZES, Host
from zoo.spec import ModelSpec
from zoo.transformer import Transformer


class FeedForwardDriver(Driver):
    def check(self, inputs: Tensors) -> None:
        expect_branch(self.model.part)
        super().check(inputs)


class PositionDriver(Driver):
    names = ("x", "heads")

    def inputs(self, dtype: torch.dtype, seed: int = 0) -> Tensors:
        heads = vectors(dtype, seed + 1).view(BATCH, LENGTH, SIZES["n_heads"], -1).transpose(1, 2)
        return vectors(dtype, seed), heads

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        x, heads = inputs
        positions = torch.arange(LENGTH)
        rotation = self.model.part.rotation(positions, x.dtype)
        bias = self.model.part.bias(positions, positions, x.dtype)
        outputs = (
            self.model.part.embed(x, positions),
            heads if rotation is None else rotation(heads),
        )
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
        return (self.embed(inputs[0], torch.arange(self.length)),)

    @property
    def length(self) -> int:
        """How many vectors are made of the input."""
        embedded_length = getattr(self.model.part, "embedded_length", lambda length: length)
        return int(embedded_length(LENGTH))

    def embed(self, x: torch.Tensor, positions: torch.Tensor) -> Any:
        return self.model.part(x, positions, token_types=None, mask=None)

    def check(self, inputs: Tensors) -> None:
        output = self(*inputs)[0]
        expect("the output", output, BATCH, self.length, WIDTH)
        if close(output, self.embed(inputs[0], torch.arange(self.length) + 1), 1e-5):
            raise PromiseError("the position scheme that `build` receives is not applied")


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
        again, _ = self.model(*inputs, return_attention=True)
        if not close(output, again, 1e-5):
            raise PromiseError("the output is another when `return_attention` is set")

    def leaks(self) -> Iterator[str]:
        inputs = self.inputs(torch.float64)
        parameters = inspect.signature(self.model.forward).parameters
        for number, name in enumerate(self.arguments):
            if f"{name}_mask" not in parameters:
                continue
            # Neither end: a causal model sees the last nowhere else, and heads may pool an end.
            changed = list(inputs)
            changed[number] = with_another(inputs[number], 1)
            mask = torch.ones(BATCH, inputs[number].shape[1], dtype=torch.bool)
            mask[:, 1] = False
            one, other = (self.model(*i, **{f"{name}_mask": mask}) for i in (inputs, changed))
            if number == len(inputs) - 1 and one.dim() == 3:
                one, other = (torch.cat([o[:, :1], o[:, 2:]], 1) for o in (one, other))
            if not close(one, other, 1e-9):
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
    def described(self) -> Any:
        """The description of the component under test."""
        host: Any = self.spec.model
        return host.part

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
        changed = (*inputs[:-1], with_another(inputs[-1], -1))
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
        outputs = [
            self.attend(*inputs, mask=mask, return_weights=asked)[0] for asked in (False, True)
        ]
        if not all(bool(output.isfinite().all()) for output in outputs):
            yield "a query that may attend to nothing gives NaN"


def expect_same_with_cache(
    whole: torch.Tensor, step: Callable[[int, torch.Tensor, LayerCache], torch.Tensor]
) -> None:
    """Raises PromiseError unless token by token with a cache the output is that of all at once.

    Args:
        whole: of all tokens, causal, (batch, LENGTH, width).
        step: the output of the token at a place, with its position and what is kept.
    """
    cache = Cache(LENGTH)
    for place in range(LENGTH):
        position = cache.append(1, seen=None, counted=None, device=whole.device)
        found = step(place, position, cache.layer(0))
        if not close(found, whole[:, place : place + 1], 1e-5):
            raise PromiseError(
                "the output is another when tokens come one by one with a `cache`, although it is "
                "said to be incremental"
            )


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
        options: dict[str, Any] = {"mask": mask, "causal": causal, "rotation": None, "bias": None}
        if memory is None:
            options["positions"] = torch.arange(LENGTH)
        if self.model.scheme is not None:
            options["scheme"] = self.model.scheme
        output, weights = self.model.part(x, memory, **options, return_weights=return_weights)
        return output, {} if weights is None else {"": weights}

    def check(self, inputs: Tensors) -> None:
        expect_branch(self.model.part)
        super().check(inputs)
        if self.described.incremental and not self.crosses:
            expect_same_with_cache(
                self.attend(*inputs, causal=True)[0], partial(self._step, inputs[0])
            )

    def _step(
        self, x: torch.Tensor, place: int, position: torch.Tensor, cache: LayerCache
    ) -> torch.Tensor:
        output: torch.Tensor = self.model.part(
            x[:, place : place + 1],
            None,
            mask=None,
            causal=True,
            rotation=None,
            bias=None,
            positions=position,
            cache=cache.of("self_attn"),
            return_weights=False,
        )[0]
        return output


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

    def check(self, inputs: Tensors) -> None:
        super().check(inputs)
        if not self.described.not_incremental and not self.crosses:
            expect_same_with_cache(
                self.attend(*inputs, causal=True)[0], partial(self._step, inputs[0])
            )

    def _step(
        self, x: torch.Tensor, place: int, position: torch.Tensor, cache: LayerCache
    ) -> torch.Tensor:
        context = LayerContext(causal=True, positions=position, cache=cache)
        output: torch.Tensor = self.model.part(x[:, place : place + 1], context)[0]
        return output


DRIVERS: Mapping[str, type[Driver]] = {
    "block": BlockDriver,
    "attention": AttentionDriver,
    "reading": AttentionDriver,
    "ffn": FeedForwardDriver,
    "norm": Driver,
    "position": PositionDriver,
    "embedding": EmbeddingDriver,
    "head": HeadDriver,
}
"""The drivers by the slot of the component in the host."""


def driver_for(spec: ModelSpec, model: Transformer) -> Driver:
    """The driver for a model of a component's host, or of a builder."""
    if not isinstance(spec.model, Host):
        return BuilderDriver(spec, model)
    slot = next(slot for slot, host in HOSTS.items() if type(spec.model) is host)
    return DRIVERS[slot](spec, model)
