"""Convert a published checkpoint into a model of the zoo, whose tensors are bitwise equal."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import BinaryIO

import torch

from zoo.arguments import check_output, check_path
from zoo.building import build_on_meta
from zoo.errors import Problem, WeightsError
from zoo.families.companions import write_companions
from zoo.families.conversion import Conversion, steps_of
from zoo.families.import_plan import Import, plan_import
from zoo.families.reader import Reader
from zoo.families.tensor_writer import TensorWriter
from zoo.files.atomic import new_folder
from zoo.files.of_model import WEIGHTS
from zoo.provenance.plugins import made_by
from zoo.registry import Registry
from zoo.weights.dtypes import TORCH_DTYPES
from zoo.weights.file import Header
from zoo.weights.held_tensors import bytes_of
from zoo.weights.output_names import check_output_name

_TOLERANCE = 1e-5
"""How far a stored table may be from the one that the model computes, in float32."""


def import_folder(
    source: str | Path,
    output: str | Path,
    *,
    part: str | None = None,
    adapter: str | Path | None = None,
    name: str | None = None,
    registry: Registry | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> str:
    """Convert a published checkpoint into a folder with the zoo's `model.safetensors`, which
    `zoo.load` reads, and the checkpoint's tokenizer.

    Each tensor is read, rearranged, hashed and written once, on all cores; `output` appears when it
    is complete.

    Args:
        source: a folder with `config.json` and safetensors.
        output: the new folder.
        part: the part of a checkpoint of several models that is imported, such as `text`, the
            language model of one that also reads images; None for the whole.
        adapter: the folder of a LoRA adapter, as PEFT writes it, that is merged into the weights.
        name: the name of the model; by default that of `output`.
        registry: where families and components are looked up.
        on_bytes: called with the number of bytes written since the last call.

    Returns:
        The content digest.

    Raises:
        WeightsError: no family reads the checkpoint; a file is missing or damaged; a value of its
            `config.json` is one that the family does not know; a tensor is missing, superfluous or
            misshapen, or a copy of a tensor differs from it; the adapter changes something else
            than it may; or the name of `output` is that of a file.
        SpecError: the family cannot make a spec of the configuration.
        ZooError: `output` exists, or cannot be written.
    """
    source = check_path(source, "`source` is the path of a folder")
    output = check_output(output, "`output` is a path")
    if adapter is not None:
        adapter = check_path(adapter, "`adapter` is the path of a folder")
    name = Path(os.path.realpath(output)).name if name is None else name
    found = plan_import(source, part=part, adapter=adapter, name=name, registry=registry)
    return save_import(found, output, on_bytes=on_bytes)


def save_import(
    found: Import, output: Path, *, on_bytes: Callable[[int], None] | None = None
) -> str:
    """Carry out an import. Arguments, result and errors are those of `import_folder`."""
    check_output_name(output, folder=True)
    with new_folder(output) as folder:
        write_companions((*found.companions, *found.made), folder)
        with (folder / WEIGHTS).open("xb") as file:
            return _write_import(found, file, on_bytes=on_bytes)


def _write_import(found: Import, file: BinaryIO, *, on_bytes: Callable[[int], None] | None) -> str:
    """Write an import as one weights file; return its content digest. Raises as
    `import_folder`."""
    records = found.records
    header = Header(
        spec=found.spec.to_dict(),
        provenance=made_by(found.spec, found.origin.model_dump(mode="json", exclude_none=True)),
        ties=dict(found.spec.ties),
        records=records,
    )
    head = header.to_bytes()
    starts, end = dict[str, int](), len(head)
    for name in header.names_in_file():
        starts[name] = end
        end += records[name].n_bytes
    with Reader() as reader:
        with TensorWriter(file, starts, on_bytes) as writer:
            Conversion(found, reader, writer).run()
            for name in found.plan.zeros:
                shape = found.spec.tensors[name].shape
                zeros = torch.zeros(shape, dtype=TORCH_DTYPES[records[name].dtype], device="cpu")
                writer.write(name, steps_of(zeros))
        _check_computed(found, reader)
        reader.check_unchanged()
    digests = writer.digests
    whole = {name: replace(record, sha256=digests[name]) for name, record in records.items()}
    header = replace(header, records=whole)
    file.seek(0)
    file.write(header.to_bytes())
    return header.content_digest


def _is_near(computed: torch.Tensor, stored: torch.Tensor) -> bool:
    """Return whether a stored table equals the computed one, up to rounding to its dtype."""
    if not stored.is_floating_point():
        return False
    tolerance = max(_TOLERANCE, torch.finfo(stored.dtype).eps)
    return torch.allclose(computed.float(), stored.float(), rtol=0.0, atol=tolerance)


def _check_computed(found: Import, reader: Reader) -> None:
    """Raise `WeightsError` unless the tables stored in the checkpoint are those that the model
    computes."""
    if not found.plan.computed:
        return
    model = build_on_meta(found.spec, torch.float32)
    problems: list[Problem] = []
    for key, table in found.plan.computed.items():
        path, _, attribute = table.rpartition(".")
        try:
            module = model.get_submodule(path)
            own = getattr(module, attribute)
        except AttributeError:
            message = f"the model has no `{table}`, of which `{key}` would be a copy"
            problems.append(Problem(message, found.where))
            continue
        tensor = found.tensors[key]
        stored = torch.empty(tensor.shape, dtype=TORCH_DTYPES[tensor.dtype], device="cpu")
        reader.read(tensor, bytes_of(stored))
        if isinstance(own, torch.Tensor):
            module.reset_buffers(device="cpu")  # type: ignore[operator]
            own = getattr(module, attribute)
        elif key in found.plan.dropped:
            own = own(prod(tensor.shape[:1]))
        else:
            message = (
                f"`{table}` is of any number of rows, so that the rule of `{key}` needs `drop`"
            )
            problems.append(Problem(message, found.where))
            continue
        if own.shape != stored.shape or not _is_near(own, stored):
            message = f"`{key}` is not the table that the model computes as `{table}`"
            problems.append(Problem(message, found.where))
    if problems:
        raise WeightsError(problems)
