"""Call the module of each slot and check its outputs against the interfaces of `zoo.slots`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from zlib import crc32

import torch

from zoo.building import build
from zoo.component import fields_of
from zoo.generation import RecomputeWarning, generate
from zoo.plugin_kit.attending import AttentionDriver, BlockDriver
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
    expect_by_token,
    expect_call,
    expect_no_later,
    ids,
    vectors,
    with_another,
)
from zoo.plugin_kit.hosts import EMBEDDED_WIDTH, HOSTS, Host, ReadingHost
from zoo.plugin_kit.sizes import SIZES
from zoo.position import PositionScheme
from zoo.registering.plugin_errors import describe_failure
from zoo.registry import Registry
from zoo.slots import Embedding, Head, Position
from zoo.spec import ModelSpec
from zoo.transformer import AttentionMaps, Transformer


class NormDriver(Driver):
    def check(self, inputs: Tensors) -> None:
        expect_call(self.model.part.forward, *inputs)
        super().check(inputs)
        if not bool(self(torch.zeros_like(inputs[0]))[0].isfinite().all()):
            raise PromiseError(
                "a token of zeros gives NaN or infinity\n"
                "help: what is divided by, or the root is taken of, is kept above 0 by an `eps`"
            )

    def tokens(self) -> None:
        # More dimensions, as heads have.
        help = "normalise along the last dimension alone"
        expect_by_token(self.model.part, (1, LENGTH, 1, BATCH), help)


class FeedForwardDriver(Driver):
    def check(self, inputs: Tensors) -> None:
        expect_branch(self.model.part)
        expect_call(self.model.part.forward, *inputs, **self._mask())
        super().check(inputs)

    def tokens(self) -> None:
        if self.described.incremental:
            help = "a network that mixes tokens says so: its `incremental` is False"
            expect_by_token(self.model.part, (BATCH * LENGTH,), help)
        elif not self.described.looks_ahead:
            x, other = (self.inputs(torch.float64, seed)[0] for seed in (0, 1))
            expect_no_later(partial(self.model.part, **self._mask()), x, other)

    def _mask(self) -> dict[str, None]:
        """Return the arguments of `forward` besides x."""
        return {"mask": None} if self.described.takes_mask else {}


class PositionDriver(Driver):
    names = ("x", "heads")
    outputs = ("what `embed` returns", "what a rotation returns", "what `bias` returns")

    def inputs(self, dtype: torch.dtype, seed: int = 0) -> Tensors:
        heads = vectors(dtype, seed + 1).view(BATCH, LENGTH, SIZES["n_heads"], -1).transpose(1, 2)
        return vectors(dtype, seed, width=EMBEDDED_WIDTH), heads

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        positions = torch.arange(LENGTH)
        x, heads = inputs
        return tuple(self._results(x, heads, positions, positions).values())

    def check(self, inputs: Tensors) -> None:
        self._check_description()
        embedded, turned, *bias = self(*inputs)
        expect("what `embed` returns", embedded, BATCH, LENGTH, EMBEDDED_WIDTH)
        expect("what a rotation returns", turned, *inputs[1].shape)
        for added in bias:
            expect("what `bias` returns", added, SIZES["n_heads"], LENGTH, LENGTH)
        self._check_rows(*inputs)
        self._check_last(*inputs)
        self._check_longest(*inputs)

    @property
    def described(self) -> Position:
        """The description of the scheme."""
        host: Any = self.spec.model
        found: Position = host.scheme if isinstance(host, ReadingHost) else host.part
        return found

    def _check_description(self) -> None:
        """Raises PromiseError unless the description matches the methods of the module."""
        part, described = self.model.part, self.described
        defined = {m for m in _METHODS if getattr(type(part), m) is not getattr(PositionScheme, m)}
        read = isinstance(self.spec.model, ReadingHost)
        if not defined and not described.absent and not read:
            raise PromiseError(f"the module defines none of {', '.join(_METHODS)}: it does nothing")
        for flag, method in (("embedded", "embed"), ("rotates", "rotation")):
            stated = bool(getattr(described, flag))
            if (method in defined) != stated and not described.absent:
                does = "does not define" if stated else "defines"
                raise PromiseError(
                    f"the module {does} `{method}`, and the description says `{flag} = {stated}`, "
                    "by which a model knows what to call"
                )

    def _results(
        self, x: torch.Tensor, heads: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the results of the methods for x and for heads at the positions of the queries."""
        scheme = self.model.part
        rotation, bias = scheme.rotation(queries, x.dtype), scheme.bias(queries, keys, x.dtype)
        found = {"embed": scheme.embed(x, queries)}
        found["rotation"] = heads if rotation is None else rotation(heads)
        return found if bias is None else {**found, "bias": bias}

    def _check_longest(self, x: torch.Tensor, heads: torch.Tensor) -> None:
        """Raises PromiseError unless the scheme supports all positions up to the stated longest."""
        longest = self.described.longest
        end = FAR if longest is None else longest
        if end < LENGTH:
            return
        positions = torch.arange(end - LENGTH, end)
        try:
            self._results(x, heads, positions, positions)
        except Exception as error:
            told = describe_failure(f"a call with position {end - 1}", error).message
            says = "there is no end" if longest is None else f"there are {longest}"
            raise PromiseError(
                f"{told}\nhelp: by the description's `longest` {says}; define it as a property"
            ) from None

    def _check_rows(self, x: torch.Tensor, heads: torch.Tensor) -> None:
        """Raises PromiseError unless each row of a batch can have its own positions, and padding
        the position -1."""
        one = torch.arange(LENGTH)
        rows = torch.stack([one, one.flip(0)])
        together = self._results(x, heads, rows, rows)
        for row, positions in enumerate(rows):
            alone = self._results(x[row : row + 1], heads[row : row + 1], positions, positions)
            for name, found in together.items():
                expected = alone[name]
                found = found[row] if found.dim() == 4 or name == "embed" else found
                if not close(found, expected.view(found.shape), 1e-5):
                    raise PromiseError(
                        f"`{name}` gives another result for positions (batch, length) than for "
                        "those of each row alone\n"
                        "help: rows that are padded on the left have positions of their own"
                    )
        for name, found in self._results(x, heads, rows - 1, rows - 1).items():
            if not bool(found.isfinite().all()):
                raise PromiseError(f"`{name}` is not finite for the position -1, that of padding")

    def _check_last(self, x: torch.Tensor, heads: torch.Tensor) -> None:
        """Raises PromiseError unless the results depend on the position of a token, not on its
        index in the call: generation calls the module with the last token alone."""
        positions = torch.arange(LENGTH)
        whole = self._results(x, heads, positions, positions)
        last = self._results(x[:, -1:], heads[..., -1:, :], positions[-1:], positions)
        for name, found in last.items():
            if not close(found, whole[name][..., -1:, :], 1e-5):
                raise PromiseError(
                    f"`{name}` gives another result for the last token alone than for all\n"
                    "help: go by the positions that are passed, not by how many there are"
                )


FAR = 100_000
"""A position that every scheme without a longest position must support."""
_METHODS = ("embed", "rotation", "bias")


class EmbeddingDriver(Driver):
    def inputs(self, dtype: torch.dtype, seed: int = 0) -> Tensors:
        if self.described.image_shape is not None:
            channels, height, width = self.described.image_shape
            return (
                vectors(dtype, seed, channels * height, width).view(BATCH, channels, height, -1),
            )
        if self.described.takes_ids:
            return (ids(seed),)
        return (vectors(dtype, seed, width=self.input_width),)

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        return (self.embed(inputs[0], torch.arange(self.length)),)

    @property
    def input_width(self) -> int:
        """The width of the vectors that it is called with; by the description, any will do if
        it states none."""
        stated: int | None = self.described.input_width
        return WIDTH if stated is None else stated

    @property
    def length(self) -> int:
        """The number of vectors that the embedding returns for the input."""
        described: Embedding = self.described
        if described.image_shape is not None:
            if described.n_vectors is None:
                raise PromiseError(
                    "the description states an `image_shape`, and no `n_vectors`, by which a "
                    "stack knows how many vectors it gets"
                )
            return described.n_vectors
        embedded_length = getattr(self.model.part, "embedded_length", lambda length: length)
        return int(embedded_length(LENGTH))

    def embed(
        self, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None = None
    ) -> Any:
        return self.model.part(x, positions, token_types=None, mask=mask)

    def check(self, inputs: Tensors) -> None:
        try:
            output = self(*inputs)[0]
        except Exception as error:
            if not inputs[0].is_floating_point() or self.described.image_shape is not None:
                raise
            told = describe_failure(f"a call with vectors of width {self.input_width}", error)
            raise PromiseError(
                f"{told.message}\nhelp: the description's `input_width` is "
                f"{self.described.input_width}; it is the width that `forward` needs, or None if "
                "it takes any"
            ) from None
        expect("the output", output, BATCH, self.length, WIDTH)
        if close(output, self.embed(inputs[0], torch.arange(self.length) + 1), 1e-5):
            raise PromiseError("the position scheme that `build` receives is not applied")

    def tokens(self) -> None:
        described = self.described
        if described.image_shape is not None:
            return  # an image has no tokens to leave out
        x, other = (self.inputs(torch.float64, seed)[0] for seed in (0, 1))
        if not described.incremental:
            if not described.looks_ahead:
                expect_no_later(partial(self.embed, positions=torch.arange(self.length)), x, other)
            return
        whole = self.embed(x, torch.arange(LENGTH))
        for place in range(LENGTH):  # as generation calls: with the next token alone
            alone = self.embed(x[:, place : place + 1], torch.tensor([place]))
            if not close(alone, whole[:, place : place + 1], 1e-9):
                raise PromiseError(
                    "a token alone has another vector than beside others\n"
                    "help: an embedding that mixes tokens says so: its `incremental` is False"
                )

    def leaks(self) -> Iterator[str]:
        x = self.inputs(torch.float64)[0]
        if x.is_floating_point():
            return  # the padding of a signal is silence, which is not hidden
        for hidden in (0, LENGTH - 1):  # padding on the left, and on the right
            mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
            mask[:, hidden] = False
            one, other = (
                self.embed(ids, torch.arange(self.length), mask)[mask]
                for ids in (x, with_another(x, hidden))
            )
            if not close(one, other, 1e-9):
                yield "a token that the mask (batch, length) hides changes the vectors of others"


class HeadDriver(Driver):
    def check(self, inputs: Tensors) -> None:
        head: Head = self.described
        expect_call(self.model.part.forward, *inputs, **({"mask": None} if head.pools else {}))
        output = self(*inputs)[0]
        if head.pools:
            expect("the output, one for each sequence,", output, BATCH, None)
        else:
            n = SIZES["vocab"] if head.scores_tokens else None
            expect("the output", output, BATCH, LENGTH, n)
            says = type(head).scores_tokens is not Head.scores_tokens
            if output.shape[-1] == SIZES["vocab"] and not says:
                raise PromiseError(
                    "the output is as wide as the vocabulary, and the description does not say "
                    "whether it scores tokens, without which no model with it generates\n"
                    "help: define the property `scores_tokens`"
                )
        self._check_ties(head)

    def tokens(self) -> None:
        if not self.described.pools:
            help = "a head of whole sequences says so: its `pools` is True"
            expect_by_token(self.model.part, (BATCH * LENGTH,), help)

    def leaks(self) -> Iterator[str]:
        if not self.described.pools:
            return
        head, x = self.model.part, self.inputs(torch.float64)[0]
        mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
        for hidden in (1, LENGTH - 1):  # not the first, which a head may pool whatever it is
            seen = mask.clone()
            seen[:, hidden] = False
            one, other = (head(states, mask=seen) for states in (x, with_another(x, hidden)))
            if not close(one, other, 1e-9):
                yield "a token that the mask (batch, length) hides changes the output"
        if not close(head(x, mask=mask), head(x, mask=None), 1e-9):
            yield "the output is another with a mask that hides nothing than without one"
        if not bool(head(x, mask=~mask).isfinite().all()):
            yield "a mask that hides everything gives NaN"

    def _check_ties(self, head: Head) -> None:
        """Raises PromiseError unless a tensor that may be tied to a token table has its shape."""
        ties: object = head.ties("tokens.weight")
        table = (SIZES["vocab"], WIDTH)
        shapes = {name: tensor.shape for name, tensor in head.layout().tensors()}
        if not isinstance(ties, Mapping):
            raise PromiseError(f"`ties` must return a mapping, not {type(ties).__name__}")
        for name in ties:
            if shapes.get(name) != table:
                found = f"{shapes[name]} in" if name in shapes else "not in"
                raise PromiseError(
                    f"`ties` names the tensor `{name}`, which is {found} the layout; the token "
                    f"table that it is tied to is {table}"
                )


class BuilderDriver(Driver):
    names = ("source", "target")

    @property
    def arguments(self) -> list[str]:
        """The required arguments of `forward`, such as `source` and `target`."""
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
        options = {"return_attention": True} | {
            f"{name}_mask": None
            for name in self.arguments
            if f"{name}_mask" in inspect.signature(self.model.forward).parameters
        }
        expect_call(self.model.forward, *inputs, **options)
        output = self(*inputs)[0]
        expect("the output", output, BATCH, *[None] * (output.dim() - 1))
        returned: object = self.model(*inputs, return_attention=True)
        if not (
            isinstance(returned, tuple)
            and len(returned) == 2
            and isinstance(returned[1], AttentionMaps)
        ):
            raise PromiseError(
                "with `return_attention=True` the model returns its output and a "
                f"`zoo.transformer.AttentionMaps`, not {type(returned).__name__}"
            )
        again = returned[0]
        if not close(output, again, 1e-5):
            raise PromiseError("the output is another when `return_attention` is set")

    def continues(self) -> None:
        how = self.spec.model.generation
        if how is None or not how.from_ids:
            return
        prompts = ids(0).tolist()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RecomputeWarning)
                found = generate(
                    self.model, prompts, max_new_tokens=3, start=1 if how.has_source else None
                )
        except Exception as error:
            told = describe_failure("zoo.generate", error).message
            raise PromiseError(
                f"{told}\nhelp: a model whose builder states `generation` has the methods of "
                "zoo.generation.decoding.Generating"
            ) from None
        for prompt, row in zip(prompts, found, strict=True):
            before = [torch.tensor([prompt])] if how.has_source else []
            start = [1] if how.has_source else prompt
            target = torch.tensor([[*start, *row.ids]])
            scores = self.model(*before, target)[0, len(start) - 1 : -1].log_softmax(-1)
            chosen = scores.gather(-1, target[0, len(start) :, None]).sum()
            if not close(torch.tensor(row.score, dtype=chosen.dtype), chosen, 1e-9):
                raise PromiseError(
                    "what `zoo.generate` scores is another than what a call with all tokens gives"
                )

    def leaks(self) -> Iterator[str]:
        inputs = self.inputs(torch.float64)
        parameters = inspect.signature(self.model.forward).parameters
        for number, name in enumerate(self.arguments):
            if f"{name}_mask" not in parameters:
                continue
            # Not an end: no other token of a causal model sees the last, and heads may pool an end.
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


DRIVERS: Mapping[str, type[Driver]] = {
    "block": BlockDriver,
    "attention": AttentionDriver,
    "reading": AttentionDriver,
    "ffn": FeedForwardDriver,
    "norm": NormDriver,
    "position": PositionDriver,
    "embedding": EmbeddingDriver,
    "head": HeadDriver,
}
"""The drivers by the slot of the component in the host."""


def driver_for(spec: ModelSpec, model: Transformer) -> Driver:
    """Return the driver for the model of a host, or of a builder."""
    if not isinstance(spec.model, Host):
        return BuilderDriver(spec, model)
    slot = next(slot for slot, host in HOSTS.items() if type(spec.model) is host)
    return DRIVERS[slot](spec, model)


def hosted(spec: ModelSpec, registry: Registry, dtype: torch.dtype) -> Driver:
    """Return the driver of a model of `spec` in evaluation mode. Noise is added to its parameters:
    those that start at 0, such as gates, would hide the modules behind them."""
    model = build(spec, dtype=dtype, registry=registry).eval()
    random = torch.Generator()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            random.manual_seed(crc32(name.encode()))
            noise = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
            parameter.copy_(parameter.double() + 0.1 * noise)
    return driver_for(spec, model)
