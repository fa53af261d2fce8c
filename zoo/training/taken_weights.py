"""The weights that a model takes from a saved model with another head."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from zoo.spec import ModelSpec
from zoo.training.frozen import begun_anew
from zoo.training.recipe import Recipe
from zoo.weights.file import Header
from zoo.wording import PATH, first_of, quoted

_SHOWN = 4
"""The most names of weights in a message."""


def taken_weights(recipe: Recipe, spec: ModelSpec, header: Header) -> Mapping[str, str]:
    """The names of the weights that are taken from a saved model: maps the name under which the
    spec stores a weight to the one under which the saved model does.

    Each weight that does not begin anew (`new` in the recipe) is taken from the one of the same
    name. It must be there, have the same shape, and not be of a head of another kind, in which a
    name means something else.

    Raises:
        TrainingError: a weight that does not begin anew has none to be taken from; or a pattern of
            `new` is for no weight.
    """
    new = begun_anew(recipe, spec)
    stored_as = {name: name for name in header.records} | header.ties
    others = _other_kinds(spec.to_dict(), header.spec)
    found: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for name, tensor in spec.tensors.items():
        if name in new:
            continue
        names = [one for one in (name, *spec.aliases.get(name, ())) if one in stored_as]
        if not names:
            wrong[name] = "is not there"
        elif (top := name.partition(".")[0]) in others:
            wrong[name] = f"is of another kind of `{top}` there"
        elif (shape := header.records[stored_as[names[0]]].shape) != tensor.shape:
            wrong[name] = f"is {list(shape)} there, and {list(tensor.shape)} in {spec.name}"
        else:
            found[name] = stored_as[names[0]]
    if wrong:
        told = first_of([f"`{name}` {why}" for name, why in wrong.items()], _SHOWN)
        raise recipe.error(
            f"not all weights of {spec.name} can be taken from "
            f"{quoted(recipe.head.weights, PATH)}: {'; '.join(told)}",
            "weights",
            help=f"to let them begin anew, state `new = {_list(patterns(wrong, found))}`",
        )
    return found


def notes_on_unused(name: str, header: Header, taken: Mapping[str, str]) -> tuple[str, ...]:
    """A note on the weights of the saved model `name` that are not taken, if there are any."""
    used = set(taken.values())
    unused = [one for one in header.records if one not in used]
    if not unused:
        return ()
    return (f"not taken from {quoted(name)}: {', '.join(patterns(unused, used))}",)


def patterns(names: Collection[str], others: Collection[str]) -> list[str]:
    """The shortest patterns for these names and none of `others`: a module as `head.*`, or a
    name."""
    found: dict[str, None] = {}
    for name in names:
        ends = [end for end, sign in enumerate(name) if sign == "."]
        starts = (name[: end + 1] for end in ends)
        own = (start for start in starts if not any(one.startswith(start) for one in others))
        start = next(own, None)
        found[name if start is None else f"{start}*"] = None
    return list(found)


def _other_kinds(spec: Mapping[str, object], other: Mapping[str, object]) -> set[str]:
    """The tables of two specs that are components of different kinds."""

    def kind(table: object) -> object:
        return table.get("kind") if isinstance(table, dict) else None

    return {name for name in spec.keys() & other.keys() if kind(spec[name]) != kind(other[name])}


def _list(values: Collection[str]) -> str:
    return f"[{', '.join(json.dumps(value) for value in values)}]"
