"""Refs: one file for each name and version of a model in the store, written last."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from zoo.errors import Place
from zoo.files.atomic import new_file, remove_file
from zoo.store.files import Store, StoreError, store_unreadable
from zoo.store.pretrained import File
from zoo.weights.header_json import json_object
from zoo.wording import typed

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Ref:
    """A model in the store.

    Args:
        name: the name with its tag.
        version: the version of the published model, `Pretrained.version`.
        files: the files in the store, which `zoo.load` reads.
        published: the files as published; for models in the zoo's own format, the same files.
        source: the origin of the published files, as in `[source]`.
        content_digest: the digest of the tensors, or None for weights of another format.
        blake3: the BLAKE3 of each weights file, in pieces, as from `Weights.blake3`. The files were
            checked by the SHA-256 of the file and of every tensor when they were pulled; checking
            them again by BLAKE3 takes a third of the time. Refs of earlier versions of the zoo have
            none.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    version: str
    files: Mapping[str, File]
    published: Mapping[str, File]
    source: Mapping[str, Any]
    content_digest: str | None
    blake3: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    @property
    def n_bytes(self) -> int:
        return sum(file.size for file in self.files.values())

    def to_json(self) -> str:
        data = {
            "format": FORMAT,
            "name": self.name,
            "version": self.version,
            "files": {path: file.model_dump() for path, file in self.files.items()},
            "published": {path: file.model_dump() for path, file in self.published.items()},
            "source": dict(self.source),
            "content_digest": self.content_digest,
            "blake3": dict(self.blake3),
        }
        return json.dumps(data, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Ref:
        """Parse a ref. Raises `ValueError` for a text that `to_json` did not write."""
        data = json_object(text, "it")
        if data.pop("format", None) != FORMAT:
            raise ValueError("a store of another version of the zoo")
        return _adapter().validate_python(data)


@cache
def _adapter() -> TypeAdapter[Ref]:
    return TypeAdapter(Ref)


class DamagedRefError(StoreError):
    """A ref is not what the zoo has written there."""


def path_of(store: Store, name: str, version: str) -> Path:
    return store.root / "refs" / f"{name}@{version}.json"


def write_ref(store: Store, ref: Ref) -> None:
    """Publish a ref, whose snapshot must exist."""
    path = path_of(store, ref.name, ref.version)
    store.make_folder(path.parent)
    with new_file(path) as file:
        file.write(ref.to_json().encode())
        store.share(Path(file.name))


def remove_ref(store: Store, name: str, version: str) -> None:
    """Remove a ref, which may be damaged. Its files remain until `zoo gc`."""
    remove_file(path_of(store, name, version))


def read_ref(store: Store, name: str, version: str) -> Ref | None:
    """Return the ref of a name and version, or None if there is none.

    Raises:
        DamagedRefError: its file is damaged, or that of another model.
        StoreError: its file cannot be read.
    """
    path = path_of(store, name, version)
    try:
        ref = Ref.from_json(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise store_unreadable(path, error) from None
    except ValidationError:
        reason = "it is not what was written"
    except ValueError as error:
        reason = str(error)
    else:
        if (ref.name, ref.version) == (name, version):
            return ref
        reason = "it is of another model"
    full = typed(f"{name}@{version}")
    hint = f"`zoo pull {typed(name)}` writes it again, `zoo rm {full}` removes it"
    raise DamagedRefError(f"is damaged: {reason}", Place(str(path)), hint)


def refs(store: Store) -> Iterator[Ref]:
    """Return all refs, without those that are removed meanwhile.

    Raises:
        StoreError: one is damaged, or their folder cannot be read.
    """
    for name, version in versions(store):
        ref = read_ref(store, name, version)
        if ref is not None:
            yield ref


def versions(store: Store, name: str | None = None) -> Iterator[tuple[str, str]]:
    """Return the name and version of each ref, or of those of one name, without reading them.

    Raises:
        StoreError: their folder cannot be read.
    """
    folder = store.root / "refs"
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        # Not an empty result: a collector would then remove their files.
        raise store_unreadable(folder, error) from None
    for path in paths:
        of, _, version = path.name.rpartition("@")
        if of and version.endswith(".json") and name in (None, of):
            yield of, version.removesuffix(".json")
