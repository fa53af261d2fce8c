"""Publish a local model at an address from which others can pull it: `zoo push`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zoo.errors import Place
from zoo.files.of_model import SELECTED, find_files, link_problem
from zoo.loading import load
from zoo.provenance.card import CARD_NAME, stated_license, warn_of_other_license
from zoo.provenance.licenses import license_problem
from zoo.publishing.fingerprints import take_fingerprint
from zoo.source import Access, OnBytes, Source, SourceError
from zoo.store.addresses import source_at
from zoo.store.fetching import checked_source, source_code
from zoo.store.files import Store, StoreError, digests
from zoo.store.manifest_text import manifest_text, source_and_files
from zoo.store.pretrained import File, License, Manifest
from zoo.store.pulling import content_digest
from zoo.wording import quoted

if TYPE_CHECKING:
    from zoo.registry import Registry


class Pushed(NamedTuple):
    """A published model.

    Args:
        text: the text of the model's file, for the `catalog` folder of a registry; others pull
            exactly these files with it.
        left_out: the other files and folders in the model's folder.
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
    manifest_folder: Path | None = None,
    writing: Callable[[int], AbstractContextManager[OnBytes]] = lambda n: nullcontext(_unseen),
) -> Pushed:
    """Publish the model in a folder: its own files (`zoo.files.of_model.SELECTED`) and no others.

    Args:
        folder: the folder with the weights and the other files of the model. A bundle must hold
            nothing else.
        address: a new folder, `hf://owner/name`, or the address of a new folder elsewhere
            (`s3://bucket/folder`).
        registry: names the sources.
        store: a place for temporary files.
        license: the licence of the weights, as SPDX or the Hugging Face hub names it; by default
            that of the folder's model card. If the two differ, a `LicenseWarning` is given.
        manifest_folder: the future folder of the model's file. A relative path as the address is
            then stated relative to it, so that the file and the model can be moved together.
        writing: called with the number of bytes to write, unless the source shows its own
            progress. The value of the context it returns is called with the number of bytes
            written since the last call.

    Raises:
        WeightsError: the weights or the bundle are damaged.
        SourceError: the address cannot be written, or stated in TOML, or holds files already.
        StoreError: the licence is not stated or no licence, a file cannot be read or is a link, or
            the store cannot be written.
    """
    license = _license(license, folder)
    source = source_at(address, registry, "pushed to")
    beside = None if Path(address).is_absolute() else manifest_folder
    _check_can_be_stated(source, address, beside)
    with store.work() as work:
        files = _digests(folder)
        left_out = tuple(_others(folder, set(files)))
        model = load(folder, registry=registry)
        manifest = Manifest(
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
            written = source.write(folder, list(files), access)
            source = checked_source(written, type(source), "write")
            if beside is not None:
                source = source.seen_from(beside)
    return Pushed(manifest_text(manifest, source), left_out)


def _check_can_be_stated(source: Source, address: str, beside: Path | None) -> None:
    """Raise `SourceError` if the model's file, which is in UTF-8, could not state the source, seen
    from its folder `beside`: a path may have any bytes."""
    with source_code(f"writing to {address}"):
        stated = source if beside is None else source.seen_from(beside)
    try:
        source_and_files(stated, {}).encode()
    except UnicodeEncodeError:
        message = f"the model's file cannot state {quoted(address)}, which is not in UTF-8"
        hint = "choose another name, or set a locale whose encoding is UTF-8, such as C.UTF-8"
        raise SourceError(message, help=hint) from None


def _license(stated: str | None, folder: Path) -> str:
    """Return the licence of the weights: the stated one, or that of the folder's model card. If the
    two differ, a `LicenseWarning` is given. Raises `StoreError` if there is none, or it is no
    licence."""
    hint = "`--license` states it, as SPDX names it; an unknown one is `NOASSERTION`"
    license = stated_license(folder / CARD_NAME) if stated is None else stated
    if license is None:
        card = folder / CARD_NAME
        message = f"{quoted(card)} does not state a `license` for the weights"
        if not os.path.lexists(card):
            message = (
                f"{quoted(folder)} has no {CARD_NAME} that states the `license` of its weights"
            )
        raise StoreError(message, help=hint)
    if not license.strip():
        raise StoreError("the licence of the weights is empty", help=hint)
    if problem := license_problem(license):
        raise StoreError(problem)
    warn_of_other_license(license, folder / CARD_NAME)
    return license


def _unseen(n: int) -> None:
    """Ignore the progress."""


def _digests(folder: Path) -> dict[str, File]:
    names = find_files(folder, SELECTED)
    if problems := [problem for name in names if (problem := link_problem(folder, name))]:
        raise StoreError(problems)
    try:
        return digests(folder, names)
    except OSError as error:
        place = Place(str(error.filename or folder))
        raise StoreError(f"cannot be read: {error.strerror or error}", place) from None


def _others(folder: Path, files: set[str], start: str = "") -> Iterator[str]:
    """Yield the files in a folder that are not in `files`; a folder without any of `files` as
    `name/`."""
    for path in sorted(folder.iterdir()):
        name = f"{start}{path.name}"
        if any(file.startswith(f"{name}/") for file in files):
            yield from _others(path, files, f"{name}/")
        elif name not in files:
            yield f"{name}/" if path.is_dir() else name
