"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from zoo.errors import Problem, ZooError


@contextmanager
def new_file(path: Path) -> Generator[BinaryIO]:
    """A file to write to, which takes the name `path` when the block ends without an error.

    Until then what was at `path` stays whole, and after an error nothing is left of the new file.
    It is on disk before it has its name, so that after a crash there is one of the two, whole.
    Folders that are missing are made; the mode is what the umask leaves of 0666; a symbolic link
    stays one.

    Raises:
        ZooError: the file cannot be written. Every `OSError` of the block becomes one.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".zoo-{secrets.token_hex(8)}.tmp")
    made: list[Path] = []
    try:
        _refuse_what_is_no_file(target)
        for folder in reversed([target.parent, *target.parent.parents]):
            if not folder.is_dir():
                folder.mkdir()
                made.append(folder)
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        if not isinstance(error, OSError):
            raise
        reason = error.strerror or str(error)
        raise ZooError(
            Problem(f"cannot write {str(path)!r}: {reason}", help="what was there is untouched")
        ) from None
    for folder in {target.parent, *(folder.parent for folder in made)}:
        sync_folder(folder)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, whole or not at all. Raises `ZooError` as `new_file`."""
    with new_file(path) as file:
        file.write(text.encode())


def _refuse_what_is_no_file(path: Path) -> None:
    """A rename would put a file in the place of a device, such as /dev/null."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file")


def make_folder(path: Path) -> None:
    """Make a folder and those around it, each on disk before anything is in it."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def copy_synced(source: Path, target: Path) -> None:
    """Copy the bytes of a file, and wait until they are on disk."""
    with source.open("rb") as read, target.open("xb") as written:
        shutil.copyfileobj(read, written, 1 << 20)
        written.flush()
        os.fsync(written.fileno())


def sync_tree(folder: Path) -> None:
    """Wait until the names in a folder, and in those below it, are on disk."""
    for inner in folder.rglob("*"):
        if inner.is_dir():
            sync_folder(inner)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk, where the file system can do that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
