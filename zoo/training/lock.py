"""One run at a time in a folder."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from zoo.errors import ZooError
from zoo.files.of_training import LOCK
from zoo.training.processes import in_first_process
from zoo.wording import quoted

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
"""The errors of file systems that have no locks."""


@contextmanager
def alone_in(folder: Path, accelerator: Any) -> Generator[None]:
    """Keep other runs out of a folder until the block ends: the first process locks it for all
    processes of this run. A folder that is missing is made, and removed if it is empty then.

    Raises:
        ZooError: another run has the folder, or no file can be written there.
    """
    with ExitStack() as held:
        with in_first_process(accelerator) as is_first:
            if is_first:
                held.enter_context(_locked(folder))
        yield


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Hold the lock of a folder. The system frees it when the process ends, however that ends, so
    that no run is in the way of the next one. On a network's file system, it holds for all
    machines. Raises ZooError as `alone_in`."""
    lock = folder / LOCK
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    with ExitStack() as undone:
        for one in reversed(made):
            undone.callback(_remove_empty, one)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            undone.callback(os.close, _descriptor_of(lock))
        except BlockingIOError:
            hint = "wait until it has ended, or end it; `-o` names another folder"
            raise ZooError(f"another run trains in {quoted(folder)}", help=hint) from None
        except OSError as error:
            file = next((one for one in folder.parents if one.is_file()), None)
            why = error.strerror if file is None else f"a file has the name of {quoted(file)}"
            raise ZooError(f"cannot write {quoted(folder)}: {why}") from None
        undone.callback(lock.unlink, missing_ok=True)  # the first of all, while it is held
        yield


def _descriptor_of(lock: Path) -> int:
    """Lock a file, which is made. Raises BlockingIOError if another process has it."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor)
            if os.path.samestat(os.fstat(descriptor), lock.stat()):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # of a run that has ended meanwhile, and removed its file


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
