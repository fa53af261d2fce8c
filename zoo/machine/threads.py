"""Work that all cores share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def on_all_cores(
    work: Callable[[str], T], sizes: Mapping[str, int], *, n_threads: int | None = None
) -> dict[str, T]:
    """Call a function with each name, each call in one of as many threads as there are cores.

    Args:
        work: the function, which releases the GIL while it does most of its work.
        sizes: the amount of work of each call, such as a number of bytes, by name. The largest are
            begun first: a large one at the end would keep one core busy while the others idle.
        n_threads: the number of threads; by default that of the cores.

    Returns:
        The results by name, in the order in which the calls began.
    """
    largest_first = sorted(sizes, key=lambda name: sizes[name], reverse=True)
    with ThreadPoolExecutor(max_workers=n_threads or os.cpu_count()) as pool:
        return dict(zip(largest_first, pool.map(work, largest_first), strict=True))
