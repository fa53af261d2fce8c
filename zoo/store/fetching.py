"""Download the files of a source. Each is resumed after an interruption, is never longer than
expected, and is checked by its digest."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from zoo.files.of_model import ADAPTER_CONFIG, safe_path, selected
from zoo.registering.plugin_errors import plugin_code
from zoo.source import Access, Source, SourceError
from zoo.store.files import Store, digest, link_or_copy
from zoo.store.pretrained import File
from zoo.wording import PATH, quoted

ATTEMPTS = 4
"""The number of attempts in a row that may break off after few bytes."""
_MUCH = 1 << 20
_CHANGED = "the source has been changed or damaged"
_ABANDONED = 60.0  # seconds without a write after which a partial file is taken over


class _BrokenOffError(SourceError):
    """A connection ended too early; the next attempt continues there."""


def selected_files(
    source: Source, access: Access, name: str, patterns: Collection[str], *, imported: bool
) -> tuple[Source, dict[str, int]]:
    """Return a source, fixed to its current revision, and the size of each of its files that match
    one of the patterns.

    Args:
        source: the source.
        access: passed to it.
        name: the name of the model, for errors.
        patterns: which files, as in `zoo.files.of_model`.
        imported: whether they are a checkpoint, or an adapter, to be imported.

    Raises:
        SourceError: there are none, or they cannot be had; or there is an adapter beside weights
            that are to be imported, which would be another model without it.
    """
    source, there = files_of(source, access, f"looking for the files of {name}")
    found = {path: size for path, size in there.items() if selected(path, patterns)}
    if imported and ADAPTER_CONFIG in there.keys() - found.keys():
        message = f"{name}: {ADAPTER_CONFIG} says that there is an adapter"
        hint = (
            "`zoo import` takes its place as `--adapter`, and before that the place of its model: "
            "two places, since `transformers` merges what is beside weights"
        )
        raise SourceError(message, help=hint)
    if not found:
        names = sorted(there)
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        hint = f"there is: {', '.join(names[:8])}{more}" if names else "it is empty"
        raise SourceError(f"{name}: nothing there is a file of a model", help=hint)
    return source, found


def files_of(source: Source, access: Access, what: str) -> tuple[Source, Mapping[str, int]]:
    """Return a source, fixed to its current revision, and the size of each of its files. `what`
    tells in errors what is done. Raises `SourceError` if they cannot be had."""
    failures = 0
    while True:
        try:
            with source_code(what):
                pinned = checked_source(source.pinned(access), type(source), "pinned")
                return pinned, checked_sizes(pinned.files(access), type(source))
        except _BrokenOffError as error:
            failures += 1
            _wait_after(failures, source, error)


def checked_source(found: object, of: type[Source], method: str) -> Source:
    """Return what a method of a source returned. Raises `TypeError` if that is no source."""
    if isinstance(found, Source):
        return found
    raise TypeError(f"`{method}` of {of.__name__} returned {quoted(found)}, which is no source")


def checked_sizes(found: object, of: type[Source]) -> Mapping[str, int]:
    """Return what `files` of a source returned. Raises `TypeError` if that is no mapping of paths
    to sizes."""
    if not isinstance(found, Mapping):
        wrong = quoted(found)
    elif odd := [(path, size) for path, size in found.items() if not _is_size(path, size)]:
        wrong = f"{quoted(odd[0][1])} for {quoted(odd[0][0])}"
    else:
        return found
    raise TypeError(
        f"`files` of {of.__name__} returned {wrong}: sizes in bytes by paths are wanted"
    )


def _is_size(path: object, size: object) -> bool:
    return isinstance(path, str) and type(size) is int and size >= 0


def fetch_all(
    source: Source,
    expected: Mapping[str, File | int],
    folder: Path,
    store: Store,
    access: Access,
) -> dict[str, File]:
    """Write files of a source, which are expected by their paths, into a folder. Those that the
    store has are linked. Returns and raises as `fetch`."""
    files: dict[str, File] = {}
    for path, one in sorted(expected.items()):
        target = folder / safe_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(one, File) and store.take(one, target):
            access.on_bytes(one.size)
            files[path] = one
        else:
            files[path] = fetch(source, path, target, one, store, access)
    return files


def fetch(
    source: Source,
    path: str,
    target: Path,
    expected: File | int,
    store: Store,
    access: Access,
) -> File:
    """Write a file of a source to `target`.

    A partial file of an interrupted pull is continued, and the bytes that this one receives, a part
    or all, are kept for the next one at `left_of`, unless a mixture of two versions of the file
    could go unnoticed.

    Args:
        source: the source of the file.
        path: the path in the source.
        target: a path in a folder that only this pull uses.
        expected: the size and digest, or on first use the size only.
        store: keeps partial files.
        access: passed to the source.

    Returns:
        The size and digest.

    Raises:
        SourceError: the file is not available, or not as expected.
        OSError: the file cannot be written.
    """
    left = left_of(source, path, expected, store)
    partial = left.with_suffix(f".{secrets.token_hex(8)}")
    store.make_folder(partial.parent)
    # A mixture of two versions would be noticed by the digest; or there are no two versions.
    keeps = source.is_fixed or isinstance(expected, File)
    try:
        resumed = keeps and _resume(partial, left, expected)
        while True:
            _receive(source, path, partial, size_of(expected), access, resumes=keeps)
            found = digest(partial)
            if isinstance(expected, int) or found == expected:
                break
            partial.unlink()
            access.on_bytes(-found.size)
            if not resumed:
                message = (
                    f"{quoted(path, PATH)} has the SHA-256 {found.sha256}, not {expected.sha256}"
                )
                raise SourceError(message, help=_CHANGED)
            resumed = False  # the resumed part may have been wrong: download all of it once more
        link_or_copy(partial, target)
        return found
    finally:
        with contextlib.suppress(OSError):
            if keeps and _size(partial) > 0:
                partial.rename(left)  # without effect if both are names of one file
            partial.unlink()


def left_of(source: Source, path: str, expected: File | int, store: Store) -> Path:
    """Return the path of the partial file of an interrupted pull; arguments as for `fetch`."""
    key = hashlib.sha256(f"{source!r}\n{path}\n{expected!r}".encode()).hexdigest()
    return store.root / "partial" / f"{key}.left"


def drop_left(source: Source, expected: Mapping[str, File | int], store: Store) -> None:
    """Remove what `fetch_all` has kept of these files in case that it fails."""
    for path, one in expected.items():
        with contextlib.suppress(OSError):  # `zoo gc` removes them too
            left_of(source, path, one, store).unlink()


def size_of(expected: File | int) -> int:
    """The number of bytes of a file that is expected."""
    return expected if isinstance(expected, int) else expected.size


def _resume(partial: Path, left: Path, expected: File | int) -> bool:
    """Start with the longest partial file; return whether there is one.

    A complete file is linked, since no process writes to it. A file that another process may still
    write to is copied, since that process may have been killed. Any other file is taken over: one
    that its process has left, and one without a write for a while, whose process may go on after a
    stop, if a digest will tell a mixture.
    """
    for path in sorted(left.parent.glob(f"{left.stem}.*"), key=_size, reverse=True):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # gone, or another user's
            found = path.stat()
            is_abandoned = isinstance(expected, File) and time.time() - found.st_mtime > _ABANDONED
            if found.st_size == size_of(expected):
                link_or_copy(path, partial)
            elif (path == left or is_abandoned) and os.access(path, os.W_OK):
                path.rename(partial)
                os.utime(partial)
            else:
                shutil.copyfile(path, partial)
            return _size(partial) > 0
    return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _receive(
    source: Source, path: str, partial: Path, size: int, access: Access, *, resumes: bool
) -> None:
    """Continue a partial file until it has `size` bytes. After a broken connection, begin where it
    ended if `resumes`, and else anew."""
    if not partial.exists():
        partial.touch()
    access.on_bytes(_size(partial))
    failures, most = 0, _size(partial)
    while _size(partial) < size:
        try:
            _append(source, path, partial, size, access)
        except _BrokenOffError as error:
            # What was received before, and then again from the start, is no progress.
            reached = _size(partial)
            failures = 0 if reached - most > _MUCH else failures + 1
            most = max(most, reached)
            _wait_after(failures, source, error)
            if not resumes:
                os.truncate(partial, 0)
                access.on_bytes(-reached)


def _wait_after(failures: int, source: Source, error: _BrokenOffError) -> None:
    """Wait before another attempt. Raises `SourceError` if none is worth it."""
    if failures == ATTEMPTS or not source.remote:
        raise SourceError(error.problems) from None
    time.sleep(0.1 * 2**failures)


def _append(source: Source, path: str, partial: Path, size: int, access: Access) -> None:
    what = f"reading {quoted(path, PATH)}"
    with partial.open("ab") as file, contextlib.ExitStack() as stack:
        with source_code(what):
            stream = stack.enter_context(source.read(path, file.tell(), access))
            start, chunks = stream.start, stream.chunks
        if start > file.tell():
            message = f"{quoted(path, PATH)} comes from byte {start:,} on, too late"
            raise _BrokenOffError(message)
        if start < file.tell():
            access.on_bytes(start - file.tell())
            file.truncate(start)
            file.seek(start)
        while chunk := _next(chunks, what):
            if file.tell() + len(chunk) > size:
                message = (
                    f"{quoted(path, PATH)} is longer than the {size:,} bytes that it should have"
                )
                raise SourceError(message, help=_CHANGED)
            file.write(chunk)
            access.on_bytes(len(chunk))
        with source_code(what):
            stack.close()
        if file.tell() < size:
            message = f"{quoted(path, PATH)} ends after {file.tell():,} of {size:,} bytes"
            hint = f"another attempt may go on there; otherwise, {_CHANGED}"
            raise _BrokenOffError(message, help=hint if source.remote else _CHANGED)


def _next(chunks: Iterator[bytes], what: str) -> memoryview:
    with source_code(what):
        return memoryview(next(chunks, b""))  # an error for what is no bytes


@contextlib.contextmanager
def source_code(what: str) -> Iterator[None]:
    """Run code of a source in a `with` block. An `OSError`, such as that of a broken connection,
    becomes a `SourceError`; others become a `PluginError`, as by `plugin_code`."""
    with plugin_code(what):
        try:
            yield
        except OSError as error:
            reason = f"{error.strerror or error}"
            if error.filename is not None:
                reason = f"{reason}: {quoted(error.filename, PATH)}"
            raise _BrokenOffError(f"{what} failed: {reason}") from error
