"""Find the weights that a path or a name refers to. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from zoo.arguments import check_path
from zoo.bundle import is_weights
from zoo.document import read_document
from zoo.errors import Place, Problem, RegistryError, WeightsError
from zoo.file_kinds import is_manifest
from zoo.files.hints import neighbours, of_no_model
from zoo.registry import Registry
from zoo.store.files import Store, damaged
from zoo.store.lookup import find_stored
from zoo.store.refs import Ref
from zoo.weights.file import MENDING, is_file_name, weights_path
from zoo.weights.reader import Weights
from zoo.wording import PATH, quoted, typed


@dataclass(frozen=True, slots=True)
class Found:
    """The location of weights: `path` is their file, or the index of their shards. `ref` is that of
    a model in the store, with what its files must be; None for other weights."""

    path: Path
    ref: Ref | None = None

    @contextmanager
    def as_pulled(self, weights: Weights, *, as_a_whole: bool) -> Generator[None]:
        """Compare weights in the store and the files beside them with what was pulled: all bytes of
        the weights, while the block runs, or with `as_a_whole = False` their headers, before it.

        Raises:
            WeightsError: a file is missing or damaged, or there is one that was not published.
            StoreError: there is no permission to read one.
        """
        if self.ref is None:
            yield
            return
        self._check_others(self.ref)
        if as_a_whole:
            with weights.held_against(self.ref.blake3):
                yield
        else:
            self._check_header(weights, self.ref)
            yield

    def _check_others(self, ref: Ref) -> None:
        """Compare the files beside the weights with their digests: the tokenizer, the settings of
        generation."""
        folder, files = self.path.parent, ref.files
        weights = {name for name in files if is_weights(name)}
        others = {name: file for name, file in files.items() if name not in weights}
        if wrong := [name for name in damaged(folder, others) if name not in weights]:
            message = f"not as it was pulled: {', '.join(map(quoted, wrong))}"
            raise WeightsError(message, Place(str(folder)), MENDING)

    def _check_header(self, weights: Weights, ref: Ref) -> None:
        """Compare the headers of the weights, which have the digests that the tensors are compared
        with, and the spec."""
        if ref.blake3:
            weights.check_beginnings(ref.blake3)
        elif weights.header.content_digest != ref.content_digest:  # pulled by an older zoo
            message = "these are not the weights that were pulled"
            raise WeightsError(message, Place(str(self.path)), MENDING)


def find_weights(path_or_name: str | Path, registry: Registry) -> Found:
    """Return the weights of a path or of the name of a model; a published model is pulled first if
    it is not in the store.

    Raises:
        WeightsError: there is neither such a file nor such a model.
        RegistryError: the named model has no weights.
        StoreError: there is no such version of the model, or its digests are not known and it was
            never trusted.
        SourceError: the model is not in the store and not available.
    """
    path = check_path(path_or_name, "a model is loaded from a path or by the name of a model")
    name = str(path_or_name)
    if path.suffix == ".toml" and os.path.isfile(path):
        hint = f"`zoo build {typed(path)} -o DIR` makes the initial weights of a spec"
        if is_manifest(read_document(path)):
            hint = f"a published model goes by its name: `{path.stem}`"
        raise WeightsError("there are no weights in a .toml file", Place(str(path)), hint)
    if os.path.exists(path) or is_file_name(path):
        return Found(weights_path(path))
    if registry.catalog.file(name.partition("@")[0]) is not None:
        return _in_store(name, registry)
    if name in registry.models:
        raise RegistryError(
            f"the model `{name}` is registered with a spec and without weights",
            registry.models[name].place,
            help=f"`zoo build {name} -o DIR` makes its initial weights",
        )
    known = [*registry.models, *registry.catalog.known(), *neighbours(path)]
    hint = of_no_model(name, known)
    message = f"there is no weights file and no model {quoted(name, PATH)}"
    raise WeightsError(Problem(message, help=hint, related=registry.perhaps_missing()))


def _in_store(name: str, registry: Registry) -> Found:
    """Return the weights of a published model, or of `name@version` with the start of a version. A
    model in the store needs no request; another one is pulled."""
    store = Store.default()
    ref = find_stored(name, registry, store)
    if ref is None:
        from zoo.store.pulling import pull  # which imports the modules that fetch and write

        ref = pull(name, registry, store)
    return Found(weights_path(store.snapshot(ref.files)), ref)
