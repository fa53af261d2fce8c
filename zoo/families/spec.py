"""Make the spec of a model from a family and a configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, cast

from zoo.document import Document, KeyPath
from zoo.errors import Place, Problem, SpecError, ZooError
from zoo.families.family import PER_LAYER
from zoo.families.scope import Scope
from zoo.reading import spec_of
from zoo.registry import Registry
from zoo.spec import FORMAT, ModelSpec
from zoo.toml.tables import Leaf, Table


def family_spec(
    scope: Scope, name: str, registry: Registry, changes: Mapping[str, Any] | None = None
) -> ModelSpec:
    """Return the spec that a family makes of a configuration.

    Args:
        scope: the family, with the configuration.
        name: the name of the model.
        registry: where the spec's names are looked up.
        changes: values that replace top-level keys of the spec.

    Raises:
        SpecError: an expression has no value, or the spec is wrong; the error has the place in the
            family file and the configuration, with the place of the key if one key states the
            value.
    """
    table = scope.family.spec
    stated: dict[Place, Place] = {}
    data = cast("dict[str, Any]", _evaluated(table, scope, stated))
    try:
        _state_rules(data, table)
        data = {"format": FORMAT, "name": name, **data, **(changes or {})}
        return spec_of(_Made(str(scope.family.path), data, table), registry)
    except ZooError as error:
        file = Place(str(scope.config.file.path))
        raise type(error)(_traced(p, stated, file) for p in error.problems) from None


def _traced(problem: Problem, stated: Mapping[Place, Place], file: Place) -> Problem:
    """Move a problem of a family's spec to the place where the configuration states the value."""
    place = problem.place
    if place is not None and place in stated:
        related = (*problem.related, ("read by the family", place))
        return problem._replace(place=stated[place], related=related)
    return problem._replace(related=(*problem.related, ("made for this configuration", file)))


class _Made(Document):
    """A spec that was made from a family's table: its places are those of the family file."""

    def __init__(self, name: str, data: dict[str, Any], table: Table) -> None:
        super().__init__(name, data)
        self._table = table

    def place(self, path: KeyPath, *, value: bool = False) -> Place:
        found: Table | Leaf = self._table
        for key in path:
            if isinstance(found, Leaf) or key not in found.entries:
                break
            found = found.entries[str(key)]
        return found.place(value=value)


def _evaluated(value: Table | Leaf, scope: Scope, stated: dict[Place, Place]) -> Any:
    """Return the data of a table with its expressions evaluated; `none` values are left out.

    For values that are read from one key of the configuration, the place of that key is added to
    `stated`, by the place in the family file.
    """
    if isinstance(value, Leaf):
        with scope.reading() as keys:
            made = scope.value(value.value, value.document, value.path)
        if place := scope.stated(keys):
            stated[value.place(value=True)] = place
        return _without_none(made)
    entries = {key: _evaluated(entry, scope, stated) for key, entry in value.entries.items()}
    return {key: entry for key, entry in entries.items() if entry is not None}


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        if PER_LAYER in table:  # where `none` has a meaning
            return table
        return {key: _without_none(entry) for key, entry in table.items() if entry is not None}
    return value


def _state_rules(data: dict[str, Any], table: Table) -> None:
    """Replace each value that differs between layers by that of most layers, and add rules for the
    other layers to the `layers` of its stack."""
    for name, stack in data.items():
        found = list(_per_layer(stack, ())) if isinstance(stack, dict) else []
        if not found:
            continue
        n_layers = stack.get("n_layers", data.get("n_layers", len(found[0][1])))
        for path, values in found:
            if len(values) != n_layers or not values:
                message = f"`{name}` has no layers"
                if n_layers:
                    key = ".".join((name, *path))
                    message = f"`{key}` has {len(values)} values for {n_layers} layers"
                raise SpecError(Problem(message, table.entries[name].place()))
        layers = [repr(layer) for layer in zip(*(values for _, values in found), strict=True)]
        (usual, _), *_ = Counter(layers).most_common(1)
        _state(stack, found, layers.index(usual), absent=None)
        rules: list[dict[str, Any]] = []
        for other in dict.fromkeys(layer for layer in layers if layer != usual):
            at = [number for number, layer in enumerate(layers) if layer == other]
            rule: dict[str, Any] = {"at": at}
            _state(rule, found, at[0], absent="none", usual=layers.index(usual))
            rules.append(rule)
        if rules:
            stack["layers"] = rules


_Found = tuple[tuple[str, ...], list[Any]]


def _per_layer(value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[_Found]:
    for key, entry in value.items():
        if isinstance(entry, dict):
            inner = cast("dict[str, Any]", entry)
            if isinstance(inner.get(PER_LAYER), list):
                yield (*path, key), inner[PER_LAYER]
            else:
                yield from _per_layer(inner, (*path, key))


def _state(
    table: dict[str, Any],
    found: list[_Found],
    layer: int,
    *,
    absent: str | None,
    usual: int | None = None,
) -> None:
    """Write the values of `layer` into `table`, except those that it shares with the layer `usual`;
    `absent` is written for values that it does not have."""
    for path, values in found:
        if usual is not None and values[layer] == values[usual]:
            continue
        inner = table
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        value = absent if values[layer] is None else _without_none(values[layer])
        if value is None:
            inner.pop(path[-1], None)
        else:
            inner[path[-1]] = value
