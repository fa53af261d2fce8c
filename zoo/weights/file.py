"""The zoo's weights file: one safetensors file whose header says how to rebuild the model.

The header holds exactly one metadata key, `zoo`, with canonical JSON: the resolved spec, where the
plugins came from, the tied tensors, a record of each tensor, and the SHA-256 of all that. The
layout is made here and not by the safetensors library, so that the bytes depend on no other
package. A file with any other layout is refused, so that no changed byte of a header goes
unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from zoo.errors import Place, Problem, WeightsError
from zoo.files.formats import format_of
from zoo.files.of_model import WEIGHTS, WEIGHTS_INDEX
from zoo.weights.header_json import LINE, as_object, is_shape, json_object, read_entries
from zoo.wording import quoted

KEY = "zoo"
FORMAT = 1
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8}
"""The dtypes that can be stored, by their safetensors names, and their bytes per element."""

MENDING = "fetch or build it again; `zoo pull` mends a named model"
"""The help for weights that are damaged."""

MAX_JSON_BYTES = 1 << 25
"""The longest header that is read: enough for 100,000 tensors. (The format allows 100 MB.)"""

Entry = tuple[str, tuple[int, ...]]
"""The dtype (safetensors name) and the shape of a tensor."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEYS = ("format", "spec", "provenance", "ties", "tensors", "sha256")
"""The keys of the metadata."""


@dataclass(frozen=True, slots=True)
class Record:
    """One stored tensor: its dtype (safetensors name), its shape, and the SHA-256 of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def n_bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Header:
    """The metadata of a weights file.

    `provenance` holds the zoo's version (`zoo`), the version of each plugin (`plugins`), if the
    zoo has not made the weights, where they came from (`origin`), and, if they are the initial ones
    that `zoo build` has written, their `seed`.
    """

    spec: dict[str, Any]
    provenance: dict[str, Any]
    ties: dict[str, str]
    records: dict[str, Record]

    @property
    def origin(self) -> dict[str, Any] | None:
        """The origin of the weights, as plain data; None if the zoo made them."""
        return self.provenance.get("origin")

    @property
    def seed(self) -> str | None:
        """The seed of initial weights; None of others."""
        return self.provenance.get("seed")

    @property
    def zoo(self) -> str:
        """The version of the zoo that wrote them."""
        version: str = self.provenance["zoo"]
        return version

    @property
    def plugins(self) -> dict[str, str]:
        """The distribution and version, or the SHA-256, of each plugin, by `slot.kind`."""
        return {**self.provenance["plugins"]}

    @cached_property
    def json(self) -> str:
        """The header as canonical JSON (RFC 8785), which includes the SHA-256 of the rest of it."""
        import rfc8785

        tensors = {
            name: {"dtype": r.dtype, "shape": list(r.shape), "sha256": r.sha256}
            for name, r in self.records.items()
        }
        data: dict[str, Any] = {
            "format": FORMAT,
            "spec": self.spec,
            "provenance": self.provenance,
            "ties": self.ties,
            "tensors": tensors,
        }
        # Serialize each value only once: this is the slowest part of handling a header.
        parts = {key: rfc8785.dumps(value).decode() for key, value in data.items()}
        sha256 = hashlib.sha256(_joined(parts).encode()).hexdigest()
        return _joined({**parts, "sha256": f'"{sha256}"'})

    @property
    def json_sha256(self) -> str:
        """The SHA-256 of `json`, which determines every byte of a file of these weights."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    @property
    def spec_digest(self) -> str:
        """`sha256:` and the SHA-256 of the spec's canonical JSON, as `ModelSpec.digest`."""
        import rfc8785

        return f"sha256:{hashlib.sha256(rfc8785.dumps(self.spec)).hexdigest()}"

    @property
    def content_digest(self) -> str:
        """`sha256:` and the SHA-256 over the sorted records. It depends only on the tensors, not on
        the spec or on how they are spread over files."""
        lines = (
            f"{name}\0{r.dtype}\0{','.join(map(str, r.shape))}\0{r.sha256}\n"
            for name, r in sorted(self.records.items())
        )
        return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()

    def names_in_file(self) -> list[str]:
        """The tensor names in the order of the file: wide dtypes first, so that all are aligned."""

        def key(name: str) -> tuple[int, str]:
            return -ITEM_BYTES[self.records[name].dtype], name

        return sorted(self.records, key=key)

    def to_bytes(self) -> bytes:
        """The bytes before the tensors in a file of all tensors: the length of the JSON header, and
        the header."""
        return self._laid_out(self.names_in_file(), self.json)

    def shard_bytes(self, names: Sequence[str]) -> bytes:
        """The bytes before the tensors in a shard of some tensors. It has the SHA-256 of the
        metadata in place of the metadata, which is in the index."""
        return self._laid_out(names, json.dumps({"format": FORMAT, "shard_of": self.json_sha256}))

    def _laid_out(self, names: Sequence[str], metadata: str) -> bytes:
        entries = {name: (self.records[name].dtype, self.records[name].shape) for name in names}
        return laid_out(entries, {KEY: metadata})


def laid_out(entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> bytes:
    """The bytes before the tensors in a safetensors file with these tensors, in their order."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, (dtype, shape) in entries.items():
        start, end = end, end + prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _joined(parts: Mapping[str, str]) -> str:
    """The canonical JSON of an object, from the canonical JSON of its values."""
    return "{" + ",".join(f'"{key}":{parts[key]}' for key in sorted(parts)) + "}"


def is_file_name(path: Path) -> bool:
    """Whether the path names a weights file, by its suffix, and not a folder."""
    return path.suffix.lower() == ".safetensors"


def weights_path(path: Path) -> Path:
    """The file that `path` refers to: itself, or for a folder its index of shards if there is one,
    and its `model.safetensors` otherwise."""
    if is_file_name(path) or os.path.isfile(path):
        return path
    index = path / WEIGHTS_INDEX
    return index if os.path.isfile(index) else path / WEIGHTS


def saved_path(path: Path) -> Path:
    """The file that a model is saved as: `path` if its suffix is `.safetensors`, otherwise
    `model.safetensors` in the folder `path`. Files with other suffixes are never written."""
    return path if is_file_name(path) else path / WEIGHTS


def parse_file(raw: bytes, place: Place) -> Header:
    """Parse the header of a file of all tensors from `raw`, the bytes before the tensors.

    Raises:
        WeightsError: it is damaged, or was not written by the zoo.
    """
    try:
        metadata, entries = read_entries(raw[8:])
    except ValueError as error:
        raise not_whole(str(error), place) from None
    found = {name: (entry.dtype, entry.shape) for name, entry in entries.items()}
    if not isinstance(metadata, dict) or KEY not in metadata:
        raise WeightsError(
            "a safetensors file, but not the zoo's: its header has no `zoo` metadata",
            place,
            help="`zoo import` reads the folders of published checkpoints, `zoo build` specs",
        )
    header = parse_metadata(metadata[KEY], place)
    if problems := list(_differences(found, header.records, place)):
        raise WeightsError(problems)
    if header.to_bytes() != raw:
        raise _damaged("the header is not laid out as the zoo does it", place)
    return header


def parse_metadata(text: object, place: Place) -> Header:
    """Parse the header from the canonical JSON under the `zoo` metadata key.

    Raises:
        WeightsError: it is damaged, or was not written by the zoo.
    """
    try:
        data = json_object(_string(text, "it"), "it")
    except ValueError as error:
        raise _damaged_metadata(error, place) from None
    if "shard_of" in data:
        raise WeightsError(
            "one shard of several, which is not a model by itself",
            place,
            help=f"name the folder, which has a {WEIGHTS_INDEX}",
        )
    if data.get("format", FORMAT) != FORMAT:
        message = f"the `zoo` metadata is of the format {quoted(data['format'])}, not {FORMAT}"
        raise WeightsError(message, place, "a newer zoo may have written the file")
    try:
        return _header(data, text)
    except ValueError as error:
        raise _damaged_metadata(error, place) from None


def _header(data: Mapping[str, Any], text: object) -> Header:
    """Return the header of the metadata `text`, which holds `data`. Raises `ValueError`."""
    if missing := [key for key in _KEYS if key not in data]:
        raise ValueError(f"the key `{missing[0]}` is missing")
    ties, tensors, provenance = (
        as_object(data[key], f"`{key}`") for key in ("ties", "tensors", "provenance")
    )
    header = Header(
        spec=as_object(data["spec"], "`spec`"),
        provenance=provenance,
        ties={name: _string(first, f"the tie of {quoted(name)}") for name, first in ties.items()},
        records={name: _record(name, record) for name, record in tensors.items()},
    )
    _line(provenance.get("zoo"), "the zoo's version")
    for name, origin in as_object(provenance.get("plugins"), "`plugins`").items():
        _line(name, f"the name of the plugin {quoted(name)}")
        _line(origin, f"the origin of the plugin {quoted(name)}")
    if header.origin is not None:
        as_object(header.origin, "`origin`")
    if header.seed is not None:
        _line(header.seed, "the seed")
    if "extends" in header.spec:
        raise ValueError("its spec extends another one")
    try:
        written = header.json
    except (ValueError, RecursionError):  # of RFC 8785: a number too large, text that is no UTF-8
        written = None
    if written != text:
        raise ValueError("it is not what was written")
    return header


def not_whole(reason: str, place: Place) -> WeightsError:
    """The error for a file that is not a safetensors file, or only a part of one."""
    return _damaged(f"not a whole safetensors file: {reason}", place)


def no_safetensors(place: Place, head: bytes) -> WeightsError:
    """The error for a file of another format, which begins with `head` and not as safetensors
    files do."""
    if foreign := format_of(head):
        return WeightsError(f"not a safetensors file, but {foreign.name}", place, foreign.help)
    message = "not a whole safetensors file: no header is at its beginning"
    return WeightsError(message, place, "weights are a `.safetensors` file, or the folder of one")


def changed_tensors(names: Iterable[str], place: Place) -> WeightsError:
    """The error for tensors whose bytes do not have the SHA-256 of their records."""
    first, *others = (
        Problem(f"the bytes of {quoted(name)} are not those that were saved", place)
        for name in sorted(names)
    )
    return WeightsError([first._replace(help=MENDING), *others])


def _damaged(message: str, place: Place) -> WeightsError:
    return WeightsError(message, place, MENDING)


def _damaged_metadata(error: ValueError, place: Place) -> WeightsError:
    return _damaged(f"the `zoo` metadata is damaged: {error}", place)


def _string(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is no string")
    return value


def _line(value: Any, what: str) -> None:
    """Raise `ValueError` unless `value` is a text that a lock may hold."""
    if not LINE.fullmatch(_string(value, what)):
        raise ValueError(f"{what} is not one short line")


def _record(name: str, value: object) -> Record:
    record = as_object(value, f"the record of {quoted(name)}")
    dtype, shape, sha256 = (record.get(key) for key in ("dtype", "shape", "sha256"))
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ValueError(f"the dtype {quoted(dtype)} is not known, of {quoted(name)}")
    if not is_shape(shape):
        raise ValueError(f"the shape of {quoted(name)} is no list of integers of a tensor")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise ValueError(f"the record of {quoted(name)} has no SHA-256")
    return Record(dtype, tuple(shape), sha256)


def _differences(
    found: Mapping[str, Entry], records: Mapping[str, Record], place: Place
) -> Iterable[Problem]:
    for name in sorted(found.keys() | records.keys()):
        if name not in records:
            yield Problem(f"the tensor {quoted(name)} is not in the file's own records", place)
        elif name not in found:
            yield Problem(f"the tensor {quoted(name)} is missing", place)
        elif found[name] != (recorded := (records[name].dtype, records[name].shape)):
            message = f"is {_described(found[name])}; its record says {_described(recorded)}"
            yield Problem(f"the tensor {quoted(name)} {message}", place)


def _described(entry: Entry) -> str:
    dtype, shape = entry
    return quoted(f"{dtype} {list(shape)}")
