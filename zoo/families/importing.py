"""Convert a published checkpoint into a model of the zoo, whose tensors are bitwise equal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import BinaryIO

import torch

import zoo
from zoo.atomic import new_folder
from zoo.building import build_on_meta
from zoo.errors import Place, Problem, WeightsError, checked_output, checked_path, noted
from zoo.extends import NAME_PATTERN
from zoo.families.adapters.adapter import CONFIG as ADAPTER
from zoo.families.adapters.adapter import read_adapter
from zoo.families.adapters.merging import adapted
from zoo.families.adapters.tensor import Adapted
from zoo.families.checkpoint import Stored, check_folder, find_tensors
from zoo.families.config import FILE_NAME as CONFIG
from zoo.families.conversion import Conversion, steps_of
from zoo.families.family import Family, with_rules
from zoo.families.marian_tokenizer import marian_tokenizers
from zoo.families.origin import (
    Companion,
    OfAdapter,
    Origin,
    read_companions,
    stated_dtype,
    write_companions,
)
from zoo.families.plan import Plan, active_rules, make_plan
from zoo.families.quantized.dequantized import dequantized
from zoo.families.quantized.stated import KEY
from zoo.families.quantized.tensor import Quantized
from zoo.families.reader import Reader
from zoo.families.registered import Families
from zoo.families.sentence import SentenceHead, dense_rules, find_sentence_head
from zoo.families.spec import family_spec
from zoo.families.tensor_writer import TensorWriter
from zoo.families.vocabulary import ROTARY_KEYS
from zoo.json_files import JsonFile, json_value, read_json
from zoo.model_files import COMPANIONS, WEIGHTS
from zoo.provenance.plugins import plugin_versions
from zoo.registry import Registry, load_registry
from zoo.spec import ModelSpec
from zoo.weights.file import ITEM_BYTES, Header, Record
from zoo.weights.held_tensors import TORCH_DTYPES, bytes_of
from zoo.weights.output_names import check_output_name
from zoo.wording import quoted

_UNKNOWN = "0" * 64  # in the header until the digest of a tensor is known
_TOLERANCE = 1e-5
_OPEN_CLIP = "open_clip_config.json"


@dataclass(frozen=True)
class Import:
    """A planned import, before any tensor is read; `tensors` are those that will be. `made` are
    files that the checkpoint does not have, made of some that it has."""

    spec: ModelSpec
    family: Family
    plan: Plan
    tensors: Mapping[str, Stored | Quantized | Adapted]
    origin: Origin
    companions: tuple[Companion, ...]
    made: tuple[Companion, ...]
    where: Place

    @property
    def n_bytes(self) -> int:
        """The bytes of the tensors that are written."""
        return sum(record.n_bytes for record in _records(self).values())

    @property
    def dtypes(self) -> dict[str, list[str]]:
        """The names of the tensors of floats of each dtype, as a header calls it, the most
        frequent dtype first."""
        found: dict[str, list[str]] = {}
        for name, record in sorted(_records(self).items()):
            if self.spec.tensors[name].dtype == "float":
                found.setdefault(record.dtype, []).append(name)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def plan_import(
    source: Path,
    *,
    adapter: Path | None = None,
    name: str | None = None,
    registry: Registry | None = None,
) -> Import:
    """Find the family of a checkpoint, and plan the conversion of each tensor.

    Args:
        source: a folder with `config.json` and safetensors.
        adapter: the folder of an adapter that is merged into the tensors.
        name: the name of the model; by default that of the adapter's folder, or of the source.
        registry: where families and components are looked up.

    Raises:
        WeightsError: the configuration or a tensor is missing, damaged or of an unknown kind; or
            the adapter is, or does not fit.
        SpecError: the family cannot make a spec of the configuration.
    """
    registry = load_registry() if registry is None else registry
    where = Place(str(source))
    _check_folder(source, where)
    file = read_json(source / CONFIG)
    change = None if adapter is None else read_adapter(adapter)
    name = (adapter or source).resolve().name if name is None else name
    _check_name(name, where)
    families = Families(registry)
    family = families.family_of(file)
    words = families.vocabulary.sentence
    sentence = (words and find_sentence_head(source, words)) or SentenceHead()
    family = with_rules(family, dense_rules(sentence.tensors))
    found, quantization = dequantized(find_tensors(source), file)
    stored = {**found, **sentence.tensors}
    old_names = {_modern(key, family.legacy): key for key in stored}
    if len(old_names) < len(stored):
        message = "it holds a tensor under its old and its new name"
        raise WeightsError(Problem(message, where))
    tensors = {key: stored[old] for key, old in old_names.items()}
    scope = families.scope(family, file, frozenset(tensors))
    head = {"head": dict(sentence.spec)} if sentence.spec else {}
    spec = family_spec(scope, name, registry, head)
    plan = make_plan(spec, scope, active_rules(scope), tensors, where)
    inert = families.vocabulary.inert | family.ignores | _known_keys(family) | {KEY}
    if unread := scope.config.unread(inert):
        raise WeightsError(unread)
    companions = _companions(source, adapter, sentence.files)
    _check_json(companions, source)
    origin = Origin(
        family=family.name,
        config=file.text if quantization is None else _without_key(file, KEY),
        quantization=quantization,
        adapter=None
        if change is None
        else OfAdapter(config=change.file.text, sha256=change.digest()),
        tensors=tuple(sorted(tensors.keys() - set(plan.dropped))),
        renamed={key: old for key, old in old_names.items() if key != old},
        files={companion.name: companion.sha256 for companion in companions},
    )
    idle = set(plan.dropped) - plan.computed.keys()
    whole = tensors if change is None else adapted(tensors, change, plan, spec)
    read = {key: tensor for key, tensor in whole.items() if key not in idle}
    tokenizers = marian_tokenizers(companions, source)
    planned = Import(spec, family, plan, read, origin, companions, tokenizers, where)
    _check_dtypes(planned)
    usual = next(iter(planned.dtypes))
    if stated_dtype(file.data) in (None, usual):
        return planned
    return replace(planned, origin=origin.model_copy(update={"dtype": usual}))


def import_folder(
    source: str | Path,
    output: str | Path,
    *,
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
        adapter: the folder of a LoRA adapter, as PEFT writes it, that is merged into the weights.
        name: the name of the model; by default that of `output`.
        registry: where families and components are looked up.
        on_bytes: called with the number of bytes written since the last call.

    Returns:
        The content digest.

    Raises:
        WeightsError, SpecError: as `plan_import`; a copy of a tensor differs from it, or the name
            of `output` is that of a file.
        ZooError: `output` exists, or cannot be written.
    """
    source = checked_path(source, "`source` is the path of a folder")
    output = checked_output(output, "`output` is a path")
    if adapter is not None:
        adapter = checked_path(adapter, "`adapter` is the path of a folder")
    name = Path(os.path.realpath(output)).name if name is None else name
    found = plan_import(source, adapter=adapter, name=name, registry=registry)
    return save_import(found, output, on_bytes=on_bytes)


def save_import(
    found: Import, output: Path, *, on_bytes: Callable[[int], None] | None = None
) -> str:
    """Carry out an import. Arguments, result and errors are those of `import_folder`."""
    check_output_name(output, folder=True)
    with new_folder(output) as folder:
        write_companions((*found.companions, *found.made), folder)
        with (folder / WEIGHTS).open("xb") as file:
            return write_import(found, file, on_bytes=on_bytes)


def write_import(found: Import, file: BinaryIO, *, on_bytes: Callable[[int], None] | None) -> str:
    """Write an import as one weights file; return its content digest. Raises as
    `import_folder`."""
    records = _records(found)
    header = Header(
        spec=found.spec.to_dict(),
        provenance={
            "zoo": zoo.__version__,
            "plugins": plugin_versions(found.spec),
            "origin": found.origin.model_dump(mode="json", exclude_none=True),
        },
        ties=dict(found.spec.ties),
        records=records,
    )
    head = header.to_bytes()
    starts, end = dict[str, int](), len(head)
    for name in header.names_in_file():
        starts[name] = end
        end += records[name].n_bytes
    conversion = Conversion(found.plan, found.tensors, found.spec, found.family, found.where)
    with Reader() as reader:
        with TensorWriter(file, starts, on_bytes) as writer:
            conversion.run(reader, writer)
            for name in found.plan.zeros:
                shape = found.spec.tensors[name].shape
                zeros = torch.zeros(shape, dtype=TORCH_DTYPES[records[name].dtype])
                writer.write(name, steps_of(zeros))
        _check_computed(found, reader)
        reader.check_unchanged()
    digests = writer.digests
    whole = {name: replace(record, sha256=digests[name]) for name, record in records.items()}
    header = replace(header, records=whole)
    file.seek(0)
    file.write(header.to_bytes())
    return header.content_digest


def _companions(source: Path, adapter: Path | None, more: Iterable[str]) -> tuple[Companion, ...]:
    """The files that come along. Those beside an adapter, which was trained with them, take the
    place of those of the checkpoint."""
    found = {one.name: one for one in read_companions(source, (*COMPANIONS, *more))}
    if adapter is not None:
        found |= {one.name: one for one in read_companions(adapter, COMPANIONS)}
    return tuple(found.values())


def _check_folder(source: Path, where: Place) -> None:
    """Raise `WeightsError` if there is no such folder, or it holds an adapter, or a model in the
    form of OpenCLIP alone."""
    check_folder(
        source,
        "name one on this machine, with a config.json; `zoo import hf://owner/name` reads one of "
        "the Hugging Face hub, and `zoo pull` fetches named models",
    )
    if (source / ADAPTER).is_file():
        message = f"{ADAPTER} says that there is an adapter"
        hint = (
            "`--adapter` names the folder of an adapter, and SRC that of its model: two folders, "
            "since `transformers` merges what is beside weights"
        )
        raise WeightsError(Problem(message, where, hint))
    if (source / _OPEN_CLIP).is_file() and not os.path.lexists(source / CONFIG):
        message = f"{_OPEN_CLIP} says that the weights are in the form of OpenCLIP, which no family"
        hint = f"take a folder that holds the form of `transformers` too, with a {CONFIG}"
        raise WeightsError(Problem(f"{message} reads", where, hint))


def _without_key(file: JsonFile, key: str) -> str:
    """The text of a JSON file without a key of its object."""
    left = {name: value for name, value in file.data.items() if name != key}
    return json.dumps(left, indent=2, ensure_ascii=False) + "\n"


def _check_name(name: str, where: Place) -> None:
    """Raise `WeightsError` if a model cannot have this name."""
    if not NAME_PATTERN.fullmatch(name):
        message = f"{quoted(name)} cannot be the name of a model"
        hint = "`--name`, in Python `name`, states another: letters, digits, `-`, `_` and `.`"
        raise WeightsError(Problem(message, where, hint))


def _known_keys(family: Family) -> frozenset[str]:
    """Return the keys of configurations of which a family knows the meaning, by its expressions or
    through `rope()`. It does not read each for each checkpoint: some have no use for it."""
    names, keys = family.needed
    return keys | ROTARY_KEYS if "rope" in names else keys


def _check_json(companions: Iterable[Companion], source: Path) -> None:
    """Raise `WeightsError` if a JSON file that is copied, such as a tokenizer's, is not valid."""
    problems: list[Problem] = []
    for companion in companions:
        if companion.name.endswith(".json"):
            with noted(problems):
                json_value(source / companion.name, companion.data)
    if problems:
        raise WeightsError(problems)


def _modern(key: str, legacy: Mapping[str, str]) -> str:
    for old, new in legacy.items():
        key = key.replace(old, new)
    return key


def _records(found: Import) -> dict[str, Record]:
    """Return the record of each tensor of the zoo, without its digest."""
    dtypes = dict.fromkeys(found.plan.zeros, _usual_dtype(found))
    for step in found.plan.steps:
        dtypes.update(dict.fromkeys(step.targets, found.tensors[step.sources[0]].dtype))
    return {
        name: Record(dtypes[name], tensor.shape, _UNKNOWN)
        for name, tensor in found.spec.tensors.items()
    }


def _usual_dtype(found: Import) -> str:
    """Return the most frequent dtype of the tensors."""
    names = [tensor.dtype for tensor in found.tensors.values()]
    return max(sorted(set(names)), key=names.count)


def _check_dtypes(found: Import) -> None:
    problems = [
        Problem(
            f"the tensor `{key}` is {tensor.dtype}, which is not stored",
            Place(str(tensor.path)),
            help=f"stored are {', '.join(ITEM_BYTES)}",
        )
        for key, tensor in found.tensors.items()
        if tensor.dtype not in ITEM_BYTES
    ]
    if problems:
        raise WeightsError(problems)
    for step in found.plan.steps:
        for key in step.sources:
            dtype = found.tensors[key].dtype
            if (dtype == "I64") != (found.spec.tensors[step.targets[0]].dtype == "int64"):
                message = f"the tensor `{key}` is {dtype}, which `{step.targets[0]}` cannot be"
                problems.append(Problem(message, found.where))
            elif dtype != found.tensors[step.sources[0]].dtype:
                message = f"`{key}` is {dtype}, and `{step.sources[0]}`, beside it, is not"
                problems.append(Problem(message, found.where))
    if problems:
        raise WeightsError(problems)


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
        stored = torch.empty(tensor.shape, dtype=TORCH_DTYPES[tensor.dtype])
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
