"""Resolve `extends`: merge a spec over the specs that it inherits from."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from zoo.document import Document, from_weights, read_document
from zoo.errors import Findings, Place, Problem, SpecError, WeightsError
from zoo.registry import Registry
from zoo.resolving.tables import Leaf, Table, as_table, merge
from zoo.wording import did_you_mean, quoted, typed

NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
NAME_RULE = (
    "up to 128 of the letters A to Z and a to z, digits, `_`, `-` and `.`, and begins with no `-` "
    "or `.`"
)
"""What `NAME_PATTERN` matches, for messages."""

MAX_PARENTS = 32


def with_parents(document: Document, registry: Registry, findings: Findings) -> Table:
    """Return the tables of a document merged over those of the specs that it extends.

    Raises:
        SpecError: a parent cannot be read or does not exist, or `extends` is cyclic.
    """
    return _with_parents(document, registry, findings, ())


def _with_parents(
    document: Document, registry: Registry, findings: Findings, chain: Sequence[Document]
) -> Table:
    findings.add(*document.problems)
    table = as_table(document.data, document, (), findings)
    parent = table.entries.pop("extends", None)
    if parent is None:
        return table
    chain = (*chain, document)
    found = _find_parent(parent, document, registry)
    if isinstance(found, Problem):
        findings.add_once(found)
        raise findings.error()
    if isinstance(found, Document):
        return merge(_with_parents(found, registry, findings, chain), table)
    path, named = found
    if any(seen.text is not None and Path(seen.name).resolve() == path.resolve() for seen in chain):
        story = " -> ".join(Path(seen.name).name for seen in chain)
        message = f"cyclic `extends`: {story} -> {path.name}"
    elif len(chain) > MAX_PARENTS:
        message = f"`extends` leads through more than {MAX_PARENTS} specs"
    else:
        above = read_document(path, named, budget=registry.budget)
        return merge(_with_parents(above, registry, findings, chain), table)
    findings.add(Problem(message, parent.place(value=True)))
    raise findings.error()


def _saved(name: str, folder: Path, named: Callable[[], Place]) -> Document | None:
    """Return the spec of the saved model of this name in a folder, which is a full form and extends
    nothing; None if there is none.

    Raises:
        SpecError: it is damaged, or the zoo has not saved it.
    """
    from zoo.weights.file import is_file_name, weights_path  # here: few specs extend what was saved
    from zoo.weights.reader import read_header

    for path in (folder / name, folder / f"{name}.safetensors"):
        weights = weights_path(path)
        is_there = weights.is_file() and (path.is_dir() or is_file_name(path))
        if not is_there or path.is_symlink() or weights.is_symlink():
            continue
        try:
            header = read_header(weights)
            return from_weights(header.spec, str(weights), header.plugins)
        except WeightsError as error:
            told = (("named here", named()),)
            raise SpecError([one._replace(related=told) for one in error.problems]) from None
    return None


def _find_parent(
    parent: Leaf | Table, document: Document, registry: Registry
) -> tuple[Path, Callable[[], Place]] | Document | Problem:
    """Return the file of a parent and the place that names it, or the spec of a saved model; or why
    there is none."""
    name = parent.value if isinstance(parent, Leaf) else None
    here = partial(parent.place, value=True)  # places are not looked for without a mistake
    near = "beside this one" if Path(document.name).is_file() else "in the working directory"
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        message = "`extends` names one spec, without folders or an ending"
        hint = f"a spec file or a saved model {near}, or a model of the registry"
        if isinstance(name, str) and name.strip(".") and not {"/", "\\"} & {*name}:
            message = f"`extends` cannot name {quoted(name)}: the name of a spec has {NAME_RULE}"
            hint = "rename the file"
        elif isinstance(parent, Table) and document.text is None:
            hint = "`{**base, ...}` is a dict with other values than another dict"
        return Problem(message, here(), hint)
    # Text and data that come from no file extend specs in the working directory.
    folder = Path(document.name).parent
    if (path := folder / f"{name}.toml").is_file():
        if path.is_symlink():  # could point to any file, whose lines error messages would show
            message = f"{quoted(path.name)} is a link, which `extends` does not follow"
            return Problem(message, here())
        return path, here
    if entry := registry.models.get(name):
        return entry.folder / entry.target, lambda: entry.place
    if saved := _saved(name, folder, here):
        return saved
    message = f"there is no spec {quoted(name)} {near} or in the registry"
    hint = _instead(name, folder, registry)
    return Problem(message, here(), hint, registry.perhaps_missing())


def _instead(name: str, folder: Path, registry: Registry) -> str:
    """Return a help text for a name that neither a spec in the folder nor one of the registry
    has."""
    if registry.catalog.file(name) is not None:
        return (
            f"it is a published model: `zoo show {typed(name)} --resolved > "
            f"{typed(f'{name}.toml')}` writes its spec, once it is in the store"
        )
    others = folder.glob("*.toml")
    beside = [path.stem for path in others if path.is_file() and not path.is_symlink()]
    otherwise = "`zoo list models` lists those of the registry"
    return did_you_mean(name.removesuffix(".toml"), [*beside, *registry.models], otherwise)
