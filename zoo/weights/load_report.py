"""The report of `zoo.load`: where each tensor's values are from, and what was cast and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from zoo.wording import counted


class TensorReport(NamedTuple):
    """One stored tensor.

    Attributes:
        name: the name it is stored under.
        aliases: the other names of a tied tensor.
        values: `loaded`, or `initial` for a tensor that `only` left out.
        stored: its dtype in the file (safetensors name).
        dtype: its dtype in the model.
        shape: its shape.
        share: the shape of this process' shard of it; the same as `shape` without a mesh.
        sha256: the SHA-256 of its bytes, from the file's header.
        checked: whether the loaded bytes are known to have this SHA-256: either it was computed
            from them (with a mesh, by some process, from the file), or they are the bytes it was
            checked against when they entered the store.
    """

    name: str
    aliases: tuple[str, ...]
    values: Literal["loaded", "initial"]
    stored: str
    dtype: str
    shape: tuple[int, ...]
    share: tuple[int, ...]
    sha256: str
    checked: bool

    @property
    def cast(self) -> bool:
        """Whether the values were cast."""
        return self.values == "loaded" and self.dtype != self.stored


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How a model was loaded.

    Args:
        name: the name of the model.
        path: the weights file, or the index of the shards.
        spec_digest: the SHA-256 of the spec in the file.
        content_digest: the SHA-256 over the records of the tensors.
        read: how the file was read, `bytes` or `mmap`.
        plugins: the plugins that the weights were made with, as returned by
            `zoo.provenance.plugins.plugin_versions`.
        seed: the seed of initial weights that `zoo build` has written; None of others.
        tensors: a report for each tensor, sorted by stored name.
    """

    name: str
    path: str
    spec_digest: str
    content_digest: str
    read: str
    plugins: Mapping[str, str]
    seed: str | None
    tensors: tuple[TensorReport, ...]

    def __repr__(self) -> str:
        return f"<LoadReport {self.summary().partition(chr(10))[0]}; text() tells each>"

    def data(self) -> dict[str, Any]:
        """The report as plain data."""
        rows = [{**row._asdict(), "cast": row.cast} for row in self.tensors]
        return {**asdict(self), **self._counts(), "tensors": rows}

    def summary(self) -> str:
        """The report in a few lines."""
        counts = self._counts()
        told = ", ".join(f"{counts[key]:,} {key}" for key in ("loaded", "initial", "cast"))
        checked = f"{counts['checked']:,} of {counts['loaded']:,} digests checked"
        made = "" if self.seed is None else f": initial weights of seed {self.seed}"
        return "\n".join(
            (
                f"{self.name}: {counted(len(self.tensors), 'tensor')}: {told}; {checked}",
                f"{self.path} ({self.read}){made}",
                self.content_digest,
            )
        )

    def text(self) -> str:
        """The report with a line for each tensor."""
        return "\n".join((self.summary(), "", *_lines(self.tensors)))

    def _counts(self) -> dict[str, int]:
        return {
            "loaded": sum(row.values == "loaded" for row in self.tensors),
            "initial": sum(row.values == "initial" for row in self.tensors),
            "cast": sum(row.cast for row in self.tensors),
            "checked": sum(row.checked for row in self.tensors),
        }


def _lines(rows: Iterable[TensorReport]) -> Iterable[str]:
    for row in rows:
        dtype = f"{row.stored} -> {row.dtype}" if row.cast else row.dtype
        shape = " x ".join(map(str, row.shape)) or "scalar"
        if row.share != row.shape:
            shape = f"{' x '.join(map(str, row.share))} of {shape}"
        digest = f"sha256:{row.sha256[:12]} {'checked' if row.checked else 'not checked'}"
        yield f"{row.values:<8}{row.name}  {dtype} {shape}  {digest}"
        for alias in row.aliases:
            yield f"  tied  {alias}"
