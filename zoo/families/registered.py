"""The families in the folders of a registry."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from zoo.errors import Place, Problem, SpecError, WeightsError
from zoo.families.config import Config
from zoo.families.defaults import Defaults, read_defaults
from zoo.families.family import Family, read_family
from zoo.families.scope import Scope
from zoo.families.vocabulary import FILE_NAME as VOCABULARY
from zoo.families.vocabulary import Vocabulary, read_vocabulary
from zoo.files.of_model import CONFIG
from zoo.json_files import JsonFile
from zoo.registry import Registry
from zoo.wording import did_you_mean, nearest, quoted


class Families:
    """The families of a registry, by name and by the `model_type`s that they read."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.folders = registry.families

    @cached_property
    def paths(self) -> dict[str, Path]:
        """The file of each family, by name.

        Raises:
            SpecError: two folders hold a family of one name.
        """
        found: dict[str, Path] = {}
        for path in self._files():
            if (first := found.setdefault(path.stem, path)) != path:
                related = (("the first", Place(str(first))),)
                message = f"the family {quoted(path.stem)} is there twice"
                hint = "a family has the name of its file: rename one"
                raise SpecError(Problem(message, Place(str(path)), hint, related))
        return found

    def _files(self) -> Iterator[Path]:
        for folder in self.folders:
            yield from sorted(path for path in folder.glob("*.toml") if path.name != VOCABULARY)

    @cached_property
    def by_model_type(self) -> dict[str, str]:
        """The name of the family that reads each `model_type`.

        Raises:
            SpecError: two families read one `model_type`, or a file cannot be read.
        """
        found: dict[str, str] = {}
        for name, path in self.paths.items():
            for model_type in _model_types(path):
                if (first := found.setdefault(model_type, name)) != name:
                    related = (("the first", Place(str(self.paths[first]))),)
                    message = f"two families read the `model_type` {quoted(model_type)}"
                    hint = "a checkpoint is read by one: take it out of `model_type` of the other"
                    raise SpecError(Problem(message, Place(str(path)), hint, related))
        return found

    def family(self, name: str) -> Family:
        """Return the family of this name. Raises `SpecError` with the nearest name otherwise."""
        if name not in self.paths:
            hint = did_you_mean(name, self.paths, "`zoo families` lists them")
            message, missing = f"there is no family {quoted(name)}", self.registry.perhaps_missing()
            raise SpecError(Problem(message, help=hint, related=missing))
        return read_family(self.paths[name], self.paths)

    def family_of(self, file: JsonFile) -> Family:
        """Return the family that reads a configuration.

        Raises:
            WeightsError: it has no `model_type`, or one that no family reads.
        """
        model_type = file.data.get("model_type")
        if not isinstance(model_type, str):
            message = "`model_type` must say what kind of model this is"
            raise WeightsError(message, file.place("model_type"))
        if model_type not in self.by_model_type:
            known = model_type in self._defaults  # another model, and no misspelt name of one
            near = None if known else nearest(model_type, self.by_model_type)
            raise WeightsError(
                Problem(
                    f"no family reads the model_type {quoted(model_type)}",
                    file.place("model_type"),
                    help=self._part_alone(file)
                    or (f"did you mean `{near}`? " if near else "")
                    + "`zoo families` lists them, docs/write-a-family.md tells how to write one",
                    related=self.registry.perhaps_missing(),
                )
            )
        return self.family(self.by_model_type[model_type])

    def _part_alone(self, file: JsonFile) -> str | None:
        """The hint that a part of a checkpoint can be read; None if none can."""
        for name, words in self.vocabulary.parts.items():
            inner = file.data.get(words.config)
            model_type = inner.get("model_type") if isinstance(inner, dict) else None
            if isinstance(model_type, str) and model_type in self.by_model_type:
                return (
                    f"`zoo import --part {name}` reads the {quoted(model_type)} of its "
                    f"`{words.config}`, and leaves the rest out"
                )
        return None

    def config_of_class(self, architecture: str) -> JsonFile:
        """Return the configuration that states a class of `transformers` and its model type, and
        nothing else; it has no text. Raises `WeightsError` if no family reads what such a class
        saves."""
        of_class: dict[str, list[str]] = {}
        for model_type in self.by_model_type:
            for name in self.defaults(model_type).classes:
                of_class.setdefault(name, []).append(model_type)
        if architecture not in of_class:
            hint = "a config.json can state it with any model type that `zoo families` lists"
            message = f"no family reads a class {quoted(architecture)} of `transformers`"
            raise WeightsError(message, help=did_you_mean(architecture, of_class, hint))
        # A class that several model types have is named after its own.
        lower = architecture.lower()
        model_type = max(
            of_class[architecture], key=lambda one: lower.startswith(one.replace("_", ""))
        )
        data = {"model_type": model_type, "architectures": [architecture]}
        return JsonFile(Path(CONFIG), data, "")

    @cached_property
    def _defaults(self) -> Mapping[str, Defaults]:
        return {name: d for folder in self.folders for name, d in read_defaults(folder).items()}

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words of configurations, merged from all folders; later folders take precedence."""
        merged = Vocabulary()
        for folder in self.folders:
            if (folder / VOCABULARY).is_file():
                own = read_vocabulary(folder)
                merged = Vocabulary(
                    activations={**merged.activations, **own.activations},
                    rope={**merged.rope, **own.rope},
                    sentence=own.sentence or merged.sentence,
                    parts={**merged.parts, **own.parts},
                    inert=merged.inert | own.inert,
                )
        return merged

    def defaults(self, model_type: str) -> Defaults:
        """Return the defaults of a model type."""
        return self._defaults.get(model_type, Defaults())

    def scope(
        self, family: Family, file: JsonFile, keys: frozenset[str], like: Scope | None = None
    ) -> Scope:
        """Return the scope of a family's expressions.

        Args:
            family: the family.
            file: the configuration.
            keys: the names of the checkpoint's tensors.
            like: that of a similar configuration of the same class, for the same tensors; what it
                has evaluated is not evaluated again.

        Raises:
            WeightsError: values of the configuration are of the wrong type, or contradict others.
        """
        config = Config(file, self.defaults(str(file.data.get("model_type"))), family.defaults)
        if problems := [*config.wrong_types(family.ignores), *config.contradictions()]:
            raise WeightsError(problems)
        scope = Scope(family, config, keys, self.vocabulary)
        if like is not None:
            scope.keep(like)
        return scope


def _model_types(path: Path) -> tuple[str, ...]:
    """Return the `model_type`s that a family file lists; none if it is damaged. Raises `SpecError`
    if it cannot be read.

    Only the lines before its first table are parsed, since all files are read to find one family.
    """
    try:
        lines = b"\n" + path.read_bytes()
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", Place(str(path))) from None
    head, *_ = lines.partition(b"\n[")
    return _listed(head.decode(errors="replace"))


@lru_cache(maxsize=1024)
def _listed(head: str) -> tuple[str, ...]:
    """The `model_type`s that these lines list. Each text is parsed once, for many imports."""
    try:
        stated: Any = tomllib.loads(head).get("model_type", [])
    except tomllib.TOMLDecodeError:
        return ()
    return tuple(map(str, stated)) if isinstance(stated, list) else ()
