"""What a model learns by a recipe, and from which data: it follows from what the model is for.

A model that generates learns to predict each token of a target, from those before it and the source
if there is one. A model that reads whole texts learns to fill in masked tokens, or to classify a
text or each of its words, as its head says. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from zoo.errors import TrainingError
from zoo.purpose import Classes, Generation
from zoo.running.labels import labels_of
from zoo.spec import ModelSpec
from zoo.training.data_tables import has_chats
from zoo.training.recipe import Recipe


class Reader(NamedTuple):
    """A model that reads a text as a whole.

    Args:
        vocab: ids are below this.
        longest: the most tokens that the positions allow; None for no limit.
        pad_id: the padding id, which the model masks itself.
        mask: the argument of a call that says which tokens are not padding.
        token_types: the number of types of tokens that a call tells apart; 0 if it takes none.
        classes: the classes of a model that classifies; None for one that fills in masked tokens.
    """

    vocab: int
    longest: int | None
    pad_id: int | None
    mask: Literal["source_mask", "target_mask"]
    token_types: int
    classes: Classes | None

    @property
    def has_source(self) -> bool:
        """Whether it learns from pairs: of a text and its label."""
        return self.classes is not None

    @property
    def predicts(self) -> Predicts:
        """What it predicts."""
        if self.classes is None:
            return "masked_tokens"
        if self.classes.each_token:
            return "classes_of_words"
        return _OF_PROBLEMS.get(self.classes.problem_type or "", "class")


_OF_PROBLEMS: Mapping[str, Predicts] = {
    "multi_label_classification": "classes",
    "regression": "number",
}


Predicts = Literal["masked_tokens", "class", "classes", "number", "classes_of_words"]
"""What a model that reads whole texts predicts: tokens that are masked; the one class of a text, or
any number of classes; a number; the class of each word."""

Sides = Generation | Reader
"""What a model that a recipe trains reads and predicts."""


def n_outputs(sides: Sides) -> int:
    """The number of tokens or classes, of which the model scores each."""
    if isinstance(sides, Generation):
        return sides.target_vocab
    return sides.vocab if sides.classes is None else sides.classes.number


def sides_of(spec: ModelSpec, origin: Mapping[str, Any] | None = None) -> Sides | None:
    """What the model learns by a recipe; None if it cannot be trained by one. Of an imported model,
    the config.json in its `origin` may say what kind of problem its scores are for."""
    builder = spec.model
    if builder.generation is not None:
        return builder.generation if builder.generation.from_ids else None
    reading, classes = builder.reading, builder.classes
    if reading is None or (classes is None and builder.task != "fill_mask"):
        return None
    if classes is not None:
        classes = classes._replace(problem_type=labels_of(spec, origin).problem_type)
    return Reader(**reading._asdict(), classes=classes)


def find_sides(recipe: Recipe, spec: ModelSpec, origin: Mapping[str, Any] | None) -> Sides:
    """What the model of a recipe learns. The arguments are those of `sides_of`.

    Raises:
        TrainingError: it cannot be trained by a recipe, or not on sequences of this length; or the
            recipe states what has no effect on such a model.
    """
    found = sides_of(spec, origin)
    if found is None:
        raise recipe.error(
            f"{spec.name} cannot be trained by a recipe",
            "model",
            help="that takes a model from tokens to tokens: a decoder, an encoder and a decoder, "
            "or an encoder, with a head that scores the vocabulary; or a head that classifies "
            "texts or tokens",
        )
    if isinstance(found, Generation) and found.looks_ahead:
        seen = ", ".join(found.looks_ahead)
        message = f"{spec.name} would see the tokens that it has to predict: {seen}"
        hint = "a recipe trains models whose positions see no later ones"
        raise recipe.error(message, "model", help=hint)
    _check_classes(recipe, spec, found)
    if has_chats(recipe.data) and not is_of_decoder(found):
        message = f"chats are for decoders, and {spec.name} learns from {data_of(found)[0]}"
        raise recipe.error(message, "data", "messages", help=data_of(found)[1])
    limits = [found.longest]
    limits += [found.longest_source] if isinstance(found, Generation) else []
    longest = min((limit for limit in limits if limit is not None), default=None)
    if longest is not None and recipe.training.max_length > longest:
        raise recipe.error(
            f"sequences of max_length = {recipe.training.max_length} tokens do not fit: "
            f"{spec.name} has positions for {longest}",
            "training",
            "max_length",
            help=f"state `max_length = {longest}` in `[training]`",
        )
    return found


def _check_classes(recipe: Recipe, spec: ModelSpec, sides: Sides) -> None:
    """Check what the recipe says of classes and of masked tokens. Raises as `find_sides`."""
    place, labels = recipe.document.place, recipe.head.labels
    reader = sides if isinstance(sides, Reader) else None
    if "masking" in recipe.document.data and (reader is None or reader.classes is not None):
        message = f"`[masking]` has no effect: {spec.name} fills in no masked tokens"
        raise recipe.error(message, "masking", help="leave it out")
    if labels is not None and (reader is None or reader.predicts in ("masked_tokens", "number")):
        message = f"`labels` has no effect: {spec.name} does not classify"
        raise TrainingError(message, place(("labels",)), "leave it out")
    if reader is None or reader.classes is None:
        return
    if reader.predicts in ("classes", "number") and recipe.training.label_smoothing:
        message = "`label_smoothing` has no effect: it is for classes of which one is right"
        at = place(("training", "label_smoothing"))
        raise TrainingError(message, at, "leave it out")
    number = reader.classes.number
    if number == 1 and reader.predicts in ("class", "classes_of_words"):
        message = f"{spec.name} has a single class, so that there is nothing to choose"
        hint = (
            "state as many `n_classes` in the spec as there are labels; or, in the head of a "
            'classifier whose score is a number, `problem_type = "regression"`'
        )
        raise recipe.error(message, "model", help=hint)
    if number != 1 and reader.predicts == "number":
        message = f"{spec.name} makes {number} numbers of a text, and a recipe trains for one"
        raise recipe.error(message, "model", help="state `n_classes = 1` in the head of the spec")
    if labels is not None and len(labels) != number:
        message = f"there are {len(labels)} labels, and {spec.name} scores {number} classes"
        hint = f"state `n_classes = {len(labels)}` in the head of the spec"
        raise recipe.error(message, "labels", help=hint)


def is_of_decoder(sides: Sides) -> bool:
    """Whether the model is a decoder."""
    return isinstance(sides, Generation) and not sides.has_source


def data_of(sides: Sides) -> tuple[str, str]:
    """The kind of data that a model learns from, in words, and how a recipe states it."""
    if not isinstance(sides, Generation):
        return _DATA[sides.predicts]
    if sides.has_source:
        form = 'pairs are of `kind = "tsv"` or `"parallel"`; text is for a decoder'
        return "pairs of source and target", form
    return (
        f"{_TEXT}, from prompts and their answers, or from chats",
        'text is of `kind = "text"`; a prompt and its answer are the `source` and the `target` of '
        '`kind = "jsonl"`, and a chat its `messages`',
    )


_TEXT = "text, one line for each example"
_OF_TEXTS = 'a text and its label are the `source` and the `target` of `kind = "tsv"`'
_DATA: Mapping[Predicts, tuple[str, str]] = {
    "masked_tokens": (_TEXT, 'a model that fills in masked tokens learns from `kind = "text"`'),
    "class": ("texts with labels", _OF_TEXTS),
    "classes": (
        "texts with lists of labels",
        "a text and the list of its labels are the `source` and the `target` of "
        '`kind = "jsonl"` or `"datasets"`; for one label of each text, leave out '
        "`problem_type` in the head",
    ),
    "number": ("texts with numbers", _OF_TEXTS),
    "classes_of_words": (
        "lists of words with lists of labels",
        'words and their labels are the lists `source` and `target` of `kind = "jsonl"` or '
        '`"datasets"`',
    ),
}
