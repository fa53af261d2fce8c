"""A weights file in, the model that was saved out, or an error: every tensor accounted for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open

from zoo.building import build_on_meta, place
from zoo.document import from_data
from zoo.errors import Place, Problem, RegistryError, WeightsError, did_you_mean, quoted
from zoo.layout import Tensor
from zoo.reading import spec_of
from zoo.registry import Registry, load_registry
from zoo.saving import DTYPES, sha256_of
from zoo.spec import ModelSpec
from zoo.transformer import Transformer
from zoo.weights_file import Header, Record, not_whole, read_header, weights_path

_TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
_FLOATS = {name for name, dtype in _TORCH_DTYPES.items() if dtype.is_floating_point}


def load(
    path_or_name: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    verify: bool = True,
    registry: Registry | None = None,
) -> Transformer:
    """Rebuild a saved model.

    Args:
        path_or_name: a weights file, a folder that holds a `model.safetensors`, or a named model.
        device: where the tensors are placed.
        dtype: what floating-point tensors are cast to; kept as stored unless given.
        verify: whether each tensor's bytes are checked against its SHA-256 record.
        registry: where the plugins are looked up; the layers around the working directory unless
            given.

    Raises:
        WeightsError: the file is missing, damaged, not the zoo's, or not what its spec says.
        RegistryError: the named model has no weights.
        SpecError, PluginError: its spec cannot be built with the plugins at hand.
    """
    registry = load_registry() if registry is None else registry
    path = _find(path_or_name, registry)
    where = Place(str(path))
    header = read_header(path)
    spec = spec_of(from_data(header.spec, f"{path} (its spec)"), registry)
    _check_against_spec(header, spec, where)
    model = build_on_meta(spec, dtype or _dtype_of(header))
    try:
        # Read, not mapped: of a file that shrinks meanwhile comes an error and not a SIGBUS.
        with cast("Any", safe_open)(str(path), framework="pt", backend="pread") as file:
            tensors = _read(file, header.records, device, dtype, where, verify=verify)
    except SafetensorError as error:
        raise not_whole(error, where) from None
    except OSError as error:
        raise WeightsError(Problem(f"cannot be read: {error.strerror}", where)) from None
    return place(model, tensors, device=device)


def _find(path_or_name: str | Path, registry: Registry) -> Path:
    path, name = Path(path_or_name), str(path_or_name)
    if path.exists() or path.suffix == ".safetensors":
        return weights_path(path)
    if registry.catalog.file(name.partition("@")[0]) is not None:
        from zoo.store import resolve

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


def _dtype_of(header: Header) -> torch.dtype:
    """The dtype of the first floating-point tensor: that of the tables that are not stored."""
    floats = (r.dtype for _, r in sorted(header.records.items()) if r.dtype in _FLOATS)
    return _TORCH_DTYPES[next(floats, "F32")]


def _read(
    file: Any,
    records: Mapping[str, Record],
    device: str | torch.device,
    dtype: torch.dtype | None,
    where: Place,
    *,
    verify: bool,
) -> dict[str, torch.Tensor]:
    """Read, check and cast one tensor after the other on every core, so that little more than the
    result is in memory."""

    def read(name: str) -> torch.Tensor | None:
        tensor: torch.Tensor = file.get_tensor(name)
        record = records[name]
        # The file may be another one by now than that whose header was read.
        same = tensor.dtype == _TORCH_DTYPES[record.dtype] and tuple(tensor.shape) == record.shape
        if not same or (verify and sha256_of(tensor) != record.sha256):
            return None
        return tensor.to(device, dtype if tensor.is_floating_point() else None)

    largest_first = sorted(records, key=lambda name: records[name].n_bytes, reverse=True)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        read_tensors = dict(zip(largest_first, pool.map(read, largest_first), strict=True))
    tensors = {name: tensor for name, tensor in read_tensors.items() if tensor is not None}
    if changed := sorted(records.keys() - tensors.keys()):
        raise WeightsError(
            Problem(f"the bytes of `{name}` are not those that were saved", where)
            for name in changed
        )
    return tensors
