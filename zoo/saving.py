"""Save the weights of a model; digests are computed on all cores."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from zoo.arguments import check_output
from zoo.errors import WeightsError
from zoo.int8 import has_int8
from zoo.machine.threads import on_all_cores
from zoo.provenance.plugins import made_by
from zoo.spec import ModelSpec
from zoo.transformer import Transformer, held_in
from zoo.weights.dtypes import DTYPES, FLOATS
from zoo.weights.file import Header, Record
from zoo.weights.held_tensors import (
    bytes_of,
    differences_from_spec,
    other_layers,
    stored,
    swapped_modules,
)
from zoo.weights.writer import Content, destination
from zoo.wording import first_of, quoted


def save(model: Transformer, path: str | Path, *, max_shard_bytes: int | None = None) -> str:
    """Write a model into one file, which holds its spec too, so that `zoo.load` needs nothing else;
    or into shards with their index.

    The bytes depend on the spec, the tensors and the versions of the plugins alone. What was at
    `path` before stays intact until the new model is complete and on disk.

    Args:
        model: a model that `zoo.build` or `zoo.load` returned, on any device but "meta".
        path: a `.safetensors` file, or a folder that gets a `model.safetensors`; missing folders
            are made. For shards, a folder.
        max_shard_bytes: the most bytes of tensors in a shard; a larger tensor gets its own shard.

    Returns:
        The content digest: `sha256:` over the sorted records of the tensors.

    Raises:
        WeightsError: the model has no values, its tensors are not those of its spec, this process
            has only a share of it, or another thread changes it meanwhile; or `path` has the ending
            of another format.
        ZooError: the file cannot be written.
    """
    _refuse_other(model)
    _refuse_share(model)
    target = check_output(path, "a model is saved to a path")
    with destination(target, max_shard_bytes=max_shard_bytes) as write:
        header, content = described(model)
        write(header, content)
        return header.content_digest


def _refuse_other(model: object) -> None:
    if isinstance(model, Transformer) and isinstance(getattr(model, "spec", None), ModelSpec):
        return
    inside = held_in(model)  # in which the names of the tensors are others
    help_ = f"save the model inside: `.{inside}`" if inside else None
    if hasattr(model, "merge_and_unload"):
        help_ = (
            "save what `merge_and_unload()` returns: the adapters of PEFT are no part of the spec"
        )
    if isinstance(model, str | os.PathLike):
        help_ = "the model comes first: `zoo.save(model, path)`"
    message = (
        "only a model that the zoo built knows the spec that a file needs, not this "
        f"`{type(model).__name__}`"
    )
    raise WeightsError(message, help=help_)


def _refuse_share(model: Transformer) -> None:
    # DTensors: all processes would write to the same path, each its part.
    if any(hasattr(tensor, "device_mesh") for tensor in model.parameters()):
        message = f"this process has but a share of {model.spec.name}"
        help_ = (
            "`torch.distributed.checkpoint` saves shares; its `get_model_state_dict`, with "
            "`full_state_dict=True`, returns whole tensors, which `load_state_dict` of a model "
            "without a mesh takes"
        )
        raise WeightsError(message, help=help_)


def described(model: Transformer) -> tuple[Header, Content]:
    """Return the header of a model's weights, and functions that give the bytes of each tensor."""
    tensors = _storable(model)
    versions = {name: _version(tensor) for name, tensor in tensors.items()}
    spec = model.spec
    header = Header(
        spec=spec.to_dict(),
        provenance=made_by(spec, model.origin),
        ties=dict(spec.ties),
        records=_records(tensors),
    )
    return header, lambda name: _unchanged(name, tensors[name], versions[name])


def _version(tensor: torch.Tensor) -> int | None:
    """Return torch's count of the changes of a tensor, which no inference tensor has."""
    return None if tensor.is_inference() else tensor._version


def _unchanged(name: str, tensor: torch.Tensor, version: int | None) -> Iterator[memoryview]:
    """Yield the bytes of a tensor, and raise `WeightsError` at the end if it was changed since it
    had this version, so that they may not be those of its record."""
    yield bytes_of(tensor)
    if _version(tensor) != version:
        message = f"the tensor `{name}` was changed while the model was saved"
        help_ = "save between two steps of training, or in a thread a `copy.deepcopy` of the model"
        raise WeightsError(message, help=help_)


def _storable(model: Transformer) -> dict[str, torch.Tensor]:
    """Return the tensors of a model as they are stored: contiguous, on the CPU."""
    _refuse_without_floats(model)
    _refuse_differing(model)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in stored(model).items():
        if tensor.layout != torch.strided:
            message = f"the tensor `{name}` is {tensor.layout}, and only dense ones are stored"
            raise WeightsError(message, help="make it dense, by its `to_dense()`")
        if tensor.dtype not in DTYPES:
            message = f"the tensor `{name}` is {tensor.dtype}, which is not stored"
            named = ", ".join(map(str, FLOATS.values()))
            raise WeightsError(message, help=f"cast it, by `model.to(...)`: {named}")
        tensors[name] = tensor.detach().cpu().contiguous()
    return tensors


def _refuse_without_floats(model: Transformer) -> None:
    """Raise `WeightsError` for tensors without values, or whose values are quantized."""
    spec = model.spec
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise WeightsError(f"{spec.name} is on the meta device: it has no values to save")
    if has_int8(model):
        message = f"the weights of {spec.name} are in 8 bits, and a file holds the floats of a spec"
        help_ = "save the model before `zoo.quantize_weights`, which takes a second after each load"
        raise WeightsError(message, help=help_)
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor) or is_traceable_wrapper_subclass(value):
            message = f"`{name}` is a {type(value).__name__}; only plain tensors are stored"
            raise WeightsError(message, help="save the model before it is quantized")


def _refuse_differing(model: Transformer) -> None:
    """Raise `WeightsError` for tensors, layers or modules that are not those of the spec."""
    spec = model.spec
    if differences := differences_from_spec(model):
        shown = "\n  ".join(first_of(differences, 8))
        raise WeightsError(
            f"the tensors of {spec.name} are not those of its spec\n  {shown}",
            help="a change of the architecture belongs in the spec; an adapter is merged "
            "into the weights first, and a parametrization removed",
        )
    if moved := other_layers(model):
        raise WeightsError(
            f"the layers of {spec.name} are not those of its spec: {quoted(moved[0])} was "
            "built from another description",
            help="layers that differ cannot change places; state their order in a spec, build "
            "it, and give it these weights by `load_state_dict`",
        )
    if swapped := swapped_modules(model):
        shown = "\n  ".join(first_of(swapped, 8))
        raise WeightsError(
            f"the modules of {spec.name} are not those of its spec\n  {shown}",
            help="what a file loads computes what the spec says: state the change there, with a "
            "component of your own if need be, and give a model of it these weights by "
            "`load_state_dict`",
        )


def _records(tensors: Mapping[str, torch.Tensor]) -> dict[str, Record]:
    """Return the record of each tensor; the digests are computed on all cores."""

    def record(name: str) -> Record:
        tensor = tensors[name]
        return Record(
            DTYPES[tensor.dtype], tuple(tensor.shape), hashlib.sha256(bytes_of(tensor)).hexdigest()
        )

    return on_all_cores(record, {name: tensor.nbytes for name, tensor in tensors.items()})
