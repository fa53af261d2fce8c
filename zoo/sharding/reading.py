"""Loading a process' shard of saved weights: it reads only the bytes of its own elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch.distributed.device_mesh import DeviceMesh

from zoo.errors import Place, WeightsError
from zoo.initial import fill_initial
from zoo.sharding.filling import fill_shares
from zoo.sharding.mesh import place_in
from zoo.sharding.model import check_dtypes, shard
from zoo.sharding.parts import local
from zoo.sharding.shares import Run, runs_of
from zoo.sharding.together import gathered
from zoo.transformer import Transformer
from zoo.weights.dtypes import TORCH_DTYPES, beyond_range, n_beyond
from zoo.weights.file import changed_tensors
from zoo.weights.held_tensors import bytes_of, stored
from zoo.weights.open_file import STEP
from zoo.weights.reader import Weights
from zoo.weights.tensor_reader import dtype_in_model


def load_shares(
    model: Transformer,
    weights: Weights,
    names: set[str],
    mesh: DeviceMesh,
    device: torch.device,
    dtype: torch.dtype | None,
    *,
    verify: bool,
) -> dict[str, torch.Tensor]:
    """Shard a meta-built model, and read this process' shard of each of its tensors, by name.

    Args:
        model: the meta-built model of the weights.
        weights: open weights that `zoo.load` has checked.
        names: the tensors that are read; the others get initial values.
        mesh: the processes, all of which call this.
        device: where the shards are placed.
        dtype: the dtype that floating-point tensors are cast to; None keeps them as stored.
        verify: whether every tensor that is read is hashed; the processes that read the same files
            divide this work.

    Raises:
        WeightsError: a file cannot be read, was written to meanwhile, or does not have the bytes
            of its records; `dtype` cannot hold a value; or as `check_dtypes`.
        ZooError: as `shard`.
    """
    # First, since all exchange it: before any of them may fail.
    readers = _readers_of_same(weights, mesh)
    records, where = weights.header.records, Place(str(weights.path))
    dtypes = {name: dtype_in_model(record, dtype) for name, record in records.items()}
    check_dtypes(model, dtypes, mesh, where)
    shard(model, mesh)
    shares = {
        name: torch.empty_like(tensor, dtype=dtypes[name], device=device)
        for name, tensor in stored(model).items()
    }
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        found = pool.map(lambda name: (name, _read(weights, name, shares[name])), sorted(names))
        beyond = [beyond_range(n, name, dtypes[name], where) for name, n in found if n]
    changed = (
        _changed(weights, names, readers.index(place_in(mesh)), len(readers)) if verify else []
    )
    weights.check_unchanged()
    if changed:
        raise changed_tensors(changed, where)
    if beyond:
        raise WeightsError(beyond)
    left = {name: share for name, share in shares.items() if name not in names}
    fill_shares(left, partial(fill_initial, spec=model.spec))
    return shares


def _read(weights: Weights, name: str, tensor: torch.Tensor) -> int:
    """Read this process' share of a tensor; return the number of its values that the dtype of
    `tensor` cannot hold."""
    share = local(tensor).view(-1)
    stored = TORCH_DTYPES[weights.header.records[name].dtype]
    room = STEP // stored.itemsize
    staged = torch.empty(min(room, share.numel()), dtype=stored, device="cpu")
    raw = bytes_of(staged)
    done = n_values = 0
    for batch in _batches(runs_of(tensor), room):
        end = 0
        for start, length in batch:
            part = raw[end * stored.itemsize : (end + length) * stored.itemsize]
            weights.read_part(name, part, start * stored.itemsize)
            end += length
        cast = share[done : done + end].copy_(staged[:end])
        n_values += n_beyond(staged[:end], cast)
        done += end
    return n_values


def _batches(runs: Iterable[Run], room: int) -> Iterator[list[Run]]:
    """The runs in order, in batches of at most `room` elements; longer runs are split."""
    batch: list[Run] = []
    left = room
    for start, length in runs:
        end = start + length
        while start < end:
            piece = Run(start, min(left, end - start))
            batch.append(piece)
            start, left = start + piece.length, left - piece.length
            if not left:
                yield batch
                batch, left = [], room
    if batch:
        yield batch


def _readers_of_same(weights: Weights, mesh: DeviceMesh) -> list[int]:
    """The places in the mesh of the processes that have the same files open as this one, which is
    among them. Others have copies, such as on disks of their own, of which each may be damaged."""
    own = [file.identity for file in weights.files]
    return [at for files, at in gathered([(own, place_in(mesh))], mesh) if files == own]


def _changed(weights: Weights, names: Iterable[str], number: int, n_readers: int) -> list[str]:
    """The tensors whose bytes do not have the SHA-256 of their record, among those that the process
    of this number, of all that read the same files, hashes."""
    records = weights.header.records
    largest_first = sorted(names, key=lambda name: (-records[name].n_bytes, name))
    return weights.changed(largest_first[number::n_readers], torch.get_num_threads())
