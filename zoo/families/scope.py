"""The values of the names and functions in a family's expressions, for one checkpoint."""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

from zoo.document import Document, KeyPath
from zoo.errors import Place, Problem, SpecError
from zoo.families.config import Config
from zoo.families.expression import MAX_SIZE, ExpressionError, UnknownNameError, parse
from zoo.families.family import Family
from zoo.families.pattern import PREFIX
from zoo.families.rotary import magnitude, number, rotary
from zoo.families.vocabulary import Vocabulary
from zoo.resolving.tables import Leaf
from zoo.wording import did_you_mean

_MAX_RANGE = 100_000


class Scope(Mapping[str, Any]):
    """The names that expressions read: a family's named values, then the configuration's keys.

    `config` is the configuration itself, `architecture` the class that saved the checkpoint, or
    "". Named values are evaluated at first use.
    """

    def __init__(
        self, family: Family, config: Config, keys: frozenset[str], vocabulary: Vocabulary
    ) -> None:
        self.family = family
        self.config = config
        self.prefix = next(
            (p for p in family.prefixes if not p or any(key.startswith(p) for key in keys)), ""
        )
        self._keys = keys
        classes = config.get("architectures")
        architecture = classes[0] if isinstance(classes, list) and classes else ""
        self._known: dict[str, Any] = {"config": config, "architecture": architecture}
        self._open: list[str] = []
        self._read_by: dict[str, frozenset[str]] = {}
        self.functions = self._functions(vocabulary)

    def __getitem__(self, name: str) -> Any:
        if name in self._known:
            self.config.read.update(self._read_by.get(name, ()))
            return self._known[name]
        if name not in self.family.let:
            return self.config[name]
        if name in self._open:
            raise ExpressionError(f"`{name}` is made of itself: {' -> '.join(self._open)}")
        self._open.append(name)
        try:
            with self.reading() as keys:
                self._known[name] = self.value(self.family.let[name])
        finally:
            self._open.pop()
        self._read_by[name] = frozenset(keys)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self.config, **self.family.let, **self._known})

    def __len__(self) -> int:
        return len({**self.config, **self.family.let, **self._known})

    def generation(self) -> dict[str, Any]:
        """Return the settings of generation that the family knows. Raises `SpecError` if an
        expression has no value."""
        return {key: self.value(leaf) for key, leaf in self.family.generation.items()}

    def keep(self, other: Scope) -> None:
        """Keep the named values of another scope of this family, for tensors of the same names, if
        they were made without keys that its configuration states otherwise."""
        changed = self.config.stated_otherwise(other.config)
        for name, keys in other._read_by.items():
            if changed.isdisjoint(keys):
                self._known[name], self._read_by[name] = other._known[name], keys

    @contextmanager
    def reading(self) -> Generator[set[str]]:
        """Yield the set of keys of the configuration that the block reads, including those that
        named values read."""
        outer, self.config.read = self.config.read, set()
        try:
            yield self.config.read
        finally:
            outer |= self.config.read
            self.config.read = outer

    def stated(self, keys: Collection[str]) -> Place | None:
        """Return the place in the configuration's file of the one of these `keys` that it states;
        None if it states several or none."""
        places = [self.config.file.place(key) for key in keys if key in self.config.file.data]
        return places[0] if len(places) == 1 and places[0].line is not None else None

    def value(self, leaf: Leaf) -> Any:
        """Return a value of a family file with its expressions evaluated.

        Raises:
            SpecError: an expression has no value; the error has its place and, if it has read one
                key of the configuration, the place of the key.
        """
        value = leaf.value
        if isinstance(value, dict):
            return {key: self.value(_inside(leaf, key, inner)) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(_inside(leaf, i, item)) for i, item in enumerate(value)]
        if isinstance(value, str) and value.startswith("="):
            return self.evaluate(value[1:], leaf.document, leaf.path)
        return value

    def evaluate(self, source: str, document: Document, path: KeyPath) -> Any:
        """Return the value of the expression at `path`. Raises as `value`."""
        keys: Collection[str] = ()
        try:
            with self.reading() as keys:
                return parse(source, self.functions).value(self, self.functions)
        except UnknownNameError as error:
            place = document.place(path, value=True)
            raise SpecError(
                f"{self.config.file.path} has no `{error.name}`, which the family "
                f"`{self.family.name}` needs",
                place,
                did_you_mean(error.name, self.config),
            ) from None
        except ExpressionError as error:
            by, stated = document.place(path, value=True), self.stated(keys)
            related = (("read by the family", by),) if stated else ()
            raise SpecError(Problem(str(error), stated or by, related=related)) from None

    def _functions(self, vocabulary: Vocabulary) -> dict[str, Callable[..., Any]]:
        return {
            "activation": vocabulary.activation,
            "rope": lambda layer_type=None, of=None, **settings: rotary(
                vocabulary, _or(of, self.config), layer_type, **settings
            ),
            "yarn_magnitude": magnitude,
            "present": self._present,
            "get": lambda key, default=None: _or(self.config.get(key), default),
            "range": _range,
            "by_layer": lambda value, n: (
                value if isinstance(value, list) else [value for _ in _range(n)]
            ),
            "join": _join,
            "index": lambda items, item: items.index(item),
            "sqrt": math.sqrt,
            "log": math.log,
            "exp": math.exp,
            "int": lambda value: int(number(value)),
            "float": lambda value: float(number(value)),
            "refuse": _refuse,
            "round": lambda value: round(value),
            **{f.__name__: f for f in (len, str, min, max, sum, abs)},
        }

    def _present(self, name: str) -> bool:
        """Return whether the checkpoint has a tensor of that name; `*` matches any text."""
        pattern = glob.escape(name.replace(PREFIX, self.prefix)).replace("[*]", "*")
        return any(fnmatchcase(key, pattern) for key in self._keys)


def _inside(leaf: Leaf, key: str | int, value: Any) -> Leaf:
    return Leaf(value, leaf.document, (*leaf.path, key))


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _refuse(reason: str) -> None:
    raise ExpressionError(reason)


def _join(between: str, texts: list[str]) -> str:
    if len(between) * len(texts) > MAX_SIZE:
        raise ValueError(f"longer than {MAX_SIZE:,}")
    return between.join(texts)


def _range(*bounds: int) -> list[int]:
    numbers = range(*bounds)
    if len(numbers) > _MAX_RANGE:
        raise ValueError(f"more than {_MAX_RANGE:,} numbers")
    return list(numbers)
