"""Export an imported model as its original checkpoint: the same names, layouts and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import torch
from pydantic import ValidationError

from zoo.atomic import new_folder
from zoo.errors import Place, Problem, WeightsError, checked_path
from zoo.families.catalogue import Catalogue
from zoo.families.config import FILE_NAME as CONFIG
from zoo.families.config import parse_json
from zoo.families.family import with_rules
from zoo.families.origin import Origin, check_companions, read_companions, write_companions
from zoo.families.plan import Plan, Step, active_rules, make_plan
from zoo.families.sentence import dense_rules
from zoo.families.spec import family_spec
from zoo.loading import load
from zoo.registry import Registry, load_registry
from zoo.saving import bytes_of
from zoo.transformer import Transformer
from zoo.weights.file import FILE_NAME, laid_out
from zoo.weights.held_tensors import DTYPES, stored
from zoo.weights.output_names import check_output_name


def export_folder(
    source: str | Path, output: str | Path, *, registry: Registry | None = None
) -> None:
    """Write an imported model as a folder that `transformers` loads.

    Args:
        source: the folder, the weights file or the name of an imported model, which may have been
            trained since.
        output: the new folder, which appears when it is complete.
        registry: where families and components are looked up.

    Raises:
        WeightsError: the model cannot be loaded or was not imported, its record of its origin is
            damaged or belongs to another model, or a tensor that its checkpoint leaves out is no
            longer zero; or the name of `output` is that of a file.
        SpecError: the family cannot make a spec of the recorded configuration.
        ZooError: `output` exists, or cannot be written.
    """
    output = checked_path(output, "`output` is a path")
    check_output_name(output, folder=True)
    registry = load_registry() if registry is None else registry
    model = load(source, registry=registry)
    assert model.load_report is not None  # `load` sets it
    path = Path(model.load_report.path)
    origin = _origin(model, Place(str(path)))
    plan = _plan(model, origin, registry, Place(str(path)))
    companions = read_companions(path.parent, origin.files)
    check_companions(companions, origin, path.parent)
    _check_zeros(model, plan, Place(str(path)))
    tensors = dict(_made(model, plan, origin))
    with new_folder(output) as folder:
        (folder / CONFIG).write_bytes(origin.config.encode())
        write_companions(companions, folder)
        for place in sorted({name.rpartition("/")[0] for name in tensors}):
            (folder / place).mkdir(exist_ok=True)  # its configuration may have been moved away
            with (folder / place / FILE_NAME).open("xb") as file:
                _write(tensors, place, file)


def _origin(model: Transformer, where: Place) -> Origin:
    if model.origin is None:
        raise WeightsError(
            Problem(
                "the model was not imported, so there is no configuration to export it with",
                where,
                help="`zoo import` reads the folders that `zoo export` writes",
            )
        )
    if "part" in model.origin:
        raise WeightsError(
            Problem(
                "only a part of the weights is the checkpoint's: they were loaded with `only`",
                where,
                help="load all of them",
            )
        )
    try:
        return Origin.model_validate(model.origin)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(key) for key in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        message = f"what it says of its origin is damaged: {f'`{at}`: ' if at else ''}{reason}"
        raise WeightsError(Problem(message, where)) from None


def _plan(model: Transformer, origin: Origin, registry: Registry, where: Place) -> Plan:
    catalogue = Catalogue(registry)
    file = parse_json(Path(CONFIG), origin.config.encode())
    family = with_rules(catalogue.family(origin.family), dense_rules(origin.tensors))
    scope = catalogue.scope(family, file, frozenset(origin.tensors))
    own = model.spec.to_dict()
    words = catalogue.vocabulary.sentence
    sentence = words is not None and own.get("head", {}).get("kind") == words.kind
    head = {"head": own["head"]} if sentence else {}  # which config.json does not describe
    meant = family_spec(scope, model.spec.name, registry, head).to_dict()
    if differing := [key for key in {**own, **meant} if own.get(key) != meant.get(key)]:
        raise WeightsError(
            Problem(
                "the configuration that it was imported with means another model, with another "
                f"`{differing[0]}`",
                where,
                help="a model whose spec has changed since has no configuration to export it with",
            )
        )
    return make_plan(model.spec, scope, active_rules(scope), origin.tensors, where)


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
        yield key, step.relayout.undo(parts)


def _write(all_tensors: Mapping[str, torch.Tensor], place: str, file: BinaryIO) -> None:
    """Write the tensors of one folder as a plain safetensors file, as `transformers` reads it."""
    tensors = {
        name.rpartition("/")[2]: tensor
        for name, tensor in all_tensors.items()
        if name.rpartition("/")[0] == place
    }
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    entries = {name: (DTYPES[tensors[name].dtype], tuple(tensors[name].shape)) for name in names}
    file.write(laid_out(entries, {"format": "pt"}))
    for name in names:
        file.write(bytes_of(tensors[name].cpu().contiguous()))
