"""What configurations call things that the zoo's components call otherwise: data beside the family
files, in `vocabulary.toml`.

The core knows no component by name. That `gelu_new` is the activation `gelu_tanh`, and that a
`rope_type` of `yarn` is the position kind `rotary_yarn`, stands in that file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zoo.document import read_document
from zoo.errors import Problem, SpecError
from zoo.families.config import Config
from zoo.families.expression import ExpressionError

FILE_NAME = "vocabulary.toml"
_SETTINGS = (
    *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor"),
    *("original_max_position_embeddings", "mscale", "mscale_all_dim"),
)
"""The settings of rotary positions that are read here."""


class RopeKind(BaseModel):
    """A kind of rotary position: its name, and for each field that it takes the setting."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    fields: Mapping[str, str] = Field(default_factory=dict[str, str])


class SentenceWords(BaseModel):
    """What the modules of sentence-transformers are called."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    """The head that pools, and perhaps maps and normalises."""
    pooling: Mapping[str, str]
    """Its name of each way of pooling."""
    activations: Mapping[str, str]
    """Its name of each activation of a dense layer."""


class Vocabulary(BaseModel):
    """The words of configurations."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    activations: Mapping[str, str] = Field(default_factory=dict[str, str])
    """The zoo's name of each activation."""
    rope: Mapping[str, RopeKind] = Field(default_factory=dict[str, RopeKind])
    """The kind of position for each `rope_type`."""
    sentence: SentenceWords | None = None
    """The words of sentence-transformers."""
    inert: frozenset[str] = frozenset()
    """Keys of configurations that change nothing in what a model computes in evaluation."""

    def activation(self, name: Any) -> str:
        """The zoo's name of an activation."""
        if name not in self.activations:
            raise ExpressionError(f"the activation {name!r} is not known")
        return self.activations[name]

    def rotary(
        self,
        config: Config,
        layer_type: str | None = None,
        *,
        theta: float | None = None,
        fraction: float | None = None,
        interleaved: bool = False,
        default: Mapping[str, Any] | None = None,
        reads: Collection[str] = (),
    ) -> dict[str, Any] | None:
        """The table of rotary positions that a configuration describes.

        It is written as `rope_parameters`, for each type of layer or for all, or, in older files,
        as `rope_theta` and `rope_scaling`.

        Args:
            config: the configuration.
            layer_type: the key of `rope_parameters` that counts, if they differ among layers.
            theta: the base where the configuration states none.
            fraction: the share of a head that is rotated where `partial_rotary_factor` in the
                table does not say; without it all of a head is, whatever is written there.
            interleaved: whether pairs are neighbours.
            default: what stands for `rope_parameters` where the configuration has neither these
                nor `rope_scaling`.
            reads: settings that the family itself reads.

        Returns:
            The table, or none if the configuration says that these layers have no rotation.
        """
        stated, older = config.get("rope_parameters"), config.get("rope_scaling")
        by_layers = layer_type is not None and bool(stated)
        if stated and layer_type is not None:
            if layer_type not in stated:
                raise ExpressionError(f"`rope_parameters` says nothing of {layer_type!r}")
            stated = stated[layer_type]
            if stated is None:
                return None
        tables: list[dict[str, Any]] = []
        for scaling in [table for table in (stated, older) if table] or [default or {}]:
            table = self._scaled(scaling, config, by_layers=by_layers)
            if unread := scaling.keys() - self._settings - self.inert - set(reads):
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
    def _settings(self) -> frozenset[str]:
        """The settings of rotary positions that are read, by one kind or another."""
        by_kinds = (kind.fields.values() for kind in self.rope.values())
        return frozenset(_SETTINGS).union(*by_kinds)

    def _scaled(self, scaling: Any, config: Config, *, by_layers: bool) -> dict[str, Any]:
        """The kind of rotary positions that a table of settings names, and its own fields."""
        if not isinstance(scaling, Mapping):
            raise ExpressionError(f"the settings of rotary positions are {scaling!r}, no table")
        name = scaling.get("rope_type", scaling.get("type", "default"))
        if name not in self.rope:
            known = ", ".join(sorted(self.rope))
            raise ExpressionError(f"the rope_type {name!r} is not known; there are: {known}")
        kind, settings = self.rope[name], _settings(scaling, config, by_layers=by_layers)
        fields = {field: settings[key] for field, key in kind.fields.items() if key in settings}
        return {"kind": kind.kind, **fields}


def _settings(scaling: Mapping[str, Any], config: Config, *, by_layers: bool) -> dict[str, Any]:
    """The settings of a kind of scaling, with those that follow from others and from the rest of
    the configuration, as transformers reads them."""
    longest = config.get("max_position_embeddings")
    # Beside one table for all layers, what stands outside of it goes before what is in it.
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
    """The value, which Python would also read from a string."""
    if isinstance(value, str):
        raise TypeError(f"{value!r} is no number")
    return value


def magnitude(factor: float, scale: Any = 1.0) -> float:
    """What YaRN multiplies attention with (Peng et al. 2023, arXiv:2309.00071, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * float(scale) * math.log(factor) + 1.0


def read_vocabulary(folder: Path) -> Vocabulary:
    """The vocabulary of a folder of families. Raises `SpecError` when it is malformed."""
    document = read_document(folder / FILE_NAME)
    try:
        return Vocabulary.model_validate(document.data)
    except ValidationError as error:
        raise SpecError(
            Problem(wrong["msg"], document.place(wrong["loc"], value=True))
            for wrong in error.errors()
        ) from None
