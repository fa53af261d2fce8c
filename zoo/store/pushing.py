"""A model of this machine to where others can pull it: `zoo push`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zoo.errors import Problem, ZooError, quoted
from zoo.plugin_errors import plugin_code
from zoo.pretrained import Card, File, License, safe_path, selected
from zoo.source import Access, Source, SourceError, offline
from zoo.store.card_text import card_text
from zoo.store.files import Store, digests
from zoo.store.pulling import content_digest

if TYPE_CHECKING:
    from zoo.registry import Registry


def push(folder: Path, address: str, registry: Registry, store: Store, license: str) -> str:
    """Publish a model's folder.

    Args:
        folder: with the weights, and what else belongs to the model; nothing else may be in it.
        address: a folder where there is none yet, `hf://owner/name`, or an address that fsspec
            knows (`s3://bucket/folder`).
        registry: which names the sources.
        store: where temporary files may lie.
        license: of the weights, an SPDX identifier.

    Returns:
        The text of the model's file, for the `catalog` folder of a registry: with it others pull
        exactly this.

    Raises:
        WeightsError: the weights are damaged.
        SourceError: it cannot be written there, or something is there already.
    """
    import zoo

    source = _source(address, registry)
    if source.remote and (variable := offline()):
        raise SourceError(f"{variable} forbids to reach {address}")
    with store.work() as work:
        files = digests(folder)
        _refuse_others(folder, files)
        model = zoo.load(folder, registry=registry)
        digest = content_digest(folder)
        with plugin_code(f"writing to {address}"):
            source = source.write(folder, sorted(files), Access(Path.cwd(), work))
    card = Card(
        format=1,
        parameters=model.spec.n_parameters,
        license=License(weights=license),
        files=files,
        content_digest=digest,
    )
    return card_text(card, source)


def _source(address: str, registry: Registry) -> Source:
    for kind in registry.sources:
        if (source := registry.source(kind).at(address)) is not None:
            return source
    hint = "a folder, `hf://owner/name`, or an address that fsspec knows (`s3://bucket/folder`)"
    raise SourceError(Problem(f"nothing can be pushed to {quoted(address)}", help=hint))


def _refuse_others(folder: Path, files: dict[str, File]) -> None:
    problems: list[Problem] = []
    for path in files:
        try:
            safe_path(path)
            known = selected(path)
        except ValueError:
            known = False
        if not known:
            hint = "only weights, tokenizer, spec, lock and card are published"
            problems.append(Problem(f"{str(folder / path)!r} is no file of a model", help=hint))
    if problems:
        raise ZooError(problems)
