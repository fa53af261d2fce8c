"""What `zoo.load` did with each tensor: where its values are from, what was cast and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from zoo.errors import counted


class TensorReport(NamedTuple):
    """One stored tensor.

    Attributes:
        name: the name it is stored under.
        aliases: the other names of a tied tensor.
        values: `loaded`, or `initial` for one that `only` left out.
        stored: its dtype in the file, as safetensors names it.
        dtype: its dtype in the model.
        shape: its sizes.
        share: the sizes of the part of it that this process has; all of it without a mesh.
        sha256: that of its bytes in the file.
        checked: whether the bytes that were loaded are known to have it: it was computed of them
            (with a mesh by some process, of the file), or they are those of which it was computed
            when they came into the store.
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
        name: the model's.
        path: the weights file, or the index of the shards.
        spec_digest: the SHA-256 of the spec in it.
        content_digest: the SHA-256 over the records of its tensors.
        read: `bytes` or `mmap`.
        plugins: what the weights were made with, as `zoo.provenance.plugins.plugin_versions`
            tells it.
        tensors: by the names they are stored under, sorted.
    """

    name: str
    path: str
    spec_digest: str
    content_digest: str
    read: str
    plugins: Mapping[str, str]
    tensors: tuple[TensorReport, ...]

    def data(self) -> dict[str, Any]:
        """The report as plain data."""
        rows = [{**row._asdict(), "cast": row.cast} for row in self.tensors]
        return {**asdict(self), **self._counts(), "tensors": rows}

    def summary(self) -> str:
        """The report in a few lines."""
        counts = self._counts()
        told = ", ".join(f"{counts[key]:,} {key}" for key in ("loaded", "initial", "cast"))
        checked = f"{counts['checked']:,} of {counts['loaded']:,} digests checked"
        return "\n".join(
            (
                f"{self.name}: {counted(len(self.tensors), 'tensor')}: {told}; {checked}",
                f"{self.path} ({self.read})",
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
