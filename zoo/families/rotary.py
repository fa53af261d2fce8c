"""The settings of rotary positions in configurations, whose kinds the vocabulary names."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from zoo.families.expression import ExpressionError
from zoo.families.vocabulary import Vocabulary
from zoo.wording import quoted

ROPE = "rope_parameters"
"""The key of a configuration that holds the settings of rotary positions."""
LAYER_TYPES = "layer_types"
"""The key of the words for the layers, by which these settings may differ."""
ROTARY_KEYS = frozenset(
    {
        *(ROPE, "rope_scaling", "rope_theta", "partial_rotary_factor"),
        *("max_position_embeddings", "original_max_position_embeddings"),
    }
)
"""The keys of a configuration that `rope()` reads."""
_KNOWN_SETTINGS = (
    *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor"),
    *("original_max_position_embeddings", "mscale", "mscale_all_dim"),
)
"""The settings of rotary positions that this module reads."""


def rotary(
    vocabulary: Vocabulary,
    config: Mapping[str, Any],
    layer_type: str | None = None,
    *,
    theta: float | None = None,
    fraction: float | None = None,
    interleaved: bool = False,
    beside: bool = True,
    default: Mapping[str, Any] | None = None,
    reads: Collection[str] = (),
) -> dict[str, Any] | None:
    """Return the table of rotary positions that a configuration describes.

    Configurations have `rope_parameters`, for each type of layer or for all, or, in older
    files, `rope_theta` and `rope_scaling`.

    Args:
        vocabulary: the kinds of positions.
        config: the configuration, or a table of it that holds one.
        layer_type: the key of `rope_parameters` to use, if they differ between layers.
        theta: the base if the configuration states none.
        fraction: the share of a head that is rotated if the table has no
            `partial_rotary_factor`; without `fraction` all of a head is rotated, whatever the
            table says.
        interleaved: whether pairs are neighbours.
        beside: whether a `rope_theta` and a `partial_rotary_factor` beside a table without them
            count.
        default: used if the configuration has neither `rope_parameters` nor `rope_scaling`. An
            empty table is one.
        reads: settings that the family itself reads.

    Returns:
        The table, or None if the configuration says that these layers have no rotation.

    Raises:
        ExpressionError: the kind is not known, a setting is malformed or never read,
            `rope_parameters` and `rope_scaling` differ, or transformers would not look at a kind.
    """
    stated, older = config.get(ROPE), config.get("rope_scaling")
    by_layers = layer_type is not None and bool(stated)
    if stated and layer_type is not None:
        if layer_type not in stated:
            raise ExpressionError(f"`rope_parameters` says nothing of {quoted(layer_type)}")
        stated = stated[layer_type]
        if stated is None:
            return None
    # The usual tables of types of layers have a `rope_type`; `rope_scaling` is merged with them.
    if (
        layer_type is not None
        and isinstance(older, Mapping)
        and "rope_type" not in older
        and older.get("type", "default") != "default"
    ):
        raise ExpressionError(
            "`rope_scaling` has a `type`, which transformers does not look at where positions "
            "differ between layers; call it `rope_type` if it is to count"
        )
    tables: list[dict[str, Any]] = []
    usual = (default or {}) if stated is None else stated
    for scaling in [table for table in (stated, older) if table] or [usual]:
        table = _scaled(vocabulary, scaling, config, by_layers=by_layers, beside=beside)
        if unread := scaling.keys() - _known(vocabulary) - vocabulary.inert - set(reads):
            key = min(unread)
            raise ExpressionError(
                f"`{key}`, of the settings of rotary positions, is {scaling[key]!r}, "
                "and nothing reads it"
            )
        own = config.get("rope_theta") if beside else None
        bases = (scaling.get("rope_theta"), own, theta, config.get("default_theta"), 10000.0)
        table["base"] = float(number(next(base for base in bases if base is not None)))
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


def rope_of(vocabulary: Vocabulary, position: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings that describe a table of rotary positions, as `rotary` reads them; None
    if there is no word for its kind."""
    name = next((one for one, k in vocabulary.rope.items() if k.kind == position.get("kind")), None)
    if name is None:
        return None
    settings = {"rope_type": name, "rope_theta": position["base"]}
    if position["fraction"] != 1.0:
        settings["partial_rotary_factor"] = position["fraction"]
    for field, key in vocabulary.rope[name].fields.items():
        if key != "max_position_embeddings":  # which a configuration states beside them
            settings["factor" if key == "extension" else key] = position[field]
    return settings


def _known(vocabulary: Vocabulary) -> frozenset[str]:
    """All settings of rotary positions that are read, by any kind."""
    by_kinds = (kind.fields.values() for kind in vocabulary.rope.values())
    return frozenset(_KNOWN_SETTINGS).union(*by_kinds)


def _scaled(
    vocabulary: Vocabulary,
    scaling: Any,
    config: Mapping[str, Any],
    *,
    by_layers: bool,
    beside: bool,
) -> dict[str, Any]:
    """Return the table of the kind of rotary positions that a table of settings names."""
    if not isinstance(scaling, Mapping):
        raise ExpressionError(f"the settings of rotary positions are {quoted(scaling)}, no table")
    name = scaling.get("rope_type", scaling.get("type", "default"))
    if name not in vocabulary.rope:
        known = ", ".join(sorted(vocabulary.rope))
        raise ExpressionError(f"the rope_type {quoted(name)} is not known; there are: {known}")
    kind = vocabulary.rope[name]
    settings = _settings(scaling, config, by_layers=by_layers, beside=beside)
    fields = {field: settings[key] for field, key in kind.fields.items() if key in settings}
    return {"kind": kind.kind, **fields}


def _settings(
    scaling: Mapping[str, Any], config: Mapping[str, Any], *, by_layers: bool, beside: bool
) -> dict[str, Any]:
    """Return the settings of a kind of scaling, with those that are derived from others and from
    the rest of the configuration, as in transformers."""
    longest = config.get("max_position_embeddings")
    # With one table for all layers, the key outside the table takes precedence over the one inside.
    outside = None if by_layers else config.get("original_max_position_embeddings")
    original = outside or scaling.get("original_max_position_embeddings")
    settings = {
        "partial_rotary_factor": config.get("partial_rotary_factor") if beside else None,
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
