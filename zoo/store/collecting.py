"""Remove files that no ref in the store names: `zoo gc` and `zoo rm`.

Other processes may pull at the same time, so a snapshot is removed in three steps: it is moved to
`trash/`, the refs are read again, and if one names it now, it is moved back. A pull writes the ref
first and then checks that the snapshot still exists. So at least one of the two processes sees the
other. Snapshots of the last minute are kept, so that no reader sees one disappear. If a collector
is killed, the snapshot remains in `trash/`, and the next collector or reader moves it back.
"""

from __future__ import annotations

import contextlib
import math
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from zoo.errors import ZooError
from zoo.files.atomic import TEMPORARY
from zoo.store.files import HINT, Store, StoreError, exists, subfolders
from zoo.store.refs import Ref, refs
from zoo.wording import quoted

GRACE = 3600.0
"""Seconds without a write after which the partial files of a pull count as abandoned."""

NO_GRACE = -math.inf
"""For all files, also those of a machine whose clock is ahead."""

SETTLING = 60.0
"""Seconds for which a snapshot may be without a ref: less than it takes to publish one."""


@dataclass(slots=True)
class Freed:
    """The number of files removed, and of bytes freed; and what could not be removed, and why."""

    files: int = 0
    n_bytes: int = 0
    kept: dict[Path, OSError] = field(default_factory=dict[Path, OSError])

    def check(self) -> None:
        """Raise `ZooError` if something could not be removed, such as the files of another user."""
        if not self.kept:
            return
        path, error = next(iter(self.kept.items()))
        more = f" and {len(self.kept) - 1} more" if len(self.kept) > 1 else ""
        message = f"cannot remove {quoted(path)}{more}: {error.strerror or error}"
        hint = "`zoo gc` by the user to whom it belongs does"
        raise ZooError(message, help=hint)


def collect(store: Store, *, grace: float = GRACE) -> Freed:
    """Remove the snapshots and blobs that no ref names, and the files of interrupted pulls. What
    belongs to others, and may not be removed, stays.

    Args:
        store: the store; other processes may use it at the same time.
        grace: seconds without a write after which partial files count as abandoned. Below
            `SETTLING`, new snapshots are removed as well.

    Raises:
        StoreError: a ref is damaged, so that its files are not known; or the store cannot be
            written.
    """
    freed = Freed()
    try:
        _empty_trash(store, freed)
        live = _live(store)
        for snapshot in list(store.snapshots()):
            if snapshot.name not in live and _age(snapshot) >= min(grace, SETTLING):
                trash = store.root / "trash" / snapshot.name
                store.make_folder(trash.parent)
                try:
                    snapshot.rename(trash)
                except PermissionError as error:
                    freed.kept[snapshot] = error
                except OSError:  # another collector was quicker
                    pass
        _empty_trash(store, freed)
        named = {file.sha256 for ref in refs(store) for file in ref.files.values()}
        for path in _left_behind(store, grace):
            _remove(path, freed)
        for blob in list(store.blobs()):
            if blob.name not in named and not blob.name.startswith("."):
                _remove(blob, freed)
    except OSError as error:
        message = f"the store {quoted(store.root)}: {error.strerror or error}"
        raise StoreError(message, help=HINT) from None
    return freed


def sweep(folder: Path, *, grace: float) -> Freed:
    """Remove the temporary files and folders that killed writers, such as `zoo.save`, have left in
    a folder outside the store. `grace` is as for `collect`.

    Raises:
        ZooError: the folder cannot be read.
    """
    freed = Freed()
    try:
        for path in _abandoned(folder.glob(TEMPORARY), grace):
            _remove(path, freed)
    except OSError as error:
        raise ZooError(f"cannot clean {quoted(folder)}: {error.strerror or error}") from None
    return freed


def restored(store: Store, ref: Ref) -> Path:
    """Return the snapshot of a ref, after moving it back if a collector was about to remove it.

    Raises:
        StoreError: there is no permission to look.
    """
    snapshot = store.snapshot(ref.files)
    if not exists(snapshot):
        with contextlib.suppress(OSError):
            (store.root / "trash" / snapshot.name).rename(snapshot)
    return snapshot


def _age(folder: Path) -> float:
    """Return the seconds since a folder was made, moved or touched; infinity if it is gone."""
    try:
        return time.time() - folder.stat().st_ctime
    except FileNotFoundError:
        return math.inf


def _live(store: Store) -> set[str]:
    return {store.snapshot(ref.files).name for ref in refs(store)}


def _empty_trash(store: Store, freed: Freed) -> None:
    """Move the snapshots that a ref names back, and remove the others."""
    trash = subfolders(store.root / "trash")
    live = _live(store) if trash else set[str]()
    for folder in trash:
        if folder.name in live:
            with contextlib.suppress(OSError):  # it has been created again
                folder.rename(store.root / "snapshots" / folder.name)
                continue
        _remove(folder, freed)


def _left_behind(store: Store, grace: float) -> Iterator[Path]:
    """Yield the folders and files of pulls and writes that were interrupted."""
    places = [store.root / "work", store.root / "partial"]
    candidates = [path for place in places if place.is_dir() for path in place.iterdir()]
    candidates += (store.root / "refs").glob(TEMPORARY)
    candidates += store.root.glob(f"blobs/*/{TEMPORARY}")
    candidates += store.root.glob(f"trusted/*/{TEMPORARY}")
    yield from _abandoned(candidates, grace)


def _abandoned(candidates: Iterable[Path], grace: float) -> Iterator[Path]:
    before = time.time() - grace
    for path in candidates:
        with contextlib.suppress(FileNotFoundError):
            if max(one.lstat().st_mtime for one in [path, *path.rglob("*")]) <= before:
                yield path


def _remove(path: Path, freed: Freed) -> None:
    """Remove a file, or a folder with what is in it; the bytes of those without other hard links
    are freed."""
    gone = path
    if path.is_dir() and not path.name.startswith("."):
        # Renamed first: while its files are removed, a reader could restore it under its old name
        # and would get only some of them.
        gone = path.with_name(f".{path.name}.gone")
        try:
            path.rename(gone)
        except PermissionError as error:
            freed.kept[path] = error
            return
        except OSError:  # another process has renamed it
            pass
    try:
        found = sorted([gone, *gone.rglob("*")], reverse=True)  # a folder after what is in it
    except FileNotFoundError:  # another process is removing it
        return
    for one in found:
        try:
            status = one.lstat()
            if stat.S_ISDIR(status.st_mode):
                one.rmdir()
            else:
                one.unlink()
                freed.files += 1
                freed.n_bytes += status.st_size if status.st_nlink == 1 else 0
        except FileNotFoundError:
            pass
        except OSError as error:
            freed.kept.setdefault(path, error)
