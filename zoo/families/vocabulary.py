"""The translation of words in configurations to names of the zoo's components: data beside the
family files, in `vocabulary.toml`.

The core knows no component by name. The file says, for example, that `gelu_new` is the activation
`gelu_tanh`, and that a `rope_type` of `yarn` is the position kind `rotary_yarn`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from zoo.document import Document, read_document
from zoo.errors import Problem, SpecError
from zoo.families.expression import ExpressionError
from zoo.validating.value_errors import value_message
from zoo.wording import dotted, quoted

FILE_NAME = "vocabulary.toml"
ROTARY_KEYS = frozenset(
    {
        *("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"),
        *("max_position_embeddings", "original_max_position_embeddings"),
    }
)
"""The keys of a configuration that `rope()` reads."""
_KNOWN_SETTINGS = (
    *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor"),
    *("original_max_position_embeddings", "mscale", "mscale_all_dim"),
)
"""The settings of rotary positions that this module reads."""
_KEYS = {"missing": "is missing", "extra_forbidden": "is an unknown key"}
"""The messages for keys, by the type of pydantic's error."""


class RopeKind(BaseModel):
    """A kind of rotary position: its name, and the setting for each of its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    fields: Mapping[str, str] = Field(default_factory=dict[str, str])


class SentenceWords(BaseModel):
    """The zoo's names for the modules of sentence-transformers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    """The kind of the head that pools, and perhaps projects and normalises."""
    pooling: Mapping[str, str]
    """The head's name of each way of pooling."""
    activations: Mapping[str, str]
    """The head's name of each activation of a dense layer."""


class PartWords(BaseModel):
    """How one of several models in a checkpoint, such as the language model, is told from the
    others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: str
    """The key of its configuration."""
    architecture: str
    """The end of the name of the class of `transformers` that it is alone."""
    names: Mapping[str, str]
    """How the names of its tensors begin, and how in this class; the first that fits counts."""
    others: frozenset[str]
    """The first words of the names of the tensors of others, perhaps with `model.` in front."""

    def own(self, name: str) -> str:
        """The name of a tensor or module in the class of the part alone."""
        for old, new in self.names.items():
            if name.startswith(old):
                return f"{new}{name.removeprefix(old)}"
        return name

    def other(self, name: str) -> str | None:
        """How the name of a tensor begins that belongs to another part; None for others."""
        base = "model." if name.startswith("model.") else ""
        word = name.removeprefix(base).partition(".")[0]
        return f"{base}{word}" if word in self.others else None


class Vocabulary(BaseModel):
    """The words of configurations."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    activations: Mapping[str, str] = Field(default_factory=dict[str, str])
    """The zoo's name of each activation."""
    rope: Mapping[str, RopeKind] = Field(default_factory=dict[str, RopeKind])
    """The kind of position for each `rope_type`."""
    sentence: SentenceWords | None = None
    """The words of sentence-transformers."""
    parts: Mapping[str, PartWords] = Field(default_factory=dict[str, PartWords])
    """The parts of checkpoints of several models that are models alone."""
    inert: frozenset[str] = frozenset()
    """Keys of configurations that do not affect the results of a model in evaluation."""

    def activation(self, name: Any) -> str:
        """Return the zoo's name of an activation. Raises `ExpressionError` if it is not known."""
        if name not in self.activations:
            raise ExpressionError(f"the activation {quoted(name)} is not known")
        return self.activations[name]

    def rotary(
        self,
        config: Mapping[str, Any],
        layer_type: str | None = None,
        *,
        theta: float | None = None,
        fraction: float | None = None,
        interleaved: bool = False,
        default: Mapping[str, Any] | None = None,
        reads: Collection[str] = (),
    ) -> dict[str, Any] | None:
        """Return the table of rotary positions that a configuration describes.

        Configurations have `rope_parameters`, for each type of layer or for all, or, in older
        files, `rope_theta` and `rope_scaling`.

        Args:
            config: the configuration, or a table of it that holds one.
            layer_type: the key of `rope_parameters` to use, if they differ between layers.
            theta: the base if the configuration states none.
            fraction: the share of a head that is rotated if the table has no
                `partial_rotary_factor`; without `fraction` all of a head is rotated, whatever the
                table says.
            interleaved: whether pairs are neighbours.
            default: used if the configuration has neither `rope_parameters` nor `rope_scaling`.
            reads: settings that the family itself reads.

        Returns:
            The table, or None if the configuration says that these layers have no rotation.

        Raises:
            ExpressionError: the kind is not known, a setting is malformed or never read, or
                `rope_parameters` and `rope_scaling` differ.
        """
        stated, older = config.get("rope_parameters"), config.get("rope_scaling")
        by_layers = layer_type is not None and bool(stated)
        if stated and layer_type is not None:
            if layer_type not in stated:
                raise ExpressionError(f"`rope_parameters` says nothing of {quoted(layer_type)}")
            stated = stated[layer_type]
            if stated is None:
                return None
        tables: list[dict[str, Any]] = []
        for scaling in [table for table in (stated, older) if table] or [default or {}]:
            table = self._scaled(scaling, config, by_layers=by_layers)
            if unread := scaling.keys() - self._known - self.inert - set(reads):
                key = min(unread)
                raise ExpressionError(
                    f"`{key}`, of the settings of rotary positions, is {scaling[key]!r}, "
                    "and nothing reads it"
                )
            base = scaling.get("rope_theta") or config.get("rope_theta") or theta
            table["base"] = float(number(base or config.get("default_theta") or 10000.0))
            share = 1.0 if fraction is None else scaling.get("partial_rotary_factor", fraction)
            if share != 1.0:
                table["fraction"] = float(number(share))
            if interleaved:
                table["pairs"] = "interleaved"
            tables.append(table)
        if tables[0] != tables[-1]:
            raise ExpressionError(
                "`rope_parameters` and `rope_scaling` describe different positions; keep one"
            )
        return tables[0]

    @cached_property
    def _known(self) -> frozenset[str]:
        """All settings of rotary positions that are read, by any kind."""
        by_kinds = (kind.fields.values() for kind in self.rope.values())
        return frozenset(_KNOWN_SETTINGS).union(*by_kinds)

    def _scaled(
        self, scaling: Any, config: Mapping[str, Any], *, by_layers: bool
    ) -> dict[str, Any]:
        """Return the table of the kind of rotary positions that a table of settings names."""
        if not isinstance(scaling, Mapping):
            raise ExpressionError(
                f"the settings of rotary positions are {quoted(scaling)}, no table"
            )
        name = scaling.get("rope_type", scaling.get("type", "default"))
        if name not in self.rope:
            known = ", ".join(sorted(self.rope))
            raise ExpressionError(f"the rope_type {quoted(name)} is not known; there are: {known}")
        kind, settings = self.rope[name], _settings(scaling, config, by_layers=by_layers)
        fields = {field: settings[key] for field, key in kind.fields.items() if key in settings}
        return {"kind": kind.kind, **fields}


def _settings(
    scaling: Mapping[str, Any], config: Mapping[str, Any], *, by_layers: bool
) -> dict[str, Any]:
    """Return the settings of a kind of scaling, with those that are derived from others and from
    the rest of the configuration, as in transformers."""
    longest = config.get("max_position_embeddings")
    # With one table for all layers, the key outside the table takes precedence over the one inside.
    outside = None if by_layers else config.get("original_max_position_embeddings")
    original = outside or scaling.get("original_max_position_embeddings")
    settings = {
        "partial_rotary_factor": config.get("partial_rotary_factor"),
        **scaling,
        "max_position_embeddings": longest,
        "original_max_position_embeddings": original or longest,
    }
    extension = scaling.get("factor")
    if extension is None and original and longest:
        extension = longest / original
    settings["extension"] = extension
    scales = [scaling.get(name) for name in ("mscale", "mscale_all_dim")]
    if scaling.get("attention_factor") is None and extension is not None and all(scales):
        over, under = (magnitude(extension, scale) for scale in scales)
        settings["attention_factor"] = over / under
    return {
        name: float(value) if type(value) is int and not name.endswith("_embeddings") else value
        for name, value in settings.items()
        if value is not None
    }


def number(value: float | str) -> float:
    """Return a number. Raises `TypeError` for strings, which `int` and `float` would parse."""
    if isinstance(value, str):
        raise TypeError(f"{value!r} is no number")
    return value


def magnitude(factor: float, scale: Any = 1.0) -> float:
    """Return the attention scale of YaRN (Peng et al. 2023, arXiv:2309.00071, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * float(scale) * math.log(factor) + 1.0


def read_vocabulary(folder: Path) -> Vocabulary:
    """Read the vocabulary of a folder of families. Raises `SpecError` if it is malformed."""
    document = read_document(folder / FILE_NAME)
    if document.problems:
        raise SpecError(document.problems)
    try:
        return Vocabulary.model_validate(document.data)
    except ValidationError as error:
        raise SpecError(_problem(document, wrong) for wrong in error.errors()) from None


def _problem(document: Document, wrong: ErrorDetails) -> Problem:
    key, kind = quoted(dotted(wrong["loc"])), wrong["type"]
    place = document.place(wrong["loc"], value=kind != "extra_forbidden")
    return Problem(f"{key} {_KEYS.get(kind) or value_message(wrong)}", place)
