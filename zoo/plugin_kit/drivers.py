"""The drivers, which call the module of a slot and check its outputs against the interface in
`zoo.slots`; here those of attention, blocks, norms, feed-forward networks and heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal
from zlib import crc32

import torch
from torch import nn

from zoo.building import build
from zoo.context import LayerContext, SharedKeys
from zoo.plugin_kit.assertions import (
    AS_ALONE,
    SAME,
    close,
    expect,
    expect_branch,
    expect_by_token,
    expect_call,
    expect_no_later,
    expect_positions,
)
from zoo.plugin_kit.attending import Attended
from zoo.plugin_kit.continuing import OF_ANOTHER, ContinuingDriver
from zoo.plugin_kit.driver import Driver, Way
from zoo.plugin_kit.entering import EmbeddingDriver, PositionDriver
from zoo.plugin_kit.hosts import (
    AttentionHost,
    BlockHost,
    EmbeddingHost,
    FeedForwardHost,
    HeadHost,
    NormHost,
    PositionHost,
    ReadingHost,
)
from zoo.plugin_kit.inputs import (
    BATCH,
    LENGTH,
    LONG,
    WIDTH,
    Tensors,
    hiding,
    hiding_one,
    ids,
    vectors,
    with_another,
    without_hidden,
)
from zoo.plugin_kit.report import PromiseError
from zoo.plugin_kit.sizes import SIZES
from zoo.plugin_kit.whole_models import BuilderDriver
from zoo.position import add_biases
from zoo.slots import Builder, Head, KeyForm
from zoo.spec import ModelSpec
from zoo.transformer import Transformer


class AttentionDriver(ContinuingDriver):
    @property
    def continued(self) -> bool:
        return bool(self.described.incremental)

    @property
    def recorded(self) -> bool:
        return bool(self.described.recordable)

    def called(self, x: torch.Tensor, context: LayerContext) -> Attended:
        if self.described.needs_keys is not None:
            context = context._replace(keys=_shared(self.described.needs_keys, x, context))
        context = context._replace(bias=self._whole_bias(context, x.dtype))
        found = self.model.part(x, context.memory, **self._options(context))
        output, weights = _pair(found, "the output and the weights, or None")
        return output, {} if weights is None else {"": weights}

    def _whole_bias(self, context: LayerContext, dtype: torch.dtype) -> torch.Tensor | None:
        """Return the bias of a call, with what the scheme adds that the attention reads."""
        scheme, positions = self.model.scheme, context.positions
        if scheme is None or positions is None or context.memory is not None:
            return context.bias
        keys = positions if context.key_positions is None else context.key_positions
        return add_biases(context.bias, scheme.bias(positions, keys, dtype))

    def _options(self, context: LayerContext) -> dict[str, Any]:
        """Return the keyword arguments that a block passes to its attention."""
        if context.memory is None:
            options: dict[str, Any] = {
                "mask": context.mask,
                "causal": context.causal,
                "rotation": context.rotation,
                "bias": context.bias,
                "positions": context.positions,
            }
            if self.described.axes > 1:
                options["coordinates"] = context.coordinates
        else:  # for a memory, a block passes only the mask
            options = {"mask": context.memory_mask}
        if self.model.scheme is not None:
            options["scheme"] = self.model.scheme
        if context.keys is not None:
            options["keys"] = context.keys
        if context.cache is not None:
            name = "self_attn" if context.memory is None else "cross_attn"
            options["cache"] = context.cache.of(name)
        return {**options, "return_weights": context.return_weights}

    def check(self, inputs: Tensors) -> None:
        expect_branch(self.model.part)
        x, memory = self.sides(inputs)
        options = self._options(LayerContext(memory=memory))
        options |= {"cache": None} if self.continued else {}
        if self.described.offers_keys or self.described.needs_keys:
            options["keys"] = None
        expect_call(self.model.part.forward, x, memory, **options)
        super().check(inputs)
        _expect_finite_at_zero(self, inputs)
        _expect_residual(self, inputs)
        if self.described.offers_keys is not None:
            self._check_offered(x, self.described.offers_keys)
        if self.described.needs_keys is not None:
            self._check_needed(x, self.described.needs_keys)
        _expect_no_skip(self, inputs)

    def _check_offered(self, x: torch.Tensor, form: KeyForm | Literal["chosen"]) -> None:
        """Raises PromiseError unless what is for other layers is of this form."""
        keys = SharedKeys()
        self.model.part(x, None, **self._options(LayerContext(causal=self.causal, keys=keys)))
        what, put = "keys and values are", "put"
        if form == "chosen":
            what, put = "choice of keys is", "put_chosen"
        try:
            found = (keys.get_chosen(),) if form == "chosen" else keys.get()
        except ValueError:
            raise PromiseError(
                f"no {what} put into `keys`, although `offers_keys` says that other layers can "
                "attend to them",
                help=f"call `keys.{put}` unless `keys` is None",
            ) from None
        if form == "chosen":
            if found[0] is not None:
                expect("the choice of keys for other layers", found[0], BATCH, None, LENGTH, LENGTH)
            return
        for what, one, width in zip(
            ("keys", "values"), found, (form.head_dim, form.v_head_dim), strict=False
        ):
            expect(f"the {what} for other layers", one, BATCH, form.n_kv_heads, LENGTH, width)

    def _check_needed(self, x: torch.Tensor, form: KeyForm | Literal["chosen"]) -> None:
        """Raises PromiseError if the keys and values, or the choice, of an earlier layer change
        nothing."""
        context, all_chosen = LayerContext(causal=self.causal), SharedKeys()
        all_chosen.put_chosen(None)
        others = [_shared(form, x, context)]
        others += [all_chosen if form == "chosen" else _shared(form, x.flip(-1), context)]
        one, other = (
            self.model.part(x, None, **self._options(context._replace(keys=keys)))[0]
            for keys in others
        )
        if close(one, other, 1e-5):
            what, get = "keys and values", "k, v, mesh = keys.get()"
            if form == "chosen":
                what, get = "chosen keys", "keys.get_chosen()"
            raise PromiseError(
                f"the {what} of an earlier layer change nothing, although `needs_keys` "
                "says that the attention needs them",
                help=f"they are `{get}`; without `needs_keys`, none are asked for",
            )


def _shared(
    form: KeyForm | Literal["chosen"], x: torch.Tensor, context: LayerContext
) -> SharedKeys:
    """Return keys and values of the tokens x, as an earlier layer would compute them, or a choice
    of keys, as it would make it."""
    found = SharedKeys()
    if form == "chosen":
        found.put_chosen(_chosen(x, context))
        return found

    def heads(width: int, speed: float) -> torch.Tensor:
        n_in, n_out = x.shape[-1], form.n_kv_heads * width
        weight = (speed * torch.arange(n_in * n_out, device=x.device)).sin().view(n_in, n_out)
        made: torch.Tensor = x @ weight.to(x.dtype)
        return made.view(*x.shape[:-1], form.n_kv_heads, width).transpose(-3, -2)

    keys, values = heads(form.head_dim, 1.7), heads(form.v_head_dim, 2.3)
    if context.rotation is not None:
        keys = context.rotation(keys)
    if context.cache is not None:
        keys, values = context.cache.of(OF_ANOTHER).extend(keys, values)
    found.put(keys, values, mesh=None)
    return found


def _chosen(x: torch.Tensor, context: LayerContext) -> torch.Tensor:
    """Return a choice of keys for the queries of x: each but those at some distances."""
    n_queries, n_keys = x.shape[-2], x.shape[-2]
    queries = torch.arange(n_queries, device=x.device)
    if context.cache is not None:
        kept = context.cache.of(OF_ANOTHER)
        n_keys = kept.extend(x)[0].shape[-2]
        queries = kept.places(n_queries, n_keys)
    distance = queries[:, None] - torch.arange(n_keys, device=x.device)
    return (distance % 3 != 1).expand(x.shape[0], 1, -1, -1)


class BlockDriver(ContinuingDriver):
    @property
    def continued(self) -> bool:
        return not self.described.not_incremental

    @property
    def recorded(self) -> bool:
        return not self.described.not_recordable

    @property
    def looks_ahead(self) -> bool:
        return bool(self.described.looks_ahead)

    def called(self, x: torch.Tensor, context: LayerContext) -> Attended:
        if self.described.takes_layer_input and context.layer_input is None:
            # Of each token by itself, whichever tokens a call has.
            context = context._replace(layer_input=x[..., : self.described.layer_input_width])
        output, weights = _pair(self.model.part(x, context), "the states and the weights by name")
        return output, dict(weights)

    def check(self, inputs: Tensors) -> None:
        super().check(inputs)
        _expect_finite_at_zero(self, inputs)
        expect_positions(self.model.part, lambda: self.attend(inputs))
        if self.described.takes_layer_input:
            self._check_layer_input(inputs)
        weights: list[torch.Tensor] = []

        def note(_: nn.Module, __: object, given: dict[str, Any], output: object) -> None:
            if given.get("return_weights") and isinstance(output, tuple):
                weights.extend(value for value in output[1:] if isinstance(value, torch.Tensor))

        inside = [module for module in self.model.part.modules() if module is not self.model.part]
        hooks = [module.register_forward_hook(note, with_kwargs=True) for module in inside]
        _, returned = self.attend(inputs, return_weights=True)
        for hook in hooks:
            hook.remove()
        if unknown := returned.keys() - {"self_attn", "cross_attn"}:
            raise PromiseError(
                f"the weights are returned by the name `{min(unknown)}`, which no model looks for",
                help="they are `self_attn` and `cross_attn`",
            )
        if weights and not returned:
            raise PromiseError(
                "the weights that an attention inside returns get lost",
                help='return them by name, such as `{"self_attn": weights}`',
            )

    def _check_layer_input(self, inputs: Tensors) -> None:
        """Raises PromiseError if the input of the layer changes nothing."""
        x, memory = self.sides(inputs)
        width = self.described.layer_input_width

        def output(layer_input: torch.Tensor) -> torch.Tensor:
            positions = torch.arange(x.shape[1])
            context = LayerContext(
                causal=self.causal, positions=positions, memory=memory, layer_input=layer_input
            )
            return self.call(x, context)[0]

        if close(output(x[..., :width]), output(x[..., -width:]), 1e-5):
            raise PromiseError(
                "the description's `takes_layer_input` is True, and `context.layer_input` changes "
                "nothing"
            )


class NormDriver(Driver):
    def check(self, inputs: Tensors) -> None:
        expect_call(self.model.part.forward, *inputs)
        super().check(inputs)
        _expect_finite_at_zero(self, inputs)

    def tokens(self) -> None:
        # More dimensions, as heads have.
        help = "normalise along the last dimension alone"
        expect_by_token(self.model.part, (1, LENGTH, 1, BATCH), help)


class FeedForwardDriver(Driver):
    def ways(self, inputs: Tensors) -> Mapping[str, Way]:
        ways = super().ways(inputs)
        return {**ways, " with a `mask`": self._masked} if self.described.takes_mask else ways

    def _masked(self, x: torch.Tensor) -> Tensors:
        return (without_hidden(self.model.part(x, mask=hiding_one(x))),)

    def check(self, inputs: Tensors) -> None:
        expect_branch(self.model.part)
        expect_call(self.model.part.forward, *inputs, **self._mask())
        super().check(inputs)
        _expect_finite_at_zero(self, inputs)
        _expect_residual(self, inputs)
        _expect_no_skip(self, inputs)

    def tokens(self) -> None:
        if self.described.incremental:
            help = "a network that mixes tokens says so: its `incremental` is False"
            expect_by_token(self.model.part, (BATCH * LENGTH,), help)
        elif not self.described.looks_ahead:
            inputs = (vectors(torch.float64, 0, length) for length in (LENGTH, LONG))
            expect_no_later(partial(self.model.part, **self._mask()), *inputs)
        if self.described.takes_mask:
            self._check_mask()

    def _check_mask(self) -> None:
        """Raises PromiseError if the output for a token that the mask leaves depends on what it
        hides; if the network is incremental, also if it depends on the mask."""
        network, x = self.model.part, self.inputs()[0]
        mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
        without = network(x, mask=None)
        if not close(network(x, mask=mask), without, SAME):
            raise PromiseError(
                "the output is another with a mask that hides nothing than without one"
            )
        for hidden in (0, LENGTH - 1):  # padding on the left, and on the right
            seen = hiding(x, hidden)
            one, other = (network(v, mask=seen)[seen] for v in (x, with_another(x, hidden)))
            if not close(one, other, SAME):
                raise PromiseError(
                    "a token that the mask (batch, length) hides changes the output for others",
                    help="what `takes_mask` leaves out of all sums what the mask hides",
                )
            if self.described.incremental and not close(one, without[seen], SAME):
                raise PromiseError(
                    "a token has another output when the mask hides another token",
                    help="a network that mixes tokens says so: its `incremental` is False",
                )
            alone = network(x[:, seen[0]], mask=None)
            if not close(one, alone.flatten(0, 1), SAME):
                raise PromiseError(
                    "beside padding, which the mask (batch, length) hides, a token has another "
                    "output than without it",
                    help=AS_ALONE,
                )

    def _mask(self) -> dict[str, None]:
        """Return the arguments of `forward` besides x."""
        return {"mask": None} if self.described.takes_mask else {}


class HeadDriver(Driver):
    names = ("x", "ids")

    def inputs(self, seed: int = 0) -> Tensors:
        x = super().inputs(seed)
        return (*x, ids(seed)) if self.described.takes_ids else x

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        return (self._head(*inputs),)

    def _head(self, x: torch.Tensor, ids: torch.Tensor | None = None, **options: Any) -> Any:
        """Return what the module returns for states x, and the ids of the tokens if it takes
        them."""
        if ids is not None:
            options["ids"] = ids
        return self.model.part(x, **options)

    def ways(self, inputs: Tensors) -> Mapping[str, Way]:
        ways = super().ways(inputs)
        return {**ways, " with a `mask`": self._masked} if self.described.pools else ways

    def _masked(self, *inputs: torch.Tensor) -> Tensors:
        return (self._head(*inputs, mask=hiding_one(inputs[0])),)

    def check(self, inputs: Tensors) -> None:
        head: Head = self.described
        options: dict[str, Any] = {"mask": None} if head.pools else {}
        options |= {"ids": inputs[1]} if head.takes_ids else {}
        expect_call(self.model.part.forward, inputs[0], **options)
        output = self(*inputs)[0]
        _expect_finite_at_zero(self, inputs)
        if head.pools:
            expect("the output, one for each sequence,", output, BATCH, None)
        else:
            n = SIZES["vocab"] if head.scores_tokens else None
            expect("the output", output, BATCH, LENGTH, n)
            says = type(head).scores_tokens is not Head.scores_tokens
            if output.shape[-1] == SIZES["vocab"] and not says:
                raise PromiseError(
                    "the output is as wide as the vocabulary, and the description does not say "
                    "whether it scores tokens, without which no model with it generates",
                    help="define the property `scores_tokens`",
                )
        classes = head.classes
        if classes is not None and output.shape[-1] != classes.number:
            raise PromiseError(
                f"the output is {output.shape[-1]} wide, and by the description's `classes` there "
                f"are {classes.number}"
            )
        of_tokens, sums = head.scores_tokens or classes is not None, output.sum(-1)
        if of_tokens and bool((output >= 0).all()) and close(sums, torch.ones_like(sums), 1e-5):
            raise PromiseError(
                "the output is one of probabilities, of which a loss, generation and `zoo run` "
                "take the softmax again",
                help="return the scores before the softmax",
            )
        self._check_ties(head)

    def tokens(self) -> None:
        if not self.described.pools:
            help = "a head of whole sequences says so: its `pools` is True"
            expect_by_token(self.model.part, (BATCH * LENGTH,), help)

    def leaks(self) -> Iterator[str]:
        if not self.described.pools:
            return
        x, *of_tokens = self.inputs()

        def head(states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
            output: torch.Tensor = self._head(states, *of_tokens, mask=mask)
            return output

        mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
        # Not the first, which a head may pool whatever it is.
        for hidden in () if self.described.reads_padding else (1, LENGTH - 1):
            seen = hiding(x, hidden)
            one, other = (head(states, mask=seen) for states in (x, with_another(x, hidden)))
            if not close(one, other, SAME):
                yield "a token that the mask (batch, length) hides changes the output"
                return
            if hidden == LENGTH - 1:
                alone = self._head(*(t[:, :hidden] for t in (x, *of_tokens)))
                if not close(one, alone, SAME):
                    yield (
                        "beside padding at the end, which the mask (batch, length) hides, a "
                        f"sequence has another output than alone\nhelp: {AS_ALONE}"
                    )
        if not close(head(x, mask=mask), head(x, mask=None), SAME):
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


DRIVERS: Mapping[type[Builder], type[Driver]] = {
    BlockHost: BlockDriver,
    AttentionHost: AttentionDriver,
    ReadingHost: AttentionDriver,
    FeedForwardHost: FeedForwardDriver,
    NormHost: NormDriver,
    PositionHost: PositionDriver,
    EmbeddingHost: EmbeddingDriver,
    HeadHost: HeadDriver,
}
"""The drivers of the models of hosts."""


def driver_for(spec: ModelSpec, model: Transformer, dtype: torch.dtype = torch.float32) -> Driver:
    """Return the driver for the model of a host, or of a builder."""
    return DRIVERS.get(type(spec.model), BuilderDriver)(spec, model, dtype)


def hosted(spec: ModelSpec, dtype: torch.dtype = torch.float64) -> Driver:
    """Return the driver of a model of `spec` in evaluation mode. Noise is added to its parameters:
    those that start at 0, such as gates, would hide the modules behind them."""
    model = build(spec, dtype=dtype).eval()
    random = torch.Generator()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            random.manual_seed(crc32(name.encode()))
            noise = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
            parameter.copy_(parameter.double() + 0.1 * noise)
    return driver_for(spec, model, dtype)


def _expect_finite_at_zero(driver: Driver, inputs: Tensors) -> None:
    """Raises PromiseError unless states of zeros, as of padding and silence, give numbers, and
    their gradients too."""
    if not _finite(driver(*inputs)):
        return  # `precision` tells
    zeros = torch.zeros_like(inputs[0]).requires_grad_()
    outputs = driver(zeros.clone(), *inputs[1:])  # which may change it in place
    help = (
        "what is divided by is kept above 0 by an `eps`, and so is what the root is taken of, "
        "inside the root, whose slope at 0 is infinite"
    )
    if not _finite(outputs):
        raise PromiseError("a token of zeros gives NaN or infinity", help=help)
    total = torch.stack([output.sum() for output in outputs]).sum()
    if not total.requires_grad:
        return
    total.backward()  # type: ignore[no-untyped-call]
    found = {"its input": zeros, **{f"`{n}`": t for n, t in driver.model.named_parameters()}}
    for name, tensor in found.items():
        if tensor.grad is not None and not bool(tensor.grad.isfinite().all()):
            raise PromiseError(
                f"a token of zeros gives the gradient of {name} NaN or infinity", help=help
            )
    driver.model.zero_grad(set_to_none=True)


def _finite(outputs: Tensors) -> bool:
    return all(bool(output.isfinite().all()) for output in outputs)


@torch.no_grad()
def _expect_residual(driver: Driver, inputs: Tensors) -> None:
    """Raises PromiseError if the output is that of a matrix, and no tensor has the role of one
    whose output is added to the residual stream."""
    tensors = driver.spec.tensors
    if any(tensor.role == "residual" for tensor in tensors.values()):
        return
    matrices = [n for n, t in tensors.items() if t.role == "weight" and len(t.shape) == 2]
    for name in reversed(matrices):  # the last one first: it is the one, more likely
        weight = driver.model.get_parameter(name)
        value = weight.clone()
        outputs = []
        for factor in (1.0, -1.0, 0.0):
            weight.copy_(factor * value)
            outputs.append(driver(*inputs)[0])
        weight.copy_(value)
        one, other, without = outputs
        if not close(one, without, 1e-5) and close(one + other, 2 * without, 1e-5):
            raise PromiseError(
                f"no tensor of the layout is `residual`, and the output is linear in `{name}`: an "
                "init that goes by depth would scale nothing",
                help="state the map whose output is returned by `linear(..., residual=True)`",
            )


@torch.no_grad()
def _expect_no_skip(driver: Driver, inputs: Tensors) -> None:
    """Raises PromiseError if a branch adds its input, which the block around it does.

    Without the matrices whose output is added to the residual stream, nothing of x is left in what
    a branch returns, unless it is x itself.
    """
    residual = [name for name, t in driver.spec.tensors.items() if t.role == "residual"]
    weights = [driver.model.get_parameter(name) for name in residual]
    before = [weight.clone() for weight in weights]
    for weight in weights:
        weight.zero_()
    x, *others = inputs
    one, other = driver(x, *others)[0], driver(x.flip(1), *others)[0]
    for weight, value in zip(weights, before, strict=True):
        weight.copy_(value)
    if weights and close(one - other, x - x.flip(1), 1e-5):
        raise PromiseError(
            "the output holds x itself, which the block adds, so that it would be added twice",
            help="return what is added to x alone",
        )


def _pair(found: object, what: str) -> tuple[Any, Any]:
    """Return `found` as a pair. Raises PromiseError unless it is a tuple of two."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise PromiseError(f"`forward` must return {what}, as a tuple, not {type(found).__name__}")
    return found
