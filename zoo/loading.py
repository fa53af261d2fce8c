"""Load the model of saved weights. Every tensor is accounted for, or it is an error."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from zoo.building import build_on_meta, place
from zoo.bundle import check_files, check_weights, is_weights, lock_of_bundle
from zoo.errors import InputError, Place, Problem, WeightsError
from zoo.layout import Tensor
from zoo.machine.devices import usable_device
from zoo.provenance.lock import DIGEST, Lock, check_locked
from zoo.provenance.origin import published_config
from zoo.provenance.plugins import ReplacedPluginWarning, replaced_code
from zoo.reading import made_with_others, spec_of_weights
from zoo.registry import Registry, in_force
from zoo.sharding.parts import local
from zoo.spec import ModelSpec
from zoo.store.found_weights import find_weights
from zoo.transformer import Transformer
from zoo.weights.dtypes import DTYPES, FLOATS, usable_dtype
from zoo.weights.file import Header, Record
from zoo.weights.load_report import LoadReport, TensorReport
from zoo.weights.matching import matching
from zoo.weights.reader import Weights, open_weights
from zoo.weights.tensor_reader import TensorReader
from zoo.wording import quoted

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Read = Literal["bytes", "mmap"]


@contextmanager
def _collector_at_rest() -> Generator[None]:
    """Pause Python's garbage collector, which visits all objects whenever many were created. Those
    of a model are not garbage, and the visits take a tenth of the time of mapping its file."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def load(
    path_or_name: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    mesh: DeviceMesh | None = None,
    verify: bool = True,
    only: str | Sequence[str] | None = None,
    read: Read | None = None,
    locked: bool = False,
    content_digest: str | None = None,
    spec_digest: str | None = None,
    registry: Registry | None = None,
) -> Transformer:
    """Load a saved or published model, and check that every byte of it is as it was saved.

    The model is built from the spec in its file. Nothing is initialised, cast or left out unless an
    argument says so. It is in training mode, as every new module of PyTorch is: call `.eval()`.

    Args:
        path_or_name: a weights file, a folder that holds a `model.safetensors` or the index of its
            shards, a bundle, or a named model. The files of a bundle are checked by its lock. With
            a mesh, one process of each machine pulls a model that is not in the store.
        device: the device of the tensors; by default the CPU, or the device of the mesh.
        dtype: floating-point tensors are cast to it, or to the one of this name, such as
            "bfloat16"; by default they are kept as stored.
        mesh: a mesh of processes, all of which call this. Each gets its share of the model. The
            dimensions are named `fsdp` (or `dp`), along which each process has some rows of every
            tensor and fetches the others when they are needed (`fully_shard`), and `tp`, along
            which each has some heads, hidden units and tokens. A process reads the bytes of its
            own share, and its memory holds no more than that and some megabytes.
        verify: whether the bytes of each tensor are compared with its SHA-256 record. With a mesh,
            processes that read the same file divide its tensors among them, and each hashes some,
            which it streams from disk: together they check every tensor once.
        only: patterns of the names of the tensors to load, such as "encoder.*". The others get the
            initial values of the spec, with the seed 0.
        read: "bytes" copies the tensors into memory; "mmap" maps the files, which must be
            read-only. By default, read-only files are mapped; with a mesh, none are.
        locked: whether the zoo, torch and the plugins must be those of the bundle's lock.
        content_digest: the content digest that the weights must have, "sha256:" and 64 digits:
            `load_report` has it, and `zoo.save` returns it.
        spec_digest: the digest that the spec must have, in the same form.
        registry: looks up plugins; by default the registries around the working directory.

    Returns:
        The model. Its `load_report` says what was done with each tensor. With a mesh, parameters
        that are divided among processes are DTensors.

    Warns:
        ReplacedPluginWarning: the code of a plugin is not that which the weights were made with.

    Raises:
        ZooError: the device cannot be used; `dtype` is the name of none; the mesh has other
            dimensions; or the heads cannot be distributed evenly along `tp`.
        WeightsError: a file is missing, damaged, not the zoo's, or does not agree with its spec or
            its lock; a value is finite, and would be infinite in `dtype`; or `only` has no pattern,
            or one that nothing matches; or a digest is not the one that is given.
        InputError: a digest is malformed, or is not to be verified.
        RegistryError: the named model has no weights.
        SpecError, PluginError: its spec cannot be built with the registered plugins.
    """
    digests = _digests(verify, content_digest=content_digest, spec_digest=spec_digest)
    with open_model(
        path_or_name,
        device=device,
        dtype=dtype,
        mesh=mesh,
        verify=verify,
        only=only,
        read=read,
        locked=locked,
        registry=registry,
    ) as opened:
        opened.check(digests)
        return opened.read()


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A saved model that is open, all of which is checked but the bytes of its tensors.

    Args:
        weights: its open weights.
        transformer: the model on the meta device, which `read` gives its values.
        names: the tensors that are read; the others get initial values.
        patterns: the patterns by which they were chosen; None if all are read.
        device, dtype, mesh: as in `load`.
        verified: whether the bytes that are read are checked.
        hashed: whether they are checked tensor by tensor; otherwise whole files are, if at all.
        mapped: whether the files are mapped into memory.
    """

    weights: Weights
    transformer: Transformer
    names: set[str]
    patterns: Sequence[str] | None
    device: torch.device
    dtype: torch.dtype | None
    mesh: DeviceMesh | None
    verified: bool
    hashed: bool
    mapped: bool

    @property
    def spec(self) -> ModelSpec:
        """The model's spec."""
        return self.transformer.spec

    @property
    def folder(self) -> Path:
        """The folder of the weights. Its other files are checked too, if it is a bundle or in the
        store, where their digests are known."""
        return self.weights.path.parent

    @property
    def config(self) -> str | None:
        """The text of the `config.json` that it was imported with, if there was one."""
        return published_config(self.weights.header.origin)

    def check(self, digests: Mapping[str, str]) -> None:
        """Raise WeightsError if a digest is not this one, by the names of `load`."""
        own = {
            "content_digest": self.weights.header.content_digest,
            "spec_digest": self.spec.digest,
        }
        where = Place(str(self.weights.path))
        if problems := [
            Problem(f"the {name.replace('_', ' ')} is {own[name]}, not {digest}", where)
            for name, digest in digests.items()
            if digest != own[name]
        ]:
            raise WeightsError(problems)

    def read(self) -> Transformer:
        """The model with its values. Raises and warns as `load`."""
        model, header = self.transformer, self.weights.header
        with _processes(self.mesh):
            tensors = self._tensors()
        place(model, tensors, device=self.device)
        if others := replaced_code(self.spec, header.plugins):
            told = f"{made_with_others(others)}, which may compute something else"
            warnings.warn(f"{self.weights.path}: {told}", ReplacedPluginWarning, stacklevel=3)
        model.load_report = self._report(tensors)
        model.origin = self._origin()
        return model

    def _tensors(self) -> Mapping[str, torch.Tensor]:
        """The tensors of the model, or of this process's share of it."""
        weights, names, mesh = self.weights, self.names, self.mesh
        device, dtype, hashed = self.device, self.dtype, self.hashed
        if mesh is not None:
            from zoo.sharding.reading import load_shares

            model = self.transformer
            return load_shares(model, weights, names, mesh, device, dtype, verify=hashed)
        reader = TensorReader(weights, self.spec, device, dtype, verify=hashed, mapped=self.mapped)
        return reader.read_all(names) | reader.initial(weights.header.records.keys() - names)

    def _origin(self) -> dict[str, Any] | None:
        """Where the model comes from: what the file says of it, and which part of the file it has,
        if not all of its tensors are read."""
        header = self.weights.header
        if len(self.names) == len(header.records):
            return header.origin
        part = {"only": self.patterns, "content_digest": header.content_digest}
        return {**(header.origin or {}), "part": part}

    def _report(self, tensors: Mapping[str, torch.Tensor]) -> LoadReport:
        header, spec = self.weights.header, self.spec
        rows = (
            TensorReport(
                name=name,
                aliases=spec.aliases.get(name, ()),
                values="loaded" if name in self.names else "initial",
                stored=record.dtype,
                dtype=DTYPES[tensors[name].dtype],
                shape=record.shape,
                share=tuple(local(tensors[name]).shape),
                sha256=record.sha256,
                checked=self.verified and name in self.names,
            )
            for name, record in sorted(header.records.items())
        )
        return LoadReport(
            name=spec.name,
            path=str(self.weights.path),
            spec_digest=spec.digest,
            content_digest=header.content_digest,
            read="mmap" if self.mapped else "bytes",
            plugins=header.plugins,
            seed=header.seed,
            tensors=tuple(rows),
        )


@contextmanager
def open_model(
    path_or_name: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    mesh: DeviceMesh | None = None,
    verify: bool = True,
    only: str | Sequence[str] | None = None,
    read: Read | None = None,
    locked: bool = False,
    registry: Registry | None = None,
) -> Generator[OpenModel]:
    """Open a saved model and check all of it but the bytes of its tensors, so that the files beside
    it can be read before these are. The arguments and the errors are those of `load`."""
    patterns = _patterns(only)
    if mesh is not None:
        from zoo.sharding.together import first_of_each_store

        # A model that is not in the store is pulled by one process; the others then find it there.
        first_of_each_store(lambda: find_weights(path_or_name, in_force(registry)), mesh)
    with _collector_at_rest(), ExitStack() as opened:
        with _processes(mesh) as same:
            device = _device(mesh, device)
            dtype = None if dtype is None else usable_dtype(dtype)
            registry = in_force(registry)
            found = find_weights(path_or_name, registry)
            where = Place(str(found.path))
            lock = _checked_lock(found.path.parent)
            weights = opened.enter_context(open_weights(found.path))
            header = weights.header
            mapped = _is_mapped(weights, read, where, shared_out=mesh is not None)
            has_blake3 = found.ref is not None and bool(found.ref.blake3)
            as_a_whole = mapped and patterns is None and has_blake3
            if verify:
                opened.enter_context(found.as_pulled(weights, as_a_whole=as_a_whole))
            spec = _checked_spec(weights, lock, registry, locked=locked)
            names = matching(header, patterns, where)
            same += [header.json_sha256, f"{dtype} {verify} {patterns}"]
            model = build_on_meta(spec, dtype or _dtype_of(header))
        yield OpenModel(
            weights,
            model,
            names,
            patterns,
            device,
            dtype,
            mesh,
            verified=verify,
            hashed=verify and not as_a_whole,
            mapped=mapped,
        )


def _digests(verify: bool, **stated: str | None) -> Mapping[str, str]:
    """Return the digests that a model must have. Raises `InputError` if one is none."""
    digests = {name: digest for name, digest in stated.items() if digest is not None}
    for name, digest in digests.items():
        if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
            raise InputError(f"`{name}` is `sha256:` and 64 digits from 0 to f, not {digest!r:.80}")
    if "content_digest" in digests and not verify:
        raise InputError(
            "a `content_digest` says how the bytes of tensors are; do not leave out their check"
        )
    return digests


def _patterns(only: str | Sequence[str] | None) -> Sequence[str] | None:
    """Return the patterns of names that were asked for. Raises `InputError` if they are none."""
    patterns = [only] if isinstance(only, str) else only
    if patterns is None or (
        isinstance(patterns, Sequence) and all(isinstance(one, str) for one in patterns)
    ):
        return patterns
    raise InputError(f"`only` is a pattern or a list of them, not {only!r:.80}")


def _processes(mesh: DeviceMesh | None) -> AbstractContextManager[list[str]]:
    """Return what coordinates the processes of a mesh. Without a mesh, torch's distributed package
    is not needed, and there is only this process."""
    if mesh is None:
        return nullcontext([])
    from zoo.sharding.together import processes_of

    return processes_of(mesh)


def _device(mesh: DeviceMesh | None, device: str | torch.device | None) -> torch.device:
    if mesh is None:
        return usable_device(device)
    from zoo.sharding.mesh import device_in

    return device_in(mesh, device)


def _checked_lock(folder: Path) -> Lock | None:
    """Return the lock of a bundle, after checking its files; None if the folder is not a bundle."""
    lock = lock_of_bundle(folder)
    if lock is not None:
        # Except the weights, whose tensors are hashed when they are read.
        check_files(folder, lock, [name for name in lock.files if not is_weights(name)])
    return lock


def _checked_spec(
    weights: Weights, lock: Lock | None, registry: Registry, *, locked: bool
) -> ModelSpec:
    """Return the spec of weights, after comparing them with it and with the bundle's lock."""
    path, header = weights.path, weights.header
    if lock is not None:
        check_weights(path.parent, lock, weights)
    spec = spec_of_weights(header, f"{path} (its spec)", registry)
    if locked:
        check_locked(spec, path.parent)
    _check_against_spec(header, spec, Place(str(path)))
    return spec


def _check_against_spec(header: Header, spec: ModelSpec, where: Place) -> None:
    described, records = spec.tensors, header.records
    problems: list[Problem] = []
    for name in sorted(described.keys() | records.keys()):
        if name not in records:
            problems.append(
                Problem(f"the spec needs a tensor {quoted(name)}; it is missing", where)
            )
        elif name not in described:
            problems.append(Problem(f"the spec has no place for the tensor {quoted(name)}", where))
        elif message := _mismatch(described[name], records[name]):
            problems.append(Problem(f"the tensor {quoted(name)} {message}", where))
    if dict(spec.ties) != header.ties:
        problems.append(Problem("the tied tensors of the file are not those of its spec", where))
    if problems:
        if others := replaced_code(spec, header.plugins):
            problems[-1] = problems[-1]._replace(help=made_with_others(others))
        raise WeightsError(problems)


def _mismatch(described: Tensor, record: Record) -> str:
    if described.shape != record.shape:
        return f"is {list(record.shape)}; the spec says {list(described.shape)}"
    allowed = sorted(FLOATS) if described.dtype == "float" else ["I64"]
    return "" if record.dtype in allowed else f"is {record.dtype}, not {' or '.join(allowed)}"


def _is_mapped(weights: Weights, read: str | None, where: Place, *, shared_out: bool) -> bool:
    """Return whether the files are mapped. If a mapped file is shortened, the process dies of a
    SIGBUS, so only files without write permission are."""
    if read not in (None, "bytes", "mmap"):
        raise WeightsError(f'weights are read as "bytes" or "mmap", not {quoted(read)}')
    if read == "mmap" and shared_out:
        raise WeightsError("shares of tensors are read as bytes; leave out `read`")
    if read == "mmap" and not weights.read_only:
        message = "a file that can be written to is not mapped: to shorten it would end the process"
        help_ = "take the permission to write away (`chmod a-w`), or read the bytes"
        raise WeightsError(message, where, help_)
    return read != "bytes" and weights.read_only and not shared_out


def _dtype_of(header: Header) -> torch.dtype:
    """Return the dtype of the first floating-point tensor, also used for tables not stored."""
    floats = (r.dtype for _, r in sorted(header.records.items()) if r.dtype in FLOATS)
    return FLOATS[next(floats, "F32")]
