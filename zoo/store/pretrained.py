"""A published model, as described by its file in a registry's folder of models.

```toml
format = 1
family = "bert"                        # how the files are read; absent after `zoo push`
license = { code = "Apache-2.0", weights = "Apache-2.0" }

[source]
kind = "hf"
repo = "google-bert/bert-base-uncased"
revision = "..."                       # a commit

[files."model.safetensors"]
size = 440449768
sha256 = "..."
```

A model whose revision or digests are not known says `trust = "first_use"`: if the user allows it,
its files are accepted as they are at the first pull, and must not differ afterwards.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from zoo.document import Document, KeyPath, read_document
from zoo.errors import Problem, RegistryError, in_order
from zoo.files.of_model import published_path
from zoo.source import Source
from zoo.validating.value_errors import Format, key_problem
from zoo.wording import did_you_mean

if TYPE_CHECKING:
    from zoo.registry import Registry

Model = TypeVar("Model", bound=BaseModel)


class DeprecatedName(FutureWarning):
    """A model was requested by a deprecated name."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", defer_build=True)


class File(_Table):
    """One file as it was published."""

    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class License(_Table):
    """The licences of the weights, and of the code that they were published with: SPDX identifiers,
    or the name of a licence without one."""

    weights: str
    code: str | None = None


Id = Annotated[int, Field(ge=0, lt=1 << 31)]


class Fingerprint(_Table):
    """The expected output of a model: `values` at the indices `at` for the token `ids`
    (batch, length), and `target_ids` for a model with an encoder and a decoder."""

    ids: list[list[Id]]
    target_ids: list[list[Id]] | None = None
    at: list[list[Id]]
    values: list[float]
    tolerance: float = Field(gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _one_value_an_index(self) -> Fingerprint:
        if len(self.at) != len(self.values) or not self.at:
            raise ValueError("a fingerprint has one value for each index in `at`")
        return self


class _Files(_Table):
    files: dict[Annotated[str, AfterValidator(published_path)], File] = Field(
        default={}, max_length=2000
    )


class Manifest(_Files):
    """The manifest of a published model: the keys of its file, except `[source]`."""

    format: Format
    override: bool = False
    family: str | None = None
    spec: str | None = None
    parameters: int | None = Field(default=None, ge=1)
    license: License
    paper: str | None = None
    origin: str | None = None
    trust: Literal["pinned", "first_use"] = "pinned"
    content_digest: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")
    fingerprint: Fingerprint | None = None

    @model_validator(mode="after")
    def _pinned_or_said_not_to_be(self) -> Manifest:
        if self.trust == "pinned" and not self.files:
            raise ValueError('a model states its `files`, or says `trust = "first_use"`')
        return self


_TABLES: Mapping[str, type[BaseModel]] = {
    "license": License,
    "fingerprint": Fingerprint,
    "files": File,
}
"""The tables inside a manifest."""


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A published model: its name, its manifest, its source and the document that states them."""

    name: str
    manifest: Manifest
    source: Source
    document: Document

    @property
    def folder(self) -> Path:
        """The folder of the registry's models, to which paths of the source are relative."""
        return Path(self.document.name).resolve().parent

    @property
    def is_pinned(self) -> bool:
        """Whether the digests of its files are known."""
        return bool(self.manifest.files)

    @property
    def version(self) -> str:
        """16 hexadecimal digits that identify the content among models of this name. They depend on
        the digests of the files and on the family that reads them, not on the source."""
        lines = [f"{self.manifest.family or ''}\n"]
        lines += [f"{file.sha256} {path}\n" for path, file in sorted(self.manifest.files.items())]
        return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]

    def has_version(self, start: str) -> bool:
        """Whether its version is known, and begins so."""
        return self.is_pinned and self.version.startswith(start)

    def with_files(self, source: Source, files: Mapping[str, File]) -> Pretrained:
        """Return the model with this source and these files."""
        return replace(
            self, manifest=self.manifest.model_copy(update={"files": files}), source=source
        )


def find_pretrained(name: str, registry: Registry) -> Pretrained | None:
    """Return the published model of a name, or None if there is none. A deprecated name gives a
    `DeprecatedName` warning.

    Raises:
        RegistryError: the model's file cannot be read or is wrong; with all problems.
        PluginError: the source's plugin cannot be loaded.
    """
    path = registry.catalog.file(name)
    if path is None:
        return None
    warn_if_out_of_use(name, registry)
    return _read(path, registry)


def warn_if_out_of_use(name: str, registry: Registry) -> None:
    """Give a `DeprecatedName` warning for a name that is out of use."""
    instead = registry.catalog.replacement(name)
    if instead is not None:
        warnings.warn(f"the model name `{name}` is out of use: use `{instead}`", DeprecatedName, 1)


def _read(path: Path, registry: Registry) -> Pretrained:
    document = read_document(path)
    problems = list(document.problems)
    data = dict(document.data)
    manifest = _checked(Manifest, data, document, (), problems, without=("source",))
    source = read_source_table(document, registry, problems)
    if problems or manifest is None or source is None:
        raise RegistryError(in_order(problems))
    return Pretrained(path.stem, manifest, source, document)


def read_source_table(
    document: Document, registry: Registry, problems: list[Problem]
) -> Source | None:
    """Return the `[source]` of a document, as an instance of the plugin of its `kind`. Problems are
    added to `problems`."""
    table = document.data.get("source")
    kind = table.get("kind") if isinstance(table, dict) else None
    if not isinstance(kind, str):
        place = document.place(("source",))
        hint = did_you_mean("", registry.sources)
        problems.append(Problem("`[source]` says where from by its `kind`", place, hint))
        return None
    cls = registry.source(kind, lambda: document.place(("source", "kind"), value=True))
    return _checked(cls, cast("dict[str, Any]", table), document, ("source",), problems)


def read_files_table(document: Document, problems: list[Problem]) -> dict[str, File]:
    """Return the `[files]` of a document. Problems are added to `problems`."""
    stated = {key: value for key, value in document.data.items() if key == "files"}
    found = _checked(_Files, stated, document, (), problems)
    return {} if found is None else found.files


def _checked(
    cls: type[Model],
    data: Mapping[str, Any],
    document: Document,
    path: KeyPath,
    problems: list[Problem],
    *,
    without: tuple[str, ...] = (),
) -> Model | None:
    """Return the table at `path` as an instance of `cls`, or None; problems are added to
    `problems`."""
    values = {key: value for key, value in data.items() if key not in without}
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            where = (*path, *(part for part in details["loc"] if part != "[key]"))
            inner = _TABLES.get(str(where[0])) if len(where) > 1 else None
            known = [*cls.model_fields, *without] if inner is None else [*inner.model_fields]
            problems.append(key_problem(document, where, [details], known))
        return None
