"""One case, held against transformers: import, run, export, load again."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

import zoo
from families.cases import Case, all_cases
from families.checkpoints import load, make_model, save, without_defaults, write_config
from families.inputs import Inputs, make_inputs
from families.outputs import Outputs, our_outputs, taken, their_outputs
from zoo import export_folder
from zoo.families.import_plan import Import, plan_import
from zoo.families.importing import save_import
from zoo.transformer import Transformer

TOLERANCE = 1e-5
"""Absolute and relative, in float32."""


@dataclass(frozen=True)
class Truth:
    """A checkpoint and what transformers makes of it.

    Args:
        case: the case.
        folder: where it is saved.
        inputs: what the model is given.
        outputs: what it makes of each, by the name of the input.
    """

    case: Case
    folder: Path
    inputs: tuple[Inputs, ...]
    outputs: Mapping[str, Outputs]


@dataclass(frozen=True)
class Difference:
    """How far an output is from the truth.

    Args:
        input: the name of the input.
        output: the name of the output.
        largest: the largest absolute difference.
        excess: the largest difference over what is allowed there; over 1 is too far.
        first: where the first difference that is too large is, and the two values; or else None.
    """

    input: str
    output: str
    largest: float
    excess: float
    first: str | None


@dataclass
class Report:
    """What was found of one case. Nothing in `faults` means that it holds."""

    differences: list[Difference] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def largest(self) -> float:
        """The largest difference of any output."""
        return max((d.largest for d in self.differences), default=0.0)


@cache
def registry() -> zoo.Registry:
    """The registry of every check, read once."""
    return zoo.load_registry()


def imported_case(name: str, folder: Path, **config: object) -> tuple[PreTrainedModel, Transformer]:
    """The tiny model of a case with other values in its configuration, and what it is in the
    zoo."""
    case = all_cases()[name]
    case = replace(case, config={**case.config, **config})
    theirs = make_model(case)
    save(theirs, case, folder / "source")
    zoo.import_folder(folder / "source", folder / "imported", registry=registry())
    return theirs, zoo.load(folder / "imported", registry=registry()).eval()


def make_truth(case: Case, folder: Path) -> Truth:
    """Make the model of a case, save it into the folder, and run it."""
    model = make_model(case)
    save(model, case, folder)
    if case.published or case.renamed:
        model = load(case, folder)
    inputs = tuple(make_inputs(case, model.config, taken(model)))
    return Truth(case, folder, inputs, run(model, case, inputs))


def run(model: PreTrainedModel, case: Case, inputs: tuple[Inputs, ...]) -> dict[str, Outputs]:
    return {given.name: their_outputs(model, case, given) for given in inputs}


def check(truth: Truth, work: Path) -> Report:
    """Import the checkpoint, run it, export it, and let transformers load and run the export.

    Args:
        truth: the checkpoint.
        work: a folder to write into.
    """
    report = Report()
    planned = plan_import(truth.folder, name="tiny", registry=registry())
    save_import(planned, work / "imported")
    compare_outputs(truth, work / "imported", report)
    export_folder(work / "imported", work / "exported", registry=registry())
    compare_tensors(planned, truth.folder, work / "exported", report)
    original, exported = (f / "config.json" for f in (truth.folder, work / "exported"))
    if original.read_bytes() != exported.read_bytes():
        report.faults.append("export: `config.json` has other bytes")
    compare_reloaded(truth, planned, work / "exported", report)
    compare_without_defaults(truth, planned, work / "short", report)
    return report


@torch.no_grad()
def compare_outputs(truth: Truth, imported: Path, report: Report) -> None:
    """The outputs of the imported model against those of transformers."""
    model = zoo.load(imported, registry=registry()).eval()
    for given in truth.inputs:
        theirs = truth.outputs[given.name]
        ours = our_outputs(model, truth.case, given, theirs)
        for name, expected in theirs.items():
            difference = compare(ours[name], expected, given.name, name)
            report.differences.append(difference)
            if difference.first is not None:
                report.faults.append(f"{given.name}: {name}{difference.first}")


def compare(found: Tensor, expected: Tensor, given: str, name: str) -> Difference:
    """An output against the truth. A last axis of one value may be missing."""
    if found.shape == (*expected.shape, 1):
        found = found[..., 0]
    if found.shape != expected.shape:
        shapes = f" has the shape {tuple(found.shape)}, not {tuple(expected.shape)}"
        return Difference(given, name, float("inf"), float("inf"), shapes)
    apart = (found - expected).abs().nan_to_num(float("inf"))
    excess = apart / (TOLERANCE + TOLERANCE * expected.abs())
    first = None
    if (too_far := (excess > 1).nonzero()).numel():
        at = tuple(too_far[0].tolist())
        first = (
            f"{list(at)} is {found[at]:.7g}, not {expected[at]:.7g}; "
            f"{len(too_far)} of {found.numel()} values differ"
        )
    return Difference(given, name, float(apart.max()), float(excess.max()), first)


def compare_tensors(planned: Import, original: Path, exported: Path, report: Report) -> None:
    """The exported tensors against the original ones: names, types, shapes and bytes. Those that
    the family drops are not there, and tables that are computed are equal to the tolerance."""
    theirs, ours = tensors(original), tensors(exported)
    for dropped in planned.plan.dropped:
        theirs.pop(dropped, None)
    for name in sorted(theirs.keys() | ours.keys()):
        if name not in ours:
            report.faults.append(f"export: `{name}` is missing")
        elif name not in theirs:
            report.faults.append(f"export: `{name}` was not in the original")
        elif name in planned.plan.computed:
            difference = compare(ours[name], theirs[name], "export", name)
            report.faults += [] if difference.first is None else [f"`{name}`{difference.first}"]
        elif fault := unequal(ours[name], theirs[name]):
            report.faults.append(f"export: `{name}` {fault}")


def tensors(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def unequal(found: Tensor, expected: Tensor) -> str | None:
    """What is not the same, if anything."""
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return (
            f"is {found.dtype} {tuple(found.shape)}, not {expected.dtype} {tuple(expected.shape)}"
        )
    same = torch.equal(found.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))
    return None if same else "has other bytes"


def compare_reloaded(truth: Truth, planned: Import, exported: Path, report: Report) -> None:
    """What transformers makes of the exported folder, which must be the very same."""
    try:
        model = load(truth.case, exported, in_model(planned.plan.dropped, truth.case))
    except ValueError as error:
        report.faults.append(str(error))
        return
    for given, outputs in run(model, truth.case, truth.inputs).items():
        for name, expected in truth.outputs[given].items():
            if not torch.equal(outputs[name], expected):
                report.faults.append(
                    f"exported and loaded by transformers: {given}: {name} differs"
                )


def in_model(names: Iterable[str], case: Case) -> set[str]:
    """The names of tensors of a checkpoint, and those that they may have in the model, which for
    some classes of transformers are others."""
    found = set(names)
    for new, old in case.renamed.items():
        found |= {name.replace(old, new) for name in found}
    return found | {f"model.{name}" for name in found}


def compare_without_defaults(truth: Truth, planned: Import, folder: Path, report: Report) -> None:
    """The spec must be the same if the config leaves out what transformers takes for granted."""
    folder.mkdir()
    shutil.copy(truth.folder / "model.safetensors", folder)
    write_config(folder, without_defaults(truth.folder, truth.case))
    spec = plan_import(folder, name="tiny", registry=registry()).spec
    if spec.digest != planned.spec.digest:
        report.faults.append(
            "config without defaults: another spec: "
            + ", ".join(differing(spec.to_dict(), planned.spec.to_dict()))
        )


def differing(found: Any, expected: Any, path: str = "") -> Iterator[str]:
    """The paths at which two specs differ, with both values."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted(found.keys() | expected.keys()):
            inner = f"{path}.{key}" if path else key
            yield from differing(found.get(key), expected.get(key), inner)
    elif found != expected:
        yield f"{path} = {found!r}, not {expected!r}"
