"""Linear maps, which are most of a model, and their computation on CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from zoo.machine.prepacking import (
    AVAILABLE,
    AVX2_ONLY,
    INTEL,
    POINTWISE,
    Arrange,
    Layout,
    are_mkls,
    arrangement,
    overwritten,
    product,
)

LARGE = 2**16
"""The number of weights from which oneDNN is faster than MKL."""

AS_STORED = 16 if INTEL else 1
"""The factor of `LARGE` for weights that are not packed. On two Sapphire Rapids cores
oneDNN takes 1.1 to 1.7 of MKL's time for 4 rows and 512 x 512 or 768 x 768."""

MANY_ROWS = 128
"""With gradients, fewer rows are computed as `nn.Linear` does, to the last bit. Without, so many
rows are computed by MKL on processors with AVX2 only, whose vectors it uses whole."""

VOCABULARY = 2**13
"""The number of outputs from which oneDNN is faster for many rows with AVX2 too: 256 rows and
32,000 outputs take 0.85 of MKL's time on two Zen 3 cores."""

Identity = tuple[int, int, int]
"""Identifies the content of a tensor: its storage, its address, which a later tensor may have too,
and the number of its in-place changes."""


class Packed(NamedTuple):
    """A copy of weights in a memory layout that is read fast.

    Args:
        layout: the weight and bias of one map, or of several concatenated.
        arrange: what made it, and makes that of several maps.
        of: the value of `Linear.now` of each map when the copy was made.
        storages: the storages of the maps. While these references exist, no other storage can have
            the same identity.
    """

    layout: Layout
    arrange: Arrange
    of: tuple[tuple[Identity, ...], ...]
    storages: tuple[StorageWeakRef, ...]


class Linear(nn.Linear):
    """`nn.Linear`; if it is large, in float32 and on a CPU, it is computed by oneDNN.

    torch would use MKL, which on processors that are not Intel's uses half of the width of AVX-512,
    and with few rows reads the weight at half the speed of memory. On two Zen 4 cores a map of 768
    to 3,072 takes 0.5 of MKL's time for one row, 0.6 for 32 and 0.8 for 512; on two Zen 3 cores,
    which have AVX2 only, 0.5, 0.7 and 1.1, so there MKL computes many rows. On Intel's processors
    it computes up to three, what has gradients, and with AVX2 everything that is not packed; there
    oneDNN takes 0.7 of its time for 8 rows, and 0.9 to 1 for many. `pack` makes few rows faster
    still, for models that generate. With gradients, few rows are computed by MKL. Under
    `torch.compile`, one row on a CPU that is not MKL's is a sum, which the compiler makes a loop
    of.
    `torch.backends.mkldnn.flags(enabled=False)` switches oneDNN off.
    """

    packed: Packed | None = None
    """The weight as packed by `pack`, or the weights of several maps that are computed as one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) to (..., out_features)."""
        if not torch.is_grad_enabled():
            if is_compiled() and self._is_one_row(x) and not are_mkls(x):
                return self.as_a_sum(x)
            found = self.without_gradients(x)
            return F.linear(x, self.weight, self.bias) if found is None else found
        if self.packed is not None and any(one.requires_grad for one in self.parameters()):
            self.packed = None  # not every optimizer lets torch count what it changes
        if AVX2_ONLY or INTEL or _are_few(x, self.weight) or not self.takes(x):
            return F.linear(x, self.weight, self.bias)
        learning: torch.Tensor = _Product.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return learning

    def _is_one_row(self, x: torch.Tensor) -> bool:
        """Whether x is a single row on a CPU, and the weight no shard and not quantized."""
        one_row = x.is_cpu and x.numel() == self.in_features
        return one_row and type(self.weight) is nn.Parameter

    def as_a_sum(self, x: torch.Tensor) -> torch.Tensor:
        """(..., out_features) for x (..., in_features) of one row. Compiled, it is a loop that
        reads the weight where it is, two to three times as fast as MKL's product."""
        wide = torch.promote_types(x.dtype, torch.float32)  # as products of half precision add
        y = (self.weight.to(wide) * x.reshape(-1).to(wide)).sum(-1)
        if self.bias is not None:
            y = y + self.bias.to(wide)
        return y.to(x.dtype).view(*x.shape[:-1], -1)

    def without_gradients(
        self, x: torch.Tensor, then: nn.Module | None = None
    ) -> torch.Tensor | None:
        """Return then(x weight^T + bias), as packed or by oneDNN; None if neither can compute it.
        `then` is an activation of a class in `POINTWISE`."""
        packed = self.packed
        if (
            packed is not None
            and self.fits(x)
            and packed.layout.takes(x)
            and packed.of == (self.now(),)
        ):
            return packed.layout.product(x, then)
        if not self.takes(x):
            return None
        return product(x, self.weight, self.bias, then)

    def fits(self, x: torch.Tensor) -> bool:
        """Return whether x can be computed by oneDNN or as packed: not derivatives in forward mode,
        and not stand-ins for tensors, as in a graph or a shard."""
        return (
            type(x) is torch.Tensor
            and x.is_cpu
            and x.shape[-1] == self.in_features
            and x.numel() > 0
            and _is_on()
            and not torch.compiler.is_compiling()
            and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
            and not torch.is_autocast_enabled("cpu")
            and forward_ad._current_level < 0
        )

    def takes(self, x: torch.Tensor) -> bool:
        """Return whether oneDNN computes the product with the weight as it is stored, faster than
        `F.linear`."""
        weight = self.weight  # once: a module finds its tensors slowly
        return type(weight) is nn.Parameter and _is_faster(x, weight) and self.fits(x)

    def pack(self, rows: int) -> None:
        """Keep a copy of the weight in the layout for products with a number of rows.

        It is used without gradients, while weight and bias are unchanged; only a change that torch
        does not count, as through `weight.data` or NumPy, goes unnoticed. A call that can have
        gradients for them drops it. It is not part of the state, of copies or of files.
        """
        now, weight = self.now(), self.weight
        if not AVAILABLE or now is None or weight.numel() < LARGE:
            return
        arrange = arrangement(rows, weight.dtype)
        if weight.is_cpu and arrange is not None:
            self.packed = _packed([self], (now,), arrange)

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


def onednn_is_faster(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether oneDNN computes x weight^T, and takes less time for it than `F.linear`."""
    return x.is_cpu and _is_on() and _is_faster(x, weight)


def is_compiled() -> bool:
    """Whether `torch.compile` takes the graph, not `torch.export`, whose graphs keep products."""
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting()


def _is_on() -> bool:
    """Whether oneDNN is there, and not switched off."""
    return AVAILABLE and bool(torch.backends.mkldnn.enabled)


def _is_faster(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether x weight^T is in float32, and of sizes for which oneDNN takes less time."""
    if x.dtype != torch.float32 or weight.dtype != torch.float32 or are_mkls(x):
        return False
    if weight.numel() < LARGE * AS_STORED or (INTEL and AVX2_ONLY):
        return False
    return not AVX2_ONLY or _are_few(x, weight) or weight.shape[0] >= VOCABULARY


def _are_few(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the rows of x are few."""
    return x.numel() < MANY_ROWS * weight.shape[1]


def together(maps: Sequence[nn.Module], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Apply several maps to the same x; each result is (..., out_features).

    Maps that are packed are packed again as one on the first call, and computed by one product: for
    q, k and v of GPT-2 small, this takes two thirds of the time of three. Modules that replace a
    map, and maps with hooks, are called.
    """
    packed = _of_all(maps, x)
    if packed is None:
        return tuple(one(x) for one in maps)
    sizes: list[int] = [one.out_features for one in maps]  # type: ignore[misc]
    return packed.layout.product(x).split_with_sizes(sizes, -1)


def _of_all(maps: Sequence[nn.Module], x: torch.Tensor) -> Packed | None:
    """Return the packed weights of all maps as one, if x can be multiplied with them."""
    linear = [one for one in maps if type(one) is Linear and not hooked(one)]
    packed = linear[0].packed if len(linear) == len(maps) else None
    if packed is None or torch.is_grad_enabled():
        return None
    if not linear[0].fits(x) or not packed.layout.takes(x):
        return None
    now = [one.now() for one in linear]
    known = tuple(one for one in now if one is not None)
    if len(known) < len(now):
        return None
    apart = len(linear) > 1 and packed.of == known[:1]
    if apart and all(one.weight.is_cpu and one.weight.dtype == x.dtype for one in linear):
        packed = _packed(linear, known, packed.arrange)
        for one in linear:
            one.packed = packed
    return packed if packed.of == known and all(one.packed is packed for one in linear) else None


def activated(linear: nn.Module, activation: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return activation(linear(x)), (..., out_features). Modules that replace either, or have
    hooks, are called.

    Without gradients, an activation that oneDNN supports takes no memory of its own. With AVX-512,
    oneDNN computes it with the product: GELU by tanh adds 0.4 instead of 1.5 ms to a product of
    512 x 768 with 768 x 3,072 in 11.6 ms on two Zen 4 cores. With AVX2 that would add more than
    half of the product's time, so torch replaces the product's elements.
    """
    waited = hooked(linear) or hooked(activation) or torch.is_grad_enabled()
    if type(linear) is Linear and type(activation) in POINTWISE and not waited:
        found = None if AVX2_ONLY else linear.without_gradients(x, activation)
        if found is not None:
            return found
        if linear.fits(x):
            return overwritten(linear(x), activation)
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


def _packed(
    maps: Sequence[Linear], of: tuple[tuple[Identity, ...], ...], arrange: Arrange
) -> Packed:
    with torch.no_grad():
        weight = torch.cat([one.weight for one in maps]) if len(maps) > 1 else maps[0].weight
        biases = [one.bias for one in maps]
        bias = None
        if any(one is not None for one in biases):
            bias = torch.cat(
                [
                    weight.new_zeros(one.out_features) if one.bias is None else one.bias
                    for one in maps
                ]
            )
        layout = arrange(weight, bias)
    storages = tuple(
        StorageWeakRef(one.untyped_storage())  # type: ignore[no-untyped-call]
        for one in (t for map in maps for t in (map.weight, map.bias) if t is not None)
    )
    return Packed(layout, arrange, of, storages)


class _Product(torch.autograd.Function):
    """`product` with gradients, which are products of oneDNN too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return product(x, weight, bias)

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
