"""What model types take for granted where their config.json states nothing, as
`tools/family_defaults.py` has found it in `transformers`: data beside the family files, in
`defaults.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from zoo.errors import Problem, WeightsError
from zoo.json_files import JsonFile, parse_json, read_bytes
from zoo.validating.value_errors import value_message
from zoo.wording import dotted, quoted

FILE_NAME = "defaults.json"


class ModelClass(BaseModel):
    """A class of `transformers`: the parts of its checkpoints, with which names of tensors begin,
    those that are needed, and those that one may lack."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    needed: list[str]
    optional: list[str]

    @property
    def parts(self) -> list[str]:
        return self.needed + self.optional

    def lacking(self, tensors: Iterable[str]) -> list[str]:
        """Return the parts that a checkpoint with these tensors lacks, although it needs them."""
        return [part for part in self.needed if not any(_is_in(part, name) for name in tensors)]

    def foreign(self, tensors: Iterable[str], others: Iterable[ModelClass]) -> list[str]:
        """Return the parts of other classes that a checkpoint with these tensors has, and that this
        class has not."""
        rest = [name for name in tensors if not any(_is_in(part, name) for part in self.parts)]
        theirs = {part for one in others for part in one.parts}
        return [part for part in sorted(theirs) if any(_is_in(part, name) for name in rest)]


def _is_in(part: str, tensor: str) -> bool:
    return tensor == part or tensor.startswith(f"{part}.")


class Defaults(BaseModel):
    """The defaults of a model type for what `config.json` omits; `spellings`, which maps keys to
    alternative keys; the keys that may be null although their default is not, and those that may
    have values of other types than their default; and the classes of `transformers` that it has.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    values: dict[str, Any] = Field(default_factory=dict[str, Any], alias="defaults")
    spellings: Mapping[str, str] = Field(default_factory=dict[str, str], alias="attribute_map")
    nullable: list[str] = Field(default_factory=list[str])
    mixed: list[str] = Field(default_factory=list[str])
    classes: Mapping[str, ModelClass] = Field(default_factory=dict[str, ModelClass])


def read_defaults(folder: Path) -> Mapping[str, Defaults]:
    """Return the generated defaults of a folder of families, by model type, if there are any.

    Raises:
        WeightsError: as `read_json`, or an entry has another form than `tools/family_defaults.py`
            gives it.
    """
    path = folder / FILE_NAME
    return _defaults(path, read_bytes(path)) if path.is_file() else {}


@lru_cache(maxsize=4)
def _defaults(path: Path, raw: bytes) -> Mapping[str, Defaults]:
    """The defaults in the bytes of a file. They are parsed once: each import reads those of all
    model types. Raises as `read_defaults`."""
    file = parse_json(path, raw)
    found: dict[str, Defaults] = {}
    problems: list[Problem] = []
    for model_type, stated in file.data.items():
        try:
            found[model_type] = Defaults.model_validate(stated)
        except ValidationError as error:
            wrong = error.errors(include_url=False)
            problems += (_problem(file, model_type, details) for details in wrong)
    if problems:
        raise WeightsError(problems)
    return found


def _problem(file: JsonFile, model_type: str, wrong: ErrorDetails) -> Problem:
    """The problem of an entry, at the innermost of its keys that the file has."""
    keys = (model_type, *map(str, wrong["loc"]))
    places = (file.place(*keys[:n]) for n in (len(keys), 2, 1))
    place = next((place for place in places if place.line), file.place())
    expected = "a table of `defaults`, `attribute_map`, `classes`, `nullable` and `mixed`"
    message = value_message(wrong) if wrong["loc"] else f"must be {expected}"
    if wrong["type"] == "extra_forbidden":
        message = f"is unknown: an entry is {expected}"
    return Problem(f"{quoted(dotted(keys))} {message}", place)
