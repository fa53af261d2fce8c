"""Linear maps, which are most of a model, and their computation on CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.utils.flop_counter import flop_registry, register_flop_formula

AVAILABLE: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
"""Whether this torch has oneDNN; builds for Apple's processors do not."""

LARGE = 2**16
"""The number of weights from which oneDNN is faster than MKL."""

MANY_ROWS = 128
"""With gradients, fewer rows are computed as `nn.Linear` does, to the last bit."""

FEWEST_ROWS = 6
"""The product of a packed weight with this number of rows takes less time than with one, two or
three: 0.83, 0.75 and 0.93 of it for 768 x 2,304 and its like on two Zen 4 cores."""


Identity = tuple[int, int, int]
"""Identifies the content of a tensor: its storage, its address, which a later tensor may have too,
and the number of its in-place changes."""


class Pointwise(NamedTuple):
    """An activation that oneDNN applies to a product while it is in the processor's cache.

    Args:
        name: torch's name of the function.
        algorithm: the variant of the function, if there are several.
    """

    name: str = "none"
    algorithm: str | None = None


class Packed(NamedTuple):
    """A copy of weights in the order in which oneDNN reads them fastest.

    Args:
        weight: the weight of one map, or of several concatenated; only oneDNN can read it.
        bias: the bias, or None.
        of: the value of `Linear.now` of each map when the copy was made.
        storages: the storages of the maps. While these references exist, no other storage can have
            the same identity.
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
"""Activations that oneDNN supports, besides `nn.GELU`, which has an algorithm."""


class Linear(nn.Linear):
    """`nn.Linear`; if it is large, in float32 and on a CPU, it is computed by oneDNN.

    torch would use MKL, which on processors that are not Intel's uses half of the vector width, and
    with few rows reads the weight at half the speed of memory. On two
    Zen 4 cores a map of 768 to 3,072 takes 0.5 of MKL's time for one row, 0.6 for 32 and 0.8 for
    512. `pack` makes it faster still, for models that generate. With gradients, few rows are
    computed by MKL. `torch.backends.mkldnn.flags(enabled=False)` switches oneDNN off.
    """

    packed: Packed | None = None
    """The weight as packed by `pack`, or the weights of several maps that are computed as one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) to (..., out_features)."""
        if not torch.is_grad_enabled():
            found = self.without_gradients(x)
            return F.linear(x, self.weight, self.bias) if found is None else found
        if self.packed is not None and any(one.requires_grad for one in self.parameters()):
            self.packed = None  # not every optimizer lets torch count what it changes
        few = x.numel() < MANY_ROWS * self.in_features
        if few or self.weight.numel() < LARGE or not self.takes(x):
            return F.linear(x, self.weight, self.bias)
        learning: torch.Tensor = _Product.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return learning

    def without_gradients(self, x: torch.Tensor, then: Pointwise = NOTHING) -> torch.Tensor | None:
        """Return then(x weight^T + bias) by oneDNN; None if it cannot compute it."""
        packed = self.packed
        if packed is not None and self.fits(x) and packed.of == (self.now(),):
            return _of_packed(x, packed, then)
        if self.weight.numel() < LARGE or not self.takes(x):
            return None
        return _product(x, self.weight, self.bias, then)

    def fits(self, x: torch.Tensor) -> bool:
        """Return whether oneDNN can take x: not other dtypes, not derivatives in forward mode, and
        not stand-ins for tensors, as in a graph or a shard."""
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
        """Return whether oneDNN can compute the product with the weight as it is stored."""
        weight = self.weight  # once: a module finds its tensors slowly
        return type(weight) is nn.Parameter and weight.dtype == torch.float32 and self.fits(x)

    def pack(self) -> None:
        """Keep a packed copy of the weight. It is used without gradients, while weight and bias
        are unchanged; only a change that torch does not count, as through `weight.data` or NumPy,
        goes unnoticed. A call that can have gradients for them drops it. It is not part of the
        state, of copies or of files."""
        now, weight = self.now(), self.weight
        if not AVAILABLE or now is None or weight.numel() < LARGE:
            return
        if weight.is_cpu and weight.dtype == torch.float32:
            self.packed = _packed([self], (now,))

    def now(self) -> tuple[Identity, ...] | None:
        """Return the identities of the weight and the bias, if any; None if one is replaced, as by
        a shard or a parametrization, or was created in inference mode, where torch does not
        count changes."""
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
        """Return the state for copies and pickles, without the packed weight."""
        return {name: value for name, value in self.__dict__.items() if name != "packed"}


def together(maps: Sequence[nn.Module], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Apply several maps to the same x; each result is (..., out_features).

    Maps that are packed are packed again as one on the first call, and computed by one product: for
    q, k and v of GPT-2 small, this takes two thirds of the time of three. Modules that replace a
    map, and maps with hooks, are called.
    """
    packed = _of_all(maps, x)
    if packed is None:
        return tuple(one(x) for one in maps)
    product = _of_packed(x, packed, NOTHING)
    return product.split_with_sizes([one.out_features for one in maps], -1)  # type: ignore[misc]


def _of_all(maps: Sequence[nn.Module], x: torch.Tensor) -> Packed | None:
    """Return the packed weights of all maps as one, if x can be multiplied with them."""
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
    """Return activation(linear(x)), (..., out_features). Without gradients, oneDNN computes both at
    once if it supports the activation: GELU by tanh adds 0.4 instead of 1.5 ms to a product of
    512 x 768 with 768 x 3,072 in 11.6 ms. Modules that replace either, or have hooks, are called.
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
    """Return whether a module has hooks, its own or those of all modules, or a `forward` of its
    own."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or "forward" in module.__dict__
        or _global_forward_hooks
        or _global_forward_pre_hooks
    )


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
        # If the number of rows is not stated, the order is fast for few and for many.
        laid_out = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    storages = tuple(
        StorageWeakRef(one.untyped_storage())  # type: ignore[no-untyped-call]
        for one in (t for map in maps for t in (map.weight, map.bias) if t is not None)
    )
    return Packed(laid_out, bias, of, storages)


def _of_packed(x: torch.Tensor, packed: Packed, then: Pointwise) -> torch.Tensor:
    """Return then(x weight^T + bias) for a packed weight. A few rows are repeated for speed."""
    times = FEWEST_ROWS * x.shape[-1] // x.numel()
    if x.dim() > 1 and times > 1:
        repeated = torch.cat([x] * times)
        return _product(repeated, packed.weight, packed.bias, then).narrow(0, 0, x.shape[0])
    return _product(x, packed.weight, packed.bias, then)


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, then: Pointwise = NOTHING
) -> torch.Tensor:
    """Return then(x weight^T + bias) by oneDNN, with the function that `torch.compile` uses."""
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
