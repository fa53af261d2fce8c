"""The rules of a family that hold for one checkpoint, and the names that tensors have by them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from zoo.errors import Place, SpecError
from zoo.families.family import Rule, StatedRule
from zoo.families.pattern import PREFIX, REST, Pattern, PatternError, declared_words
from zoo.families.relayout import Relayout
from zoo.families.scope import Scope
from zoo.spec import ModelSpec


@dataclass(frozen=True)
class ActiveRule:
    """A rule with its expressions evaluated for one checkpoint."""

    rule: Rule
    place: Place
    hf: Pattern
    zoo: tuple[Pattern, ...]
    computed: Pattern | None
    relayout: Relayout

    @cached_property
    def counted(self) -> str | None:
        """The placeholder that numbers the tensors to be stacked, if there is one."""
        own = self._own()
        numbers = [name for name in own if name not in self.hf.words]
        return numbers[0] if numbers else None

    @cached_property
    def spelled(self) -> frozenset[str]:
        """The placeholders whose words are alternative spellings."""
        return frozenset(name for name in self._own() if name in self.hf.words)

    @property
    def takes_rest(self) -> bool:
        """Whether it drops tensors of any name that begins so; of these no other rule speaks."""
        return REST in self.hf.placeholders

    def keys(self, target: str, shape: Sequence[int]) -> list[str]:
        """Return the names in the checkpoint of what becomes a tensor of the zoo of this name and
        shape, of alternative spellings the first; none if the rule does not make it."""
        matches = (end.match(target) for end in self.zoo)
        bindings = next((found for found in matches if found is not None), None)
        if bindings is None:
            return []
        spelled = {name: next(iter(self.hf.words[name].values())) for name in self.spelled}
        known = {**bindings, **spelled}
        if self.counted is None:
            return [self.hf.fill(known)]
        return [self.hf.fill({**known, self.counted: str(n)}) for n in range(shape[0])]

    def _own(self) -> list[str]:
        """Return the placeholders that only the checkpoint's name has."""
        known = frozenset[str]().union(*(target.placeholders for target in self.zoo))
        return sorted(self.hf.placeholders - known) if self.zoo else []


def active_rules(scope: Scope) -> list[ActiveRule]:
    """Return the rules of a family that hold for one checkpoint.

    Raises:
        SpecError: an expression has no value, or a pattern cannot be inverted.
    """
    return [
        _active(stated, scope)
        for stated in scope.family.rules.values()
        if (when := stated.rule.when) is None
        or scope.evaluate(when, stated.document, (*stated.path, "when"))
    ]


def possible_rules(scope: Scope) -> Iterator[ActiveRule]:
    """Yield the rules of a family that hold for some checkpoint with this configuration, whatever
    their `when` says; not those whose names have no value for it."""
    for stated in scope.family.rules.values():
        with suppress(SpecError):
            yield _active(stated, scope)


def _active(stated: StatedRule, scope: Scope) -> ActiveRule:
    rule, place = stated.rule, stated.place
    hf, *targets = (_text(text, stated, scope) for text in (rule.hf, *rule.targets))
    try:
        words = declared_words(hf, *targets)
    except PatternError as error:
        raise SpecError(str(error), place) from None
    computed = None if rule.computed is None else _text(rule.computed, stated, scope)
    active = ActiveRule(
        rule,
        place,
        hf=Pattern(hf, words),
        zoo=tuple(Pattern(target, words, zoo_side=True) for target in targets),
        computed=None if computed is None else Pattern(computed, words, zoo_side=True),
        relayout=Relayout(
            transpose=rule.transpose,
            axes=rule.axes,
            parts=tuple(_size(part, "parts", stated, scope) for part in rule.parts),
            sizes={axis: _size(n, "sizes", stated, scope) for axis, n in rule.sizes.items()},
        ),
    )
    _check_invertible(active)
    return active


def _size(value: int | str, key: str, stated: StatedRule, scope: Scope) -> int:
    """Return a size under this key of a rule, a number or an expression. Raises `SpecError` if the
    expression has another value."""
    path = (*stated.path, key)
    found = scope.evaluate(value, stated.document, path) if isinstance(value, str) else value
    if type(found) is not int or found < 0:
        place = stated.document.place(path)
        raise SpecError(f"`{value}` is {found!r}, which is no size", place)
    return found


def _text(text: str, stated: StatedRule, scope: Scope) -> str:
    """Return a pattern with the checkpoint's prefix inserted and `${expressions}` evaluated."""
    parts = text.replace(PREFIX, scope.prefix).split("${")
    for i, part in enumerate(parts[1:], start=1):
        source, _, rest = part.partition("}")
        parts[i] = f"{scope.evaluate(source, stated.document, stated.path)}{rest}"
    return "".join(parts)


def _check_invertible(active: ActiveRule) -> None:
    """Raise `SpecError` unless the checkpoint's name can be derived from the zoo's."""
    place = active.place
    ends = (*active.zoo, *([active.computed] if active.computed else []))
    own = active.hf.placeholders
    if active.takes_rest and not active.rule.drop:
        message = f"`{{{REST}}}` is no name that can be made again; only a rule with `drop` has it"
        raise SpecError(message, place)
    for end in ends:
        if unknown := end.placeholders - own:
            message = f"`{sorted(unknown)[0]}` is not in the name in the checkpoint"
            raise SpecError(message, place)
    if active.zoo and len({end.placeholders for end in active.zoo}) > 1:
        raise SpecError("the parts have different placeholders", place)
    numbers = own - (ends[0].placeholders if ends else own) - active.spelled
    if active.zoo and len(numbers) > 1:
        message = f"only one number can be stacked, not {', '.join(sorted(numbers))}"
        raise SpecError(message, place)


def checkpoint_names(
    spec: ModelSpec, rules: Iterable[ActiveRule], tensors: Iterable[str]
) -> frozenset[str]:
    """Return the names in a checkpoint of what becomes the stored `tensors` of a model. The first
    rule that makes a tensor counts, and of alternative spellings the first."""
    making = [active for active in rules if not active.rule.copies]
    found: set[str] = set()
    for stored in tensors:
        shape = spec.tensors[stored].shape
        names = (stored, *spec.aliases.get(stored, ()))
        keys = (active.keys(name, shape) for name in names for active in making)
        found.update(next(filter(None, keys), ()))
    return frozenset(found)
