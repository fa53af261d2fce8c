"""The origin of an imported model, which is recorded in its file so that it can be exported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from zoo.errors import Place, Problem, WeightsError
from zoo.families.companions import Companion, read_companions
from zoo.files.of_model import COMPANIONS, CONFIG
from zoo.weights.dtypes import FLOATS, dtype_name

CompanionName = Annotated[str, Field(pattern=r"^(?:\w[\w-]*/)?\w[\w.-]*$")]
"""The name of a file in a model's folder, or in a folder directly inside."""
TensorName = Annotated[str, Field(pattern=r"^(?:\w[\w-]*/)?[^/]+$")]
"""The name of a tensor, with the folder of its file as a prefix, if there is one."""


class OfAdapter(BaseModel):
    """The adapter that was merged into the weights of a checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: str
    """The text of its adapter_config.json."""
    sha256: str
    """The digest of the file of its tensors."""


class Origin(BaseModel):
    """The checkpoint that a model was imported from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str
    """The family that read it."""
    config: str
    """The text of its config.json: as JSON inside the header, 1.0 would become 1. If its weights
    were quantized, without what says so."""
    part_of: str | None = None
    """The `model_type` of the checkpoint of several models, of which `config` describes a part."""
    dtype: str | None = None
    """The dtype of most of its tensors of floats, if it is not the one that its config.json states:
    as a header calls it."""
    quantization: str | None = None
    """How its weights were quantized, of which the model has the floats that they stood for."""
    adapter: OfAdapter | None = None
    """The adapter that its weights were merged with."""
    tensors: tuple[TensorName, ...]
    """The names of its tensors, in the current spelling."""
    renamed: Mapping[str, TensorName] = {}
    """The older spellings in the checkpoint, by the current names."""
    files: Mapping[CompanionName, str] = {}
    """The files that were copied beside the weights, with the SHA-256 of each."""

    @model_validator(mode="after")
    def _check(self) -> Origin:
        if len({self.renamed.get(name, name) for name in self.tensors}) < len(self.tensors):
            raise ValueError("two tensors have one name")
        if taken := [n for n in self.files if n == CONFIG or n.endswith(".safetensors")]:
            raise ValueError(f"{taken[0]} is no file that comes along")
        return self


def stated_dtype(config: Mapping[str, Any]) -> str | None:
    """The dtype that a config.json states, as a header calls it; None if it states none."""
    names = {dtype_name(dtype): name for name, dtype in FLOATS.items()}
    return names.get(str(config.get(dtype_key(config))))


def dtype_key(config: Mapping[str, Any]) -> str:
    """The key under which a config.json states the dtype: that of older ones is `torch_dtype`."""
    return "dtype" if "dtype" in config else "torch_dtype"


def check_companions(companions: Iterable[Companion], origin: Origin, folder: Path) -> None:
    """Raise `WeightsError` if a file differs from the one that was copied at the import."""
    changed = [c.name for c in companions if c.sha256 != origin.files[c.name]]
    if changed:
        raise WeightsError(
            Problem(
                "it is not the file that came along when the model was imported",
                Place(str(folder / name)),
                help="put the old one back, or move it away and add your own to the export",
            )
            for name in changed
        )


def with_files(origin: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return an origin with the digests of the files that are in the model's folder now, for a
    model that was changed together with these. Raises `WeightsError` as `read_companions`."""
    names = dict.fromkeys([*origin.get("files", ()), *COMPANIONS])
    found = read_companions(folder, names)
    return {**origin, "files": {companion.name: companion.sha256 for companion in found}}
