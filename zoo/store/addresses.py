"""The files at an address, such as `hf://owner/name`, which are downloaded to be imported."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zoo.errors import Problem
from zoo.registering.plugin_errors import plugin_code
from zoo.source import Access, OnBytes, Source, SourceError, offline
from zoo.store.fetching import checked_source, fetch_all, left_of, selected_files
from zoo.store.files import Store
from zoo.wording import quoted

if TYPE_CHECKING:
    from zoo.registry import Registry

KINDS = "`hf://owner/name`, or an address such as `s3://bucket/folder`, `gs://`, `az://`, `sftp://`"


class Downloaded(NamedTuple):
    """What was downloaded: the folder, and the source, fixed to the revision that it has now."""

    folder: Path
    source: Source


def source_at(address: str, registry: Registry) -> Source | None:
    """Return the source at an address, for reading it or for writing to it; None if there is none.

    Raises:
        SourceError: the address is malformed.
        PluginError: a kind of source failed, or returned something else.
    """
    for kind in map(registry.source, registry.sources):
        with plugin_code(f"understanding the address {quoted(address)}"):
            found = kind.at(address)
            if found is not None:
                return checked_source(found, kind, "at")
    return None


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
    source = source_at(address, registry)
    if source is None:
        message = f"nothing can be read from {quoted(address)}"
        raise SourceError(Problem(message, help=f"a folder, {KINDS}"))
    if source.remote and (variable := offline()):
        raise SourceError(f"{variable} forbids to reach {address}")
    with store.work() as work:
        access = Access(Path.cwd(), work / "scratch", on_bytes=on_bytes)
        access.scratch.mkdir()
        source, expected = selected_files(source, access, address, patterns, imported=True)
        on_total(sum(expected.values()))
        folder = work / "of" / address.rstrip("/").rpartition("/")[2].partition("@")[0]
        folder.mkdir(parents=True)
        fetch_all(source, expected, folder, store, access)
        yield Downloaded(folder, source)
        for path, size in expected.items():
            with contextlib.suppress(OSError):  # `zoo gc` removes them too
                left_of(source, path, size, store).unlink()
