"""A folder or a file on this machine, or on a mounted disk."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal, Self

from zoo.files.atomic import new_folder
from zoo.source import Access, Source, SourceError, Stream
from zoo.wording import quoted

_CHUNK = 1 << 20
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


class Local(Source):
    """The files of a folder; or one file, under its own name.

    Args:
        path: absolute, or relative to the folder of the registry's models.
    """

    remote: ClassVar[bool] = False

    kind: Literal["local"]
    path: str

    def files(self, access: Access) -> Mapping[str, int]:
        root = self._root(access)
        if root.is_file():
            return {root.name: root.stat().st_size}
        paths = [path for path in root.rglob("*") if path.is_file()]
        if not root.is_dir():
            raise SourceError(f"there is no folder {quoted(root)}")
        return {path.relative_to(root).as_posix(): path.stat().st_size for path in paths}

    @contextmanager
    def read(self, path: str, start: int, access: Access) -> Generator[Stream]:
        root = self._root(access)
        file = root if root.is_file() else root / path
        if not file.is_file():
            raise SourceError(f"there is no file {quoted(file)}")
        with file.open("rb") as opened:
            opened.seek(start)
            yield Stream(chunks(opened), start)

    @classmethod
    def at(cls, address: str) -> Self | None:
        # A mistyped address, such as `hf:owner/name`, must not be read as a folder.
        if _SCHEME.match(address):
            return None
        return cls(kind="local", path=str(Path(address).absolute()))

    def seen_from(self, folder: Path) -> Self:
        # With links resolved, since `..` after a link would lead elsewhere.
        path = os.path.relpath(Path(self.path).resolve(), folder.resolve())
        return self.model_copy(update={"path": Path(path).as_posix()})

    def write(self, folder: Path, paths: Sequence[str], access: Access) -> Self:
        """Write a temporary folder, and rename it when it is complete and on disk."""
        target = self._root(access)
        if target.exists():
            hint = "a published model never changes: choose another folder"
            raise SourceError(f"{quoted(target)} is there already", help=hint)
        with new_folder(target) as made:
            for path in paths:
                (made / path).parent.mkdir(parents=True, exist_ok=True)
                with (folder / path).open("rb") as source, (made / path).open("xb") as copy:
                    for piece in chunks(source):
                        copy.write(piece)
                        access.on_bytes(len(piece))
        return self

    def _root(self, access: Access) -> Path:
        return access.folder / self.path


def chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a file in chunks."""
    while piece := file.read(_CHUNK):
        yield piece
