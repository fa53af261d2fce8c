"""Convert the tensors of a checkpoint into those of the zoo, on all cores, reading each once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from zoo.errors import Place, Problem, WeightsError
from zoo.families.import_plan import Import
from zoo.families.plan import Step
from zoo.families.reader import Reader
from zoo.families.tensor_writer import TensorWriter
from zoo.initial import empty
from zoo.machine.memory import Scratch
from zoo.weights.dtypes import TORCH_DTYPES
from zoo.weights.held_tensors import bytes_of
from zoo.weights.open_file import STEP


class _Job(NamedTuple):
    """A unit of work of one thread: the bytes that it reads, the bytes that it holds in memory at
    once, and its function."""

    n_bytes: int
    memory: int
    do: Callable[[], None]


class Conversion:
    """The conversion of a checkpoint's tensors into those of the zoo. `digests` holds the SHA-256
    of copies and of their originals, as stored in the checkpoint; `stored` is memory for tensors of
    the checkpoint, and `made` for one that is made of them."""

    def __init__(self, planned: Import, reader: Reader, writer: TensorWriter) -> None:
        self.plan, self.tensors, self.spec = planned.plan, planned.tensors, planned.spec
        self.where = planned.where
        self.reader = reader
        self.writer = writer
        self.compared = {*self.plan.copies, *self.plan.copies.values()}
        self.digests: dict[str, str] = {}
        self.stored, self.made = Scratch(), Scratch()

    def run(self) -> None:
        """Write the target tensors of each step, and compare copies with their originals. The
        tensors in memory take no more than the size of the largest file, or of one step. Beside
        them, each thread holds of a quantized tensor the scales of its blocks and, if it is
        transposed, the small numbers of a matrix, and of an adapted one the factors of its update.

        Raises:
            WeightsError: a tensor results in another shape than the spec's, a copy differs from
                its original, or a file cannot be read or has changed.
            OSError: a tensor cannot be written.
        """
        jobs = [self._job(step) for step in self.plan.steps]
        jobs += [
            _Job(tensor.n_bytes, min(STEP, tensor.n_bytes), partial(self._digest, copy))
            for copy, tensor in self.tensors.items()
            if copy in self.plan.copies
        ]
        jobs.sort(key=lambda job: job.n_bytes, reverse=True)
        with ThreadPoolExecutor(max_workers=self._n_workers(jobs)) as pool:
            # The error of the first job that fails, in their order, ends the block once those
            # before it are done; jobs that have not begun by then are not run.
            for _ in pool.map(lambda job: job.do(), jobs):
                pass
        self._check_copies()

    def _n_workers(self, jobs: Sequence[_Job]) -> int:
        """Return the number of cores, or fewer, so that all workers together hold no more in memory
        than the size of the largest file."""
        sizes = dict[Path, int]()
        for tensor in self.tensors.values():
            sizes[tensor.path] = sizes.get(tensor.path, 0) + tensor.n_bytes
        largest_file = max(sizes.values(), default=0)
        most_memory = max((job.memory for job in jobs), default=0)
        return max(1, min(os.cpu_count() or 1, largest_file // max(1, most_memory)))

    def _job(self, step: Step) -> _Job:
        n_bytes = sum(self.tensors[key].n_bytes for key in step.sources)
        if step.stacked or step.active.relayout.changes:
            return _Job(n_bytes, 2 * n_bytes, partial(self._rearrange, step))
        return _Job(n_bytes, min(STEP, n_bytes), partial(self._pass_on, step))

    def _pass_on(self, step: Step) -> None:
        """Write a tensor that stays as it is, without holding all of it in memory."""
        (key,), (target,) = step.sources, step.targets
        self._check_shape(step, target, self.tensors[key].shape)
        self.writer.write(target, self.reader.steps(self.tensors[key]))
        self.digests[key] = self.writer.digests[target]

    def _rearrange(self, step: Step) -> None:
        parts = self._parts(step)
        for number, target in enumerate(step.targets):
            pieces = [part[number] for part in parts]
            shape = tuple(pieces[0].shape)
            shape = (len(pieces), *shape) if step.stacked else shape
            self._check_shape(step, target, shape)
            tensor = empty(shape, pieces[0].dtype, self.spec, self.made)
            if step.stacked:
                torch.stack(pieces, out=tensor)
            else:
                tensor.copy_(pieces[0])
            self.writer.write(target, steps_of(tensor))

    def _parts(self, step: Step) -> list[list[torch.Tensor]]:
        """Read the sources; return the part of each source for each target."""
        first, related = self.tensors[step.sources[0]], _rule(step)
        shape = (len(step.sources), *first.shape)
        stored = empty(shape, TORCH_DTYPES[first.dtype], self.spec, self.stored)
        parts: list[list[torch.Tensor]] = []
        for tensor, key in zip(stored, step.sources, strict=True):
            if self.tensors[key].shape != first.shape:
                message = f"`{key}` has another shape than `{step.sources[0]}`, beside it"
                raise WeightsError(Problem(message, self.where, related=related))
            self.reader.read(self.tensors[key], bytes_of(tensor))
            if key in self.compared:
                self.digests[key] = hashlib.sha256(bytes_of(tensor)).hexdigest()
            try:
                parts.append(step.active.relayout.apply(tensor))
            except ValueError as error:
                message = f"the tensor `{key}` is {list(tensor.shape)}: {error}"
                raise WeightsError(Problem(message, self.where, related=related)) from None
        return parts

    def _check_shape(self, step: Step, target: str, shape: tuple[int, ...]) -> None:
        expected = self.spec.tensors[target].shape
        if shape != expected:
            message = (
                f"the tensor `{step.sources[0]}` makes `{target}` {list(shape)}; "
                f"the spec says {list(expected)}"
            )
            raise WeightsError(Problem(message, self.where, related=_rule(step)))

    def _digest(self, key: str) -> None:
        sha256 = hashlib.sha256()
        for part in self.reader.steps(self.tensors[key]):
            sha256.update(part)
        self.digests[key] = sha256.hexdigest()

    def _check_copies(self) -> None:
        problems = [
            Problem(
                f"`{copy}` must be the same as `{original}`, and is not",
                self.where,
                help="the model has one tensor in the place of the two; if it is config.json that "
                "ties them, and both are meant, let it say that they are not tied",
            )
            for copy, original in self.plan.copies.items()
            if self._identity(copy) != self._identity(original)
        ]
        if problems:
            raise WeightsError(problems)

    def _identity(self, key: str) -> tuple[str, tuple[int, ...], str]:
        return self.tensors[key].dtype, self.tensors[key].shape, self.digests[key]


def _rule(step: Step) -> tuple[tuple[str, Place], ...]:
    return (("by this rule", step.active.place),)


def steps_of(tensor: torch.Tensor) -> Iterator[memoryview]:
    """Yield the bytes of a tensor in the order of its elements, in chunks."""
    data = bytes_of(tensor.contiguous())
    return (data[start : start + STEP] for start in range(0, len(data), STEP))
