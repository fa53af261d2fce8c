"""Make the spec of a model from a family and a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from zoo.document import Document, KeyPath
from zoo.errors import Place, Problem, ZooError
from zoo.families.scope import Scope
from zoo.reading import spec_of
from zoo.registry import Registry
from zoo.resolving.tables import PER_LAYER, Leaf, Table
from zoo.spec import FORMAT, ModelSpec


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
    return Made(scope, name, changes).spec(registry)


class Line(NamedTuple):
    """A line of a family's spec: the keys of the configuration that its values are made of, and the
    keys of the spec that these are for."""

    keys: set[str]
    made: set[str]


def lines_of(scope: Scope) -> dict[str, Line]:
    """The lines of a family's spec, by file and number. Raises `SpecError` if an expression has no
    value."""
    found: dict[str, Line] = {}
    pending: list[Table | Leaf] = [scope.family.spec]
    while pending:
        value = pending.pop()
        if isinstance(value, Table):
            pending += value.entries.values()
            continue
        with scope.reading() as keys:
            scope.value(value)
        line = found.setdefault(str(value.place()._replace(column=None)), Line(set(), set()))
        line.keys.update(keys)
        line.made.add(str([key for key in value.path if key != PER_LAYER][-1]))
    return found


class Made(Document):
    """The data of the spec that a family makes of a configuration, whose places are those of the
    family file. The arguments are those of `family_spec`.

    Raises:
        SpecError: an expression has no value.
    """

    def __init__(self, scope: Scope, name: str, changes: Mapping[str, Any] | None) -> None:
        self._table = scope.family.spec
        self._stated: dict[Place, Place] = {}
        self._config = Place(str(scope.config.file.path))
        made = cast("dict[str, Any]", _evaluated(self._table, scope, self._stated))
        data = {"format": FORMAT, "name": name, **made, **(changes or {})}
        super().__init__(str(scope.family.path), data)

    def place(self, path: KeyPath, *, value: bool = False) -> Place:
        found: Table | Leaf = self._table
        for key in path:
            if isinstance(found, Leaf) or key not in found.entries:
                break
            found = found.entries[str(key)]
        return found.place(value=value)

    def spec(self, registry: Registry) -> ModelSpec:
        """Return the spec. Raises `SpecError` as `family_spec`."""
        try:
            return spec_of(self, registry)
        except ZooError as error:
            raise type(error)(map(self._traced, error.problems)) from None

    def _traced(self, problem: Problem) -> Problem:
        """Move a problem to the place where the configuration states the value."""
        place = problem.place
        if place is not None and place in self._stated:
            related = (*problem.related, ("read by the family", place))
            return problem._replace(place=self._stated[place], related=related)
        related = (*problem.related, ("made for this configuration", self._config))
        return problem._replace(related=related)


def _evaluated(value: Table | Leaf, scope: Scope, stated: dict[Place, Place]) -> Any:
    """Return the data of a table with its expressions evaluated; `none` values are left out.

    For values that are read from one key of the configuration, the place of that key is added to
    `stated`, by the place in the family file.
    """
    if isinstance(value, Leaf):
        with scope.reading() as keys:
            made = scope.value(value)
        if place := scope.stated(keys):
            stated[value.place(value=True)] = place
        return _without_none(made, value.path[-1])
    entries = {key: _evaluated(entry, scope, stated) for key, entry in value.entries.items()}
    return {key: entry for key, entry in entries.items() if entry is not None}


def _without_none(value: Any, key: object = None) -> Any:
    """Leave out the values that are `none`. In a list of values for each layer it has a meaning:
    the layer does not have it."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: _without_none(entry, key) for key, entry in items if entry is not None}
    if isinstance(value, list | tuple) and key == PER_LAYER:
        return ["none" if entry is None else _without_none(entry) for entry in value]
    return value
