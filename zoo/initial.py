"""The initial values of a spec's tensors: memory for them, and the values that its init states."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from zoo.distribution import Distribution
from zoo.errors import ZooError
from zoo.fill import Runs, fill
from zoo.machine.memory import Arena, Scratch
from zoo.registering.plugin_errors import plugin_code
from zoo.spec import ModelSpec


def empty(
    shape: tuple[int, ...], dtype: torch.dtype, spec: ModelSpec, memory: Arena | Scratch
) -> torch.Tensor:
    """Allocate a tensor without setting its values: in an arena for a model, in scratch memory for
    a moment. Raises `ZooError` if memory is short."""
    try:
        return memory.empty(shape, dtype)
    except (MemoryError, RuntimeError):
        raise too_large(spec, spec.layout.n_elements * dtype.itemsize) from None


def n_bytes_of(spec: ModelSpec, dtype: torch.dtype) -> int:
    """The bytes of the stored tensors of a spec, in a dtype if they are floating-point numbers."""
    tensors = spec.tensors.values()
    return sum(t.size * (8 if t.dtype == "int64" else dtype.itemsize) for t in tensors)


def too_large(spec: ModelSpec, n_bytes: int, but: str = "") -> ZooError:
    """Return the error for a model whose tensors do not fit into memory."""
    return ZooError(
        f"{spec.name} does not fit into memory: its tensors are {n_bytes:,} bytes{but}",
        help='a smaller dtype takes less; the device "meta" builds it without values; of '
        "several machines, each can build its share (`mesh`)",
    )


def fill_initial(
    tensors: Mapping[str, torch.Tensor],
    spec: ModelSpec,
    *,
    seed: int = 0,
    on_bytes: Callable[[int], None] | None = None,
    runs: Mapping[str, Runs] | None = None,
) -> None:
    """Fill some or all tensors of a spec, by name, with their initial values, as in `build`. For
    tensors that are parts of others, `runs` says which elements they hold, as in `fill`."""
    starts = _starts(spec)
    pairs = {name: (tensors[name], starts[name]) for name in tensors}
    fill(pairs, seed=seed, on_bytes=on_bytes, runs=runs)


def _starts(spec: ModelSpec) -> dict[str, Distribution]:
    starts = {}
    for tensor in spec.layout.placed():
        if tensor.name in spec.ties:
            continue
        with plugin_code(f"the init of {spec.name}, for `{tensor.name}` {list(tensor.shape)},"):
            start = spec.model.init.start_of(tensor)
            if not isinstance(start, Distribution):
                raise TypeError(
                    f"it starts from {start!r}, which is not a distribution: return one of "
                    "zoo.distribution, such as Constant(0.0)"
                )
        starts[tensor.name] = start
    return starts
