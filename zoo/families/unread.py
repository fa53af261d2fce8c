"""What a configuration states and nothing reads, which may change the model."""

from __future__ import annotations

from collections.abc import Iterator

from zoo.errors import Problem, WeightsError
from zoo.families.config import not_read
from zoo.families.family import Family
from zoo.families.registered import Families
from zoo.families.rotary import ROTARY_KEYS
from zoo.families.scope import Scope


def check_read(scope: Scope, families: Families, *others: str) -> None:
    """Raise `WeightsError` if a configuration states what nothing has read, once its spec and the
    rules of its family are made: neither these nor who knows the `others` among its keys."""
    inert = families.vocabulary.inert | scope.family.ignores | _known_keys(scope.family)
    unread = scope.config.unread(inert.union(others))
    if unread := [*unread, *_unread_inside(scope, families, inert)]:
        raise WeightsError(unread)


def _unread_inside(scope: Scope, families: Families, inert: frozenset[str]) -> Iterator[Problem]:
    """Yield the values of the tables of inner models, such as `text_config`, that differ from the
    defaults of their model types and that no expression of the family reads. Null is a default."""
    file = scope.config.file
    for key, table in file.data.items():
        type_ = table.get("model_type") if isinstance(table, dict) else None
        if not isinstance(type_, str):
            continue
        defaults, own = families.defaults(type_), families.by_model_type.get(type_)
        known = inert | scope.family.fields | (families.family(own).ignores if own else frozenset())
        for name, value in table.items():
            names = {name, defaults.spellings.get(name, name)}
            usual = defaults.values.get(name)
            if name in defaults.values and value not in (None, usual) and not names & known:
                yield not_read(f"`{name}` in `{key}`", value, usual, file.place(key, name))


def _known_keys(family: Family) -> frozenset[str]:
    """Return the keys of configurations of which a family knows the meaning, by its expressions or
    through `rope()`. It does not read each for each checkpoint: some have no use for it."""
    names, keys = family.needed
    return keys | ROTARY_KEYS if "rope" in names else keys
