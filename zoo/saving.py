"""A model in, weights out, in one file or in shards: digested on all cores, written so that no
crash can tear them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch

import zoo
from zoo.atomic import new_file, remove_file
from zoo.building import differences_from_spec, stored
from zoo.errors import Problem, WeightsError
from zoo.provenance import plugin_versions
from zoo.shards import index_bytes, plan_shards, shard_names, shards_in
from zoo.spec import ModelSpec
from zoo.transformer import Transformer
from zoo.weights_file import FILE_NAME, INDEX_NAME, Header, Record, saved_path

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
}
"""torch's dtypes that a model may store, with their names in a header."""

OnBytes = Callable[[int], None]


def save(model: Transformer, path: str | Path, *, max_shard_bytes: int | None = None) -> str:
    """Write a model as one file, or as shards with their index, that rebuild themselves.

    The bytes depend on the spec, the tensors and the versions of the plugins alone. Whatever was
    at `path` stays whole until the new model is complete and on disk.

    Args:
        model: a model that `zoo.build` or `zoo.load` returned, on any device but "meta".
        path: a `.safetensors` file, or a folder that gets a `model.safetensors`; missing folders
            are made. For shards, a folder.
        max_shard_bytes: the bytes of tensors in each shard; a larger tensor has one of its own.

    Returns:
        The content digest: `sha256:` over the sorted records of the tensors.

    Raises:
        WeightsError: the model has no values, or its tensors are not those of its spec.
        ZooError: the file cannot be written.
    """
    with destination(Path(path), max_shard_bytes=max_shard_bytes) as write:
        return write(model)


@contextmanager
def destination(
    path: Path, *, max_shard_bytes: int | None = None, on_bytes: OnBytes | None = None
) -> Generator[Callable[[Transformer], str]]:
    """A place that a model can be saved to: found to be writable at once, and written by calling
    what this gives with the model, within the block. The model is there when the block ends.

    Args:
        path: as for `save`.
        max_shard_bytes: as for `save`.
        on_bytes: called with the number of bytes written since the last call.
    """
    if max_shard_bytes is not None:
        with _shards_in(path, max_shard_bytes, on_bytes) as write:
            yield write
        return
    target = saved_path(path)
    # An index goes over a file beside it, so the file counts only when the index is gone.
    stale = shards_in(target.parent) if target.name == FILE_NAME else []
    with new_file(target) as file:

        def write_file(model: Transformer) -> str:
            header, tensors = _described(model)
            file.write(header.to_bytes())
            _write_tensors(file, tensors, header.names_in_file(), on_bytes)
            return header.content_digest

        yield write_file
    if stale:
        remove_file(target.with_name(INDEX_NAME))
        _drop(target.with_name(name) for name in stale)


@contextmanager
def _shards_in(
    folder: Path, max_bytes: int, on_bytes: OnBytes | None
) -> Generator[Callable[[Transformer], str]]:
    if folder.suffix == ".safetensors":
        raise WeightsError(Problem(f"shards are written to a folder, not to {str(folder)!r}"))
    if max_bytes < 1:
        raise WeightsError("a shard has at least one byte")
    stale = {FILE_NAME, *shards_in(folder)}
    new: list[Path] = []
    try:
        # The index is opened first and takes its name last, when all that it names is on disk.
        with new_file(folder / INDEX_NAME) as index:

            def write(model: Transformer) -> str:
                header, tensors = _described(model)
                plan = plan_shards(header, max_bytes)
                for name, names in zip(shard_names(header, plan), plan, strict=True):
                    stale.discard(name)
                    if not (folder / name).exists():
                        new.append(folder / name)
                    with new_file(folder / name) as file:
                        file.write(header.shard_bytes(names))
                        _write_tensors(file, tensors, names, on_bytes)
                index.write(index_bytes(header, plan))
                return header.content_digest

            yield write
    except BaseException:
        _drop(new)
        raise
    _drop(folder / name for name in stale)


def _drop(paths: Iterable[Path]) -> None:
    """Remove files that nothing refers to, as far as that is possible."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _write_tensors(
    file: BinaryIO,
    tensors: Mapping[str, torch.Tensor],
    names: Iterable[str],
    on_bytes: OnBytes | None,
) -> None:
    for name in names:
        written = file.write(bytes_of(tensors[name]))
        if on_bytes is not None:
            on_bytes(written)


def _described(model: Transformer) -> tuple[Header, dict[str, torch.Tensor]]:
    """The header of a model's weights, and its tensors as they are stored."""
    tensors = _storable(model)
    spec = model.spec
    header = Header(
        spec=spec.to_dict(),
        provenance=_provenance(model),
        ties=dict(spec.ties),
        records=_records(tensors),
    )
    return header, tensors


def _provenance(model: Transformer) -> dict[str, Any]:
    made_by = {"zoo": zoo.__version__, "plugins": plugin_versions(model.spec)}
    return made_by if model.origin is None else {**made_by, "origin": model.origin}


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
    """The memory of a contiguous CPU tensor."""
    raw: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(raw)
