"""Atomic writing of weights, in one file or in shards. This module does not import torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from zoo.arguments import check_count
from zoo.errors import ZooError
from zoo.files.atomic import new_file, remove_file
from zoo.files.of_model import WEIGHTS, WEIGHTS_INDEX
from zoo.weights.file import Header, saved_path
from zoo.weights.output_names import check_output_name
from zoo.weights.shards import index_bytes, plan_shards, shard_names, shards_in

Content = Callable[[str], Iterable[memoryview]]
"""Returns the bytes of the tensor with a name, in parts."""
OnBytes = Callable[[int], None]
Write = Callable[[Header, Content], None]


@contextmanager
def destination(
    path: Path, *, max_shard_bytes: int | None, on_bytes: OnBytes | None = None
) -> Generator[Write]:
    """Open a place for weights, and yield the function that writes them. Whether the place is
    writable is checked at once; the weights take their place when the block ends without an error.

    Args:
        path: a `.safetensors` file, or a folder.
        max_shard_bytes: the most bytes of tensors in a shard; None writes one file.
        on_bytes: called with the number of bytes written since the last call.

    Raises:
        WeightsError: the path has the suffix of another format, or that of a single file although
            shards are written.
        InputError: `max_shard_bytes` is no integer, or below 1.
        ZooError: the place cannot be written to, or holds an index that is not the zoo's.
    """
    check_output_name(path, folder=max_shard_bytes is not None)
    if max_shard_bytes is not None:
        most = check_count("max_shard_bytes", max_shard_bytes)
        with _shards(path, most, on_bytes) as write:
            yield write
        return
    target = saved_path(path)
    # An index takes precedence over a file beside it, so it is removed after the file is written.
    stale = shards_in(target.parent) if target.name == WEIGHTS else []
    with new_file(target) as file:

        def write_file(header: Header, content: Content) -> None:
            file.write(header.to_bytes())
            _write_tensors(file, header.names_in_file(), content, on_bytes)

        yield write_file
    if stale:
        remove_file(target.with_name(WEIGHTS_INDEX))
        _drop_unnamed(target.parent, stale)


@contextmanager
def _shards(folder: Path, max_bytes: int, on_bytes: OnBytes | None) -> Generator[Write]:
    stale = {WEIGHTS, *shards_in(folder)}
    new: list[str] = []
    try:
        # The index is opened first and gets its name last, when all its shards are on disk.
        with new_file(folder / WEIGHTS_INDEX) as index:

            def write(header: Header, content: Content) -> None:
                sizes = {name: header.records[name].n_bytes for name in header.names_in_file()}
                plan = plan_shards(sizes, max_bytes)
                for name, names in zip(shard_names(header, plan), plan, strict=True):
                    if not (folder / name).exists():
                        new.append(name)
                    with new_file(folder / name) as file:
                        file.write(header.shard_bytes(names))
                        _write_tensors(file, names, content, on_bytes)
                index.write(index_bytes(header, plan))

            yield write
    except BaseException:
        _drop_unnamed(folder, new)
        raise
    _drop_unnamed(folder, stale)


def _drop_unnamed(folder: Path, names: Iterable[str]) -> None:
    """Remove the files with these names that the index in the folder does not name, ignoring
    errors."""
    # The index is read now: after a failed sync it has its name already, and another process may
    # have written it.
    try:
        unnamed = {*names} - {*shards_in(folder)}
    except ZooError:
        return
    for name in unnamed:
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def _write_tensors(
    file: BinaryIO, names: Iterable[str], content: Content, on_bytes: OnBytes | None
) -> None:
    for name in names:
        for part in content(name):
            written = file.write(part)
            if on_bytes is not None:
                on_bytes(written)
