"""Write files and folders atomically: each is complete, or does not exist."""

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
from zoo.wording import quoted

_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF}
"""The errors of file systems that cannot sync folders. On Linux, the second and third are one."""
TEMPORARY = ".zoo-*.tmp"
"""The pattern of the names of files and folders that are not complete yet."""


def temporary_name(target: Path) -> Path:
    """Return a unique name of the pattern `TEMPORARY` in the folder of a file."""
    return target.with_name(TEMPORARY.replace("*", secrets.token_hex(8)))


@contextmanager
def new_file(path: Path) -> Generator[BinaryIO]:
    """Yield a file to write to, which is renamed to `path` if the block ends without an error.

    Until then the old file at `path` stays intact; after an error the new one is removed. It is
    synced to disk before the renaming, so that after a crash either the old or the new file is
    there, complete. Missing folders are made; the mode is 0666 minus the umask; a symbolic link at
    `path` is followed, not replaced.

    Raises:
        ZooError: the file cannot be written. Every `OSError` of the block becomes one.
    """
    target = Path(os.path.realpath(path))
    temporary = temporary_name(target)
    with _inside_new_folders(path, target):
        _refuse_what_is_no_file(target)
        if path.is_symlink() and target.exists() and not target.stat().st_mode & 0o222:
            # Such as a file in the store, which is not what the link's owner wants to replace.
            raise PermissionError(errno.EACCES, "the link leads to a write-protected file")
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def remove_file(path: Path) -> None:
    """Remove a file for good. Raises `ZooError` if that is not possible."""
    try:
        path.unlink(missing_ok=True)
        sync(path.parent)
    except OSError as error:
        raise ZooError(f"cannot remove {quoted(path)}: {error.strerror}") from None


@contextmanager
def new_folder(path: Path) -> Generator[Path]:
    """Yield a folder to fill, which is renamed to `path` if the block ends without an error.

    Until then nothing is at `path`; after an error the new folder is removed. Its files are synced
    to disk before the renaming.

    Raises:
        ZooError: `path` exists and is not an empty folder, or it cannot be written. Every `OSError`
            of the block becomes one.
    """
    target = path.absolute()
    temporary = temporary_name(target)
    with _inside_new_folders(path, target):
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            hint = "what is there is never changed: name a new folder"
            raise ZooError(f"{quoted(path)} is there already", help=hint)
        try:
            temporary.mkdir()
            with named_in_errors(temporary, path):
                yield temporary
            sync_tree(temporary)
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextmanager
def named_in_errors(folder: Path, name: Path) -> Generator[None]:
    """In errors of the block, replace the path of the temporary `folder`, which no longer exists
    when the error is read, by `name`."""
    try:
        yield
    except ZooError as error:
        old, new = str(folder), str(name)
        problems: list[Problem] = []
        for problem in error.problems:
            place = problem.place and problem.place._replace(
                file=problem.place.file.replace(old, new)
            )
            message = problem.message.replace(old, new)
            problems.append(problem._replace(message=message, place=place))
        raise type(error)(problems) from None


@contextmanager
def _inside_new_folders(path: Path, target: Path) -> Generator[None]:
    """Make the missing parent folders of `target`; remove them if the block, which makes the
    target, ends with an error. An `OSError` becomes a `ZooError`, whose message names `path`."""
    made: list[Path] = []
    try:
        for folder in reversed(target.parents):
            if folder.is_file():
                raise NotADirectoryError(
                    errno.ENOTDIR, f"a file has the name of {quoted(folder.name)}"
                )
            if not folder.is_dir():
                with contextlib.suppress(FileExistsError):  # another process made it meanwhile
                    folder.mkdir()
                    made.append(folder)
        yield
    except BaseException as error:
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        if not isinstance(error, OSError):
            raise
        raise _not_written(path, error) from None
    try:
        for folder in {target.parent, *(folder.parent for folder in made)}:
            sync(folder)
    except OSError as error:
        raise _not_settled(path, error) from None


def _not_written(path: Path, error: OSError) -> ZooError:
    message = f"cannot write {quoted(path)}: {error.strerror or error}"
    return ZooError(message, help="what was there is untouched")


def _not_settled(path: Path, error: OSError) -> ZooError:
    message = f"{quoted(path)} is written, but the disk says: {error.strerror}"
    return ZooError(message, help="it may be gone after a power failure: write it again")


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, atomically. Raises `ZooError` as `new_file`."""
    with new_file(path) as file:
        file.write(text.encode())


def _refuse_what_is_no_file(path: Path) -> None:
    """Raise `OSError` if `path` exists and is not a file: renaming would replace even /dev/null."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file")


def make_folder(path: Path) -> None:
    """Make a folder and its parents, each synced to disk before anything is put into it."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def copy_synced(source: Path, target: Path) -> None:
    """Copy the bytes of a file, and wait until they are on disk."""
    with source.open("rb") as read, target.open("xb") as written:
        shutil.copyfileobj(read, written, 1 << 20)
        written.flush()
        os.fsync(written.fileno())


def sync_tree(folder: Path) -> None:
    """Wait until a folder and all that is in it are on disk."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk, if the file system supports it."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:  # a folder that may be written to but not listed
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)
