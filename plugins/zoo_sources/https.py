"""Files below an https address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import AfterValidator, Field

from zoo.source import Access, Source, SourceError, Stream
from zoo_sources.transport import check_url, download, request

_WRITTEN = re.compile(r"[!-~]+")  # what an address is written with: ASCII without spaces


def _check_folder(url: str) -> str:
    """Return `url`. Raises `ValueError` unless it is an https address that a file's name can
    follow."""
    if not _WRITTEN.fullmatch(check_url(url)):
        raise ValueError("an address has `%20` for a space, and such codes for letters like `ä`")
    if "?" in url or "#" in url:
        raise ValueError("the address of a folder has no `?` and no `#`")
    return url


class Https(Source):
    """A web server, or an object store that is read by https.

    Args:
        url: the address of the folder.
        names: the files in it; needed only for first use, since a web server does not list them.
    """

    kind: Literal["https"]
    url: Annotated[str, AfterValidator(_check_folder)]
    names: list[str] = Field(default=[])

    def files(self, access: Access) -> Mapping[str, int]:
        if not self.names:
            hint = 'state them in `[source]`: names = ["model.safetensors", "README.md"]'
            raise SourceError(f"{self.url} does not list its files", help=hint)
        return {name: self._size(name, access) for name in self.names}

    def read(self, path: str, start: int, access: Access) -> AbstractContextManager[Stream]:
        return download(self._url(path), start, access.timeout)

    def _url(self, path: str) -> str:
        return f"{self.url.rstrip('/')}/{quote(path)}"

    def _size(self, path: str, access: Access) -> int:
        # By GET, without reading the answer: some servers refuse HEAD.
        with request(self._url(path), access.timeout) as answer:
            length = answer.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise SourceError(f"{self._url(path)} does not say how long it is")
        return int(length)
