"""Trust on first use: the recorded digests of a model without published digests.

The store keeps them in `trusted/NAME/zoo.lock`, in the format of a model's own file, so that they
can be copied into it. The lock is written once and never changed; `zoo rm --forget` removes it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.document import read_document
from zoo.errors import Place, Problem, RegistryError, SpecError, in_order
from zoo.files.atomic import remove_file, sync, sync_tree
from zoo.registering.catalog import MODEL_NAME
from zoo.store.files import Store, StoreError, exists, store_unreadable
from zoo.store.pretrained import File, Pretrained, read_files_table, read_source_table

if TYPE_CHECKING:
    from zoo.registry import Registry

FILE_NAME = "zoo.lock"
_HEAD = "# What was seen of this model on first use. From then on it must stay what it was.\n"


def path_of(store: Store, name: str) -> Path:
    return store.root / "trusted" / name / FILE_NAME


def with_trusted(model: Pretrained, store: Store, registry: Registry) -> Pretrained:
    """Return the model with the source and files of its lock, if it states no files and has a lock.

    Raises:
        RegistryError: the lock is damaged.
        StoreError: there is no permission to look for it, or to read it.
    """
    path = path_of(store, model.name)
    if model.is_pinned or not exists(path):
        return model
    try:
        path.open("rb").close()
    except OSError as error:  # it is not damaged, and need not be forgotten
        raise store_unreadable(path, error) from None
    problems: list[Problem] = []
    source, files = None, dict[str, File]()
    try:
        document = read_document(path)
        problems += document.problems
        source = read_source_table(document, registry, problems)
        files = read_files_table(document, problems)
    except SpecError as error:
        problems += error.problems
    if problems or source is None or not files:
        hint = f"`zoo rm {model.name} --forget` removes it"
        problems.append(Problem("this lock is damaged", Place(str(path)), hint))
        raise RegistryError(in_order(problems))
    return model.with_files(source, files)


def record(model: Pretrained, store: Store, registry: Registry) -> None:
    """Write the lock of a model, unless there is one.

    Raises:
        StoreError: an existing lock, perhaps just written by another process, differs; or the store
            cannot be written.
    """
    # Imported here, since it imports tomlkit.
    from zoo.store.manifest_text import source_and_files

    path = path_of(store, model.name)
    text = _HEAD + source_and_files(model.source, model.manifest.files)
    with store.work() as work:
        store.make_folder(path.parent.parent)
        made = work / model.name
        store.make_folder(made)
        (made / FILE_NAME).write_bytes(text.encode())
        store.share(made / FILE_NAME)
        sync_tree(made)
        try:
            made.rename(path.parent)  # unlike that of a file, this replaces an empty folder alone
        except OSError:
            if not exists(path):
                raise
        sync(path.parent.parent)
    unpinned = model.with_files(model.source, {})
    trusted = with_trusted(unpinned, store, registry)
    if trusted.version != model.version:
        raise StoreError(
            f"{model.name} is not what it was on first use",
            Place(str(path)),
            help=f"if the new one is meant, `zoo rm {model.name} --forget` comes first",
        )


def forget(store: Store, name: str) -> bool:
    """Remove the lock of a model; return whether there was one. A name that no model has, such as a
    path, has none."""
    path = path_of(store, name)
    if not MODEL_NAME.fullmatch(name) or not exists(path):
        return False
    remove_file(path)
    with contextlib.suppress(OSError):  # another process writes a new lock into it
        path.parent.rmdir()  # in a sticky folder, nobody else could replace it
    return True
