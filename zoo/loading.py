"""A weights file in, the model that was saved out, or an error: every tensor accounted for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError, safe_open

from zoo.building import build_on_meta, place
from zoo.document import from_data
from zoo.errors import Place, Problem, RegistryError, WeightsError
from zoo.layout import Tensor
from zoo.registry import Registry, load_registry
from zoo.resolve import resolve
from zoo.saving import DTYPES, sha256_of
from zoo.spec import ModelSpec
from zoo.transformer import Transformer
from zoo.validate import validate
from zoo.weights_file import Header, Record, read_header, weights_path

FLOATS = {name for dtype, (name, _) in DTYPES.items() if dtype.is_floating_point}


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
        SpecError, PluginError: its spec cannot be built with the plugins at hand.
    """
    registry = load_registry() if registry is None else registry
    path = _find(path_or_name, registry)
    header = read_header(path)
    spec = validate(resolve(from_data(header.spec, f"{path} (its spec)"), registry))
    _check_against_spec(header, spec, Place(str(path)))
    tensors = _read(path)
    if verify:
        _verify(tensors, header.records, Place(str(path)))
    stored_dtype = next((t.dtype for t in tensors.values() if t.is_floating_point()), torch.float32)
    model = build_on_meta(spec, dtype or stored_dtype)
    return place(
        model,
        {
            name: tensor.to(device, dtype if tensor.is_floating_point() else None)
            for name, tensor in tensors.items()
        },
    )


def _find(path_or_name: str | Path, registry: Registry) -> Path:
    path = Path(path_or_name)
    if not path.exists() and str(path_or_name) in registry.models:
        raise RegistryError(
            Problem(
                f"the model `{path_or_name}` is registered with a spec and without weights",
                registry.models[str(path_or_name)].place,
                help=f"`zoo build {path_or_name} -o DIR` makes its initial weights",
            )
        )
    return weights_path(path)


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
    allowed = FLOATS if described.dtype == "float" else {"I64"}
    return "" if record.dtype in allowed else f"is {record.dtype}, not {' or '.join(sorted(allowed))}"


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        # Read, not mapped: a file that shrinks meanwhile is then an error and not a SIGBUS.
        with safe_open(str(path), framework="pt", backend="pread") as file:  # pyright: ignore
            return cast("dict[str, torch.Tensor]", file.get_tensors())  # pyright: ignore
    except (SafetensorError, OSError) as error:
        raise WeightsError(Problem(f"cannot be read: {error}", Place(str(path)))) from None


def _verify(
    tensors: Mapping[str, torch.Tensor], records: Mapping[str, Record], where: Place
) -> None:
    names: Iterable[str] = sorted(tensors, key=lambda name: tensors[name].nbytes, reverse=True)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        digests = dict(zip(names, pool.map(lambda n: sha256_of(tensors[n]), names), strict=True))
    changed = sorted(name for name in names if digests[name] != records[name].sha256)
    if changed:
        raise WeightsError(
            Problem(f"the bytes of `{name}` are not those that were saved", where)
            for name in changed
        )
