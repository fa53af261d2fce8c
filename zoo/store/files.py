"""The folder of the store: files by their SHA-256, and models as folders of links to them.

    blobs/ab/ab12...       a file's bytes, named by their SHA-256
    snapshots/5c07.../     a model's files under their own names; named by the digest of their list
    refs/NAME@VERSION.json the files of a name and version; written last (`zoo.store.refs`)
    trusted/NAME/zoo.lock  the digests of a model on first use (`zoo.store.first_use`)
    partial/  work/        unfinished downloads and pulls
    trash/                 folders that `zoo gc` is about to remove

Any number of processes, on any number of machines, may use the folder at once, without locks or
waiting: a file or folder appears under its name by one link or rename, complete and on disk, and is
never changed afterwards. What is in it has the permissions of the folder, whatever the umask of who
made it, so that users who may all write to the folder share it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from zoo.errors import Place, ZooError
from zoo.files.atomic import copy_synced, make_folder, sync, sync_tree, temporary_name
from zoo.machine.threads import on_all_cores
from zoo.store.pretrained import File
from zoo.weights.open_file import STEP
from zoo.wording import PATH, quoted

_NO_LINKS = {
    errno.EPERM,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,  # on Linux the same
    errno.ENOSYS,
    errno.EMLINK,
    errno.EXDEV,
}
"""The errors of file systems without hard links, or with too many links to a file."""
_WRITABLE = 0o222
_TOUCHED = 600.0
"""Seconds between two times that a work folder is touched: fewer than the grace of `zoo gc`."""
HINT = "`ZOO_HOME` names another folder for the store"
"""The help text for a store that cannot be used."""


class StoreError(ZooError):
    """The store cannot be read or written, or its content is wrong."""


def store_unreadable(path: Path, error: OSError) -> StoreError:
    """Return the error for files without read permission, as in the store of another user."""
    message = f"cannot be read: {error.strerror or error}"
    return StoreError(message, Place(str(path)), HINT)


class Store:
    """The folder of a store. It is created when something is stored."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def default(cls) -> Store:
        """Return the store in `ZOO_HOME`, or in the user's folder for data. Raises `StoreError` if
        there is no such user, or if the user has no home folder."""
        if home := os.environ.get("ZOO_HOME"):
            try:
                return cls(Path(home).expanduser().absolute())
            except RuntimeError:
                raise StoreError(
                    f"ZOO_HOME is {quoted(home, PATH)}: there is no such user"
                ) from None
        from platformdirs import user_data_path

        try:
            return cls(user_data_path("zoo"))
        except RuntimeError:
            raise StoreError(
                "this user has no home folder, so that there is no place for the store",
                help="set ZOO_HOME to a folder",
            ) from None

    def blob(self, sha256: str) -> Path:
        """Return the path of the blob with this digest, which may not exist."""
        return self.root / "blobs" / sha256[:2] / sha256

    def snapshot(self, files: Mapping[str, File]) -> Path:
        """Return the path of the snapshot of these files, which may not exist."""
        return self.root / "snapshots" / snapshot_id(files)

    def blobs(self) -> Iterator[Path]:
        for folder in subfolders(self.root / "blobs"):
            yield from folder.iterdir()

    def snapshots(self) -> Iterator[Path]:
        yield from subfolders(self.root / "snapshots")

    def make_folder(self, path: Path) -> None:
        """Make a folder in the store, and those around it, each synced to disk before anything is
        put into it."""
        if path == self.root:
            make_folder(path)
        elif not path.is_dir():
            self.make_folder(path.parent)
            with contextlib.suppress(FileExistsError):  # another process made it meanwhile
                path.mkdir()
                self.share(path)
            sync(path.parent)

    def share(self, path: Path) -> None:
        """Give a new folder in the store the permissions of the store's folder, and a new file
        those of them that a file has."""
        mode = self._mode()
        with contextlib.suppress(OSError):  # a file system that has no permissions
            path.chmod(mode if path.is_dir() else mode & 0o666)

    def _mode(self) -> int:
        return stat.S_IMODE(self.root.stat().st_mode)

    @contextmanager
    def work(self) -> Generator[Path]:
        """Create a folder on the store's disk, and remove it at the end. An `OSError` in the block
        becomes a `StoreError`."""
        folder = self.root / "work" / secrets.token_hex(8)
        try:
            self.make_folder(folder.parent)
            folder.mkdir()
            with _in_use(folder):
                yield folder
        except OSError as error:
            where = f" ({quoted(error.filename, PATH)})" if error.filename else ""
            reason = f"{error.strerror or error}{where}"
            message = f"the store {quoted(self.root)} cannot be written: {reason}"
            hint = f"what was in it is untouched; {HINT}"
            raise StoreError(message, help=hint) from error
        finally:
            with contextlib.suppress(OSError):  # `zoo gc` removes what remains
                shutil.rmtree(folder)

    def take(self, file: File, target: Path) -> bool:
        """Link the blob of `file` to `target`, if it exists and is intact. A damaged blob is
        removed."""
        blob = self.blob(file.sha256)
        try:
            link_or_copy(blob, target)
        except FileNotFoundError:
            return False
        if digest(target) == file:
            return True
        target.unlink()
        blob.unlink(missing_ok=True)
        return False

    def add(self, folder: Path, files: Mapping[str, File], work: Path) -> None:
        """Publish the files in `folder`, whose bytes have these digests, as blobs and as a
        snapshot.

        An existing snapshot is kept if it is intact. The files in `folder` remain.
        """
        for path, file in files.items():
            _settle(folder / path, self._mode())
            self._add_blob(folder / path, file)
        self.publish(folder, files, work)

    def publish(self, folder: Path, files: Mapping[str, File], work: Path) -> None:
        """Create the snapshot for `add`."""
        target = self.snapshot(files)
        self.make_folder(target.parent)
        while not self._rename_new(folder, files, work, target):
            with contextlib.suppress(OSError):  # it is removed, or belongs to another user
                os.utime(target)  # so that no collector removes it before it has a ref
            if not list(damaged(target, files)):  # made by another pull
                return
            discard(target, work)
        sync(target.parent)

    def _rename_new(
        self, folder: Path, files: Mapping[str, File], work: Path, target: Path
    ) -> bool:
        made = work / secrets.token_hex(8)
        for path in files:
            self.make_folder((made / path).parent)
            link_or_copy(folder / path, made / path)
        sync_tree(made)
        try:
            made.rename(target)
        except OSError:
            # Not only as it is not empty: in a sticky folder, one of another user is not replaced.
            if not exists(target):
                raise
            return False
        return True

    def _add_blob(self, path: Path, file: File) -> None:
        blob = self.blob(file.sha256)
        self.make_folder(blob.parent)
        with contextlib.suppress(FileNotFoundError):
            if blob.stat().st_size == file.size:
                return  # any other is damaged, and replaced
        temporary = temporary_name(blob)
        try:
            link_or_copy(path, temporary)
            temporary.rename(blob)
        finally:
            # A rename onto another link to the same file has no effect, and keeps the old name.
            temporary.unlink(missing_ok=True)
        sync(blob.parent)


@contextmanager
def _in_use(folder: Path) -> Generator[None]:
    """Touch a folder from time to time, so that `zoo gc` does not take it for that of a killed
    process: a large file is received elsewhere, which may take hours."""
    ended = Event()

    def touch() -> None:
        while not ended.wait(_TOUCHED):
            with contextlib.suppress(OSError):
                os.utime(folder)

    thread = Thread(target=touch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def snapshot_id(files: Mapping[str, File]) -> str:
    """Return the SHA-256 of the list of a folder's files and their digests."""
    lines = (f"{file.sha256} {file.size} {path}\n" for path, file in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def damaged(
    folder: Path, files: Mapping[str, File], on_bytes: Callable[[int], None] = lambda n: None
) -> Iterator[str]:
    """Return the files of a folder that are missing, damaged, or unexpected. Reads on all cores,
    each of which calls `on_bytes` with the number of bytes that it has read.

    Raises:
        StoreError: there is no permission to read them.
    """
    try:
        paths = [path for path in folder.rglob("*") if not path.is_dir()]
    except OSError:  # it cannot be read, or was removed meanwhile
        paths = []
    yield from sorted({path.relative_to(folder).as_posix() for path in paths} - files.keys())

    def right(path: str) -> bool:
        try:
            return digest(folder / path, on_bytes) == files[path]
        except PermissionError as error:
            raise store_unreadable(folder / path, error) from None
        except OSError:
            return False

    found = on_all_cores(right, {path: file.size for path, file in files.items()})
    yield from (path for path, is_right in found.items() if not is_right)


def digest(path: Path, on_bytes: Callable[[int], None] = lambda n: None) -> File:
    """Return the size and SHA-256 of a file; `on_bytes` is called with the number of bytes read
    since the last call."""
    sha256, size, buffer = hashlib.sha256(), 0, memoryview(bytearray(STEP))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            sha256.update(buffer[:count])
            size += count
            on_bytes(count)
    return File(size=size, sha256=sha256.hexdigest())


def digests(folder: Path, names: Iterable[str] | None = None) -> dict[str, File]:
    """Return the digests of the files below a folder with these paths (with `/`), by default all.

    Raises:
        StoreError: one of them is not a regular file.
    """
    if names is None:
        below = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
        names = (path.relative_to(folder).as_posix() for path in below)
    sizes: dict[str, int] = {}
    for name in sorted(names):
        status = (folder / name).lstat()
        if not stat.S_ISREG(status.st_mode):
            raise StoreError(f"{quoted(folder / name)} is not a regular file")
        sizes[name] = status.st_size
    found = on_all_cores(lambda name: digest(folder / name), sizes)
    return {name: found[name] for name in sizes}


def discard(path: Path, work: Path) -> None:
    """Remove a folder from the store in one step. It may be gone already."""
    with contextlib.suppress(FileNotFoundError):
        path.rename(work / secrets.token_hex(8))


def link_or_copy(source: Path, target: Path) -> None:
    """Create a hard link to a file, or a synced copy with the same mode if the file system has no
    links."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        copy_synced(source, target)
        shutil.copymode(source, target)


def exists(path: Path) -> bool:
    """Return whether a path exists. Raises `StoreError` without permission to look, for which
    `Path.exists` returns False in some versions of Python."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise store_unreadable(path, error) from None
    return True


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder; none if it is missing."""
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []


def _settle(path: Path, mode: int) -> None:
    """Let those read a file, and nobody write it, who may read a folder of this mode, and sync it
    to disk."""
    if path.stat().st_mode & _WRITABLE:  # of another user's file, the mode cannot be changed
        path.chmod(mode & 0o444)
    sync(path)
