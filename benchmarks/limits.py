"""The limits of the machine, measured in the same rounds as the results compared with them."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from torch.utils.flop_counter import FlopCounterMode

OF_PRODUCTS = 1 / 0.80
"""The bar of a forward pass: 80 % of the rate of matrix products."""

OF_READING = 1 / 0.85
"""The bar of generating one sequence: 85 % of the rate at which weights are read."""

SIDE = 2048


def products(call: Callable[[], object]) -> Callable[[], float]:
    """Return a function that returns the seconds that the matrix products in `call` take at the
    rate of a product of 2,048 x 2,048 matrices, measured in each run by MKL or oneDNN, whichever
    is faster.

    Products of weights with tokens are counted. Those inside attention kernels are not, so that no
    model gains from computing scores that a mask hides.
    """
    with FlopCounterMode(display=False) as counter:
        call()
    share = counter.get_total_flops() / (2 * SIDE**3)
    left, right = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    product = torch.empty(SIDE, SIDE)

    def run() -> float:
        by_mkl = _seconds(lambda: torch.mm(left, right, out=product))
        by_onednn = _seconds(
            lambda: torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], None)
        )
        return min(by_mkl, by_onednn) * share

    return run


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def reading(n_bytes: int, times: int) -> Callable[[], float]:
    """Return a function that returns the seconds of reading `n_bytes` of memory `times` times, by
    the fastest plain operation of torch: the maximum of all numbers in it."""
    memory = torch.zeros(n_bytes // 4)

    def run() -> float:
        start = perf_counter()
        for _ in range(times):
            memory.amax()
        return perf_counter() - start

    return run
