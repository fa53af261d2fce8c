"""The promises of a source, which brings the files of published models.

Without a place to read from, only the class is checked: nothing is requested from anywhere.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import tomllib
from collections.abc import Generator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

from zoo.document import Document
from zoo.errors import Problem
from zoo.files.of_model import SELECTED, selected
from zoo.plugin_kit.report import PromiseError, Report, run_in_order
from zoo.registering.registry_file import SOURCE, Entry
from zoo.registry import Registry
from zoo.source import Access, Source, SourceError, Stream, offline
from zoo.store.fetching import checked_sizes, checked_source, source_code
from zoo.store.manifest_text import source_and_files
from zoo.store.pretrained import read_source_table
from zoo.wording import quoted

ADDRESSES = ("folder/model", "hf://owner/name", "s3://bucket/folder", "nobody://knows/it")
"""Addresses of different sources, and one of none."""
MORE = "`--values` with the keys of a place that can be read checks more"
MISSING = "no-such-file.safetensors"
LARGEST = 1 << 24
"""The most bytes of the file that is read, if there is one; it is read several times."""


def source_report(
    entry: Entry, registry: Registry, values: Mapping[str, Any] | None, import_failure: str | None
) -> Report:
    """Check a source. `values` are its keys but for `kind`, for a place that can be read; relative
    paths count from the working directory."""
    subject = _Subject(entry, registry, values or {}, import_failure)
    names = ["imports", "schema", "addresses"]
    if values is not None:
        names += ["pinned", "files", "read", "resumed", "missing"]
    with contextlib.nullcontext() if values is None else subject.place():
        checks = run_in_order({name: getattr(subject, name) for name in names})
    return Report(f"{SOURCE}.{entry.name}", entry.target, tuple(checks), "" if values else MORE)


class _Subject:
    """A source under test. Each method without an argument is a check."""

    def __init__(
        self,
        entry: Entry,
        registry: Registry,
        values: Mapping[str, Any],
        import_failure: str | None,
    ) -> None:
        self.kind = entry.name
        self.registry, self.values, self.import_failure = registry, values, import_failure
        self.access: Access
        self.source: Source
        self.sizes: Mapping[str, int] = {}
        self.content = b""

    @property
    def cls(self) -> type[Source]:
        return self.registry.source(self.kind)

    @contextlib.contextmanager
    def place(self) -> Generator[None]:
        """Be in another folder, so that relative paths are found by `access.folder` alone."""
        folder = Path.cwd()
        with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
            self.access = Access(folder, Path(scratch))
            yield

    def imports(self) -> None:
        """The class can be imported, in a process without torch and in this one."""
        if self.import_failure is not None:
            raise PromiseError(self.import_failure)
        cls = self.cls
        for method in ("files", "read"):
            if not _defines(cls, method):
                raise PromiseError(
                    f"it does not define `{method}`", help="zoo.source says what for"
                )
        if _defines(cls, "write") and not _defines(cls, "at"):
            raise PromiseError(
                "it defines `write`, and no `at`: `zoo push` does not find it by an address",
                help="`at` returns the source for an address of its kind, and None for others",
            )

    def schema(self) -> None:
        """The fields are keys of a TOML table, and `kind` is the registered name."""
        kind = self.cls.model_fields["kind"].annotation
        if get_args(kind) != (self.kind,):
            raise PromiseError(
                f"its `kind` is not the name that it is registered by, {quoted(self.kind)}",
                help=f'write `kind: Literal["{self.kind}"]`',
            )
        try:
            self.cls.model_json_schema()
        except Exception as error:
            message = str(error).split("\n")[0]
            raise PromiseError(f"a field has a type that TOML does not have: {message}") from None

    def addresses(self) -> None:
        """It takes addresses of its own kind alone."""
        taken = [one for one in ADDRESSES if self.cls.at(one) is not None]
        if len(taken) > 1:
            raise PromiseError(
                f"`at` takes addresses of other sources: {', '.join(map(quoted, taken))}",
                help="return None for what does not begin as its own addresses do",
            )

    def pinned(self) -> None:
        """It is made from its keys, and written to the file of a model and read back equal."""
        if self.cls.remote and (variable := offline()):
            raise PromiseError(f"{variable} forbids to reach it", help="leave `--values` out")
        table = Document("--values", {"source": {**self.values, "kind": self.kind}})
        problems: list[Problem] = []
        source = read_source_table(table, self.registry, problems)
        if source is None:
            help = next((problem.help for problem in problems if problem.help), None)
            raise PromiseError("; ".join(problem.message for problem in problems), help=help)
        with self._local():
            self.source = checked_source(source.pinned(self.access), self.cls, "pinned")
            again = self.source.pinned(self.access)
        if again != self.source:
            raise PromiseError(
                "what is pinned is pinned to something else again: a model that was pulled is then "
                "another source each time",
                help="`pinned` returns `self` if the revision is stated",
            )
        written = tomllib.loads(source_and_files(self.source, {}))["source"]
        if self.cls.model_validate(written) != self.source:
            raise PromiseError("read back from the file of a model, it is another source")

    def files(self) -> None:
        """`files` returns the sizes of what is there."""
        with self._local():
            self.sizes = checked_sizes(self.source.files(self.access), self.cls)
        for path in self.sizes:
            if path.startswith("/") or ".." in path.split("/"):
                raise PromiseError(
                    f"`files` returns the path {quoted(path)}",
                    help="paths are relative to the place, with `/` between their parts",
                )
        if not any(selected(path, SELECTED) for path in self.sizes):
            shown = ", ".join(map(quoted, sorted(self.sizes)[:4])) or "nothing"
            raise PromiseError(
                f"no file of a model is there, but {shown}",
                help="name a place with a `model.safetensors`",
            )

    def read(self) -> None:
        """`read` yields the bytes of a file, as many as `files` says, and the same each time."""
        path, size = self._file()
        start, self.content = self._read(path, 0)
        if start != 0 or len(self.content) != size:
            raise PromiseError(
                f"{quoted(path)} has {size:,} bytes by `files`; `read` yields "
                f"{len(self.content):,} from byte {start:,} on"
            )
        if self._read(path, 0) != (0, self.content):
            raise PromiseError(f"{quoted(path)} has other bytes when it is read again")

    def resumed(self) -> None:
        """A file is read from the middle, or from its begin, and says which."""
        path, size = self._file()
        for at in (size // 2, size):
            start, rest = self._read(path, at)
            if not 0 <= start <= at:
                raise PromiseError(f"asked for byte {at:,}, it begins at byte {start:,}")
            if rest != self.content[start:]:
                raise PromiseError(
                    f"from byte {at:,} on, {quoted(path)} has other bytes than in the whole",
                    help="yield `Stream(chunks, start)` if the first chunk begins at `start`, and "
                    "`Stream(chunks)` if it begins at 0",
                )
        # As where the store's disk is full: the rest is left unread.
        with self._local(), self.source.read(path, 0, self.access) as stream:
            next(stream.chunks, b"")

    def missing(self) -> None:
        """A file that is not there is an error that says so."""
        try:
            self._read(MISSING, 0)
        except SourceError:
            return
        raise PromiseError(
            f"it reads {quoted(MISSING)}, which `files` does not have",
            help="raise `SourceError`, which says what there is not",
        )

    def _file(self) -> tuple[str, int]:
        """Return a file of the model and its size: the largest one up to `LARGEST`, or else the
        smallest."""
        found = sorted(
            (size, path) for path, size in self.sizes.items() if selected(path, SELECTED)
        )
        size, path = next((one for one in reversed(found) if one[0] <= LARGEST), found[0])
        return path, size

    def _read(self, path: str, at: int) -> tuple[int, bytes]:
        """Return where the bytes begin that come from `at` on, and these."""
        with self._local(), self.source.read(path, at, self.access) as stream:
            if not isinstance(stream, Stream):
                raise PromiseError(
                    f"`read` yields {quoted(stream)}, which is no `zoo.source.Stream`"
                )
            parts: list[bytes] = []
            for part in stream.chunks:
                if not isinstance(part, bytes):
                    raise PromiseError(f"a chunk is of {type(part).__name__}, and not of bytes")
                parts.append(part)
            return stream.start, b"".join(parts)

    @contextlib.contextmanager
    def _local(self) -> Generator[None]:
        """Run code of the source, whose errors the store tells so too. Raises `PromiseError` if it
        uses the network, and says that it does not."""
        seen = _connections()
        before = len(seen)
        with source_code("what the source does"):
            yield
        if not self.cls.remote and len(seen) > before:
            raise PromiseError(
                f"it connects to {quoted(seen[-1])}, and `remote` is False",
                help="`remote: ClassVar[bool] = True`: offline it is then not asked",
            )


def _defines(cls: type[Source], name: str) -> bool:
    """Whether a class, or one that it is derived from, defines a method of `Source` anew."""
    return any(name in vars(one) for one in cls.__mro__[: cls.__mro__.index(Source)])


@cache
def _connections() -> list[str]:
    """Return a list that gets the host of each connection of this process from now on."""
    seen: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo":
            seen.append(str(arguments[0]))
        elif event == "socket.connect" and isinstance(arguments[1], tuple):
            seen.append(str(arguments[1][0]))

    sys.addaudithook(hook)
    return seen
