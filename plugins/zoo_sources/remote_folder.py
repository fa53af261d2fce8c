"""A folder at an address of the library fsspec: `s3://`, `gs://`, `az://`, `sftp://`, ..."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator

from zoo.errors import ZooError
from zoo.source import Access, Source, SourceError, Stream
from zoo.wording import quoted
from zoo_sources.local import chunks

PROTOCOLS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "sftp", "ssh", "file", "local", "memory")
"""The protocols of fsspec that are encrypted, or stay on this machine, and lead to no other."""


def check_url(url: str) -> str:
    """Return `url`. Raises `ValueError` unless it is an address of one of the `PROTOCOLS`, without
    a password."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ValueError("an address is of the form `s3://bucket/folder`")
    if scheme not in PROTOCOLS:
        listed = ", ".join(f"`{protocol}`" for protocol in PROTOCOLS)
        raise ValueError(
            f"{quoted(scheme)} is none of the protocols that can be used here, {listed}; the "
            "source `https` reads web addresses"
        )
    user, _, _ = rest.partition("/")[0].rpartition("@")
    if ":" in user:
        raise ValueError("an address holds no credentials")
    return url


class RemoteFolder(Source):
    """A folder that the library fsspec reads. Its file systems take credentials from the
    environment; a registry holds none.

    Args:
        url: the address of the folder.
    """

    kind: Literal["fsspec"]
    url: Annotated[str, AfterValidator(check_url)]

    def files(self, access: Access) -> Mapping[str, int]:
        system, root = file_system(self.url)
        with _converted(self.url):
            found: dict[str, Any] = system.find(root, detail=True)
        start = f"{root.rstrip('/')}/"
        return {path.removeprefix(start): int(entry["size"]) for path, entry in found.items()}

    @contextmanager
    def read(self, path: str, start: int, access: Access) -> Generator[Stream]:
        system, root = file_system(self.url)
        try:
            with _converted(self.url):
                file = system.open(f"{root.rstrip('/')}/{path}", "rb")
        except FileNotFoundError:
            raise SourceError(f"there is no file {self.url.rstrip('/')}/{path}") from None
        with file:
            file.seek(start)
            yield Stream(self._chunks(file), start)

    def _chunks(self, file: Any) -> Iterator[bytes]:
        with _converted(self.url):
            yield from chunks(file)

    @classmethod
    def at(cls, address: str) -> Self | None:
        scheme, separator, _ = address.partition("://")
        if not separator or scheme not in PROTOCOLS:
            return None
        try:
            return cls(kind="fsspec", url=check_url(address))
        except ValueError:
            hint = "credentials come from the environment"
            raise SourceError("an address holds no credentials", help=hint) from None

    def write(self, folder: Path, paths: Sequence[str], access: Access) -> Self:
        """Write one file after the other. Object stores cannot rename: a reader may find files
        missing meanwhile, which the digests in the model's file reveal."""
        system, root = file_system(self.url)
        with _converted(self.url):
            if system.exists(root) and system.find(root):
                message = f"there are files at {self.url}"
                hint = "choose another, or remove what broke off there"
                raise SourceError(message, help=f"a published model never changes: {hint}")
            for path in paths:
                _put(system, folder / path, f"{root.rstrip('/')}/{path}", access)
        return self


def _put(system: Any, file: Path, target: str, access: Access) -> None:
    """Write a file to a path of a file system, and check its size there."""
    system.makedirs(target.rpartition("/")[0], exist_ok=True)
    told = _described(access)
    system.put_file(str(file), target, callback=told)
    expected = file.stat().st_size
    access.on_bytes(expected - told.value)  # for file systems that do not report progress
    if (size := system.size(target)) != expected:
        raise SourceError(f"{target} has {size} bytes after it was written")


@contextmanager
def _converted(url: str) -> Generator[None]:
    """Convert the errors of a file system's own library, as for missing credentials."""
    try:
        yield
    except (OSError, ZooError):
        raise
    except Exception as error:
        reason = f"{error}".strip() or type(error).__name__
        hint = "so says the package for this address, which takes credentials from the environment"
        raise SourceError(f"{url} cannot be used: {reason}", help=hint) from None


def _described(access: Access) -> Any:
    """Return an fsspec callback that reports the bytes sent to `access.on_bytes`."""
    from fsspec.callbacks import Callback  # type: ignore[import-untyped]

    class Told(Callback):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            super().relative_update(inc)
            access.on_bytes(inc)

    return Told()


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it.

    Raises:
        SourceError: the package that fsspec needs for this address is not installed, or cannot
            connect.
    """
    import fsspec  # type: ignore[import-untyped]

    with _converted(url):
        try:
            system, path = fsspec.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise SourceError(f"{url} cannot be reached: {error}") from None
    return system, str(path)
