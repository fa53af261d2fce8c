"""What a model learns by a recipe, and from which data: it follows from what the model is for.

A model that generates learns to predict each token of a target, from those before it and the source
if there is one. A model that reads whole texts learns to fill in masked tokens or to classify, as
its head says. Imports no torch.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from zoo.errors import Problem, TrainingError
from zoo.purpose import Classes, Generation
from zoo.spec import ModelSpec
from zoo.training.recipe import Recipe


class Reader(NamedTuple):
    """A model that reads a text as a whole.

    Args:
        vocab: ids are below this.
        longest: the most tokens that the positions allow; None for no limit.
        pad_id: the padding id, which the model masks itself.
        mask: the argument of a call that says which tokens are not padding.
        classes: the classes of a model that classifies; None for one that fills in masked tokens.
    """

    vocab: int
    longest: int | None
    pad_id: int | None
    mask: Literal["source_mask", "target_mask"]
    classes: Classes | None

    @property
    def has_source(self) -> bool:
        """Whether it learns from pairs: of a text and its label."""
        return self.classes is not None


Sides = Generation | Reader
"""What a model that a recipe trains reads and predicts."""


def n_outputs(sides: Sides) -> int:
    """The number of tokens or classes, of which the model scores each."""
    if isinstance(sides, Generation):
        return sides.target_vocab
    return sides.vocab if sides.classes is None else sides.classes.number


def sides_of(spec: ModelSpec) -> Sides | None:
    """What the model learns by a recipe; None if it cannot be trained by one."""
    builder = spec.model
    if builder.generation is not None:
        return builder.generation if builder.generation.from_ids else None
    reading, classes = builder.reading, builder.classes
    if reading is None or (classes is None and builder.task != "fill_mask"):
        return None
    return Reader(*reading, classes)


def find_sides(recipe: Recipe, spec: ModelSpec) -> Sides:
    """What the model of a recipe learns.

    Raises:
        TrainingError: it cannot be trained by a recipe, or not on sequences of this length; or the
            recipe states what has no effect on such a model.
    """
    place = recipe.document.place
    found = sides_of(spec)
    if found is None:
        by_token = spec.model.task == "classify" and not spec.model.images
        what = " to classify each token" if by_token else ""
        raise TrainingError(
            Problem(
                f"{spec.name} cannot be trained by a recipe{what}",
                place(("model",), value=True),
                help="that takes a model from tokens to tokens: a decoder, an encoder and a "
                "decoder, or an encoder, with a head that scores the vocabulary; or a head that "
                "classifies texts",
            )
        )
    if isinstance(found, Generation) and found.looks_ahead:
        raise TrainingError(
            Problem(
                f"{spec.name} would see the tokens that it has to predict: "
                f"{', '.join(found.looks_ahead)}",
                place(("model",), value=True),
                help="a recipe trains models whose positions see no later ones",
            )
        )
    _check_classes(recipe, spec, found)
    limits = [found.longest]
    limits += [found.longest_source] if isinstance(found, Generation) else []
    longest = min((limit for limit in limits if limit is not None), default=None)
    if longest is not None and recipe.training.max_length > longest:
        raise TrainingError(
            Problem(
                f"sequences of max_length = {recipe.training.max_length} tokens do not fit: "
                f"{spec.name} has positions for {longest}",
                place(("training", "max_length"), value=True),
                help=f"state `max_length = {longest}` in `[training]`",
            )
        )
    return found


def _check_classes(recipe: Recipe, spec: ModelSpec, sides: Sides) -> None:
    """Check what the recipe says of classes and of masked tokens. Raises as `find_sides`."""
    place, labels = recipe.document.place, recipe.head.labels
    reader = sides if isinstance(sides, Reader) else None
    if "masking" in recipe.document.data and (reader is None or reader.classes is not None):
        message = f"`[masking]` has no effect: {spec.name} fills in no masked tokens"
        raise TrainingError(Problem(message, place(("masking",)), "leave it out"))
    if labels is not None and (reader is None or reader.classes is None):
        message = f"`labels` has no effect: {spec.name} does not classify"
        raise TrainingError(Problem(message, place(("labels",)), "leave it out"))
    if reader is None or reader.classes is None:
        return
    number = reader.classes.number
    if number == 1:
        message = f"{spec.name} has a single class, so that there is nothing to choose"
        hint = "state as many `n_classes` in the spec as there are labels"
        raise TrainingError(Problem(message, place(("model",), value=True), hint))
    if labels is not None and len(labels) != number:
        message = f"there are {len(labels)} labels, and {spec.name} scores {number} classes"
        hint = f"state `n_classes = {len(labels)}` in the head of the spec"
        raise TrainingError(Problem(message, place(("labels",), value=True), hint))


def data_in_words(sides: Sides) -> str:
    """The kind of data that a model learns from, in words."""
    if not sides.has_source:
        return "text, one line for each example"
    return "pairs of source and target" if isinstance(sides, Generation) else "texts with labels"
