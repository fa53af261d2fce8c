"""The linear map, of which a model is mostly made, and how a CPU computes it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.flop_counter import flop_registry, register_flop_formula

AVAILABLE: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
"""Whether this torch comes with oneDNN; that for Apple's processors does not."""

LARGE = 2**16
"""The least number of weights of which oneDNN computes a product faster than MKL."""

MANY_ROWS = 128
"""With gradients, fewer rows are computed as `nn.Linear` does, to the last bit."""

FEWEST_ROWS = 4
"""A packed weight is multiplied with so many rows in less time than with one: 50,257 x 768 in 4.0
instead of 5.0 ms on two Zen 4 cores."""


Identity = tuple[int, int, int]
"""Of a tensor: its storage, where in memory it lies, which alone may be where an earlier one lay,
and how often it was changed in place."""


class Pointwise(NamedTuple):
    """What oneDNN does with each number of a product before it leaves the processor's cache.

    Args:
        name: of the function, in torch's words.
        algorithm: by which it is computed, where there are several.
    """

    name: str = "none"
    algorithm: str | None = None


class Packed(NamedTuple):
    """A copy of weights in the order in which oneDNN reads them fastest.

    Args:
        weight: of one map, or of several under each other; only oneDNN can read it.
        bias: theirs, or None.
        of: what `Linear.now` told of each map when the copy was made.
        storages: theirs. While these references exist, no other storage gets the identity of one.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    of: tuple[tuple[Identity, ...], ...]
    storages: tuple[StorageWeakRef, ...]


NOTHING = Pointwise()
POINTWISE = {
    nn.ReLU: Pointwise("relu"),
    nn.SiLU: Pointwise("swish"),
    nn.Sigmoid: Pointwise("sigmoid"),
    nn.Tanh: Pointwise("tanh"),
}
"""Activations that oneDNN knows. It knows `nn.GELU` too, with its algorithm."""


class Linear(nn.Linear):
    """`nn.Linear`, which in float32 on a CPU is computed by oneDNN where it is large.

    torch's own choice there is MKL, which on processors that are not Intel's uses half of the
    vector width, and reads the weight at half the speed of memory where there are few rows. On two
    Zen 4 cores a map of 768 to 3,072 takes 0.5 of MKL's time for one row, 0.6 for 32 and 0.8 for
    512. `pack` makes it faster still, for models that generate. With gradients, few rows are
    computed by MKL. `torch.backends.mkldnn.flags(enabled=False)` switches oneDNN off.
    """

    packed: Packed | None = None
    """The weight as `pack` laid it out, or those of several maps that are computed as one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) to (..., out_features)."""
        if not torch.is_grad_enabled():
            found = self.without_gradients(x)
            return F.linear(x, self.weight, self.bias) if found is None else found
        if self.training and self.packed is not None:
            self.packed = None  # not every optimizer lets torch count what it changes
        few = x.numel() < MANY_ROWS * self.in_features
        if few or self.weight.numel() < LARGE or not self.takes(x):
            return F.linear(x, self.weight, self.bias)
        learning: torch.Tensor = _Product.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return learning

    def without_gradients(self, x: torch.Tensor, then: Pointwise = NOTHING) -> torch.Tensor | None:
        """What oneDNN makes of x, and `then` of each number; None where it does not compute it."""
        packed = self.packed
        if packed is not None and self.fits(x) and packed.of == (self.now(),):
            return _of_packed(x, packed, then)
        if self.weight.numel() < LARGE or not self.takes(x):
            return None
        return _product(x, self.weight, self.bias, then)

    def fits(self, x: torch.Tensor) -> bool:
        """Whether oneDNN can take x: not in other dtypes, not where derivatives are computed in
        forward mode, and not what only stands for a tensor, as in a graph or a shard."""
        return (
            type(x) is torch.Tensor
            and x.dtype == torch.float32
            and x.is_cpu
            and x.shape[-1] == self.in_features
            and x.numel() > 0
            and AVAILABLE
            and bool(torch.backends.mkldnn.enabled)
            and not torch.compiler.is_compiling()
            and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
            and not torch.is_autocast_enabled("cpu")
            and forward_ad._current_level < 0
        )

    def takes(self, x: torch.Tensor) -> bool:
        """Whether oneDNN can compute it with the weight as it lies."""
        weight = self.weight  # once: a module finds its tensors slowly
        return type(weight) is nn.Parameter and weight.dtype == torch.float32 and self.fits(x)

    def pack(self) -> None:
        """Keep a packed copy of the weight, which is used without gradients and while weight and
        bias stay as they are; only a change through `weight.data` goes unnoticed. A call in
        training lets go of it. It is no part of the state, of copies or of files."""
        now, weight = self.now(), self.weight
        if not AVAILABLE or now is None or weight.numel() < LARGE:
            return
        if weight.is_cpu and weight.dtype == torch.float32:
            self.packed = _packed([self], (now,))

    def now(self) -> tuple[Identity, ...] | None:
        """The identities of the weight and, if there is one, the bias; None while something else
        stands for one of them, as in a shard or behind a parametrization, and of tensors made in
        inference mode, whose changes nobody counts."""
        kept = self._parameters  # not as attributes, which a module finds slowly
        if "weight" not in kept or "bias" not in kept:
            return None
        weight, bias = kept["weight"], kept["bias"]
        if type(weight) is not nn.Parameter or weight.is_inference():
            return None
        if bias is None:
            return (_identity(weight),)
        if type(bias) is not nn.Parameter or bias.is_inference():
            return None
        return _identity(weight), _identity(bias)

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold."""
        return {name: value for name, value in self.__dict__.items() if name != "packed"}


def together(maps: Sequence[nn.Module], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What several maps make of the same x, each (..., out_features).

    Where they are packed, they are packed anew as one when this is first called, and computed by
    one product: of q, k and v of GPT-2 small it takes two thirds of the time of three. What was put
    into the place of a map, or waits for its call, is called.
    """
    packed = _of_all(maps, x)
    if packed is None:
        return tuple(one(x) for one in maps)
    product = _of_packed(x, packed, NOTHING)
    return product.split_with_sizes([one.out_features for one in maps], -1)  # type: ignore[misc]


def _of_all(maps: Sequence[nn.Module], x: torch.Tensor) -> Packed | None:
    """The packed weights of all maps as one, if x can be multiplied with them."""
    linear = [one for one in maps if type(one) is Linear and not hooked(one)]
    packed = linear[0].packed if len(linear) == len(maps) else None
    if packed is None or torch.is_grad_enabled() or not linear[0].fits(x):
        return None
    now = [one.now() for one in linear]
    known = tuple(one for one in now if one is not None)
    if len(known) < len(now):
        return None
    if len(linear) > 1 and packed.of == known[:1] and all(one.takes(x) for one in linear):
        packed = _packed(linear, known)
        for one in linear:
            one.packed = packed
    return packed if packed.of == known and all(one.packed is packed for one in linear) else None


def activated(linear: nn.Module, activation: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """activation(linear(x)), (..., out_features). Without gradients oneDNN computes both at once,
    where it knows the activation: to a product of 512 x 768 with 768 x 3,072 in 11.6 ms, GELU by
    tanh adds 0.4 instead of 1.5 ms. What was put into the place of either, or has hooks, is called.
    """
    then = POINTWISE.get(type(activation))
    if type(activation) is nn.GELU:
        then = Pointwise("gelu", activation.approximate)
    waited = hooked(linear) or hooked(activation)
    if then is not None and type(linear) is Linear and not waited and not torch.is_grad_enabled():
        found = linear.without_gradients(x, then)
        if found is not None:
            return found
    called: torch.Tensor = activation(linear(x))
    return called


def _identity(tensor: torch.Tensor) -> Identity:
    return tensor.untyped_storage()._cdata, tensor.data_ptr(), tensor._version


def hooked(module: nn.Module) -> bool:
    """Whether somebody waits for the module to be called."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


def _packed(maps: Sequence[Linear], of: tuple[tuple[Identity, ...], ...]) -> Packed:
    with torch.no_grad():
        weight = torch.cat([one.weight for one in maps])
        biases = [one.bias for one in maps]
        bias = None
        if any(one is not None for one in biases):
            bias = torch.cat(
                [
                    weight.new_zeros(one.out_features) if one.bias is None else one.bias
                    for one in maps
                ]
            )
        # Without a number of rows, the order is one that is fast for few and for many.
        laid_out = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    storages = tuple(
        StorageWeakRef(one.untyped_storage())  # type: ignore[no-untyped-call]
        for one in (t for map in maps for t in (map.weight, map.bias) if t is not None)
    )
    return Packed(laid_out, bias, of, storages)


def _of_packed(x: torch.Tensor, packed: Packed, then: Pointwise) -> torch.Tensor:
    """then(x weight^T + bias), of a packed weight. One row is computed as the first of several."""
    if x.dim() > 1 and x.numel() == x.shape[-1]:
        several = torch.cat([x] * FEWEST_ROWS, -2)
        return _product(several, packed.weight, packed.bias, then).narrow(-2, 0, 1)
    return _product(x, packed.weight, packed.bias, then)


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, then: Pointwise = NOTHING
) -> torch.Tensor:
    """then(x weight^T + bias) by oneDNN; `torch.compile` puts the same function in its place."""
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(
        x, weight, bias, then.name, [], then.algorithm
    )
    return found


if AVAILABLE and torch.ops.mkldnn._linear_pointwise not in flop_registry:
    # So that torch's FlopCounterMode counts it like any other product.
    @register_flop_formula(torch.ops.mkldnn._linear_pointwise)
    def _flops(x: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
        return 2 * prod(x) * weight[0]


class _Product(torch.autograd.Function):
    """The same with gradients, whose products oneDNN computes too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return _product(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows, grads = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
        times: Any = _Product.apply
        return (
            times(grad, weight.t(), None) if needs_x else None,
            times(grads.t(), rows.t(), None) if needs_weight else None,
            grads.sum(0) if needs_bias else None,
        )
