"""`zoo.lock`: the versions that a spec was built with and, for a bundle, the digests of its files.

A lock is TOML that only the zoo writes. It holds its own SHA-256, and is refused unless it is
spelled as the zoo writes it, so that every changed byte is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import zoo
from zoo.document import parse
from zoo.errors import Place, Problem, SpecError, WeightsError, ZooError
from zoo.provenance.plugins import plugin_versions
from zoo.spec import ModelSpec
from zoo.weights.header_json import LINE
from zoo.wording import quoted

LOCK_NAME = "zoo.lock"
FORMAT = 1
MAX_BYTES = 1 << 18

_HEAD = "# Written by the zoo, to be read and not to be changed: the sha256 is that of this text.\n"
_SHA256 = re.compile(r"[0-9a-f]{64}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
"""A digest of a spec or of tensors."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of a bundle: its SHA-256, and its size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Upstream:
    """The place where weights were first published: a name and a revision, for readers only."""

    name: str
    revision: str

    @classmethod
    def parse(cls, text: str) -> Upstream:
        """Parse a source written as `NAME@REVISION`. Raises `ZooError` for other texts."""
        name, at, revision = text.rpartition("@")
        if not at or not LINE.fullmatch(name) or not LINE.fullmatch(revision):
            help_ = "for example `owner/model@607a30d783dfa663caf39e06633721c8d4cfcd7e`"
            raise ZooError(f"{quoted(text)} is not of the form NAME@REVISION", help=help_)
        return cls(name, revision)


@dataclass(frozen=True)
class Lock:
    """The contents of a lock.

    Args:
        name: the name of the model.
        zoo: the version of the zoo.
        torch: the version of torch, without the suffix of the build.
        spec: the digest of the spec.
        plugins: each plugin, as `slot.kind`, and its distribution and version, or the SHA-256 of
            its file.
        content: for a bundle, the content digest of the weights.
        header: for a bundle, the SHA-256 of the JSON in the weights' header.
        source: for a bundle, where the weights were first published, if stated.
        files: for a bundle, all files except the lock itself and the signature.
    """

    name: str
    zoo: str
    torch: str
    spec: str
    plugins: Mapping[str, str]
    content: str | None = None
    header: str | None = None
    source: Upstream | None = None
    files: Mapping[str, FileRecord] = field(default_factory=dict[str, FileRecord])

    def to_text(self) -> str:
        """Return the lock as TOML."""
        text = self._with_sha256("")
        return self._with_sha256(hashlib.sha256(text.encode()).hexdigest())

    def _with_sha256(self, sha256: str) -> str:
        stated = {
            "format": FORMAT,
            "sha256": sha256,
            "name": self.name,
            "zoo": self.zoo,
            "torch": self.torch,
            "spec": self.spec,
        }
        tables: dict[str, Mapping[str, Any]] = {"plugins": self.plugins}
        if self.content is not None:
            tables["weights"] = {"content": self.content, "header": self.header}
        if self.source is not None:
            tables["source"] = {"name": self.source.name, "revision": self.source.revision}
        lines = [_HEAD, *(_line(key, value) for key, value in stated.items())]
        for table, values in tables.items():
            lines += [f"\n[{table}]\n", *(_line(key, values[key]) for key in sorted(values))]
        if self.files:
            lines.append("\n[files]\n")
        for name, file in sorted(self.files.items()):
            lines.append(f'{_string(name)} = {{ sha256 = "{file.sha256}", size = {file.size} }}\n')
        return "".join(lines)


def _line(key: str, value: object) -> str:
    bare = re.fullmatch(r"[a-z0-9]+", key)
    shown = value if isinstance(value, int) else _string(str(value))
    return f"{key if bare else _string(key)} = {shown}\n"


def _string(text: str) -> str:
    """Format a TOML string. Only control characters differ in JSON, and a lock holds none."""
    return json.dumps(text, ensure_ascii=False)


def torch_version() -> str:
    """Return the version of the installed torch, without the suffix of the build."""
    return version("torch").partition("+")[0]


def lock_of(spec: ModelSpec) -> Lock:
    """Return the lock of a spec, with the present versions of plugins and torch."""
    return Lock(
        name=spec.name,
        zoo=zoo.__version__,
        torch=torch_version(),
        spec=spec.digest,
        plugins=plugin_versions(spec),
    )


def read_lock(folder: Path) -> Lock:
    """Read the `zoo.lock` in a folder.

    Raises:
        WeightsError: there is none, or it is not as written by the zoo.
    """
    path = folder / LOCK_NAME
    place = Place(str(path))
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise FileNotFoundError
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.isdir(folder):
            help_ = "`zoo pull NAME` prints the folder of a published model"
            raise WeightsError("there is no such folder", Place(str(folder)), help_) from None
        help_ = "`zoo lock SPEC` writes one for a spec, `zoo bundle make` one for a bundle"
        raise WeightsError("there is no lock, as a regular file", place, help_) from None
    except OSError as error:
        raise WeightsError(f"cannot be read: {error.strerror}", place) from None
    return parse_lock(raw, place)


def parse_lock(raw: bytes, place: Place) -> Lock:
    """Parse the text of a lock. Raises `WeightsError` as `read_lock`."""
    try:
        if len(raw) > MAX_BYTES:
            raise ValueError(f"it is longer than {MAX_BYTES:,} bytes")
        lock = _lock(parse(raw.decode("utf-8"), place.file).data)
        if lock.to_text().encode() != raw:
            raise ValueError("it is not what was written")
        return lock
    except SpecError as error:
        reason, place = error.problems[0].message, error.problems[0].place or place
    except KeyError as error:
        reason = f"the key {quoted(error.args[0])} is missing"
    except (TypeError, AttributeError):  # a value where a table must be
        reason = "it is not what was written"
    except ValueError as error:
        reason = str(error)
    raise WeightsError(f"the lock is damaged: {reason}", place, "fetch or make it again")


def _lock(data: dict[str, Any]) -> Lock:
    if data["format"] != FORMAT:
        raise ValueError(f"format {quoted(data['format'])} is not known")
    weights, source = data.get("weights"), data.get("source")
    return Lock(
        name=_checked(data["name"], LINE),
        zoo=_checked(data["zoo"], LINE),
        torch=_checked(data["torch"], LINE),
        spec=_checked(data["spec"], DIGEST),
        plugins={
            _checked(name, LINE): _checked(origin, LINE)
            for name, origin in cast("dict[str, Any]", data["plugins"]).items()
        },
        content=None if weights is None else _checked(weights["content"], DIGEST),
        header=None if weights is None else _checked(weights["header"], _SHA256),
        source=None
        if source is None
        else Upstream(_checked(source["name"], LINE), _checked(source["revision"], LINE)),
        files={
            _checked(name, LINE): _file(record)
            for name, record in cast("dict[str, Any]", data.get("files", {})).items()
        },
    )


def _file(record: Any) -> FileRecord:
    if type(record["size"]) is not int or record["size"] < 0:
        raise ValueError("a size is a number of bytes")
    return FileRecord(_checked(record["sha256"], _SHA256), record["size"])


def _checked(value: Any, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{quoted(value)} is not expected there")
    return value


def differences(lock: Lock, now: Lock, place: Place) -> Iterator[Problem]:
    """Return the differences from a lock. `place` is that of the lock's file."""
    pairs: dict[str, tuple[str | None, str | None]] = {
        "the model's name": (lock.name, now.name),
        "the spec's digest": (lock.spec, now.spec),
        "the zoo's version": (lock.zoo, now.zoo),
        "torch's version": (lock.torch, now.torch),
    }
    for name in sorted(lock.plugins.keys() | now.plugins.keys()):
        pairs[f"the plugin `{name}`"] = lock.plugins.get(name), now.plugins.get(name)
    for what, (locked, found) in pairs.items():
        if locked != found:
            yield Problem(f"{what} is {_shown(found)}; the lock says {_shown(locked)}", place)


def _shown(value: str | None) -> str:
    return "nothing" if value is None else quoted(value, 100)


def check_locked(spec: ModelSpec, folder: Path) -> None:
    """Compare a spec, and the versions that would build it, with the lock in a folder.

    Raises:
        WeightsError: there is no lock, or something differs; all differences are listed.
    """
    place = Place(str(folder / LOCK_NAME))
    lock = read_lock(folder)
    if problems := list(differences(lock, lock_of(spec), place)):
        meant = "`zoo lock` writes it anew" if lock.content is None else "leave out `--locked`"
        help_ = f"restore what the lock names; or, if the change is meant, {meant}"
        raise WeightsError([*problems[:-1], problems[-1]._replace(help=help_)])
