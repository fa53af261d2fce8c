"""Find the weights that a path or a name refers to. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zoo.document import read_document
from zoo.errors import Place, Problem, RegistryError, WeightsError, checked_path
from zoo.file_hints import neighbours
from zoo.reading import is_card
from zoo.registry import Registry
from zoo.store import resolve
from zoo.weights.file import is_file_name, weights_path
from zoo.wording import did_you_mean, quoted, typed


@dataclass(frozen=True, slots=True)
class Found:
    """The location of weights: `path` is their file, or the index of their shards. `blake3` holds
    the expected digests of each file of weights in the store; it is empty for other weights."""

    path: Path
    blake3: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])


def find_weights(path_or_name: str | Path, registry: Registry) -> Found:
    """Return the weights of a path or of the name of a model; a published model is pulled first if
    it is not in the store.

    Raises:
        WeightsError: there is neither such a file nor such a model.
        RegistryError: the named model has no weights.
        StoreError, SourceError: as `zoo.store.resolve`.
    """
    path = checked_path(path_or_name, "a model is loaded from a path or by the name of a model")
    name = str(path_or_name)
    if path.suffix == ".toml" and os.path.isfile(path):
        hint = f"`zoo build {typed(path)} -o DIR` makes the initial weights of a spec"
        if is_card(read_document(path)):
            hint = f"a published model goes by its name: `{path.stem}`"
        raise WeightsError(Problem("there are no weights in a .toml file", Place(str(path)), hint))
    if os.path.exists(path) or is_file_name(path):
        return Found(weights_path(path))
    if registry.catalog.file(name.partition("@")[0]) is not None:
        folder, ref = resolve(name, registry)
        return Found(weights_path(folder), ref.blake3)
    if name in registry.models:
        raise RegistryError(
            Problem(
                f"the model `{name}` is registered with a spec and without weights",
                registry.models[name].place,
                help=f"`zoo build {name} -o DIR` makes its initial weights",
            )
        )
    known = [*registry.models, *registry.catalog.known(), *neighbours(path)]
    hint = did_you_mean(name, known, "`zoo list models` lists the models")
    raise WeightsError(Problem(f"there is no weights file and no model {quoted(name)}", help=hint))
