"""The labels of a classifier, and the data's agreement with them. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from zoo.errors import InputError, Problem, TrainingError
from zoo.families.class_names import unnamed
from zoo.running.labels import labels_of
from zoo.spec import ModelSpec
from zoo.training.data import place_of_label
from zoo.training.data_tables import Data
from zoo.training.example import Example
from zoo.training.recipe import Recipe
from zoo.training.sides import Reader, Sides
from zoo.training.split import Splits
from zoo.training.start import Start
from zoo.wording import counted, did_you_mean, first_of, quoted

_SHOWN = 8
"""The most labels in a message."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LARGEST = 1e15
"""The largest target that is a number; the sum of the squares of many is far within float32."""


def with_labels(start: Start, splits: Splits, folder: Path) -> Start:
    """Give a classifier the names of its classes: those of the recipe, or else of the model, or
    else of the training data, sorted. The spec of the trained model has them. For other models,
    nothing is done.

    Args:
        start: the recipe and its model.
        splits: its data.
        folder: the folder that the names of data files are relative to.

    Raises:
        TrainingError: the data has a label that the model has not, or another number of labels; or
            a label that the recipe states is missing in the training data, or is that of another
            class of a trained head; or lists have 1 or 0 for each class in place of labels; or a
            target is no number, for a model that predicts one.
    """
    recipe, sides = start.recipe, start.sides
    if not isinstance(sides, Reader) or sides.classes is None:
        return start
    if sides.predicts == "number":
        _check_numbers(recipe, splits.parts, folder)
        return start
    number = sides.classes.number
    if sides.predicts == "classes":
        _refuse_rows_of_bits(recipe, splits, number)
    own = _own_labels(start, number)
    learned = sorted({label for example in splits.train for label in example.targets})
    if not (recipe.head.labels or own):
        _check_number(start, learned, number)
    if start.saved is not None and start.saved.taken is None:
        _check_order(start, own)
    labels = recipe.head.labels or own or tuple(learned)
    _check_unknown(recipe, splits.parts, labels, folder)
    what = "word" if sides.predicts == "classes_of_words" else "text"
    notes = _notes_of_missing(recipe, labels, learned, what)
    start = start._replace(notes=(*start.notes, *notes))
    if labels == own:  # where they are already
        return start
    spec = replace(start.spec, model=start.spec.model.labelled(labels), origin=None)
    return start._replace(spec=spec)


def check_labels(
    recipe: Recipe, sides: Sides, test: Sequence[Example], labels: Sequence[str], folder: Path
) -> None:
    """Raise TrainingError if a target in the test data of a trained classifier is none of these
    labels, or no number where it predicts one. For other models, nothing is done."""
    if not isinstance(sides, Reader) or sides.classes is None:
        return
    if sides.predicts == "number":
        _check_numbers(recipe, {"test": test}, folder)
    else:
        _check_unknown(recipe, {"test": test}, labels, folder)


def _own_labels(start: Start, number: int) -> tuple[str, ...]:
    """The names that a model has for so many classes; none if these are but numbers."""
    names = labels_of(start.spec, start.origin).id2label
    if len(names) < number:  # which may be beyond memory
        return ()
    own = tuple(names[place] for place in range(number) if place in names)
    return () if len(own) < number or own == unnamed(number) else own


def _check_number(start: Start, learned: list[str], number: int) -> None:
    """Raise TrainingError unless the training data has as many labels as the model classes."""
    if len(learned) == number:
        return
    hint = f"state `n_classes = {len(learned)}` in the head of the spec"
    if len(learned) == 1:
        hint = "a classifier learns from texts of two labels at least"
    raise start.recipe.error(
        f"the training data has {counted(len(learned), 'label')}, and {start.spec.name} scores "
        f"{number} classes: {_listed(learned)}",
        "model",
        help=hint,
    )


def _notes_of_missing(
    recipe: Recipe, labels: tuple[str, ...], learned: list[str], what: str
) -> list[str]:
    """A note for each label that no text, or word, of the training data has. Raises TrainingError
    if the recipe itself states one."""
    known = {*learned}
    missing = [label for label in labels if label not in known]
    notes = [f"no {what} of the training data has the label {quoted(one)}" for one in missing]
    if missing and recipe.head.labels:
        number = recipe.head.labels.index(missing[0])
        raise recipe.error(notes[0], "labels", number, help=f"it has: {_listed(learned)}")
    return notes


def labels_in(spec: ModelSpec, origin: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names of the classes of a classifier after `with_labels`; none of other models. The
    arguments are those of `labels_of`. Raises InputError if some have none."""
    found, classes = labels_of(spec, origin), spec.model.classes
    if classes is None or found.problem_type == "regression":
        return ()
    try:
        return tuple(found.id2label[place] for place in range(classes.number))
    except KeyError as error:
        message = f"class {error} of {spec.name} has no name, so that no recipe has trained it"
        raise InputError(message) from None


def _refuse_rows_of_bits(recipe: Recipe, splits: Splits, number: int) -> None:
    """Raise TrainingError if all lists of labels are 1 or 0 for each class."""
    lists = [example.targets for example in splits.train]
    bits = {label for labels in lists for label in labels} <= {"0", "1"}
    if bits and number > 1 and all(len(labels) == number for labels in lists):
        message = "each list is 1 or 0 for each class, and no list of labels"
        hint = 'a list has the labels that the text has: `["dog", "big"]`'
        raise recipe.error(message, "data", "target", help=hint)


def _check_numbers(recipe: Recipe, parts: Mapping[str, Sequence[Example]], folder: Path) -> None:
    wrong = [
        (part, target)
        for part, examples in parts.items()
        for target in dict.fromkeys(example.target_text for example in examples)
        if not _is_number(target)
    ]
    if wrong:
        raise _error_of(wrong, _no_number, "more wrong target", recipe.data, folder)


def _is_number(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text)) and abs(float(text)) <= _LARGEST


def _no_number(text: str) -> Problem:
    if not _NUMBER.fullmatch(text):
        return Problem(f"{quoted(text)} is not a number")
    hint = f"its square is computed in float32: scale the numbers to {_LARGEST:,.0f} at most"
    return Problem(f"{quoted(text)} is too large", help=hint)


def _check_order(start: Start, own: tuple[str, ...]) -> None:
    """Raise TrainingError if the recipe gives a class of a trained head the label of another one.
    Other labels may take the place of those that it has."""
    stated = start.recipe.head.labels or ()
    for number, (label, was) in enumerate(zip(stated, own, strict=False)):
        if label != was and label in own:
            raise start.recipe.error(
                f"class {number} of {start.spec.name} is trained as {quoted(was)}, and "
                f"{quoted(label)} is its class {own.index(label)}",
                "labels",
                number,
                help=f"its labels are {_listed(own)}, and here they are {_listed(stated)}: "
                "state them in its order, or leave `labels` out",
            )


def _check_unknown(
    recipe: Recipe,
    parts: Mapping[str, Sequence[Example]],
    labels: Sequence[str],
    folder: Path,
) -> None:
    unknown = [
        (part, label)
        for part, examples in parts.items()
        for label in sorted({one for example in examples for one in example.targets} - {*labels})
    ]

    def problem(label: str) -> Problem:
        hint = did_you_mean(label, labels, f"the labels are: {_listed(labels)}")
        return Problem(f"unknown label {quoted(label)}", help=hint)

    if unknown:
        raise _error_of(unknown, problem, "more unknown label", recipe.data, folder)


def _error_of(
    wrong: Sequence[tuple[str, str]],
    problem: Callable[[str], Problem],
    others: str,
    data: Data,
    folder: Path,
) -> TrainingError:
    """The error for wrong labels, each after the part of the data that it is in: the first ones
    with their places, for each of which the data is read again, and the number of the others."""
    parts: dict[tuple[object, str], str] = {}
    for part, label in wrong:
        stated = getattr(data, part)
        file = data.train if isinstance(stated, int) else stated
        parts.setdefault((file, label), part)  # of parts of one file, the first line is the same
    shown = [
        problem(label)._replace(place=place_of_label(data, folder, part, label))
        for (_, label), part in islice(parts.items(), _SHOWN)
    ]
    if left := len(parts) - len(shown):
        shown.append(Problem(counted(left, others)))
    return TrainingError(shown)


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(first_of([quoted(label) for label in labels], _SHOWN))
