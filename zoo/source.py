"""Where the files of a published model come from: the interface of the plugins in `[source]`.

A source only moves bytes. What it gives is held against the sizes and digests that the registry
states, or that were seen on first use, by `zoo.store.fetching`, whatever the source is.
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
"""Environment variables of which each, when set, forbids every request."""


class SourceError(ZooError):
    """A source that cannot be reached, or that sends something else than it should."""


OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Access:
    """What a source may use.

    Args:
        folder: that of the registry, from which relative paths count.
        scratch: an empty folder that lasts as long as the pull, on the disk of the store.
        timeout: seconds without a byte after which a connection is given up.
        on_bytes: called with the number of bytes moved since the last call: by the source itself
            where it writes, by the zoo where it reads.
    """

    folder: Path
    scratch: Path
    timeout: float = 30.0
    on_bytes: OnBytes = lambda n: None


@dataclass(frozen=True, slots=True)
class Stream:
    """The bytes of a file from `start`, which is 0 where a source cannot begin in the middle."""

    chunks: Iterator[bytes]
    start: int = 0


class Source(BaseModel):
    """A place with the files of one model. The fields are the keys beside `kind`.

    Nothing may be reached before `pinned`, `files` or `read` is called. Each raises `SourceError`,
    or an `OSError`, which the zoo tells in its own words.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", defer_build=True)

    remote: ClassVar[bool] = True
    """Whether requests leave the machine; a source that is not remote works offline."""
    shows_progress: ClassVar[bool] = False
    """Whether `write` shows on a terminal itself how far it is, and does not call `on_bytes`."""

    kind: str

    @property
    def is_fixed(self) -> bool:
        """Whether its files never change, as those of a commit. What is left of a file of any other
        is taken up only where its digest is known."""
        return False

    def pinned(self, access: Access) -> Self:
        """This source at the revision that it is at now. One that has no revisions is held to what
        it was by the digests of its files."""
        return self

    def files(self, access: Access) -> Mapping[str, int]:
        """The files there are, by their paths with `/`, and the bytes of each. Asked only when a
        model is trusted on first use."""
        raise NotImplementedError

    def read(self, path: str, start: int, access: Access) -> AbstractContextManager[Stream]:
        """The bytes of a file, from `start` where the source can do that."""
        raise NotImplementedError

    @classmethod
    def at(cls, address: str) -> Self | None:
        """The source that `zoo push` writes to for an address; None if it is not of this kind."""
        return None

    def seen_from(self, folder: Path) -> Self:
        """This source as a model's file in that folder names it, if the two are to be moved
        together."""
        return self

    def write(self, folder: Path, paths: Sequence[str], access: Access) -> Self:
        """Publish files of a folder where there are none yet; the source that they can be read
        from, pinned."""
        raise NotImplementedError


def offline() -> str | None:
    """The environment variable that forbids requests, if one does."""
    on = {"1", "true", "yes", "on"}
    return next((name for name in OFFLINE if os.environ.get(name, "").lower() in on), None)
