"""A model in, one weights file out: digested on all cores, written so that no crash can tear it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import torch

import zoo
from zoo.atomic import new_file
from zoo.building import differences_from_spec, stored
from zoo.component import Component, fields_of
from zoo.document import read_document
from zoo.errors import Problem, WeightsError
from zoo.registry import shipped_registry
from zoo.slots import SLOTS, Plugin
from zoo.spec import ModelSpec
from zoo.transformer import Transformer
from zoo.weights_file import Header, Record, saved_path

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
}
"""torch's dtypes that a model may store, with their names in a header."""


def save(model: Transformer, path: str | Path) -> str:
    """Write a model as one file that rebuilds itself.

    The bytes depend on the spec, the tensors and the versions of the plugins alone. Whatever was
    at `path` stays whole until the new file is complete and on disk.

    Args:
        model: a model that `zoo.build` or `zoo.load` returned, on any device but "meta".
        path: a `.safetensors` file, or a folder that gets a `model.safetensors`; missing folders
            are made.

    Returns:
        The content digest: `sha256:` over the sorted records of the tensors.

    Raises:
        WeightsError: the model has no values, or its tensors are not those of its spec.
        ZooError: the file cannot be written.
    """
    with new_file(saved_path(Path(path))) as file:
        return write(model, file)


def write(
    model: Transformer, file: BinaryIO, *, on_bytes: Callable[[int], None] | None = None
) -> str:
    """Write a model to an open file, as `save` does.

    Args:
        model: as for `save`.
        file: open for writing, at its start.
        on_bytes: called with the number of bytes written since the last call.
    """
    tensors = _storable(model)
    spec = model.spec
    header = Header(
        spec=spec.to_dict(),
        provenance={"zoo": zoo.__version__, "plugins": plugin_versions(spec)},
        ties=dict(spec.ties),
        records=_records(tensors),
    )
    file.write(header.to_bytes())
    for name in header.names_in_file():
        written = file.write(bytes_of(tensors[name]))
        if on_bytes is not None:
            on_bytes(written)
    return header.content_digest


def _storable(model: Transformer) -> dict[str, torch.Tensor]:
    """The tensors of a model as they are stored: contiguous, on the CPU."""
    spec = getattr(model, "spec", None)
    if not isinstance(spec, ModelSpec):
        raise WeightsError("only a model that the zoo built knows the spec that a file needs")
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise WeightsError(f"{spec.name} is on the meta device: it has no values to save")
    if differences := differences_from_spec(model):
        shown = "\n  ".join(differences[:8])
        raise WeightsError(
            Problem(
                f"the tensors of {spec.name} are not those of its spec\n  {shown}",
                help="a change of the architecture belongs into the spec",
            )
        )
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in stored(model).items():
        if tensor.dtype not in DTYPES or tensor.layout != torch.strided:
            raise WeightsError(
                f"the tensor `{name}` is {tensor.dtype} ({tensor.layout}), which is not stored"
            )
        tensors[name] = tensor.detach().cpu().contiguous()
    return tensors


def _records(tensors: Mapping[str, torch.Tensor]) -> dict[str, Record]:
    """The record of each tensor; digests run on all cores, the largest tensors first."""

    def record(name: str) -> Record:
        tensor = tensors[name]
        return Record(DTYPES[tensor.dtype], tuple(tensor.shape), sha256_of(tensor))

    largest_first = sorted(tensors, key=lambda name: tensors[name].nbytes, reverse=True)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return dict(zip(largest_first, pool.map(record, largest_first), strict=True))


def sha256_of(tensor: torch.Tensor) -> str:
    """The hexadecimal SHA-256 of a contiguous CPU tensor's bytes."""
    return hashlib.sha256(bytes_of(tensor)).hexdigest()


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor."""
    raw: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(raw)


def plugin_versions(spec: ModelSpec) -> dict[str, str]:
    """Each plugin that a spec uses, as `slot.kind`, and the distribution and version, or the
    SHA-256 of the file, that it came from."""
    plugins, shipped = dict(_plugins(spec.model)), _shipped_packages()
    return {name: _origin(plugins[name], shipped) for name in sorted(plugins)}


def _plugins(component: Component) -> Iterator[tuple[str, type[Plugin]]]:
    if isinstance(component, Plugin):
        slot = next(slot for slot, base in SLOTS.items() if isinstance(component, base))
        yield f"{slot}.{component.kind}", type(component)
    for name in fields_of(type(component)):
        value = getattr(component, name)
        parts: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
        for part in parts:
            if isinstance(part, Component):
                yield from _plugins(part)


def _shipped_packages() -> set[str]:
    tables = read_document(shipped_registry()).data
    return {target.partition(".")[0] for slot in SLOTS for target in tables.get(slot, {}).values()}


@cache
def _distributions() -> Mapping[str, list[str]]:
    """The installed distributions by their packages; looking costs a tenth of a second."""
    from importlib.metadata import packages_distributions

    return packages_distributions()


def _origin(cls: type[Plugin], shipped: set[str]) -> str:
    from importlib.metadata import version

    package = cls.__module__.partition(".")[0]
    if package in shipped:
        return f"zoo {zoo.__version__}"
    if owners := _distributions().get(package):
        return f"{owners[0]} {version(owners[0])}"
    file = Path(sys.modules[cls.__module__].__file__ or "")
    return "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()
