"""Initial weights: the `zoo.init.v1` stream, the same bytes on every machine.

Each tensor has a stream of its own, which depends on the seed and on the tensor's name only:

    key   = the first 16 bytes of SHA-256(b"zoo.init.v1\\0" + seed as little-endian u64
            + name in UTF-8), as a little-endian integer: key[0] is its low 64 bits
    block = Philox4x64-10 of that key and a 256-bit counter that starts at 1: four u64
            (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011)
    words = each u64's low half, then its high half, as int32

Element i of the tensor, in C order, is made of word w = words[i]. Float operations are float32
and rounded once (to nearest, ties to even); shifts are arithmetic; f32() rounds to float32.

    Constant(v)        f32(v), and v itself in a tensor of integers
    Cycle(n)           i modulo n
    Uniform(b)         (w >> 8) * f32(b * 2**-23)
    Normal(s)          z(w) * f32(s)
    TruncatedNormal    z((w * k) >> 31) * f32(std)

z is the standard normal quantile of (w + 2**31) / 2**32, by linear interpolation in the shipped
table t of 65,537 float32 (`tools/make_normal_table.py`), so no transcendental function is called:

    i = (w >> 16) + 2**15,  slope = (t[i+1] - t[i]) * 2**-16,  z(w) = (w & 0xffff) * slope + t[i]

z never decreases, spans +-4.4914, and its standard deviation is 0.99991. For the truncated
normal, k <= 2**31 is the greatest integer for which every word in [-k, k) has |z| <= cut; the
product with w is exact, in 64 bits, and maps all words evenly onto [-k, k). A cut past the ends
of the table gives k = 2**31 and so the plain normal.

The result is cast to the tensor's dtype last (to nearest, ties to even), so a float64 tensor
holds float32 values. A change to any of this is a new format with a new name.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.distribution import Constant, Cycle, Distribution, Normal, TruncatedNormal, Uniform

# Elements per step: by measurement, enough to hide the overhead of a call and the wait for the
# interpreter lock after it, and few enough that the buffers stay in the caches.
_STEP = 1 << 16
# Elements per task: a few milliseconds, so that threads finish together. A multiple of _STEP.
_TASK = 1 << 20
# torch runs an operation of this size on the calling thread; on more elements, each of our
# threads would start a thread pool of its own.
_GRAIN = 1 << 15
_WORDS_PER_BLOCK = 8

_Random = Uniform | Normal | TruncatedNormal
Runs = Sequence[tuple[int, int]]
"""The ranges of a stream that fill a tensor one after the other: (start, length) pairs."""

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def fill(
    tensors: Mapping[str, tuple[torch.Tensor, Distribution]],
    *,
    seed: int,
    on_bytes: Callable[[int], None] | None = None,
    runs: Mapping[str, Runs] | None = None,
) -> None:
    """Fill tensors in place with the `zoo.init.v1` stream, on `torch.get_num_threads()` threads.

    A tensor's bytes depend on its name, shape, dtype, distribution and the seed, and on nothing
    else: not on the other tensors, their order, or the number of threads.

    Args:
        tensors: by name, a contiguous CPU tensor of any shape and the distribution to draw it from.
            The tensors share no memory. Their dtype is float32, float64, float16, bfloat16, or an
            integer dtype with a `Constant` or a `Cycle` that it can hold.
        seed: from 0 to 2**64 - 1.
        on_bytes: called in the calling thread with the number of bytes just filled, in the order
            of `tensors`. The numbers sum to the size of all tensors.
        runs: for a tensor that is a part of a larger one, by the name of the larger one: which of
            its elements, in C order, the part holds.

    Raises:
        ValueError: the seed or a tensor is not as described. No tensor has been written to.
        RuntimeError: the machine is big-endian.
    """
    if sys.byteorder != "little":
        raise RuntimeError("zoo.init.v1 is implemented for little-endian machines only")
    if type(seed) is not int or not 0 <= seed < 2**64:
        raise ValueError(f"seed must be an integer from 0 to 2**64 - 1, got {seed!r}")
    for name, (tensor, distribution) in tensors.items():
        _check(name, tensor, distribution)
    _check_disjoint({name: tensor for name, (tensor, _) in tensors.items()})

    parts = {} if runs is None else runs
    tasks = (
        task
        for name, (tensor, distribution) in tensors.items()
        for task in _tasks(tensor, distribution, _key(seed, name), parts.get(name))
    )
    scratch = _Scratch()

    def run(batch: list[_Task]) -> int:
        # Otherwise parameters, and tensors made in inference mode, refuse to be written to.
        with torch.inference_mode():
            return sum(task.run(scratch) for task in batch)

    with ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="zoo-fill") as pool:
        for size in pool.map(run, _batches(tasks)):
            if on_bytes is not None:
                on_bytes(size)


def _check(name: str, tensor: torch.Tensor, distribution: Distribution) -> None:
    """Raise ValueError unless the tensor can be filled with the distribution."""
    what = f"cannot fill {name!r} ({tensor.dtype}, {tensor.device})"
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(f"{what}: not a dense CPU tensor")
    if not tensor.is_contiguous():
        raise ValueError(f"{what}: not contiguous")
    if tensor.dtype in _FLOATS:
        return
    if tensor.dtype not in _INTEGERS:
        raise ValueError(f"{what}: dtype not supported")
    if not isinstance(distribution, Constant | Cycle):
        raise ValueError(f"{what} with {distribution}: integers take a Constant or a Cycle only")
    limits = torch.iinfo(tensor.dtype)
    value = distribution.length - 1 if isinstance(distribution, Cycle) else distribution.value
    if not float(value).is_integer() or not limits.min <= value <= limits.max:
        raise ValueError(f"{what} with {value!r}: not a value of that dtype")


def _check_disjoint(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError if two tensors share memory: the last to write would win."""
    spans = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, name)
        for name, tensor in tensors.items()
    )
    for (_, end, name), (start, _, other) in pairwise(spans):
        if start < end:
            raise ValueError(f"cannot fill {name!r} and {other!r}: they share memory")


def _key(seed: int, name: str) -> int:
    """Return the 128-bit Philox key of a tensor's stream."""
    digest = sha256(b"zoo.init.v1\0" + seed.to_bytes(8, "little") + name.encode()).digest()
    return int.from_bytes(digest[:16], "little")


@cache
def _table() -> NDArray[np.float32]:
    """Return the shipped quantiles t, ascending, shape (65537,)."""
    with files("zoo").joinpath("init_v1_normal.npy").open("rb") as file:
        table: NDArray[np.float32] = np.load(file, allow_pickle=False)
    return table


@cache
def _slopes() -> NDArray[np.float32]:
    """Return each cell's rise per word, shape (65536,)."""
    return np.diff(_table()) * np.float32(2**-16)


@cache
def _cells() -> NDArray[np.int64]:
    """Return the table packed for a single lookup, shape (65536,).

    Each entry packs t[i] in its high and the slope in its low 32 bits, since one gather of 8 bytes
    costs no more than one of 4. They are in order of the word's high half read as u16.
    """
    starts = _table()[:-1].view(np.uint32).astype(np.int64)
    slopes = _slopes().view(np.uint32).astype(np.int64)
    return np.roll(starts << 32 | slopes, 1 << 15)


def _quantile(word: int) -> np.float32:
    """Return z(word), for one word in [-2**31, 2**31)."""
    cell = (word >> 16) + (1 << 15)
    return np.float32(np.float32(word & 0xFFFF) * _slopes()[cell] + _table()[cell])


@cache
def _half_range(cut: float) -> int:
    """Return the greatest k <= 2**31 such that |z| <= cut for every word in [-k, k)."""

    def outside(k: int) -> bool:
        # The table is odd, so word -k is farther from 0 than word k - 1.
        return float(_quantile(-k)) < -cut

    return bisect_left(range(1, (1 << 31) + 1), True, key=outside)


class _Scratch(threading.local):
    """One set of buffers per thread, allocated when the thread first uses them."""

    def __init__(self) -> None:
        self.index = np.empty(_STEP, np.int32)
        self.cell = np.empty(_STEP, np.int64)
        self.value = np.empty(_STEP, np.float32)


@dataclass(frozen=True, slots=True)
class _Task:
    """Fills a piece of a flat tensor with the elements of a stream from `start` on."""

    part: torch.Tensor
    distribution: Distribution
    key: int
    start: int

    def run(self, scratch: _Scratch) -> int:
        """Fill the elements, and return their size in bytes."""
        if isinstance(self.distribution, Constant):
            value = self.distribution.value
            exact = float(np.float32(value)) if self.part.is_floating_point() else int(value)
            for few in torch.split(self.part, _GRAIN):
                few.fill_(exact)
        elif isinstance(self.distribution, Cycle):
            at = self.start
            for few in torch.split(self.part, _GRAIN):
                few.copy_(torch.arange(at, at + few.numel()) % self.distribution.length)
                at += few.numel()
        else:
            self._draw_all(self.distribution, scratch)
        return self.part.nbytes

    def _draw_all(self, distribution: _Random, scratch: _Scratch) -> None:
        philox = np.random.Philox(key=self.key)
        philox.advance(self.start // _WORDS_PER_BLOCK)
        # Only the first step may begin inside a block: the others are at multiples of _STEP.
        skipped = self.start % _WORDS_PER_BLOCK
        first = min(_STEP - self.start % _STEP, self.part.numel())
        for step in (self.part[:first], *torch.split(self.part[first:], _STEP)):
            size = step.numel()
            words = philox.random_raw((skipped + size + 1) // 2).view(np.int32)
            words, skipped = words[skipped : skipped + size], 0
            if step.dtype == torch.float32:
                _draw(distribution, words, scratch, out=step.numpy())
                continue
            value = scratch.value[:size]
            _draw(distribution, words, scratch, out=value)
            pairs = zip(
                torch.split(step, _GRAIN), torch.split(torch.from_numpy(value), _GRAIN), strict=True
            )
            for few, drawn in pairs:
                few.copy_(drawn)


def _tasks(
    tensor: torch.Tensor, distribution: Distribution, key: int, runs: Runs | None
) -> Iterator[_Task]:
    flat = tensor.view(-1)
    done = 0
    for start, length in [(0, flat.numel())] if runs is None else runs:
        for offset in range(0, length, _TASK):
            end = min(offset + _TASK, length)
            yield _Task(flat[done + offset : done + end], distribution, key, start + offset)
        done += length


def _batches(tasks: Iterable[_Task]) -> Iterator[list[_Task]]:
    """Yield the tasks in order, in batches of at least `_TASK` elements, except the last batch.

    A thread takes a batch at a time: many small tensors would otherwise cost more to hand out
    than to fill.
    """
    batch: list[_Task] = []
    size = 0
    for task in tasks:
        batch.append(task)
        size += task.part.numel()
        if size >= _TASK:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _draw(
    distribution: _Random,
    words: NDArray[np.int32],
    scratch: _Scratch,
    *,
    out: NDArray[np.float32],
) -> None:
    """Write the elements made of `words` to `out`, both of shape (n,). `words` is overwritten."""
    if isinstance(distribution, Uniform):
        np.right_shift(words, 8, out=words)
        np.copyto(out, words, casting="unsafe")  # 24 bits: exact
        np.multiply(out, np.float32(distribution.bound * 2**-23), out=out)
        return
    index, cell = scratch.index[: words.size], scratch.cell[: words.size]
    if isinstance(distribution, TruncatedNormal):
        np.multiply(words, np.int64(_half_range(distribution.cut)), out=cell)
        np.right_shift(cell, 31, out=cell)
        np.copyto(words, cell, casting="unsafe")
    np.right_shift(words.view(np.uint32), 16, out=index.view(np.uint32))
    np.bitwise_and(words, 0xFFFF, out=words)
    np.copyto(out, words, casting="unsafe")
    # torch's gather, which moves bits and computes nothing, is faster than np.take.
    torch.index_select(
        torch.from_numpy(_cells()), 0, torch.from_numpy(index), out=torch.from_numpy(cell)
    )
    np.copyto(index, cell, casting="unsafe")  # keeps the low halves: the slopes
    np.multiply(out, index.view(np.float32), out=out)
    np.add(out, cell.view(np.float32)[1::2], out=out)
    np.multiply(out, np.float32(distribution.std), out=out)
