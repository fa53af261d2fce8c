"""The files at an address, such as `hf://owner/name`, which are downloaded to be imported."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from zoo.registering.plugin_errors import plugin_code
from zoo.source import Access, OnBytes, Source, SourceError, offline
from zoo.store.fetching import checked_source, drop_left, fetch_all, selected_files
from zoo.store.files import Store
from zoo.wording import PATH, quoted

if TYPE_CHECKING:
    from zoo.registry import Registry

KINDS = "`hf://owner/name`, or an address such as `s3://bucket/folder`, `gs://`, `az://`, `sftp://`"


class Downloaded(NamedTuple):
    """What was downloaded: the folder, and the source, fixed to the revision that it has now."""

    folder: Path
    source: Source


def source_at(address: str, registry: Registry, use: Literal["read from", "pushed to"]) -> Source:
    """Return the source at an address, for this use.

    Raises:
        SourceError: the address is malformed, or there is no source for it; or the source is
            remote, and the user works offline.
        PluginError: a kind of source failed, or returned something else.
    """
    for kind in map(registry.source, registry.sources):
        with plugin_code(f"understanding the address {quoted(address)}"):
            found = kind.at(address)
            source = None if found is None else checked_source(found, kind, "at")
        if source is None:
            continue
        if source.remote and (variable := offline()):
            raise SourceError(f"{variable} forbids to reach {address}")
        return source
    message = f"nothing can be {use} {quoted(address, PATH)}"
    raise SourceError(message, help=f"a folder, {KINDS}")


@contextlib.contextmanager
def downloaded(
    address: str,
    patterns: Collection[str],
    registry: Registry,
    store: Store,
    *,
    on_total: OnBytes,
    on_bytes: OnBytes,
) -> Generator[Downloaded]:
    """Download files into a folder that is there until the end of the block, and has the name of
    the last part of the address, without a revision. A download that was broken off is continued.

    Args:
        address: where they are.
        patterns: which files, as in `zoo.files.of_model`.
        registry: names the kinds of sources.
        store: the place of the folder.
        on_total: called with the number of bytes to download.
        on_bytes: called with the number of bytes received since the last call.

    Raises:
        SourceError: nothing can be read there, or no such file is there, or an adapter is beside
            them.
        StoreError: the store cannot be written.
    """
    source = source_at(address, registry, "read from")
    with store.work() as work:
        access = Access(Path.cwd(), work / "scratch", on_bytes=on_bytes)
        access.scratch.mkdir()
        source, expected = selected_files(source, access, address, patterns, imported=True)
        on_total(sum(expected.values()))
        folder = work / "of" / address.rstrip("/").rpartition("/")[2].partition("@")[0]
        folder.mkdir(parents=True)
        fetch_all(source, expected, folder, store, access)
        yield Downloaded(folder, source)
        drop_left(source, expected, store)
