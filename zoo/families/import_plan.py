"""Plan the import of a published checkpoint: its family, its spec, and what becomes of each tensor.

Of the tensors, only their names, shapes and dtypes are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zoo.errors import Place, Problem, WeightsError, noted
from zoo.extends import NAME_PATTERN, NAME_RULE
from zoo.families.adapters.adapter import read_adapter
from zoo.families.adapters.merging import adapted
from zoo.families.adapters.tensor import Adapted
from zoo.families.checkpoint import Stored, check_folder
from zoo.families.companions import Companion, read_companions
from zoo.families.marian_tokenizer import marian_tokenizers
from zoo.families.origin import Origin, stated_dtype
from zoo.families.part import LeftOut
from zoo.families.plan import Plan, make_plan
from zoo.families.prepared import prepared
from zoo.families.quantized.stated import KEY
from zoo.families.quantized.tensor import Quantized
from zoo.families.registered import Families
from zoo.families.scope import Scope
from zoo.families.spec import family_spec
from zoo.families.unread import check_read
from zoo.files.hints import listed, of_repository, of_saved
from zoo.files.of_model import (
    ADAPTER_CONFIG,
    COMPANIONS,
    CONFIG,
    SETTINGS,
    WEIGHTS,
    WEIGHTS_INDEX,
)
from zoo.json_files import json_value, read_json
from zoo.registry import Registry, in_force
from zoo.spec import ModelSpec
from zoo.weights.file import ITEM_BYTES, Record
from zoo.wording import quoted, typed

UNKNOWN = "0" * 64
"""In a record, before the digest of its tensor is known."""
_OPEN_CLIP = "open_clip_config.json"


@dataclass(frozen=True)
class Import:
    """A planned import, before any tensor is read; `tensors` are those that will be. `made` are
    files that the checkpoint does not have, made of some that it has; `left_out` are its tensors
    that are of other parts than the one that is imported."""

    spec: ModelSpec
    plan: Plan
    tensors: Mapping[str, Stored | Quantized | Adapted]
    origin: Origin
    companions: tuple[Companion, ...]
    made: tuple[Companion, ...]
    left_out: tuple[LeftOut, ...]
    where: Place

    @property
    def n_bytes(self) -> int:
        """The bytes of the tensors that are written."""
        return sum(record.n_bytes for record in self.records.values())

    @property
    def records(self) -> dict[str, Record]:
        """The record of each tensor of the model, with `UNKNOWN` in place of its digest."""
        dtypes = dict.fromkeys(self.plan.zeros, _usual_dtype(self))
        for step in self.plan.steps:
            dtypes.update(dict.fromkeys(step.targets, self.tensors[step.sources[0]].dtype))
        return {
            name: Record(dtypes[name], tensor.shape, UNKNOWN)
            for name, tensor in self.spec.tensors.items()
        }

    @property
    def dtypes(self) -> dict[str, list[str]]:
        """The names of the tensors of floats of each dtype, as a header calls it, the most
        frequent dtype first."""
        found: dict[str, list[str]] = {}
        for name, record in sorted(self.records.items()):
            if self.spec.tensors[name].dtype == "float":
                found.setdefault(record.dtype, []).append(name)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def plan_import(
    source: Path,
    *,
    part: str | None = None,
    adapter: Path | None = None,
    name: str | None = None,
    registry: Registry | None = None,
) -> Import:
    """Find the family of a checkpoint, and plan the conversion of each tensor.

    Args:
        source: a folder with `config.json` and safetensors.
        part: the part of a checkpoint of several models that is imported, such as `text`; None for
            the whole.
        adapter: the folder of an adapter that is merged into the tensors.
        name: the name of the model; by default that of the adapter's folder, or of the source.
        registry: where families and components are looked up.

    Raises:
        WeightsError: the configuration or a tensor is missing, damaged or of an unknown kind; or
            the adapter is, or does not fit.
        SpecError: the family cannot make a spec of the configuration.
    """
    registry = in_force(registry)
    where = Place(str(source))
    _check_folder(source, where, adapter)
    published = read_json(source / CONFIG)
    change = None if adapter is None else read_adapter(adapter)
    name = (adapter or source).resolve().name if name is None else name
    _check_name(name, where)
    families = Families(registry)
    found = prepared(source, published, part, families)
    scope = families.scope(found.family, found.file, frozenset(found.tensors))
    spec = family_spec(scope, name, registry, found.head)
    plan = make_plan(spec, scope, found.tensors, where)
    check_read(scope, families, KEY)
    companions = _companions(source, adapter, found.sentence.files)
    origin = Origin(
        family=found.family.name,
        config=found.config,
        part_of=found.part_of,
        quantization=found.quantization,
        adapter=None if change is None else change.recorded(),
        tensors=tuple(sorted(found.tensors.keys() - set(plan.dropped))),
        renamed=found.renamed,
        files={companion.name: companion.sha256 for companion in companions},
    )
    tensors: Mapping[str, Stored | Quantized | Adapted] = found.tensors
    if change is not None:
        tensors = adapted(found.tensors, change, plan, spec, found.part)
    idle = set(plan.dropped) - plan.computed.keys()
    read = {key: tensor for key, tensor in tensors.items() if key not in idle}
    made = (*marian_tokenizers(companions, source), *_settings(scope, companions))
    planned = Import(spec, plan, read, origin, companions, made, found.left_out, where)
    _check_dtypes(planned)
    usual = next(iter(planned.dtypes))
    if stated_dtype(found.file.data) in (None, usual):
        return planned
    return replace(planned, origin=origin.model_copy(update={"dtype": usual}))


def _companions(source: Path, adapter: Path | None, more: Iterable[str]) -> tuple[Companion, ...]:
    """The files that come along. Those beside an adapter, which was trained with them, take the
    place of those of the checkpoint. Raises `WeightsError` if one cannot be read, or a JSON file,
    such as a tokenizer's, is not valid."""
    found = {one.name: (source, one) for one in read_companions(source, (*COMPANIONS, *more))}
    if adapter is not None:
        found |= {one.name: (adapter, one) for one in read_companions(adapter, COMPANIONS)}
    problems: list[Problem] = []
    for name, (folder, one) in found.items():
        if name.endswith(".json"):
            with noted(problems):
                json_value(folder / name, one.data)
    if problems:
        raise WeightsError(problems)
    return tuple(one for _, one in found.values())


def _settings(scope: Scope, companions: Iterable[Companion]) -> Iterator[Companion]:
    """Yield the file of settings of generation that the family states, if there is none."""
    if scope.family.generation and not any(one.name == SETTINGS for one in companions):
        yield Companion(SETTINGS, f"{json.dumps(scope.generation(), indent=2)}\n".encode())


def _check_folder(source: Path, where: Place, adapter: Path | None) -> None:
    """Raise `WeightsError` if there is no such folder, or it holds an adapter, a model in the form
    of OpenCLIP alone, or no published checkpoint."""
    at_hub = of_repository(str(source))
    check_folder(
        source,
        f"name one on this machine, with a {CONFIG}; {at_hub}, and `zoo pull` fetches named models",
    )
    if (source / ADAPTER_CONFIG).is_file():
        message = f"{ADAPTER_CONFIG} says that there is an adapter"
        hint = (
            "`--adapter` names the folder of an adapter, and SRC that of its model: two folders, "
            "since `transformers` merges what is beside weights"
        )
        raise WeightsError(message, where, hint)
    if os.path.lexists(source / CONFIG):
        return
    if (source / _OPEN_CLIP).is_file():
        message = f"{_OPEN_CLIP} says that the weights are in the form of OpenCLIP, which no family"
        hint = f"take a folder that holds the form of `transformers` too, with a {CONFIG}"
        raise WeightsError(f"{message} reads", where, hint)
    message = f"this is no published checkpoint, whose folder would hold a {CONFIG}"
    inside = sorted(path.parent for path in source.glob(f"*/{CONFIG}"))
    help = f"name what is meant: {listed(inside)}" if inside else None
    if any((source / name).is_file() for name in (WEIGHTS, WEIGHTS_INDEX)):
        help = of_saved(source)
        if adapter is not None:
            exported = f"`zoo export {typed(source)} --to hf -o DIR`"
            help = f"of a model that the zoo has saved, {exported} writes one, for the adapter"
    raise WeightsError(message, where, help)


def _check_name(name: str, where: Place) -> None:
    """Raise `WeightsError` if a model cannot have this name."""
    if not NAME_PATTERN.fullmatch(name):
        message = f"{quoted(name)} cannot be the name of a model"
        hint = f"`--name`, in Python `name`, states another, which has {NAME_RULE}"
        raise WeightsError(message, where, hint)


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
