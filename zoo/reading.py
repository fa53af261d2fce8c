"""Read a spec from a file, a registered name, text, or data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.arguments import check_path
from zoo.document import Document, from_weights, given, read_document
from zoo.errors import Place, Problem, SpecError
from zoo.file_kinds import is_manifest, is_recipe, is_registry
from zoo.registering.plugin_errors import plugin_code
from zoo.registry import Registry, in_force
from zoo.resolve import resolve
from zoo.spec import ModelSpec
from zoo.validate import validate
from zoo.wording import PATH, meant, nearest, quoted, typed

if TYPE_CHECKING:
    from zoo.weights.file import Header


def read_spec(
    source: str | Path | Mapping[str, Any], *, registry: Registry | None = None
) -> ModelSpec:
    """Read, resolve and validate a spec. Imports no torch.

    Args:
        source: a `.toml` file, the name of a registered model, TOML text (a string of more than
            one line), or plain data. Of text and data, `extends` names a spec in the working
            directory.
        registry: looks up names; by default the registries around the working directory.

    Returns:
        The spec with every default filled in.

    Raises:
        SpecError: every problem found, each with its place.
        RegistryError: a registry is malformed.
        PluginError: a plugin that the spec names cannot be loaded.
        TypeError: `registry` is no registry.
    """
    registry = in_force(registry)
    return spec_of(find_document(source, registry), registry)


def spec_of(document: Document, registry: Registry) -> ModelSpec:
    """Return the spec of a document, within the registry's budget. Raises as `read_spec`."""
    if (problem := _other_kind(document)) is not None:
        raise SpecError(problem)
    spec = validate(resolve(document, registry))
    with plugin_code(f"the layout of {spec.name}"):
        registry.budget.check(
            parameters=spec.n_parameters,
            bytes=4 * (spec.layout.n_elements + spec.layout.n_computed),  # in float32
            place=Place(document.name),
        )
    return spec


def _other_kind(document: Document) -> Problem | None:
    """Return the problem that a document is of another kind, by its content; None for a spec."""
    if is_recipe(document):
        message = "this is a recipe for training, not the spec of a model"
        hint = "`zoo train` trains by it, `zoo validate` checks it; its `model` names the spec"
    elif is_registry(document):
        message = "this is a registry, not the spec of a model"
        hint = "`zoo list` lists what the registries register, and tells what is wrong with them"
    elif is_manifest(document):
        name = Path(document.name).stem
        message = "this is the file of a published model, not a spec"
        hint = f"in the folder that a registry's `catalog` names, `{name}` is its name: "
        hint += f"`zoo pull {name}`"
    else:
        return None
    return Problem(message, Place(document.name), hint)


def spec_of_weights(header: Header, name: str, registry: Registry) -> ModelSpec:
    """Return the spec that weights hold, which messages call `name`. Raises as `read_spec`; if
    plugins are others than the weights were made with, the help says so."""
    try:
        return spec_of(from_weights(header.spec, name, header.plugins), registry)
    except SpecError as error:
        from zoo.provenance.plugins import changed_plugins  # here: only a mistake needs it

        changed = changed_plugins(registry, header.plugins)
        if not changed:
            raise
        problems = [problem._replace(help=None) for problem in error.problems]
        problems[-1] = problems[-1]._replace(help=made_with_others(changed))
        raise SpecError(problems) from None


def made_with_others(plugins: Sequence[str]) -> str:
    """Return the help for weights that were made with other code of these plugins."""
    return f"the weights were made with other code of {', '.join(map(quoted, plugins[:3]))}"


def component_named(name: str, registry: Registry) -> tuple[str, str] | None:
    """Return the slot and the kind of a component such as `ffn.glu`; None if there is none, or if a
    model or a file has this name."""
    slot, _, kind = name.partition(".")
    if kind not in registry.plugins.get(slot, {}):
        return None
    taken = name in registry.models or registry.catalog.file(name) or os.path.exists(name)
    return None if taken else (slot, kind)


def find_document(source: str | Path | Mapping[str, Any], registry: Registry) -> Document:
    """Return the text or data that `read_spec` reads, with the same arguments and errors."""
    if document := given(source, budget=registry.budget):
        return document
    assert not isinstance(source, Mapping)
    if isinstance(source, str) and (entry := registry.models.get(source)):
        return read_document(
            entry.folder / entry.target, lambda: entry.place, budget=registry.budget
        )
    expected = "a spec is a path, the name of a registered model, TOML text or a dict"
    if isinstance(getattr(source, "spec", None), ModelSpec):
        raise TypeError(f"{expected}, not a model, whose spec is its attribute `spec`")
    path = check_path(source, expected)
    if path.suffix != ".toml" and not os.path.exists(path):
        raise SpecError(_nothing(source, registry))
    return read_document(path, budget=registry.budget)


def _nothing(source: str | Path, registry: Registry) -> Problem:
    """Return the error for a source that neither exists nor is registered."""
    from zoo.files.hints import neighbours, of_no_model  # here: only a mistake needs it

    name, files = str(source), neighbours(Path(source))
    if isinstance(source, Path):
        return _no_file(name, files, registry)
    if registry.catalog.file(name) is not None:
        hint = f"`zoo load {name}` loads it, `zoo show {name}` shows it once it is in the store"
        return Problem(f"{quoted(name)} is a published model, not a spec", help=hint)
    message = f"there is no file and no model {quoted(name, PATH)}"
    known = [*registry.models, *registry.catalog.known(), *files]
    if (own := f"{name}.toml") in files:  # nearer than a registered name that is like it
        known = [own]
    elif name in registry.plugins:
        hint = f"`zoo list components {name}` lists what can fill it"
        return Problem(f"{quoted(name)} is a slot of components, not a model", help=hint)
    elif found := _components(name, registry):
        return Problem(f"{quoted(name)} is a component, not a model", help=_shown(found))
    elif found := _components(meant(name), registry):  # by a word of others, such as `swiglu`
        return Problem(message, help=_shown(found))
    if name.partition(".")[0] in registry.plugins:
        known += registry.components()
    hint = of_no_model(name, known)
    return Problem(message, help=hint, related=registry.perhaps_missing())


def _components(name: str, registry: Registry) -> list[str]:
    """Return the components of this name, with or without their slot."""
    return [one for one in registry.components() if name in (one, one.partition(".")[2])]


def _shown(components: Sequence[str]) -> str:
    """Return the help that says how these are shown."""
    return f"{' or '.join(f'`zoo show {one}`' for one in components)} says which keys it has"


def _no_file(name: str, files: list[str], registry: Registry) -> Problem:
    """Return the error for a path that does not exist, beside these files."""
    hint = None
    if near := nearest(name, files):
        hint = f"did you mean `{near}`?"
    elif name in registry.models or registry.catalog.file(name) is not None:
        file = typed(f"{name}.toml")
        hint = (
            "it is the name of a model, not of a file: "
            f"`zoo show {typed(name)} --resolved > {file}` writes its spec"
        )
    return Problem(f"there is no file {quoted(name, PATH)}", help=hint)
