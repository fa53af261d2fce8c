"""The labels of a classifier, and the data's agreement with them. Imports no torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from zoo.errors import Problem, TrainingError
from zoo.running.labels import labels_of
from zoo.training.data import place_of_target
from zoo.training.recipe import Recipe
from zoo.training.sides import Reader
from zoo.training.split import Splits
from zoo.training.start import Start
from zoo.wording import counted, did_you_mean, quoted

_SHOWN = 8
"""The most labels in a message."""


def with_labels(recipe: Recipe, start: Start, splits: Splits, folder: Path) -> Start:
    """Give a classifier the names of its classes: those of the recipe, or else of the model, or
    else of the training data, sorted. The spec of the trained model has them. For other models,
    nothing is done.

    Args:
        recipe: the recipe.
        start: its model.
        splits: its data.
        folder: the folder that the names of data files are relative to.

    Raises:
        TrainingError: the data has a label that the model has not, or another number of labels; or
            a label that the recipe states is missing in the training data; or the model scores
            something else than classes of which one is right.
    """
    sides = start.sides
    if not isinstance(sides, Reader) or sides.classes is None:
        return start
    place = recipe.document.place
    published = labels_of(start.spec, start.origin)
    if published.problem_type not in (None, "single_label_classification"):
        raise TrainingError(
            Problem(
                f"{start.spec.name} is for {quoted(published.problem_type)}, as its config.json "
                "says",
                place(("model",), value=True),
                help="a recipe trains classifiers of texts that are of one class each",
            )
        )
    number = sides.classes.number
    own: tuple[str, ...] = ()
    if len(published.id2label) >= number:  # otherwise the number may be beyond memory
        named = (published.id2label.get(n) for n in range(number))
        own = tuple(name for name in named if name is not None)
    own = () if len(own) < number or own == _unnamed(len(own)) else own
    learned = sorted({example.target for example in splits.train})
    if not (recipe.head.labels or own) and len(learned) != number:
        help = f"state `n_classes = {len(learned)}` in the head of the spec"
        if len(learned) == 1:
            help = "a classifier learns from texts of two labels at least"
        raise TrainingError(
            Problem(
                f"the training data has {counted(len(learned), 'label')}, and {start.spec.name} "
                f"scores {number} classes: {_listed(learned)}",
                place(("model",), value=True),
                help=help,
            )
        )
    labels = recipe.head.labels or own or tuple(learned)
    _check_unknown(recipe, splits, labels, folder)
    missing = [label for label in labels if label not in learned]
    if missing and recipe.head.labels:
        at = place(("labels", recipe.head.labels.index(missing[0])), value=True)
        message = f"no text of the training data has the label {quoted(missing[0])}"
        raise TrainingError(Problem(message, at, f"it has: {_listed(learned)}"))
    notes = (f"no text of the training data has the label {quoted(one)}" for one in missing)
    start = start._replace(notes=(*start.notes, *notes))
    if labels == own:  # where they are already
        return start
    spec = replace(start.spec, model=start.spec.model.labelled(labels), origin=None)
    return start._replace(spec=spec)


def labels_in(start: Start) -> tuple[str, ...]:
    """The names of the classes of a classifier after `with_labels`; none of other models."""
    found = labels_of(start.spec, start.origin).id2label
    classes = start.spec.model.classes
    return () if classes is None else tuple(found[place] for place in range(classes.number))


def _check_unknown(recipe: Recipe, splits: Splits, labels: tuple[str, ...], folder: Path) -> None:
    problems: list[Problem] = []
    for part, examples in splits.parts.items():
        for label in sorted({example.target for example in examples} - {*labels}):
            place = place_of_target(recipe.data, folder, part, label)
            hint = did_you_mean(label, labels, f"the labels are: {_listed(labels)}")
            problems.append(Problem(f"unknown label {quoted(label)}", place, hint))
    problems = list(dict.fromkeys(problems))  # of parts of one file, the first line is the same
    if problems:
        told = problems[:_SHOWN]
        if left := len(problems) - len(told):
            told.append(Problem(f"{counted(left, 'more unknown label')}"))
        raise TrainingError(told)


def _unnamed(number: int) -> tuple[str, ...]:
    """The names that `transformers` gives to classes without names."""
    return tuple(f"LABEL_{place}" for place in range(number))


def _listed(labels: tuple[str, ...] | list[str]) -> str:
    shown = [quoted(label) for label in labels[:_SHOWN]]
    return ", ".join([*shown, *["..."] * (len(labels) > _SHOWN)])
