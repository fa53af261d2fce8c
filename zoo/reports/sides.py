"""Models that are compared with each other, as `zoo diff`, `zoo table` and `zoo bench` are given
them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.reading import read_spec
from zoo.registry import Registry
from zoo.spec import ModelSpec
from zoo.store.found_spec import read_source
from zoo.weights.file import Record

Comparable = str | Path | Mapping[str, Any] | ModelSpec


@dataclass(frozen=True)
class Side:
    """A model that is compared: its source as given, its spec, and the records of its tensors if
    the source is a weights file."""

    source: str
    spec: ModelSpec
    records: Mapping[str, Record] | None = None

    @classmethod
    def of(cls, source: Comparable, registry: Registry) -> Side:
        """Read a spec, a registered model, a weights file or the folder of one.

        Raises:
            ZooError: the source cannot be read.
            TypeError: it is nothing that could be.
        """
        if isinstance(source, ModelSpec):
            return cls(source.name, source)
        if not isinstance(source, str | Path) or "\n" in str(source):
            spec = read_spec(source, registry=registry)
            return cls(spec.name, spec)
        spec, header = read_source(str(source), registry)
        return cls(str(source), spec, header.records if header is not None else None)


def names_of(sides: Sequence[Side]) -> list[str]:
    """Return the names of models: where several have the same, as their sources were given."""
    names = Counter(side.spec.name for side in sides)
    return [side.spec.name if names[side.spec.name] == 1 else side.source for side in sides]
