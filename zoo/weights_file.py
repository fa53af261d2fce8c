"""The zoo's weights file: one safetensors file whose header tells how to rebuild the model.

The header holds exactly one metadata key, `zoo`, with canonical JSON: the resolved spec, where the
plugins came from, the tied tensors, a record of each tensor, and the SHA-256 of all that. The file
is laid out here and not by the safetensors library, so that its bytes depend on no other package.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

from zoo.errors import Place, Problem, WeightsError

KEY = "zoo"
FORMAT = 1
FILE_NAME = "model.safetensors"
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8}
"""The dtypes that are stored, as safetensors names them, and the bytes of one element."""

MAX_JSON_BYTES = 100_000_000
"""What the safetensors format allows."""

_Entry = tuple[str, tuple[int, ...]]
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Record:
    """One stored tensor: its dtype as safetensors names it, its shape, its bytes' SHA-256."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def n_bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Header:
    """What the metadata of a weights file says."""

    spec: dict[str, Any]
    provenance: dict[str, Any]
    ties: dict[str, str]
    records: dict[str, Record]

    def to_json(self) -> str:
        """Canonical JSON (RFC 8785)."""
        import rfc8785

        data: dict[str, Any] = {
            "format": FORMAT,
            "spec": self.spec,
            "provenance": self.provenance,
            "ties": self.ties,
            "tensors": {
                name: {"dtype": r.dtype, "shape": list(r.shape), "sha256": r.sha256}
                for name, r in self.records.items()
            },
        }
        data["sha256"] = hashlib.sha256(rfc8785.dumps(data)).hexdigest()
        return rfc8785.dumps(data).decode()

    @property
    def content_digest(self) -> str:
        """`sha256:` and the SHA-256 over the sorted records. It depends on the tensors alone: not
        on the spec, nor on how they are spread over files."""
        lines = (
            f"{name}\0{r.dtype}\0{','.join(map(str, r.shape))}\0{r.sha256}\n"
            for name, r in sorted(self.records.items())
        )
        return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()

    def names_in_file(self) -> list[str]:
        """The tensors in the order of their bytes: wide elements first, so that all are aligned."""

        def key(name: str) -> tuple[int, str]:
            return -ITEM_BYTES[self.records[name].dtype], name

        return sorted(self.records, key=key)

    def to_bytes(self) -> bytes:
        """What stands in the file before the tensors: the length of a JSON text, and that text."""
        entries: dict[str, Any] = {"__metadata__": {KEY: self.to_json()}}
        end = 0
        for name in self.names_in_file():
            record = self.records[name]
            start, end = end, end + record.n_bytes
            entries[name] = {
                "dtype": record.dtype,
                "shape": list(record.shape),
                "data_offsets": [start, end],
            }
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text


def weights_path(path: Path) -> Path:
    """The weights file that `path` means: itself, or `model.safetensors` in a folder."""
    return path if path.suffix == ".safetensors" or path.is_file() else path / FILE_NAME


def saved_path(path: Path) -> Path:
    """The file that a model is saved as: `path` if it is named `.safetensors`, else
    `model.safetensors` in the folder `path`. A file of another name is somebody else's."""
    return path if path.suffix == ".safetensors" else path / FILE_NAME


def read_header(path: Path) -> Header:
    """Read what a weights file says of itself. Needs neither torch nor numpy.

    Raises:
        WeightsError: the file is missing, damaged, or was not written by the zoo.
    """
    place = Place(str(path))
    if not path.is_file():
        raise WeightsError(Problem("there is no such weights file", place))
    try:
        metadata, found = read_entries(path)
    except OSError as error:
        raise WeightsError(Problem(f"cannot be read: {error.strerror}", place)) from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise not_whole(error, place) from None
    header = _parse(metadata, place)
    if problems := list(_differences(found, header.records, place)):
        raise WeightsError(problems)
    return header


def not_whole(error: Exception, place: Place) -> WeightsError:
    """The error for a file that is no safetensors file, or not all of one."""
    message = f"not a whole safetensors file: {error}"
    return WeightsError(Problem(message, place, "fetch or build it again"))


def read_entries(path: Path) -> tuple[Any, dict[str, _Entry]]:
    """The metadata of a safetensors file, and the dtype and shape of each tensor in it."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_JSON_BYTES:
            raise ValueError(f"its header would be {length:,} bytes long")
        raw = file.read(length)
        size = file.seek(0, os.SEEK_END)
    entries: dict[str, Any] = json.loads(raw.decode("utf-8"))
    metadata = entries.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    if size != 8 + length + end:
        raise ValueError(f"{size:,} bytes long, while its header tells of {8 + length + end:,}")
    return metadata, {name: (e["dtype"], tuple(e["shape"])) for name, e in entries.items()}


def _parse(metadata: Any, place: Place) -> Header:
    if not isinstance(metadata, dict) or KEY not in metadata:
        raise WeightsError(
            Problem(
                "a safetensors file, but not the zoo's: its header has no `zoo` metadata",
                place,
                help="`zoo build` writes files that rebuild themselves",
            )
        )
    try:
        data: Any = json.loads(metadata[KEY])
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']!r} is not known")
        header = Header(
            spec=_object(data["spec"]),
            provenance=_object(data["provenance"]),
            ties={name: _string(first) for name, first in _object(data["ties"]).items()},
            records={name: _record(r) for name, r in _object(data["tensors"]).items()},
        )
        if "extends" in header.spec:
            raise ValueError("its spec extends another one")
        if json.loads(header.to_json()) != data:
            raise ValueError("it is not what was written")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        message = f"the `zoo` metadata is damaged: {type(error).__name__}: {error}"
        raise WeightsError(Problem(message, place, "fetch or build it again")) from None
    return header


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("an object is expected")
    return cast("dict[str, Any]", value)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a string is expected")
    return value


def _record(value: Any) -> Record:
    dtype, sha256 = value["dtype"], value["sha256"]
    shape: tuple[Any, ...] = tuple(value["shape"])
    if dtype not in ITEM_BYTES:
        raise ValueError(f"the dtype {dtype!r} is not known")
    if any(type(size) is not int for size in shape):
        raise TypeError("a shape is a list of integers")
    if not _SHA256.fullmatch(sha256):
        raise ValueError("a record has no SHA-256")
    return Record(dtype, shape, sha256)


def _differences(
    found: Mapping[str, _Entry], records: Mapping[str, Record], place: Place
) -> Iterable[Problem]:
    for name in sorted(found.keys() | records.keys()):
        if name not in records:
            yield Problem(f"the tensor `{name}` is not in the file's own records", place)
        elif name not in found:
            yield Problem(f"the tensor `{name}` is missing", place)
        elif found[name] != (records[name].dtype, records[name].shape):
            dtype, shape = found[name]
            yield Problem(
                f"the tensor `{name}` is {dtype} {list(shape)}; its record says "
                f"{records[name].dtype} {list(records[name].shape)}",
                place,
            )
