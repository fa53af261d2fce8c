"""Finding the model of a recipe before training starts. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from zoo.errors import Place, TrainingError, placing
from zoo.files.of_model import RECIPE
from zoo.provenance.origin import published_config
from zoo.registry import Registry
from zoo.spec import ModelSpec
from zoo.store.found_spec import read_source
from zoo.store.found_weights import find_weights
from zoo.training.frozen import adapted_weights, frozen_weights
from zoo.training.published import UNPUBLISHED, Published, read_published
from zoo.training.recipe import Recipe
from zoo.training.sides import Sides, find_sides
from zoo.training.tables import OfModel
from zoo.training.taken_weights import notes_on_unused, taken_weights
from zoo.weights.file import Header, weights_path
from zoo.weights.reader import read_header
from zoo.wording import PATH, quoted, typed


class Saved(NamedTuple):
    """The saved model that training starts from."""

    source: str
    """Its name or path; by its name, one in the store is checked when it is loaded."""
    folder: Path
    """Its folder, which has its tokenizers too."""
    content: str
    """The content digest of its weights."""
    origin: dict[str, Any] | None
    """Where the weights of the trained model come from, if the zoo has not made them."""
    published: Published
    """Its special ids, if its tokenizers are used."""
    taken: Mapping[str, str] | None = None
    """The names in it of the weights that are taken from it, by the names in the spec; None if it
    is the model itself that is trained further."""


class Start(NamedTuple):
    """A recipe, and what training by it starts from."""

    recipe: Recipe
    spec: ModelSpec
    sides: Sides
    """What the model reads and predicts."""
    frozen: frozenset[str]
    """The names of the weights that are not trained."""
    adapted: frozenset[str]
    """Those of them that get low-rank updates, which are."""
    saved: Saved | None = None
    """The saved model whose weights are trained; None if all begin anew."""
    notes: tuple[str, ...] = ()
    """What its reader may not expect."""

    @property
    def origin(self) -> dict[str, Any] | None:
        """That of the saved model, if there is one."""
        return None if self.saved is None else self.saved.origin

    @property
    def published(self) -> Published:
        """The special ids of the saved model, if its tokenizers are used."""
        return UNPUBLISHED if self.saved is None else self.saved.published

    @property
    def digest(self) -> str:
        """That of the spec, and of the weights that training starts from, if it starts from
        some."""
        own = self.spec.digest
        return own if self.saved is None else f"{own} {self.saved.content}"


def find_start(recipe: Recipe, registry: Registry) -> Start:
    """Find the model that a recipe names.

    Raises:
        ZooError: it does not exist, or its spec or its file is wrong.
        TrainingError: it cannot be trained by a recipe, or not on sequences of this length.
    """
    place, source = recipe.place("model"), _named(recipe, recipe.head.model)
    if not os.path.exists(source):
        _check_not_a_slip(recipe, registry, place)
    with placing(place):
        spec, header = read_source(source, registry, pulls=True)
        _ = spec.n_parameters  # raises if the layout is wrong
    if header is None and not os.path.exists(recipe.folder / recipe.head.model):
        _check_not_another(recipe, spec, place)
    origin = None if header is None else header.origin
    sides, frozen = find_sides(recipe, spec, origin), frozen_weights(recipe, spec)
    adapted = adapted_weights(recipe, spec)
    _check_layers(recipe, spec)
    start = Start(recipe, spec, sides, frozen, adapted)
    if recipe.head.weights is not None:
        if header is not None:
            message = "`weights` is for a spec, and `model` is a saved model, which has weights"
            hint = "its spec, with another head: `zoo show MODEL --resolved` prints it"
            at = recipe.document.place(("weights",))
            raise TrainingError(message, at, hint)
        return _from_other(start, registry)
    if header is None:
        _refuse_lora(recipe)
        return start
    folder = find_weights(source, registry).path.parent
    published = _published(start, folder, header)
    saved = Saved(source, folder, header.content_digest, header.origin, published)
    return start._replace(saved=saved)


def _named(recipe: Recipe, name: str) -> str:
    """What a recipe names: a file beside it, if there is one, or else the name as it is."""
    beside = recipe.folder / name
    return str(beside) if os.path.exists(beside) else name


def _check_not_a_slip(recipe: Recipe, registry: Registry, place: Place) -> None:
    """Raise TrainingError if the model, which is no file, stands beside the recipe in another
    form."""
    folder, name = recipe.folder, recipe.head.model
    if (folder / name).suffix == ".toml" and weights_path(folder).exists():
        raise TrainingError(f"there is no spec {quoted(name)}", place, _made_again(folder, name))
    near = f"{name}.toml"
    published = registry.catalog.file(name.partition("@")[0])
    if os.path.isfile(folder / near) and name not in registry.models and published is None:
        message = f"there is no file and no model {quoted(name, PATH)}"
        raise TrainingError(message, place, f"did you mean `{near}`?")


def _check_not_another(recipe: Recipe, spec: ModelSpec, place: Place) -> None:
    """Raise TrainingError if the spec is a file in the working directory, and not the model that is
    beside the recipe, in the folder of a run or a bundle."""
    folder, name = recipe.folder, recipe.head.model
    if not (os.path.isfile(name) and weights_path(folder).exists()):
        return
    if read_header(weights_path(folder)).spec_digest != spec.digest:
        message = f"{quoted(name)} is in the working directory, and another model than that which "
        message += "is beside the recipe"
        raise TrainingError(message, place, _made_again(folder, name))


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


def _published(start: Start, folder: Path, header: Header) -> Published:
    """The special ids of the saved model in a folder, if its tokenizers are used."""
    if not isinstance(start.recipe.tokenizer, OfModel):
        return UNPUBLISHED
    return read_published(folder, published_config(header.origin), start.sides)


def _refuse_lora(recipe: Recipe) -> None:
    """Raise `TrainingError` if weights that begin anew are to be adapted."""
    if recipe.lora is not None:
        message = "`[lora]` adapts the weights of a saved model, and `model` is a spec"
        hint = "name a saved model as the `model`, or as the `weights` of the spec"
        raise recipe.error(message, "lora", help=hint)


def _from_other(start: Start, registry: Registry) -> Start:
    """The start of a spec from the weights of another saved model. Raises as `find_start`."""
    recipe, name = start.recipe, str(start.recipe.head.weights)
    source = _named(recipe, name)
    with placing(recipe.place("weights")):
        weights = find_weights(source, registry).path
        header = read_header(weights)
    taken = taken_weights(recipe, start.spec, header)
    part = {"new": list(recipe.head.new or ()), "content_digest": header.content_digest}
    origin: dict[str, Any] = {"part": part}
    if header.origin is not None and "part" not in header.origin:
        origin["base"] = header.origin  # by which `zoo export` finds the names of all weights
    published = _published(start, weights.parent, header)
    saved = Saved(source, weights.parent, header.content_digest, origin, published, taken)
    return start._replace(saved=saved, notes=notes_on_unused(name, header, taken))
