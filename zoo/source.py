"""Where the files of a published model come from: the interface of the plugins in `[source]`.

A source only transfers bytes. For every source, `zoo.store.fetching` checks them against the sizes
and digests that the registry states, or that were recorded on first use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict

from zoo.errors import ZooError

OFFLINE = ("ZOO_OFFLINE", "HF_HUB_OFFLINE")
"""Environment variables, each of which forbids all requests when set."""


class SourceError(ZooError):
    """A source cannot be reached, or sends something other than it should."""


OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Access:
    """The resources that a source may use.

    Args:
        folder: the folder of the registry, which relative paths start from.
        scratch: an empty folder on the disk of the store, removed after the pull.
        timeout: seconds without a byte after which a connection is closed.
        on_bytes: called with the number of bytes transferred since the last call: by the source
            itself in `write`, by the zoo in `read`.
    """

    folder: Path
    scratch: Path
    timeout: float = 30.0
    on_bytes: OnBytes = lambda n: None


@dataclass(frozen=True, slots=True)
class Stream:
    """The bytes of a file from `start`, which is 0 if the source cannot start in the middle."""

    chunks: Iterator[bytes]
    start: int = 0


class Source(BaseModel):
    """A place with the files of one model. The fields are the keys beside `kind`.

    A source may make no request before `pinned`, `files` or `read` is called. Each of them raises
    `SourceError`, or an `OSError`, which the zoo converts to an error of its own.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", defer_build=True)

    remote: ClassVar[bool] = True
    """Whether requests leave the machine; a source that is not remote works offline."""
    shows_progress: ClassVar[bool] = False
    """Whether `write` shows its own progress on a terminal and does not call `on_bytes`."""

    kind: str

    @property
    def is_fixed(self) -> bool:
        """Whether its files never change, like those of a commit. A partial download from any other
        source is resumed only if the digest of the file is known."""
        return False

    def pinned(self, access: Access) -> Self:
        """Return this source, fixed to its current revision. For a source without revisions, the
        digests of its files detect changes."""
        return self

    def files(self, access: Access) -> Mapping[str, int]:
        """Return the size in bytes of each file, by its path with `/`. Called only when a model is
        trusted on first use."""
        raise NotImplementedError

    def read(self, path: str, start: int, access: Access) -> AbstractContextManager[Stream]:
        """Open the bytes of a file, from `start` if the source can start there."""
        raise NotImplementedError

    @classmethod
    def at(cls, address: str) -> Self | None:
        """Return the source to which `zoo push` writes for an address; None if of another kind."""
        return None

    def seen_from(self, folder: Path) -> Self:
        """Return this source as a model file in `folder` refers to it, so that both can be moved
        together."""
        return self

    def write(self, folder: Path, paths: Sequence[str], access: Access) -> Self:
        """Publish files of a folder in an empty place, and return the pinned source from which they
        can be read."""
        raise NotImplementedError


def offline() -> str | None:
    """Return the environment variable that forbids requests, if one is set."""
    on = {"1", "true", "yes", "on"}
    return next((name for name in OFFLINE if os.environ.get(name, "").lower() in on), None)
