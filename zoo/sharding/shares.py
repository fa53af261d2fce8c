"""The elements of a tensor that a process has, and their places in the whole tensor."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor


class Run(NamedTuple):
    """Consecutive elements of a whole tensor, in C order."""

    start: int
    length: int


def runs_of(tensor: torch.Tensor) -> Iterator[Run]:
    """The elements of the whole tensor that this process has, in the order in which it has them."""
    whole = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return iter([Run(0, prod(whole))])
    # The method by which torch's distributed checkpoints find the chunks of a tensor.
    chunks: list[Any] = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    (chunk,) = chunks
    return runs(whole, tuple(chunk.offsets), tuple(chunk.sizes))


def runs(whole: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[Run]:
    """The elements of a slice of a tensor of shape `whole`, which has `sizes` elements from
    `offsets` on along each axis."""
    if not prod(sizes):
        return
    cut = [axis for axis, size in enumerate(whole) if sizes[axis] != size]
    last = cut[-1] if cut else 0
    strides = [prod(whole[axis + 1 :]) for axis in range(len(whole))]
    length = prod(sizes[last:])
    ends = (range(at, at + size) for at, size in zip(offsets[:last], sizes[:last], strict=True))
    inner = offsets[last] * strides[last] if whole else 0
    for index in product(*ends):
        yield Run(inner + sum(i * s for i, s in zip(index, strides, strict=False)), length)
