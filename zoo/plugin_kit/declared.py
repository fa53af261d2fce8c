"""The promise of blocks and builders to pass on what their parts declare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zoo.component import Component, Slot, fields_of
from zoo.errors import SpecError
from zoo.plugin_kit.hosts import MIXING, MIXING_KIND, FewPositions, Host, put
from zoo.plugin_kit.report import PromiseError
from zoo.purpose import Generation
from zoo.reading import read_spec
from zoo.registry import Registry
from zoo.slots import Position
from zoo.spec import ModelSpec
from zoo.wording import dotted


def declared(spec: ModelSpec, registry: Registry) -> None:
    """With parts that mix tokens, a block or a builder says that it needs all tokens at once, that
    a token sees later ones, and that a step of generation cannot be recorded; a builder also how
    many positions there are, and that they change."""
    for slot in MIXING:
        data = spec.to_dict()
        paths = [path for path, of_slot in _slots_in(spec.model) if of_slot == slot]
        for path in paths:
            put(data, path, {"kind": MIXING_KIND})
        try:
            changed = read_spec(data, registry=registry).model
        except SpecError:
            continue  # refused
        subject: Any = changed.part if isinstance(changed, Host) else changed.generation
        if not paths or subject is None:
            continue  # it has no such part, or does not generate
        if slot == "position":
            if not isinstance(changed, Host):  # a block is asked nothing of its own ones
                _check_positions(subject)
            continue
        names = [path[1:] if isinstance(changed, Host) else path for path in paths]
        told = f"with {' and '.join(f'`{dotted(name)}`' for name in names)} that"
        if not subject.not_incremental:
            raise _silent(f"{told} need all tokens at once", "not_incremental", "generates wrongly")
        if slot != "attention" and not subject.looks_ahead:
            wrong = "is trained and measured on tokens that it sees"
            raise _silent(f"{told} see later tokens", "looks_ahead", wrong)
        if slot != "embedding" and not subject.not_recordable:
            wrong = "is recorded as a CUDA graph that generates wrongly"
            raise _silent(f"{told} cannot be recorded", "not_recordable", wrong)


def _check_positions(found: Generation) -> None:
    """Raises PromiseError unless the generation of a builder passes on what the positions inside
    say, which are those of `zoo.plugin_kit.hosts.FewPositions`."""
    ends = {"longest": found.longest}
    if found.source_vocab is not None:
        ends["longest_source"] = found.longest_source
    for name, end in ends.items():
        if end is None or end > FewPositions.n_positions:
            raise PromiseError(
                f"with {FewPositions.n_positions} positions, `{name}` is {end}, so that a longer "
                "text is not refused",
                help=f"`Generation(..., {name}=)` passes on the `longest` of the stack's positions",
            )
    if not found.changes(1, 2):
        raise PromiseError(
            "with positions that change with the number of tokens, `changes` says that they do "
            "not, so that the model generates wrongly",
            help="`Generation(..., changes=)` passes on that of the stack, `self.stack.changes`",
        )


def _silent(told: str, name: str, wrong: str) -> PromiseError:
    return PromiseError(
        f"{told}, `{name}` is empty, so that the model {wrong}",
        help=f"a block's property `{name}`, and a builder's `Generation(..., {name}=)`, collect "
        "what the parts inside say of themselves",
    )


def _slots_in(
    component: Component, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the paths of the components inside whose slots `MIXING` has, with the slots."""
    for name, mark in fields_of(type(component)).items():
        inner = getattr(component, name)
        if not isinstance(inner, Component):
            continue
        if isinstance(mark, Slot) and mark.slot in MIXING:
            # Where there are no positions, the attention may take none.
            if not (isinstance(inner, Position) and inner.absent):
                yield (*path, name), mark.slot
        else:
            yield from _slots_in(inner, (*path, name))
