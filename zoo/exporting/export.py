"""Export a model as a published checkpoint: an imported one with the names, layouts and bytes that
it had, any other by a config.json that describes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError

from zoo.arguments import check_count, check_output, check_path
from zoo.errors import InputError, Place, Problem, WeightsError
from zoo.exporting.completed import NO_FIELDS
from zoo.exporting.described import described
from zoo.exporting.special_tokens import special_ids, tokenizer_config
from zoo.exporting.target import Target, by_first_layers
from zoo.families.class_names import written_names
from zoo.families.companions import Companion, read_companions, write_companions
from zoo.families.family import with_rules
from zoo.families.new_head import origin_with_head
from zoo.families.origin import Origin, check_companions, dtype_key, stated_dtype
from zoo.families.plan import Plan, Step, make_plan
from zoo.families.registered import Families
from zoo.families.scope import Scope
from zoo.families.sentence import dense_rules
from zoo.families.unread import check_read
from zoo.files.atomic import new_folder
from zoo.files.of_model import COMPANIONS, CONFIG, WEIGHTS, WEIGHTS_INDEX
from zoo.json_files import JsonFile, parse_json, read_json
from zoo.loading import load
from zoo.purpose import Reading
from zoo.reading import read_spec
from zoo.registry import Registry, in_force
from zoo.reports.data import ValueChange
from zoo.transformer import Transformer
from zoo.weights.dtypes import DTYPES, by_dtype, dtype_name
from zoo.weights.file import laid_out
from zoo.weights.held_tensors import bytes_of, stored
from zoo.weights.output_names import check_output_name
from zoo.weights.shards import index_of, numbered, plan_shards

WHOLE = (torch.float32, torch.float64)
"""The dtypes in which no number is rounded to less than float32."""


def export_folder(
    source: str | Path,
    output: str | Path,
    *,
    config: str | Path | None = None,
    architecture: str | None = None,
    max_shard_bytes: int | None = None,
    on_trial: Callable[[], object] = lambda: None,
    registry: Registry | None = None,
) -> None:
    """Write a model as a folder that `transformers` loads.

    Args:
        source: the folder, the weights file or the name of a model, which may have been trained
            since it was imported or built.
        output: the new folder, which appears when it is complete.
        config: a config.json that describes the model, with the class of `transformers` that it
            becomes as its `architectures`. What it does not state has the defaults of
            `transformers`, or else is found. A model that was imported needs none: it is exported
            with the one that it had.
        architecture: instead of a `config`, that class alone, such as `"LlamaForCausalLM"`.
        max_shard_bytes: the most bytes of tensors in a file, if they are more: then there are
            several, with an index; a larger tensor gets its own file. None writes one file.
        on_trial: called for each configuration that is tried, where one is looked for: some
            hundreds.
        registry: where families and components are looked up.

    Raises:
        WeightsError: the model cannot be loaded, or was not imported and has no `config` and no
            `architecture`; its configuration is damaged, means another model, or is not read by a
            family; or no family reads the `architecture`; or a tensor that its checkpoint leaves
            out is not zero; or the name of `output` is that of a file.
        SpecError: the family cannot make a spec of the configuration.
        InputError: `max_shard_bytes` is no integer, or below 1, or there are both a `config` and an
            `architecture`.
        ZooError: `output` exists, or cannot be written.
    """
    output = check_output(output, "`output` is a path")
    check_output_name(output, folder=True)
    if max_shard_bytes is not None:
        check_count("max_shard_bytes", max_shard_bytes)
    registry = in_force(registry)
    families = Families(registry)
    file = _stated_config(config, architecture, families)
    model = load(source, registry=registry)
    assert model.load_report is not None  # `load` sets it
    path = Path(model.load_report.path)
    where = Place(str(path))
    if file is None:
        origin, scope, further = _recorded(model, families, where)
    else:
        origin, scope, further = _described(model, file, path, families, on_trial)
    companions = read_companions(path.parent, origin.files)
    check_companions(companions, origin, path.parent)
    plan = make_plan(model.spec, scope, origin.tensors, where)
    _check_zeros(model, plan, where)
    _write_folder(
        output,
        _config(model, origin),
        [*companions, *further],
        dict(_made(model, plan, origin)),
        max_shard_bytes,
    )


def _stated_config(
    config: str | Path | None, architecture: str | None, families: Families
) -> JsonFile | None:
    """The configuration that the caller names, or the little that a class says; None if there is
    neither."""
    if config is not None and architecture is not None:
        message = "a `config` names its class itself, so there is no `architecture` beside it"
        raise InputError(message)
    if config is not None:
        return read_json(check_path(config, "`config` is a path"))
    return None if architecture is None else families.config_of_class(architecture)


def _write_folder(
    output: Path,
    config: str,
    companions: Iterable[Companion],
    tensors: Mapping[str, torch.Tensor],
    max_shard_bytes: int | None,
) -> None:
    with new_folder(output) as folder:
        (folder / CONFIG).write_bytes(config.encode())
        write_companions(companions, folder)
        for place in sorted({name.rpartition("/")[0] for name in tensors}):
            (folder / place).mkdir(exist_ok=True)  # its configuration may have been moved away
            within = {
                name.rpartition("/")[2]: tensor
                for name, tensor in tensors.items()
                if name.rpartition("/")[0] == place
            }
            # What sentence-transformers keeps in folders within is small, and read from one file.
            _write(within, folder / place, None if place else max_shard_bytes)


class _Checkpoint(NamedTuple):
    """A checkpoint that a model becomes.

    Args:
        origin: the model's, or one as if it had been imported.
        scope: that of its family.
        further: the files that do not come from the model's folder.
    """

    origin: Origin
    scope: Scope
    further: Sequence[Companion] = ()


def _recorded(model: Transformer, families: Families, where: Place) -> _Checkpoint:
    """The checkpoint that a model was imported from."""
    origin = _origin(model, families, where)
    family = with_rules(families.family(origin.family), dense_rules(origin.tensors))
    file = parse_json(Path(CONFIG), origin.config.encode())
    scope = families.scope(family, file, frozenset(origin.tensors))
    target = _target(model, origin.files, families)
    if changes := target.differences(target.made(scope)):
        raise WeightsError(_of_another(changes[0], model, origin, where))
    return _Checkpoint(origin, scope)


def _origin(model: Transformer, families: Families, where: Place) -> Origin:
    if model.origin is None:
        raise WeightsError(
            "the model was not imported, so there is no configuration to export it with",
            where,
            help="what `zoo import` has read, and what was trained from that, has one; for any "
            "other model, `--as` names a class of `transformers` that is the same, such as "
            "`--as LlamaForCausalLM`; `zoo push` and `zoo bundle make` share any, for others "
            "with the zoo",
        )
    base, files = model.origin.get("base"), model.origin.get("files", {})
    if base is not None and "new" in model.origin.get("part", {}):
        checkpoint = _validated(base, where)
        return origin_with_head(checkpoint, files, model.spec, families, where)
    if "part" in model.origin:
        raise WeightsError(
            "the spec is not the checkpoint's, of whose weights it has taken a part or all, so "
            "there is no configuration to export it with",
            where,
            help="export a model that was loaded without `only`, and whose training began from "
            "an imported model",
        )
    return _validated(model.origin, where)


def _described(
    model: Transformer,
    file: JsonFile,
    path: Path,
    families: Families,
    on_trial: Callable[[], object],
) -> _Checkpoint:
    """The checkpoint that a config.json describes, or that is found for the class which is all that
    is stated if it has no text."""
    files = {one.name: one.sha256 for one in read_companions(path.parent, COMPANIONS)}
    found = described(file, _target(model, files, families), on_trial)
    if found.distance:
        named = f"`{file.data['architectures'][0]}` of `transformers` is another model:"
        lines = [_difference(change, model) for change in _telling(found.changes)]
        lines += [f"`{part}` has weights there, and none here" for part in found.lacking]
        lines += [f"`{part}` has weights here, and none there" for part in found.foreign]
        where = Place(str(file.path if file.text else path))
        not_found = None
        if found.changes and not file.text:
            not_found = (
                "the configuration was looked for, and this is the nearest: `--config` names a "
                "config.json that states what was not found, if the class can be this model"
            )
        raise WeightsError("\n  ".join([named, *lines]), where, help=not_found)
    check_read(found.scope, families)
    origin = found.origin
    if not file.text:
        stated = _with_defaults(model, found.scope, path.parent)
        origin = origin.model_copy(update={"config": json.dumps(stated, indent=2) + "\n"})
    tokenizer = tokenizer_config(path.parent, _reading(model))
    return _Checkpoint(origin, found.scope, [] if tokenizer is None else [tokenizer])


def _telling(changes: Iterable[ValueChange]) -> Iterator[ValueChange]:
    """Yield the differences that do not follow from another: a table of another kind has other
    keys."""
    by_path = {change["path"]: change for change in changes}
    kinds = [path.removesuffix("kind") for path in by_path if path.endswith(".kind")]
    for path, change in by_path.items():
        if not any(path.startswith(kind) and path != f"{kind}kind" for kind in kinds):
            yield change


def _with_defaults(model: Transformer, scope: Scope, folder: Path) -> dict[str, Any]:
    """What a configuration states, for readers that know no defaults: with those of what its family
    has read. Special tokens are the model's own, or none: the defaults are those of another
    vocabulary."""
    config = scope.config
    unstated = config.defaults.nullable - config.file.data.keys()
    tokens = {
        key: one
        for key, one in special_ids(folder, _reading(model)).items()
        if (key in unstated if one is None else key in config.defaults.values)
    }
    fields = config.defaults.values.keys() - NO_FIELDS
    read = {key: config[key] for key in sorted(config.read & fields)}
    usual = {key: value for key, value in read.items() if value is not None}
    return {**config.file.data, **tokens, **usual, "dtype": dtype_name(_usual(model))}


def _reading(model: Transformer) -> Reading | None:
    """The first input of ids, if there is one."""
    return next(iter(model.spec.model.called_with), None)


def _target(model: Transformer, files: Mapping[str, str], families: Families) -> Target:
    spec = model.spec
    if spec.model.classes is not None:  # a family does not put their names there
        spec = replace(spec, model=spec.model.labelled(None))
    data = spec.to_dict()
    by_first_layers(data)
    spec = read_spec(data, registry=families.registry)
    rounds = any(
        one.dtype not in WHOLE for one in stored(model).values() if one.is_floating_point()
    )
    return Target(spec, rounds, files, families)


def _validated(origin: object, where: Place) -> Origin:
    try:
        return Origin.model_validate(origin)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(key) for key in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        message = f"what it says of its origin is damaged: {f'`{at}`: ' if at else ''}{reason}"
        raise WeightsError(message, where) from None


def _of_another(change: ValueChange, model: Transformer, origin: Origin, where: Place) -> Problem:
    """The problem that the configuration means a model that differs in this value."""
    if "part" in (model.origin or {}):
        published = json.loads(origin.config)["architectures"][0]
        return Problem(
            f"`{published}` of `transformers` is another model: {_difference(change, model)}",
            where,
            help="train with the head that is published, to export the model",
        )
    return Problem(
        "the configuration that it was imported with means another model, with another "
        f"`{change['path']}`",
        where,
        help="a model whose spec has changed since is exported as one that was not imported: "
        "`--as` names its class",
    )


def _difference(change: ValueChange, model: Transformer) -> str:
    there, here = (
        "not stated" if side is None else json.dumps(side["value"])
        for side in (change["a"], change["b"])
    )
    return f"`{change['path']}` is {there} there, and {here} in {model.spec.name}"


def _config(model: Transformer, origin: Origin) -> str:
    """The text of config.json, with the names of the classes that the spec states, if it does, and
    with the dtype of the tensors, to which `transformers` would cast them, if it has changed."""
    data: dict[str, Any] = json.loads(origin.config)
    changes: dict[str, Any] = {}
    classes = model.spec.model.classes
    if classes is not None and classes.labels is not None:
        changes |= written_names(classes.labels)
    key, stated = dtype_key(data), stated_dtype(data)
    usual = _usual(model)
    if stated is not None and DTYPES[usual] != (origin.dtype or stated):
        changes[key] = dtype_name(usual)
    return json.dumps(data | changes, indent=2) + "\n" if changes else origin.config


def _usual(model: Transformer) -> torch.dtype:
    """The dtype of most tensors."""
    return next(iter(by_dtype({name: one.dtype for name, one in stored(model).items()})))


def _check_zeros(model: Transformer, plan: Plan, where: Place) -> None:
    """Raise `WeightsError` if a tensor that the checkpoint leaves out is no longer zero."""
    tensors = stored(model)
    if changed := [name for name in plan.zeros if bool(tensors[name].any())]:
        raise WeightsError(
            Problem(
                f"`{name}` is not zero, and the checkpoint that the model was imported from has no "
                "tensor for it",
                where,
                help="the export would be another model",
            )
            for name in changed
        )


def _made(model: Transformer, plan: Plan, origin: Origin) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor of the checkpoint, under its original name."""
    tensors = {name: tensor.detach() for name, tensor in stored(model).items()}
    made: dict[str, torch.Tensor] = {}
    for step in plan.steps:
        made.update(_undone(step, tensors))
    for copy, original in plan.copies.items():
        made[copy] = made[original]
    for key, table in plan.computed.items():
        path, _, attribute = table.rpartition(".")
        made[key] = getattr(model.get_submodule(path), attribute)
    for key, tensor in made.items():
        yield origin.renamed.get(key, key), tensor


def _undone(step: Step, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    targets = [tensors[target] for target in step.targets]
    for number, key in enumerate(step.sources):
        parts = [target[number] for target in targets] if step.stacked else targets
        yield key, step.active.relayout.undo(parts)


def _write(tensors: Mapping[str, torch.Tensor], folder: Path, max_bytes: int | None) -> None:
    """Write tensors into a folder as `transformers` does: one plain safetensors file, or if they
    have more than `max_bytes` bytes, several and an index."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    sizes = {name: tensors[name].nbytes for name in names}
    plan = [names] if max_bytes is None else plan_shards(sizes, max_bytes)
    if len(plan) == 1:
        _write_file(tensors, names, folder / WEIGHTS)
        return
    files = numbered("model", len(plan))
    for file, part in zip(files, plan, strict=True):
        _write_file(tensors, part, folder / file)
    index = index_of(files, plan, {"total_size": sum(sizes.values())})
    (folder / WEIGHTS_INDEX).write_bytes(index)


def _write_file(tensors: Mapping[str, torch.Tensor], names: Sequence[str], path: Path) -> None:
    """Write the tensors with these names, in this order, as a plain safetensors file."""
    entries = {name: (DTYPES[tensors[name].dtype], tuple(tensors[name].shape)) for name in names}
    with path.open("xb") as file:
        file.write(laid_out(entries, {"format": "pt"}))
        for name in names:
            file.write(bytes_of(tensors[name].cpu().contiguous()))
