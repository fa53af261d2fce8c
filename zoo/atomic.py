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

from zoo.errors import Problem, ZooError, quoted

_NO_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF}
"""What file systems say that cannot sync folders."""
TEMPORARY = ".zoo-*.tmp"
"""The pattern of the names that files and folders have until they are complete."""


def temporary_name(target: Path) -> Path:
    """A name of `TEMPORARY` beside a file, which nobody else chooses."""
    return target.with_name(TEMPORARY.replace("*", secrets.token_hex(8)))


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
    temporary = temporary_name(target)
    with _inside_new_folders(path, target):
        _refuse_what_is_no_file(target)
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
    """A folder to fill, which takes the name `path` when the block ends without an error.

    Until then nothing is at `path`, and after an error nothing is left. All of it is on disk before
    it has its name.

    Raises:
        ZooError: there is something at `path` already, or it cannot be written. Every `OSError` of
            the block becomes one.
    """
    target = path.absolute()
    temporary = temporary_name(target)
    with _inside_new_folders(path, target):
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        try:
            temporary.mkdir()
            with told_as(temporary, path):
                yield temporary
            sync_tree(temporary)
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextmanager
def told_as(folder: Path, name: Path) -> Generator[None]:
    """What an error of the block tells of `folder`, a temporary one that is gone when it is read,
    it tells of `name`."""
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
    """Make the folders around `target` that are missing, and remove them if the block, which makes
    the target, ends with an error. An `OSError` becomes the `ZooError` of what is called `path`."""
    made: list[Path] = []
    try:
        for folder in reversed(target.parents):
            if folder.is_file():
                raise NotADirectoryError(
                    errno.ENOTDIR, f"a file has the name of {quoted(folder.name)}"
                )
            if not folder.is_dir():
                with contextlib.suppress(FileExistsError):  # somebody else makes it meanwhile
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
    return ZooError(Problem(message, help="what was there is untouched"))


def _not_settled(path: Path, error: OSError) -> ZooError:
    message = f"{quoted(path)} is written, but the disk says: {error.strerror}"
    return ZooError(Problem(message, help="it may be gone after a power failure: write it again"))


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
    """Wait until a file, or the names in a folder, are on disk, where the file system can do
    that."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:  # a folder that one may write to and not list
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)
