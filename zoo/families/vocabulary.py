"""What configurations call things that the zoo's components call otherwise: data beside the family
files, in `vocabulary.toml`.

The core knows no component by name. That `gelu_new` is the activation `gelu_tanh`, and that a
`rope_type` of `yarn` is the position kind `rotary_yarn`, stands in that file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zoo.document import read_document
from zoo.errors import Problem, SpecError
from zoo.families.config import Config
from zoo.families.expression import ExpressionError

FILE_NAME = "vocabulary.toml"


class RopeKind(BaseModel):
    """A kind of rotary position: its name, and which settings it takes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    fields: tuple[str, ...] = ()


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
    ) -> dict[str, Any] | None:
        """The table of rotary positions that a configuration describes.

        It is written as `rope_parameters`, for each type of layer or for all, or, in older files,
        as `rope_theta`, `rope_scaling` and `partial_rotary_factor`.

        Args:
            config: the configuration.
            layer_type: the key of `rope_parameters` that counts, if they differ among layers.
            theta: the base where the configuration states none.
            fraction: the share of a head that is rotated, where it is not taken from the
                configuration.
            interleaved: whether pairs are neighbours.
            default: what stands for `rope_parameters` where the configuration has neither these
                nor `rope_scaling`.

        Returns:
            The table, or none if the configuration says that these layers have no rotation.
        """
        stated = config.get("rope_parameters")
        if layer_type is not None and isinstance(stated, Mapping) and layer_type in stated:
            stated = stated[layer_type]
            if stated is None:
                return None
        scaling: dict[str, Any] = dict(stated or config.get("rope_scaling") or default or {})
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind not in self.rope:
            known = ", ".join(sorted(self.rope))
            raise ExpressionError(f"the rope_type {kind!r} is not known; there are: {known}")
        base = scaling.get("rope_theta") or config.get("rope_theta") or theta
        share = fraction
        for stated_share in (
            scaling.get("partial_rotary_factor"),
            config.get("partial_rotary_factor"),
        ):
            share = stated_share if share is None else share
        settings = _settings(scaling, config)
        table: dict[str, Any] = {
            "kind": self.rope[kind].kind,
            "base": float(base or config.get("default_theta") or 10000.0),
            **{name: settings[name] for name in self.rope[kind].fields if name in settings},
        }
        if share is not None and share != 1.0:
            table["fraction"] = float(share)
        if interleaved:
            table["pairs"] = "interleaved"
        return table


def _settings(scaling: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The settings of every kind of scaling, under the zoo's names."""
    longest = config.get("max_position_embeddings")
    stated_original = scaling.get(
        "original_max_position_embeddings", config.get("original_max_position_embeddings")
    )
    original = stated_original or longest
    factor = scaling.get("factor")
    if factor is None and stated_original and longest:
        factor = longest / stated_original
    settings = {
        "factor": factor,
        "original_length": original,
        "attention_factor": scaling.get("attention_factor"),
        "short_factors": scaling.get("short_factor"),
        "long_factors": scaling.get("long_factor"),
        **{
            name: scaling.get(name)
            for name in (
                "beta_fast",
                "beta_slow",
                "truncate",
                "low_freq_factor",
                "high_freq_factor",
            )
        },
    }
    if settings["attention_factor"] is None and factor is not None:
        scales = [scaling.get(name) for name in ("mscale", "mscale_all_dim")]
        if all(scales):
            over, under = (magnitude(factor, scale) for scale in scales)
            settings["attention_factor"] = over / under
    return {
        name: float(value) if type(value) is int and name != "original_length" else value
        for name, value in settings.items()
        if value is not None
    }


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
