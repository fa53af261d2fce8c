"""The limits of the machine, measured in the same rounds as the results compared with them."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from benchmarks.place import CPU, Place
from zoo.machine.memory import Arena

OF_PRODUCTS = 1 / 0.80
"""The target of a forward pass: 80 % of the rate of matrix products."""

OF_READING = 1 / 0.85
"""The target of generating one sequence: 85 % of the rate at which weights are read."""

SIDE = 2048
"""The side of the matrices whose product is timed on a CPU."""

SIDE_ELSEWHERE = 8192
"""The same on other devices, which smaller products do not fill."""

TIMES = 4
"""How often one call there follows the other before the device is waited for."""


def products(call: Callable[[], object], place: Place = CPU) -> Callable[[], float]:
    """Return a function that returns the seconds that the matrix products in `call` take at the
    rate of a product of large square matrices in the same dtype, measured in each run; on a CPU by
    MKL or oneDNN, whichever is faster.

    Products of weights with tokens are counted. Those inside attention kernels are not, so that no
    model gains from computing scores that a mask hides.
    """
    inside = {one: _nothing for one in flop_registry if "attention" in str(one)}
    with FlopCounterMode(display=False, custom_mapping=inside) as counter:
        call()
    side = SIDE if place.on_cpu else SIDE_ELSEWHERE
    share = counter.get_total_flops() / (2 * side**3)
    left, right, product = (
        torch.randn(side, side, device=place.device, dtype=place.dtype) for _ in range(3)
    )

    def on_cpu() -> float:
        by_mkl = _seconds(lambda: torch.mm(left, right, out=product))
        by_onednn = _seconds(
            lambda: torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], None)
        )
        return min(by_mkl, by_onednn) * share

    def elsewhere() -> float:
        return _repeated(lambda: torch.mm(left, right, out=product), place) * share

    return on_cpu if place.on_cpu else elsewhere


def _nothing(*_: object, **__: object) -> int:
    """The products of an operation that are counted."""
    return 0


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def _repeated(call: Callable[[], object], place: Place) -> float:
    """The mean seconds of calls, one behind the other."""
    call()
    place.wait()
    start = perf_counter()
    for _ in range(TIMES):
        call()
    place.wait()
    return (perf_counter() - start) / TIMES


def reading(n_bytes: int, times: int, place: Place = CPU) -> Callable[[], float]:
    """Return a function that returns the seconds of reading `n_bytes` of memory `times` times, by
    the fastest plain operation of torch: the maximum of all numbers in it. On a CPU it is in huge
    pages, as a model's weights are."""
    if place.on_cpu:
        memory = Arena().empty((n_bytes // 4,), torch.float32).zero_()
    else:
        memory = torch.zeros(n_bytes // 4, device=place.device)

    def run() -> float:
        start = perf_counter()
        for _ in range(times):
            memory.amax()
        place.wait()
        return perf_counter() - start

    return run


def rates(place: Place) -> str:
    """Measure the rates of a device that limits are told by, in words: of matrix products, and of
    reading memory in pieces of a gigabyte."""
    left, right = (
        torch.randn(SIDE_ELSEWHERE, SIDE_ELSEWHERE, device=place.device, dtype=place.dtype)
        for _ in range(2)
    )
    memory = torch.zeros(2**28, device=place.device)
    product = min(_repeated(lambda: left @ right, place) for _ in range(5))
    read = min(_repeated(memory.amax, place) for _ in range(5))
    return (
        f"products of {SIDE_ELSEWHERE:,} x {SIDE_ELSEWHERE:,} matrices at "
        f"{2 * SIDE_ELSEWHERE**3 / product / 1e12:.0f} TFLOP/s, memory read at "
        f"{memory.nbytes / read / 1e12:.2f} TB/s"
    )
