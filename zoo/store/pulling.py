"""Download a published model into the store: `zoo pull`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.bundle import lock_of_bundle, read_bundle
from zoo.errors import Place, placed
from zoo.files.atomic import named_in_errors
from zoo.files.of_model import CARDS, SELECTED, selected
from zoo.source import Access, OnBytes, SourceError, offline
from zoo.store.collecting import restored
from zoo.store.fetching import drop_left, fetch_all, selected_files, size_of
from zoo.store.files import Store, StoreError, digests, link_or_copy
from zoo.store.first_use import record, with_trusted
from zoo.store.lookup import bare_and_version, published
from zoo.store.pretrained import File, Pretrained
from zoo.store.refs import DamagedRefError, Ref, read_ref, write_ref
from zoo.store.stated import is_of, not_as_stated
from zoo.weights.file import changed_tensors
from zoo.weights.reader import open_weights
from zoo.wording import quoted

if TYPE_CHECKING:
    from zoo.registry import Registry


def pull(
    name: str,
    registry: Registry,
    store: Store,
    *,
    trust_first_use: bool = False,
    on_total: OnBytes = lambda n: None,
    on_bytes: OnBytes = lambda n: None,
    timeout: float = 30.0,
) -> Ref:
    """Download a published model into the store, or find it there.

    A model in the store is checked by its digests, without any request. Files that are in the store
    are not downloaded again.

    Args:
        name: the name of a published model, or an alias; or `name@version`, with the start of the
            version that the registry states.
        registry: states the source and the digests of the model.
        store: the store.
        trust_first_use: whether to accept a model without published digests, and record its digests
            for later pulls.
        on_total: called with the number of bytes to download.
        on_bytes: called with the number of bytes received since the last call.
        timeout: seconds without a byte after which a connection is given up.

    Raises:
        StoreError: there is no such model, it is of another version or not trusted, or the store
            cannot be written.
        SourceError: it is not available, or not what the registry states.
        WeightsError: its weights cannot be read by its family or by the zoo.
    """
    bare, version = bare_and_version(name)
    stated = published(name, registry)
    model = with_trusted(stated, store, registry)
    if not model.is_pinned and not trust_first_use:
        raise not_trusted(model)
    if version is not None and not model.has_version(version):
        raise _of_another_version(model, version, bare)
    try:
        ref = read_ref(store, model.name, model.version) if model.is_pinned else None
    except DamagedRefError:  # it is written again
        ref = None
    if ref is not None and is_of(ref, model) and not not_as_stated(ref, model, store):
        return _checked_ref(store, ref)
    if model.source.remote and (variable := offline()):
        state = "not" if ref is None else "damaged"
        message = f"{model.name} is {state} in the store, and {variable} forbids to fetch it"
        raise SourceError(message, Place(model.document.name))
    with store.work() as work:
        access = Access(model.folder, work / "scratch", timeout, on_bytes)
        model, fetched, expected = _fetch_all(model, store, work, access, on_total)
        folder = (
            fetched if model.manifest.family is None else _imported(model, fetched, work, registry)
        )
        ref = _checked_new(model, folder, model.manifest.files if folder == fetched else None)
        if not stated.is_pinned:
            record(model, store, registry)
        _add(store, ref, folder, work)
        drop_left(model.source, expected, store)
    return ref


def _of_another_version(model: Pretrained, version: str, bare: str) -> StoreError:
    """The error for a version that the registry does not state of the model named `bare`."""
    states = f"it states `{model.version}`" if model.is_pinned else "it states no digests"
    return StoreError(
        f"the registry does not state the version {quoted(version)} of {model.name}",
        Place(model.document.name),
        help=f"{states}; `zoo pull {bare}` brings the one that is published",
    )


def _checked_new(model: Pretrained, folder: Path, files: Mapping[str, File] | None) -> Ref:
    """Return the ref of a model that is not in the store yet, after checking its weights in a
    folder, which has these files; None if their digests are not known."""
    with named_in_errors(folder, Path(model.name)):
        content_digest, blake3 = _check_content(model, folder), _checked_weights(folder)
    return Ref(
        name=model.name,
        version=model.version,
        files=digests(folder) if files is None else files,
        published=model.manifest.files,
        source=model.source.model_dump(exclude_none=True),
        content_digest=content_digest,
        blake3=blake3,
    )


def _checked_ref(store: Store, ref: Ref) -> Ref:
    """Return the ref of a model in the store, after checking the tensors of its weights. A ref
    without the BLAKE3 of their files, or with others, is replaced: it was written by an earlier
    version of the zoo, or damaged."""
    blake3 = _checked_weights(store.snapshot(ref.files))
    if ref.blake3 != blake3:
        ref = replace(ref, blake3=blake3)
        write_ref(store, ref)
    return ref


def _add(store: Store, ref: Ref, folder: Path, work: Path) -> None:
    """Move the files of a model into the store, and name them by its ref."""
    store.add(folder, ref.files, work)
    write_ref(store, ref)
    # `zoo gc` could have removed the snapshot while it had no ref.
    if not restored(store, ref).is_dir():
        store.publish(folder, ref.files, work)


def not_trusted(model: Pretrained) -> StoreError:
    """Return the error for a model without published digests."""
    return StoreError(
        f"the digests of {model.name} are not known here",
        Place(model.document.name),
        help=f"`zoo pull {model.name} --trust-first-use` takes it as it is found, and holds it "
        "to that from then on",
    )


def _fetch_all(
    model: Pretrained,
    store: Store,
    work: Path,
    access: Access,
    on_total: OnBytes,
) -> tuple[Pretrained, Path, Mapping[str, File | int]]:
    """Download the published files into a folder.

    Returns:
        The model with their digests, the folder, and what was expected of each file before.
    """
    folder = work / "fetched"
    access.scratch.mkdir()
    source, expected = model.source, dict[str, File | int](model.manifest.files)
    try:
        if not model.is_pinned:
            imported = model.manifest.family is not None
            source, found = selected_files(source, access, model.name, SELECTED, imported=imported)
            expected = dict[str, File | int](found)
        on_total(sum(map(size_of, expected.values())))
        files = fetch_all(source, expected, folder, store, access)
    except SourceError as error:
        raise placed(error, Place(model.document.name)) from None
    shutil.rmtree(access.scratch)
    return model.with_files(source, files), folder, expected


def _imported(model: Pretrained, fetched: Path, work: Path, registry: Registry) -> Path:
    """Convert the folder to the zoo's own format, with the published card and licence."""
    from zoo.families.import_plan import plan_import
    from zoo.families.importing import save_import

    folder = work / "imported"
    plan = plan_import(fetched, name=model.name, registry=registry)
    if plan.origin.family != model.manifest.family:
        place = model.document.place(("family",), value=True)
        raise StoreError(f"the family that reads it is `{plan.origin.family}`", place)
    save_import(plan, folder)
    for path in fetched.iterdir():
        if selected(path.name, CARDS):
            link_or_copy(path, folder / path.name)
    return folder


def _check_content(model: Pretrained, folder: Path) -> str:
    """Return the content digest of the weights, after comparing it with the registry's. A bundle
    is checked by its lock."""
    found = content_digest(folder)
    stated = model.manifest.content_digest
    if stated is not None and found != stated:
        place = model.document.place(("content_digest",), value=True)
        message = f"the weights of {model.name} have the digest {found}"
        hint = "the source has been changed, or this line is about other weights"
        raise StoreError(message, place, hint)
    return found


def content_digest(folder: Path) -> str:
    """Return the content digest of the weights in a folder. A bundle is first checked by its lock.

    Raises:
        WeightsError: they are not weights of the zoo, or the bundle is damaged.
    """
    if lock_of_bundle(folder) is not None:
        return read_bundle(folder).header.content_digest
    with open_weights(folder) as weights:
        return weights.header.content_digest


def _checked_weights(folder: Path) -> dict[str, list[str]]:
    """Return the BLAKE3 of each weights file, after checking the SHA-256 of all tensors.

    Raises:
        WeightsError: the SHA-256 of a tensor is not that of its record.
    """
    with open_weights(folder) as weights:
        if changed := weights.changed(weights.header.records):
            raise changed_tensors(changed, Place(str(weights.path)))
        found = weights.blake3()
        weights.check_unchanged()
        return found
