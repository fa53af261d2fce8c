"""Finding the model and the data of a recipe before training starts. Imports no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zoo.errors import InputError, Place, Problem, TrainingError, ZooError, placed
from zoo.files.of_model import RECIPE
from zoo.registry import Registry
from zoo.running.labels import published_config
from zoo.running.text import no_pairs
from zoo.spec import ModelSpec
from zoo.store.found_spec import read_source
from zoo.store.found_weights import find_weights
from zoo.training.data import read_data
from zoo.training.data_tables import messages_of
from zoo.training.frozen import adapted_weights, frozen_weights
from zoo.training.published import UNPUBLISHED, Published, read_published
from zoo.training.reader_tokens import ReaderTokens
from zoo.training.recipe import Recipe
from zoo.training.recipe_tokens import tokens_of
from zoo.training.sides import Reader, Sides, data_of, find_sides, is_of_decoder
from zoo.training.split import Example, Splits
from zoo.training.tables import OfModel
from zoo.training.taken_weights import notes_on_unused, taken_weights
from zoo.training.tokens import AnyTokens, Tokens, folder_of
from zoo.weights.file import Header, weights_path
from zoo.weights.reader import read_header
from zoo.wording import quoted, typed

if TYPE_CHECKING:
    from zoo.training.chats import Chats


class Start(NamedTuple):
    """A recipe, and what training by it starts from."""

    recipe: Recipe
    source: str
    """The model's name or path; by its name, one in the store is checked when it is loaded."""
    spec: ModelSpec
    sides: Sides
    """What the model reads and predicts."""
    frozen: frozenset[str]
    """The names of the weights that are not trained."""
    adapted: frozenset[str]
    """Those of them that get low-rank updates, which are."""
    weights: Path | None = None
    """The weights of the saved model that training starts from, if it starts from one."""
    origin: dict[str, Any] | None = None
    """Where these weights came from, if the zoo has not made them."""
    published: Published = UNPUBLISHED
    """The special ids of the saved model, if its tokenizers are used."""
    taken: Mapping[str, str] | None = None
    """The names in the saved model of the weights that are taken from it, by the names in `spec`;
    None if it is the same model, or there is none."""
    notes: tuple[str, ...] = ()
    """What its reader may not expect."""
    content: str | None = None
    """The content digest of the weights that training starts from, if it starts from some."""


def find_start(recipe: Recipe, registry: Registry) -> Start:
    """Find the model that a recipe names.

    Raises:
        ZooError: it does not exist, or its spec or its file is wrong.
        TrainingError: it cannot be trained by a recipe, or not on sequences of this length.
    """
    place, source = recipe.place("model"), _named(recipe, recipe.head.model)
    if not os.path.exists(source):
        _check_not_a_slip(recipe, registry, place)
    try:
        spec, header = read_source(source, registry)
        _ = spec.n_parameters  # raises if the layout is wrong
    except ZooError as error:
        raise placed(error, place) from None
    if header is None and not os.path.exists(recipe.folder / recipe.head.model):
        _check_not_another(recipe, spec, place)
    origin = None if header is None else header.origin
    sides, frozen = find_sides(recipe, spec, origin), frozen_weights(recipe, spec)
    adapted = adapted_weights(recipe, spec)
    _check_layers(recipe, spec)
    start = Start(recipe, source, spec, sides, frozen, adapted)
    if recipe.head.weights is not None:
        if header is not None:
            message = "`weights` is for a spec, and `model` is a saved model, which has weights"
            hint = "its spec, with another head: `zoo show MODEL --resolved` prints it"
            at = recipe.document.place(("weights",))
            raise TrainingError(Problem(message, at, hint))
        return _from_other(start, registry)
    if header is None:
        _refuse_lora(recipe)
        return start
    weights = find_weights(source, registry).path
    return start._replace(
        weights=weights,
        origin=header.origin,
        published=_published(start, weights, header),
        content=header.content_digest,
    )


def _named(recipe: Recipe, name: str) -> str:
    """What a recipe names: a file beside it, if there is one, or else the name as it is."""
    beside = recipe.folder / name
    return str(beside) if os.path.exists(beside) else name


def _check_not_a_slip(recipe: Recipe, registry: Registry, place: Place) -> None:
    """Raise TrainingError if the model, which is no file, stands beside the recipe in another
    form."""
    folder, name = recipe.folder, recipe.head.model
    if (folder / name).suffix == ".toml" and weights_path(folder).exists():
        message = f"there is no spec {quoted(name)}"
        raise TrainingError(Problem(message, place, _made_again(folder, name)))
    near = f"{name}.toml"
    published = registry.catalog.file(name.partition("@")[0])
    if os.path.isfile(folder / near) and name not in registry.models and published is None:
        message = f"there is no file and no model {quoted(name)}"
        raise TrainingError(Problem(message, place, f"did you mean `{near}`?"))


def _check_not_another(recipe: Recipe, spec: ModelSpec, place: Place) -> None:
    """Raise TrainingError if the spec is a file in the working directory, and not the model that is
    beside the recipe, in the folder of a run or a bundle."""
    folder, name = recipe.folder, recipe.head.model
    if not (os.path.isfile(name) and weights_path(folder).exists()):
        return
    if read_header(weights_path(folder)).spec_digest != spec.digest:
        message = f"{quoted(name)} is in the working directory, and another model than that which "
        message += "is beside the recipe"
        raise TrainingError(Problem(message, place, _made_again(folder, name)))


def _made_again(folder: Path, name: str) -> str:
    """The help that the model in the folder of a recipe holds the spec of this name."""
    commands = (  # which write nothing into that folder: a bundle has no other files
        "mkdir again",
        f"cp {typed(folder / RECIPE)} again",
        f"zoo show {typed(folder)} --resolved > {typed(Path('again', name))}",
    )
    return f"the model beside the recipe holds it: `{' && '.join(commands)}`"


def _check_layers(recipe: Recipe, spec: ModelSpec) -> None:
    """Raise TrainingError if layers are to be computed again, and the model has none."""
    if recipe.training.recompute and not any(True for _ in spec.layout.layers()):
        message = f"{spec.name} has no layers that could be computed again"
        raise recipe.error(message, "training", "recompute", help="leave out `recompute`")


def _published(start: Start, weights: Path, header: Header) -> Published:
    """The special ids of the saved model that training starts from, if its tokenizers are used."""
    if not isinstance(start.recipe.tokenizer, OfModel):
        return UNPUBLISHED
    return read_published(folder_of(weights), published_config(header.origin), start.sides)


def _refuse_lora(recipe: Recipe) -> None:
    """Raise `TrainingError` if weights that begin anew are to be adapted."""
    if recipe.lora is not None:
        message = "`[lora]` adapts the weights of a saved model, and `model` is a spec"
        hint = "name a saved model as the `model`, or as the `weights` of the spec"
        raise TrainingError(Problem(message, recipe.document.place(("lora",)), hint))


def _from_other(start: Start, registry: Registry) -> Start:
    """The start of a spec from the weights of another saved model. Raises as `find_start`."""
    recipe, name = start.recipe, str(start.recipe.head.weights)
    source, place = _named(recipe, name), recipe.place("weights")
    try:
        weights = find_weights(source, registry).path
        header = read_header(weights)
    except ZooError as error:
        raise placed(error, place) from None
    taken = taken_weights(recipe, start.spec, header)
    part = {"new": list(recipe.head.new or ()), "content_digest": header.content_digest}
    origin: dict[str, Any] = {"part": part}
    if header.origin is not None and "part" not in header.origin:
        origin["base"] = header.origin  # by which `zoo export` finds the names of all weights
    return start._replace(
        source=source,
        weights=weights,
        origin=origin,
        published=_published(start, weights, header),
        taken=taken,
        notes=notes_on_unused(name, header, taken),
        content=header.content_digest,
    )


def make_tokens(start: Start, examples: Sequence[Example] = ()) -> AnyTokens:
    """Learn the tokenizers of a recipe from these examples, or read them. Raises as `tokens_of`."""
    recipe, weights = start.recipe, start.weights
    try:
        return tokens_of(
            recipe.tokenizer, examples, start.sides, recipe.folder, weights, start.published
        )
    except ZooError as error:
        raise placed(error, recipe.document.place(("tokenizer",))) from None


def find_chats(start: Start) -> Chats | None:
    """What writes the chats of the data, if it has any. Raises as `make_tokens` and `chats_of`."""
    if messages_of(start.recipe.data) is None:
        return None
    tokens = make_tokens(start)
    assert start.weights is not None  # whose tokenizer this is
    return chats_of(start.recipe, tokens, folder_of(start.weights))


def chats_of(recipe: Recipe, tokens: AnyTokens, folder: Path) -> Chats | None:
    """What writes the chats of the data, if it has any, for the model in a folder.

    Raises:
        TrainingError: the model has no chat template.
        WeightsError: a file is damaged.
    """
    if messages_of(recipe.data) is None:
        return None
    from zoo.training.chats import Chats  # Jinja is imported for chats alone

    assert isinstance(tokens, Tokens)  # of a decoder: `find_sides`
    try:
        return Chats.of(folder, tokens.end)
    except InputError as error:
        hint = "write one into a `chat_template.jinja` there"
        told = [problem._replace(help=hint) for problem in error.problems]
        raise placed(TrainingError(told), recipe.place("data", "messages")) from None


def find_data(recipe: Recipe, folder: Path, sides: Sides | None, chats: Chats | None) -> Splits:
    """Read the data of a recipe, with files relative to `folder`, for a model that learns these
    sides, and with `chats` to write chats. Raises as `read_data`."""
    seed = recipe.head.seed if recipe.data.seed is None else recipe.data.seed
    try:
        return read_data(
            recipe.data,
            folder,
            seed,
            partial(recipe.place, "data"),
            of_decoder=sides is not None and is_of_decoder(sides),
            chats=chats,
        )
    except TrainingError as error:
        raise placed(error, recipe.document.place(("data",))) from None


def check_specials(recipe: Recipe, tokens: AnyTokens, splits: Splits) -> None:
    """Raise `TrainingError` if nothing is known that text begins with; or if the tokenizer of a
    model that reads whole texts cannot join the pairs of the data, or if its special tokens leave
    no room for others."""
    if not isinstance(tokens, ReaderTokens):
        if tokens.bos is None and splits.train[0].source is None:
            message = "no file beside the model says with which token a text begins"
            token = json.dumps(tokens.end, ensure_ascii=False)
            hint = f"state one in `[tokenizer]`, as `bos = {token}`"
            raise TrainingError(Problem(message, recipe.document.place(("tokenizer",)), hint))
        return
    if splits.of_pairs and (problem := no_pairs(tokens.tokenizer, tokens.reader.token_types)):
        raise TrainingError(problem._replace(place=recipe.document.place(("tokenizer",))))
    n_special = len(tokens.added(pairs=splits.of_pairs))
    longest = recipe.training.max_length
    if longest <= n_special:
        message = f"max_length = {longest} leaves no room beside {n_special} special tokens"
        hint = "state a larger `max_length` in `[training]`"
        raise recipe.error(message, "training", "max_length", help=hint)


def check_sides(start: Start, splits: Splits) -> None:
    """Raise `TrainingError` if the data is of another kind than the model learns from: text in
    place of pairs, pairs of texts where one is read, or words with labels where texts are read; or
    the reverse."""
    first, sides = splits.train[0], start.sides
    if is_of_decoder(sides) and first.second is None and not _has_lists(first):
        return
    predicts = sides.predicts if isinstance(sides, Reader) else None
    of_words = predicts == "classes_of_words"
    if (first.source is not None) != sides.has_source:
        wrong = "kind"
    elif isinstance(first.source, tuple) != of_words:
        wrong = "source"
    elif isinstance(first.target, tuple) != (of_words or predicts == "classes"):
        wrong = "target"
    elif first.second is not None and (of_words or predicts is None):
        wrong = "source"
    else:
        return
    kind, form = data_of(sides)
    message = f"the data is {_told_data(first)}, and the model learns from {kind}"
    raise start.recipe.error(message, "data", wrong, help=form)


def _has_lists(example: Example) -> bool:
    """Whether a side is a list, and not of a chat."""
    sides = (example.source, example.target)
    return example.opening is None and any(isinstance(side, tuple) for side in sides)


def _told_data(example: Example) -> str:
    """The kind of data that an example is of, in words."""
    if example.source is None:
        return "text"
    lists = isinstance(example.target, tuple)
    if isinstance(example.source, tuple):
        words = "words" if example.second is None else "words and second texts"
        return f"{words} with {'lists of labels' if lists else 'one label or target'}"
    if example.second is not None:
        return f"pairs of texts with {'lists of labels' if lists else 'labels'}"
    return "texts with lists of labels" if lists else "pairs"
