"""A model in, one weights file out: digested on all cores, written so that no crash can tear it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import SafetensorError, TensorSpec, serialize_file

import zoo
from zoo.building import stored
from zoo.errors import Problem, WeightsError
from zoo.resolve import nodes
from zoo.slots import SLOTS
from zoo.spec import ModelSpec
from zoo.transformer import Transformer
from zoo.weights_file import KEY, Header, Record, weights_path

DTYPES = {
    torch.float64: ("F64", "float64"),
    torch.float32: ("F32", "float32"),
    torch.float16: ("F16", "float16"),
    torch.bfloat16: ("BF16", "bfloat16"),
    torch.int64: ("I64", "int64"),
}
"""torch's dtypes that a model may store, with their names in a header and for its writer."""


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
        WeightsError: the model has no values or no spec, or the file cannot be written.
    """
    spec = getattr(model, "spec", None)
    if not isinstance(spec, ModelSpec):
        raise WeightsError("only a model that the zoo built knows the spec that a file needs")
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in stored(model).items():
        if tensor.is_meta:
            raise WeightsError(f"{spec.name} is on the meta device: it has no values to save")
        if tensor.dtype not in DTYPES:
            raise WeightsError(f"the tensor `{name}` is {tensor.dtype}, which is not stored")
        tensors[name] = tensor.detach().cpu().contiguous()
    header = Header(
        spec=spec.to_dict(),
        provenance={"zoo": zoo.__version__, "plugins": plugin_versions(spec)},
        ties=dict(spec.ties),
        records=records_of(tensors),
    )
    _write(weights_path(Path(path)), header, tensors)
    return header.content_digest


def records_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Record]:
    """The record of each CPU tensor; digests run on all cores, the largest tensors first."""
    largest_first = sorted(tensors, key=lambda name: tensors[name].nbytes, reverse=True)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        digests = dict(
            zip(largest_first, pool.map(lambda n: sha256_of(tensors[n]), largest_first), strict=True)
        )
    return {
        name: Record(DTYPES[tensor.dtype][0], tuple(tensor.shape), digests[name])
        for name, tensor in tensors.items()
    }


def sha256_of(tensor: torch.Tensor) -> str:
    """The hexadecimal SHA-256 of a contiguous CPU tensor's bytes."""
    raw = tensor.reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(memoryview(raw)).hexdigest()


def plugin_versions(spec: ModelSpec) -> dict[str, str]:
    """Each plugin that a spec uses, as `slot.kind`, and the distribution and version, or the
    SHA-256 of the file, that it came from."""
    from importlib.metadata import packages_distributions, version

    from zoo.registry import shipped_registry

    owners = packages_distributions()
    shipped = shipped_registry().parent.resolve()
    found: dict[str, str] = {}
    for node in nodes(spec.origin) if spec.origin is not None else ():
        slot = next((slot for slot, base in SLOTS.items() if issubclass(node.cls, base)), None)
        if node.kind is None or slot is None:
            continue
        module = sys.modules[node.cls.__module__]
        file = Path(module.__file__ or "")
        package = module.__name__.partition(".")[0]
        if package.startswith("zoo_plugin_file_") or package not in owners | {"zoo_components": 0}:
            origin = "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()
        elif file.resolve().is_relative_to(shipped):
            origin = f"zoo {zoo.__version__}"
        else:
            origin = f"{owners[package][0]} {version(owners[package][0])}"
        found[f"{slot}.{node.kind.value}"] = origin
    return found


def _write(path: Path, header: Header, tensors: Mapping[str, torch.Tensor]) -> None:
    specs = {
        name: TensorSpec(
            dtype=DTYPES[t.dtype][1], shape=list(t.shape), data_ptr=t.data_ptr(), data_len=t.nbytes
        )
        for name, t in tensors.items()
    }
    made: list[Path] = []
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
    try:
        for folder in reversed([path.parent, *path.parent.parents]):
            if not folder.exists():
                folder.mkdir()
                made.append(folder)
        serialize_file(specs, str(temporary), metadata={KEY: header.to_json()})
        _settle(temporary, 0o666 & ~_umask())
        temporary.replace(path)
        _sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise WeightsError(
            Problem(f"cannot write {str(path)!r}: {reason}", help="what was there is untouched")
        ) from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _settle(path: Path, mode: int) -> None:
    """Give the file its mode and wait until it is on disk."""
    path.chmod(mode)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
