"""Saved weights in, the model that was saved out, or an error: every tensor accounted for."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import torch

from zoo.building import build_on_meta, empty, fill_initial, place
from zoo.bundle import check_files, check_weights, is_weights, lock_of_bundle
from zoo.document import from_weights
from zoo.errors import Place, Problem, RegistryError, WeightsError, did_you_mean, quoted
from zoo.layout import Tensor
from zoo.load_report import LoadReport, TensorReport
from zoo.lock import check_locked
from zoo.reading import spec_of
from zoo.registry import Registry, load_registry
from zoo.saving import DTYPES, TORCH_DTYPES, bytes_of
from zoo.spec import ModelSpec
from zoo.store import resolve
from zoo.transformer import Transformer
from zoo.weights_file import Header, Record, changed_tensor, weights_path
from zoo.weights_reader import Weights, open_weights

Read = Literal["bytes", "mmap"]

_FLOATS = {name for name, dtype in TORCH_DTYPES.items() if dtype.is_floating_point}


@contextmanager
def _collector_at_rest() -> Generator[None]:
    """Python's garbage collector looks through all objects whenever many were made. Those of a
    model are not garbage, and to look takes a tenth of the time that mapping its file does."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_collector_at_rest()
def load(
    path_or_name: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    verify: bool = True,
    only: str | Sequence[str] | None = None,
    read: Read | None = None,
    locked: bool = False,
    registry: Registry | None = None,
) -> Transformer:
    """Rebuild a saved model.

    Args:
        path_or_name: a weights file, a folder that holds a `model.safetensors` or the index of its
            shards, a bundle, or a named model. The files of a bundle are held against its lock.
        device: where the tensors are placed.
        dtype: what floating-point tensors are cast to; kept as stored unless given.
        verify: whether each tensor's bytes are checked against its SHA-256 record.
        only: patterns of the names of the tensors that are loaded, such as "encoder.*". The others
            get the initial values that the spec describes, with the seed 0.
        read: "bytes" copies the tensors into memory; "mmap" maps the files, which must be
            read-only. Unless given, read-only files are mapped.
        locked: whether the zoo, torch and the plugins must be those of the bundle's lock.
        registry: where the plugins are looked up; the layers around the working directory unless
            given.

    Returns:
        The model. Its `load_report` tells what was done with each tensor.

    Raises:
        WeightsError: a file is missing, damaged, not the zoo's, or not what its spec or its lock
            says; or nothing matches a pattern of `only`.
        RegistryError: the named model has no weights.
        SpecError, PluginError: its spec cannot be built with the plugins at hand.
    """
    registry = load_registry() if registry is None else registry
    path = find_weights(path_or_name, registry)
    where = Place(str(path))
    patterns = [only] if isinstance(only, str) else only
    lock = lock_of_bundle(path.parent)
    if lock is not None:
        # But for the weights, whose tensors are hashed when they are read.
        check_files(path.parent, lock, [name for name in lock.files if not is_weights(name)])
    with open_weights(path) as weights:
        header = weights.header
        if lock is not None:
            check_weights(path.parent, lock, weights)
        spec = spec_of(from_weights(header.spec, f"{path} (its spec)"), registry)
        if locked:
            check_locked(spec, path.parent)
        _check_against_spec(header, spec, where)
        names = _matching(header, patterns, where)
        model = build_on_meta(spec, dtype or _dtype_of(header))
        reader = _Reader(
            weights, spec, torch.device(device), dtype, verify, _is_mapped(weights, read, where)
        )
        tensors = reader.read_all(names)
    tensors |= reader.initial(header.records.keys() - names)
    model.load_report = reader.report(names)
    model.origin = header.origin
    if len(names) < len(header.records):
        model.origin = {
            "only": patterns,
            "content_digest": header.content_digest,
            "origin": header.origin,
        }
    return place(model, tensors, device=device)


def find_weights(path_or_name: str | Path, registry: Registry) -> Path:
    """The weights file, or the index of shards, that a path or the name of a model means; a
    published model is pulled first if it is not in the store. Raises as `load`."""
    path, name = Path(path_or_name), str(path_or_name)
    if path.exists() or path.suffix == ".safetensors":
        return weights_path(path)
    if registry.catalog.file(name.partition("@")[0]) is not None:
        return weights_path(resolve(name, registry))
    if name in registry.models:
        raise RegistryError(
            Problem(
                f"the model `{name}` is registered with a spec and without weights",
                registry.models[name].place,
                help=f"`zoo build {name} -o DIR` makes its initial weights",
            )
        )
    hint = did_you_mean(name, [*registry.models, *registry.catalog.known()])
    raise WeightsError(Problem(f"there is no weights file and no model {quoted(name)}", help=hint))


def _check_against_spec(header: Header, spec: ModelSpec, where: Place) -> None:
    described, records = spec.tensors, header.records
    problems: list[Problem] = []
    for name in sorted(described.keys() | records.keys()):
        if name not in records:
            problems.append(Problem(f"the spec needs a tensor `{name}`; it is missing", where))
        elif name not in described:
            problems.append(Problem(f"the spec has no place for the tensor `{name}`", where))
        elif message := _mismatch(described[name], records[name]):
            problems.append(Problem(f"the tensor `{name}` {message}", where))
    if dict(spec.ties) != header.ties:
        problems.append(Problem("the tied tensors of the file are not those of its spec", where))
    if problems:
        raise WeightsError(problems)


def _mismatch(described: Tensor, record: Record) -> str:
    if described.shape != record.shape:
        return f"is {list(record.shape)}; the spec says {list(described.shape)}"
    allowed = sorted(_FLOATS) if described.dtype == "float" else ["I64"]
    return "" if record.dtype in allowed else f"is {record.dtype}, not {' or '.join(allowed)}"


def _matching(header: Header, patterns: Sequence[str] | None, where: Place) -> set[str]:
    """The stored names of the tensors of which some name matches a pattern."""
    if patterns is None:
        return set(header.records)
    stored_as = {**{name: name for name in header.records}, **header.ties}
    found: set[str] = set()
    problems: list[Problem] = []
    for pattern in patterns:
        matching = {first for name, first in stored_as.items() if fnmatchcase(name, pattern)}
        if not matching:
            message = f"no tensor has a name like {quoted(pattern)}"
            problems.append(Problem(message, where, did_you_mean(pattern, stored_as)))
        found |= matching
    if problems:
        raise WeightsError(problems)
    return found


def _is_mapped(weights: Weights, read: str | None, where: Place) -> bool:
    """Whether the files are mapped. Whoever shortens a mapped file kills the process with a SIGBUS,
    so only those that nobody has the permission to write to are."""
    if read not in (None, "bytes", "mmap"):
        raise WeightsError(f'weights are read as "bytes" or "mmap", not {quoted(read)}')
    if read == "mmap" and not weights.read_only:
        message = "a file that can be written to is not mapped: to shorten it would end the process"
        help_ = "take the permission to write away (`chmod a-w`), or read the bytes"
        raise WeightsError(Problem(message, where, help_))
    return read != "bytes" and weights.read_only


def _dtype_of(header: Header) -> torch.dtype:
    """The dtype of the first floating-point tensor: that of the tables that are not stored."""
    floats = (r.dtype for _, r in sorted(header.records.items()) if r.dtype in _FLOATS)
    return TORCH_DTYPES[next(floats, "F32")]


def _name_of(dtype: torch.dtype) -> str:
    """As safetensors names it, or torch if safetensors has no name for it."""
    return DTYPES.get(dtype) or str(dtype)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads, checks and casts the tensors of open weights."""

    weights: Weights
    spec: ModelSpec
    device: torch.device
    dtype: torch.dtype | None
    verify: bool
    mapped: bool

    def read_all(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """The named tensors, one after the other on every core, so that little more than the result
        is in memory."""
        records = self.weights.header.records
        largest_first = sorted(names, key=lambda name: records[name].n_bytes, reverse=True)
        if self.mapped and not self.verify:
            # Nothing is read before the model is used: less work than handing it to threads.
            tensors = {name: self._read(name) for name in largest_first}
        else:
            with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
                tensors = dict(zip(largest_first, pool.map(self._read, largest_first), strict=True))
        self.weights.check_unchanged()
        if changed := sorted(name for name, tensor in tensors.items() if tensor is None):
            where = Place(str(self.weights.path))
            raise WeightsError(
                problem for name in changed for problem in changed_tensor(name, where).problems
            )
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def _read(self, name: str) -> torch.Tensor | None:
        """One tensor; None if its bytes are not those of its record."""
        record = self.weights.header.records[name]
        stored, wanted = TORCH_DTYPES[record.dtype], self._dtype_of(record)
        if self.mapped and stored == wanted and self.device.type == "cpu":
            # Not hashed in the mapping, so that no load is ended by a SIGBUS.
            sha256 = self.weights.sha256(name) if self.verify else None
            tensor = self._map(name, record)
        else:
            tensor = empty(record.shape, stored, self.spec)
            sha256 = self.weights.read(name, bytes_of(tensor), hashed=self.verify)
        if self.verify and sha256 != record.sha256:
            return None
        return tensor.to(self.device, wanted)

    def _map(self, name: str, record: Record) -> torch.Tensor:
        dtype = TORCH_DTYPES[record.dtype]
        if record.n_bytes == 0:
            return empty(record.shape, dtype, self.spec)
        mapping, offset = self.weights.mapped(name)
        count = record.n_bytes // dtype.itemsize
        return torch.frombuffer(mapping, dtype=dtype, count=count, offset=offset).view(record.shape)

    def _dtype_of(self, record: Record) -> torch.dtype:
        """The dtype of a tensor in the model."""
        stored = TORCH_DTYPES[record.dtype]
        return self.dtype if self.dtype is not None and stored.is_floating_point else stored

    def initial(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """The named tensors with the values that the spec gives them to start from."""
        records = self.weights.header.records
        tensors = {
            name: empty(records[name].shape, self._dtype_of(records[name]), self.spec)
            for name in names
        }
        fill_initial(tensors, self.spec)
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}

    def report(self, loaded: set[str]) -> LoadReport:
        header = self.weights.header
        aliases: dict[str, list[str]] = {}
        for alias, first in sorted(header.ties.items()):
            aliases.setdefault(first, []).append(alias)
        rows = (
            TensorReport(
                name=name,
                aliases=tuple(aliases.get(name, ())),
                values="loaded" if name in loaded else "initial",
                stored=record.dtype,
                dtype=_name_of(self._dtype_of(record)),
                shape=record.shape,
                sha256=record.sha256,
                checked=self.verify and name in loaded,
            )
            for name, record in sorted(header.records.items())
        )
        return LoadReport(
            name=self.spec.name,
            path=str(self.weights.path),
            spec_digest=self.spec.digest,
            content_digest=header.content_digest,
            read="mmap" if self.mapped else "bytes",
            tensors=tuple(rows),
        )
