"""Plan the import of a published checkpoint: its family, its spec, and what becomes of each tensor.

Of the tensors, only their names, shapes and dtypes are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zoo.errors import Place, Problem, WeightsError, noted
from zoo.extends import NAME_PATTERN
from zoo.families.adapters.adapter import read_adapter
from zoo.families.adapters.merging import adapted
from zoo.families.adapters.tensor import Adapted
from zoo.families.checkpoint import Stored, check_folder, find_tensors
from zoo.families.config import not_read
from zoo.families.family import Family, with_rules
from zoo.families.marian_tokenizer import marian_tokenizers
from zoo.families.origin import (
    Companion,
    OfAdapter,
    Origin,
    read_companions,
    stated_dtype,
)
from zoo.families.part import LeftOut, find_part
from zoo.families.plan import Plan, make_plan
from zoo.families.quantized.dequantized import dequantized
from zoo.families.quantized.stated import KEY
from zoo.families.quantized.tensor import Quantized
from zoo.families.registered import Families
from zoo.families.scope import Scope
from zoo.families.sentence import SentenceHead, dense_rules, find_sentence_head
from zoo.families.spec import family_spec
from zoo.families.vocabulary import ROTARY_KEYS
from zoo.files.hints import of_repository
from zoo.files.of_model import ADAPTER_CONFIG, COMPANIONS, CONFIG, SETTINGS
from zoo.json_files import json_value, read_json
from zoo.registry import Registry, load_registry
from zoo.spec import ModelSpec
from zoo.weights.file import ITEM_BYTES, Record
from zoo.wording import quoted

UNKNOWN = "0" * 64
"""In a record, before the digest of its tensor is known."""
_OPEN_CLIP = "open_clip_config.json"


@dataclass(frozen=True)
class Import:
    """A planned import, before any tensor is read; `tensors` are those that will be. `made` are
    files that the checkpoint does not have, made of some that it has; `left_out` are its tensors
    that are of other parts than the one that is imported."""

    spec: ModelSpec
    family: Family
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
    registry = load_registry() if registry is None else registry
    where = Place(str(source))
    _check_folder(source, where)
    published = read_json(source / CONFIG)
    change = None if adapter is None else read_adapter(adapter)
    name = (adapter or source).resolve().name if name is None else name
    _check_name(name, where)
    families = Families(registry)
    taken = None if part is None else find_part(part, published, families)
    file = published if taken is None else taken.file
    family = families.family_of(file)
    words = families.vocabulary.sentence
    sentence = SentenceHead() if words is None else find_sentence_head(source, words)
    family = with_rules(family, dense_rules(sentence.tensors))
    there, left_out = find_tensors(source), tuple[LeftOut, ...]()
    if taken is not None:
        there, left_out = taken.sorted_out(there, where)
    found, quantization = dequantized(there, file)
    stored = {**found, **sentence.tensors}
    old_names = _old_names(stored, family.legacy, where)
    tensors = {key: stored[old] for key, old in old_names.items()}
    scope = families.scope(family, file, frozenset(tensors))
    head = {"head": dict(sentence.spec)} if sentence.spec else {}
    spec = family_spec(scope, name, registry, head)
    plan = make_plan(spec, scope, tensors, where)
    check_read(scope, families, KEY)
    companions = _companions(source, adapter, sentence.files)
    stated = {key: v for key, v in file.data.items() if quantization is None or key != KEY}
    origin = Origin(
        family=family.name,
        config=published.text if stated == published.data else _text(stated),
        part_of=None if taken is None else str(published.data.get("model_type")),
        quantization=quantization,
        adapter=None
        if change is None
        else OfAdapter(config=change.file.text, sha256=change.digest()),
        tensors=tuple(sorted(tensors.keys() - set(plan.dropped))),
        renamed={key: old for key, old in old_names.items() if key != old},
        files={companion.name: companion.sha256 for companion in companions},
    )
    idle = set(plan.dropped) - plan.computed.keys()
    whole = tensors if change is None else adapted(tensors, change, plan, spec, taken)
    read = {key: tensor for key, tensor in whole.items() if key not in idle}
    made = marian_tokenizers(companions, source)
    if family.generation and not any(one.name == SETTINGS for one in companions):
        settings = f"{json.dumps(scope.generation(), indent=2)}\n"
        made = (*made, Companion(SETTINGS, settings.encode()))
    planned = Import(spec, family, plan, read, origin, companions, made, left_out, where)
    _check_dtypes(planned)
    usual = next(iter(planned.dtypes))
    if stated_dtype(file.data) in (None, usual):
        return planned
    return replace(planned, origin=origin.model_copy(update={"dtype": usual}))


def check_read(scope: Scope, families: Families, *others: str) -> None:
    """Raise `WeightsError` if a configuration states what nothing has read, once its spec and the
    rules of its family are made: neither these nor who knows the `others` among its keys."""
    inert = families.vocabulary.inert | scope.family.ignores | _known_keys(scope.family)
    unread = scope.config.unread(inert.union(others))
    if unread := [*unread, *_unread_inside(scope, families, inert)]:
        raise WeightsError(unread)


def _unread_inside(scope: Scope, families: Families, inert: frozenset[str]) -> Iterator[Problem]:
    """Yield the values of the tables of inner models, such as `text_config`, that differ from the
    defaults of their model types and that no expression of the family reads. Null is a default."""
    file = scope.config.file
    for key, table in file.data.items():
        type_ = table.get("model_type") if isinstance(table, dict) else None
        if not isinstance(type_, str):
            continue
        defaults, own = families.defaults(type_), families.by_model_type.get(type_)
        known = inert | scope.family.fields | (families.family(own).ignores if own else frozenset())
        for name, value in table.items():
            names = {name, defaults.spellings.get(name, name)}
            usual = defaults.values.get(name)
            if name in defaults.values and value not in (None, usual) and not names & known:
                yield not_read(f"`{name}` in `{key}`", value, usual, file.place(key, name))


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


def _check_folder(source: Path, where: Place) -> None:
    """Raise `WeightsError` if there is no such folder, or it holds an adapter, or a model in the
    form of OpenCLIP alone."""
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
        raise WeightsError(Problem(message, where, hint))
    if (source / _OPEN_CLIP).is_file() and not os.path.lexists(source / CONFIG):
        message = f"{_OPEN_CLIP} says that the weights are in the form of OpenCLIP, which no family"
        hint = f"take a folder that holds the form of `transformers` too, with a {CONFIG}"
        raise WeightsError(Problem(f"{message} reads", where, hint))


def _text(data: Mapping[str, Any]) -> str:
    """The text of a JSON file."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


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


def _old_names(stored: Iterable[str], legacy: Mapping[str, str], where: Place) -> Mapping[str, str]:
    """The stored name of each tensor, by its name today. Raises `WeightsError` if two are one."""
    found: dict[str, str] = {}
    for stated in stored:
        name = stated
        for old, new in legacy.items():
            name = name.replace(old, new)
        if name in found:
            message = "it holds a tensor under its old and its new name"
            raise WeightsError(Problem(message, where))
        found[name] = stated
    return found


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
