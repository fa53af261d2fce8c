"""Call attention and blocks, and check their outputs against the interface in `zoo.slots`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from zoo.context import LayerContext, SharedKeys
from zoo.plugin_kit.assertions import close, expect, expect_branch, expect_call, expect_positions
from zoo.plugin_kit.attending import Attended
from zoo.plugin_kit.continuing import OF_ANOTHER, ContinuingDriver
from zoo.plugin_kit.inputs import BATCH, LENGTH, Tensors, streams
from zoo.plugin_kit.report import PromiseError
from zoo.position import add_biases
from zoo.slots import KeyForm
from zoo.spec import ModelSpec

Found = TypeVar("Found")


class AttentionDriver(ContinuingDriver):
    @property
    def continued(self) -> bool:
        return bool(self.described.incremental)

    @property
    def recorded(self) -> bool:
        return bool(self.described.recordable)

    @property
    def looks_ahead(self) -> bool:
        return bool(self.described.looks_ahead)

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
            if self.described.rotates_elsewhere:
                options["rotations"] = context.rotations
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
        self.expect_finite_at_zero(inputs)
        self.expect_residual(inputs)
        if self.described.offers_keys is not None:
            self._check_offered(x, self.described.offers_keys)
        if self.described.needs_keys is not None:
            self._check_needed(x, self.described.needs_keys)
        self.expect_no_skip(inputs)

    def _check_offered(self, x: torch.Tensor, form: KeyForm | Literal["chosen"]) -> None:
        """Raises PromiseError unless what is for other layers is of this form."""
        keys = SharedKeys()
        self.model.part(x, None, **self._options(LayerContext(causal=self.causal, keys=keys)))
        if form == "chosen":
            choice = _put(keys.get_chosen, "choice of keys is", "put_chosen")
            if choice is not None:
                expect("the choice of keys for other layers", choice, BATCH, None, LENGTH, LENGTH)
            return
        found = _put(keys.get, "keys and values are", "put")
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


def _put(get: Callable[[], Found], what: str, method: str) -> Found:
    """Return what an attention has put into `keys`. Raises PromiseError if it is nothing."""
    try:
        return get()
    except ValueError:
        raise PromiseError(
            f"no {what} put into `keys`, although `offers_keys` says that other layers can attend "
            "to them",
            help=f"call `keys.{method}` unless `keys` is None",
        ) from None


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
    def __init__(self, spec: ModelSpec, model: Any, dtype: torch.dtype) -> None:
        super().__init__(spec, model, dtype)
        # Here, since `torch.compile` traces the calls, and not the description.
        merging = self.described.merging
        self.n_streams: int | None = None if merging is None else merging.n_streams

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
        if self.described.takes_embedded and context.embedded is None:
            context = context._replace(embedded=x)
        states = x if self.n_streams is None else streams(x, self.n_streams)
        found = self.model.part(states, context)
        output, weights = _pair(found, "the states and the weights by name")
        if self.n_streams is not None:
            expect("the states", output, *states.shape)
            # A sum in which no two streams count alike.
            factors = torch.arange(1, 1 + self.n_streams, device=x.device, dtype=x.dtype)
            output = (output * factors[:, None]).sum(-2)
        return output, dict(weights)

    def check(self, inputs: Tensors) -> None:
        super().check(inputs)
        self.expect_finite_at_zero(inputs)
        expect_positions(self.model.part, lambda: self.attend(inputs))
        if self.described.takes_layer_input:
            self._check_layer_input(inputs)
        if self.described.takes_embedded:
            self._check_embedded(inputs)
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

    def _check_embedded(self, inputs: Tensors) -> None:
        """Raises PromiseError if the embedded states change nothing."""
        x, memory = self.sides(inputs)
        context = LayerContext(
            causal=self.causal, positions=torch.arange(x.shape[1]), memory=memory, embedded=x
        )
        one, _ = self.call(x, context)
        other, _ = self.call(x, context._replace(embedded=x.flip(-1)))
        if close(one, other, 1e-5):
            raise PromiseError(
                "the description's `takes_embedded` is True, and `context.embedded` changes nothing"
            )


def _pair(found: object, what: str) -> tuple[Any, Any]:
    """Return `found` as a pair. Raises PromiseError unless it is a tuple of two."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise PromiseError(f"`forward` must return {what}, as a tuple, not {type(found).__name__}")
    return found
