"""Publish a local model where others can pull it: `zoo push`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zoo.errors import Problem, quoted
from zoo.model_files import SELECTED, find_files
from zoo.provenance.card import CARD_NAME, stated_license
from zoo.source import Access, OnBytes, Source, SourceError, offline
from zoo.store.card_text import card_text
from zoo.store.fetching import source_code
from zoo.store.files import Store, StoreError, digests
from zoo.store.fingerprints import take_fingerprint
from zoo.store.pretrained import Card, License
from zoo.store.pulling import content_digest

if TYPE_CHECKING:
    from zoo.registry import Registry


class Pushed(NamedTuple):
    """What was published.

    Args:
        text: of the model's file, for the `catalog` folder of a registry: with it others pull
            exactly this.
        left_out: what else the folder holds, which is not a file of a model.
    """

    text: str
    left_out: tuple[str, ...]


def push(
    folder: Path,
    address: str,
    registry: Registry,
    store: Store,
    license: str | None,
    *,
    card_folder: Path | None = None,
    writing: Callable[[int], AbstractContextManager[OnBytes]] = lambda n: nullcontext(_unseen),
) -> Pushed:
    """Publish the model in a folder: its own files (`zoo.model_files.SELECTED`) and no others.

    Args:
        folder: with the weights, and what else belongs to the model. That of a bundle holds
            nothing else.
        address: a folder where there is none yet, `hf://owner/name`, or an address that fsspec
            knows (`s3://bucket/folder`).
        registry: which names the sources.
        store: where temporary files may lie.
        license: of the weights, an SPDX identifier; that of the folder's model card unless given.
        card_folder: where the model's file is going to be. An address that is a relative path is
            then told from there, so that the file and the model can be moved together.
        writing: called with the bytes to write, unless the source shows itself how far it is. What
            it yields is called with the number of bytes that were written since the last call.

    Raises:
        WeightsError: the weights are damaged, or the bundle is.
        SourceError: it cannot be written there, or something is there already.
        StoreError: the licence is empty or not known, or the store cannot be written.
    """
    import zoo

    hint = "`--license` states it, as SPDX names it; an unknown one is `NOASSERTION`"
    if license is None:
        license = stated_license(folder / CARD_NAME)
        if license is None:
            message = f"{quoted(folder / CARD_NAME)} says no `license` of the weights"
            raise StoreError(Problem(message, help=hint))
    if not license.strip():
        raise StoreError(Problem("the licence of the weights is empty", help=hint))
    source = _source(address, registry)
    if source.remote and (variable := offline()):
        raise SourceError(f"{variable} forbids to reach {address}")
    with store.work() as work:
        files = digests(folder, find_files(folder, SELECTED))
        left_out = tuple(_others(folder, set(files)))
        model = zoo.load(folder, registry=registry)
        card = Card(
            format=1,
            parameters=model.spec.n_parameters,
            license=License(weights=license),
            files=files,
            content_digest=content_digest(folder),
            fingerprint=take_fingerprint(model),
        )
        n_bytes = sum(file.size for file in files.values())
        shown = nullcontext(_unseen) if source.shows_progress else writing(n_bytes)
        with shown as on_bytes, source_code(f"writing to {address}"):
            access = Access(Path.cwd(), work, on_bytes=on_bytes)
            source = source.write(folder, list(files), access)
            if card_folder is not None and not Path(address).is_absolute():
                source = source.seen_from(card_folder)
    return Pushed(card_text(card, source), left_out)


def _unseen(n: int) -> None:
    """Bytes that nobody watches."""


def _source(address: str, registry: Registry) -> Source:
    for kind in registry.sources:
        if (source := registry.source(kind).at(address)) is not None:
            return source
    hint = "a folder, `hf://owner/name`, or an address that fsspec knows (`s3://bucket/folder`)"
    raise SourceError(Problem(f"nothing can be pushed to {quoted(address)}", help=hint))


def _others(folder: Path, files: set[str], start: str = "") -> Iterator[str]:
    """What is in a folder beside `files`; a folder without any of them as `name/`."""
    for path in sorted(folder.iterdir()):
        name = f"{start}{path.name}"
        if any(file.startswith(f"{name}/") for file in files):
            yield from _others(path, files, f"{name}/")
        elif name not in files:
            yield f"{name}/" if path.is_dir() else name
