"""Which layers of a stack attend to the keys and values of which other one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from zoo.component import contradiction
from zoo.slots import KeyForm, Position
from zoo_components.sharing import Alike


class _Layer(NamedTuple):
    """A layer with keys and values, its own or those of another: their form, the schemes by which
    they are rotated, and its number. `at` leads to its block, in the keys of the stack."""

    number: int
    form: KeyForm
    rotated: tuple[Position | None, ...]
    at: str


def key_sources(layers: Sequence[Alike], rules: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return, by the numbers of the layers that attend to the keys and values of another one, the
    numbers of those. `rules` holds the numbers of the layers of each item of the stack's `layers`.

    Raises:
        PydanticCustomError: there is no layer before one of them that has what it needs.
    """
    attentions = [group.block.self_attention for group in layers]
    if all(attention is None or attention.needs_keys is None for attention in attentions):
        return {}  # as in most stacks, of which no layer is looked at
    group_of = {layer: group for group, alike in enumerate(layers) for layer in alike.at}
    rule_of = {layer: rule for rule, numbers in enumerate(rules) for layer in numbers}
    found: dict[int, int] = {}
    sharing: list[_Layer] = []
    choosing: int | None = None
    for number in sorted(group_of):
        group = group_of[number]
        attention = attentions[group]
        if attention is None:
            continue
        form = attention.offers_keys or attention.needs_keys
        if form is None:
            continue
        at = f"layers.{rule_of[number]}.block" if number in rule_of else "block"
        if form == "chosen":
            if attention.needs_keys is None:
                choosing = number
            elif choosing is None:
                raise contradiction(
                    f"layer {number} attends to the keys that a layer before it chose, and there "
                    "is none that chooses keys",
                    f"{at}.self_attn.kind",
                )
            else:
                found[number] = choosing
            continue
        layer = _Layer(number, form, _rotated(layers[group]), at)
        if attention.needs_keys is None:
            sharing.append(layer)
        else:
            found[number] = _source(layer, sharing).number
    return found


def _rotated(group: Alike) -> tuple[Position | None, ...]:
    """The schemes by which queries and keys are rotated, the stack's and the layer's own, without
    the heads that they are for."""
    own = group.block.own_position
    schemes = (group.position, own if own is not None and own.rotates else None)
    heads = {"n_heads": None, "head_dim": None}
    return tuple(scheme and scheme.model_copy(update=heads) for scheme in schemes)


def _source(layer: _Layer, sharing: Sequence[_Layer]) -> _Layer:
    """Return the last of the earlier layers whose keys and values this one can attend to."""
    told = f"layer {layer.number} attends to the keys and values of a layer before it"
    kind = f"{layer.at}.self_attn.kind"
    if not sharing:
        raise contradiction(f"{told}, and there is none with keys and values to share", kind)
    as_far = [other for other in sharing if other.form.reach == layer.form.reach]
    if not as_far:
        limits = [f"`{name} = {json.dumps(value)}`" for name, value in layer.form.reach]
        raise contradiction(
            f"{told}, and there is none that sees as far: this one has "
            f"{' and '.join(limits) or 'no `window` and no `chunk`'}",
            kind,
            *(f"{layer.at}.self_attn.{name}" for name, _ in layer.form.reach),
            *(f"{sharing[-1].at}.self_attn.{name}" for name, _ in sharing[-1].form.reach),
        )
    alike = [other for other in as_far if other.rotated == layer.rotated]
    if not alike:
        raise contradiction(
            f"{told}, and none that sees as far has the same positions, by which keys are rotated",
            kind,
            *(f"{one.at.removesuffix('block')}position.kind" for one in (layer, as_far[-1])),
        )
    source = alike[-1]
    for name in ("n_kv_heads", "head_dim", "v_head_dim"):
        own, theirs = getattr(layer.form, name), getattr(source.form, name)
        if own != theirs:
            raise contradiction(
                f"layer {layer.number} attends to the keys and values of layer {source.number}, "
                f"and has {name} = {own}, not {theirs} as they have",
                kind,
                f"{layer.at}.self_attn.{name}",
                f"{source.at}.self_attn.{name}",
            )
    return source
