"""The zoo's weights file: one safetensors file whose header tells how to rebuild the model.

The header holds exactly one metadata key, `zoo`, with canonical JSON: the resolved spec, where the
plugins came from, the tied tensors, and a record of each tensor. More than one key would make the
bytes random: safetensors writes metadata in the order of a randomised hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from zoo.errors import Place, Problem, WeightsError

KEY = "zoo"
FORMAT = 1
FILE_NAME = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Record:
    """One stored tensor: its dtype as safetensors writes it, its shape, the SHA-256 of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


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

        records = {
            name: {"dtype": r.dtype, "shape": list(r.shape), "sha256": r.sha256}
            for name, r in self.records.items()
        }
        data = {
            "format": FORMAT,
            "spec": self.spec,
            "provenance": self.provenance,
            "ties": self.ties,
            "tensors": records,
        }
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


def weights_path(path: Path) -> Path:
    """The weights file that `path` means: itself, or `model.safetensors` in a folder."""
    return path if path.suffix == ".safetensors" else path / FILE_NAME


def read_header(path: Path) -> Header:
    """Read what a weights file says of itself. Imports no torch.

    Raises:
        WeightsError: the file is missing, damaged, or was not written by the zoo.
    """
    from safetensors import SafetensorError, safe_open

    place = Place(str(path))
    if not path.is_file():
        raise WeightsError(Problem("there is no such weights file", place))
    try:
        with safe_open(str(path), framework="numpy") as file:  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            metadata = cast("dict[str, str] | None", file.metadata())  # pyright: ignore[reportUnknownMemberType]
            found: dict[str, tuple[str, tuple[int, ...]]] = {}
            for name in cast("Iterable[str]", file.keys()):  # pyright: ignore[reportUnknownMemberType]
                slice_ = cast("Any", file.get_slice(name))  # pyright: ignore[reportUnknownMemberType]
                found[name] = (slice_.get_dtype(), tuple(slice_.get_shape()))
    except SafetensorError as error:
        raise WeightsError(
            Problem(f"not a whole safetensors file: {error}", place, "fetch or build it again")
        ) from None
    except OSError as error:
        raise WeightsError(Problem(f"cannot be read: {error}", place)) from None
    header = _parse(metadata, place)
    if problems := list(_differences(found, header.records, place)):
        raise WeightsError(problems)
    return header


def _parse(metadata: Mapping[str, str] | None, place: Place) -> Header:
    if not metadata or KEY not in metadata:
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
            spec=dict(data["spec"]),
            provenance=dict(data["provenance"]),
            ties={str(k): str(v) for k, v in data["ties"].items()},
            records={
                str(name): Record(str(r["dtype"]), tuple(map(int, r["shape"])), str(r["sha256"]))
                for name, r in data["tensors"].items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        message = f"the `zoo` metadata is damaged: {type(error).__name__}: {error}"
        raise WeightsError(Problem(message, place)) from None
    return header


def _differences(
    found: Mapping[str, tuple[str, tuple[int, ...]]], records: Mapping[str, Record], place: Place
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
