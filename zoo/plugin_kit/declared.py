"""The promise of blocks and builders to pass on what their parts declare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zoo.component import Component, Slot, fields_of
from zoo.errors import SpecError
from zoo.plugin_kit.driver import PromiseError
from zoo.plugin_kit.hosts import MIXING, MIXING_KIND, Host
from zoo.reading import read_spec
from zoo.registry import Registry
from zoo.spec import ModelSpec
from zoo.wording import dotted


def declared(spec: ModelSpec, registry: Registry) -> None:
    """With parts that mix tokens, a block or a builder says that it needs all tokens at once, that
    a token sees later ones, and that a step of generation cannot be recorded."""
    for slot in MIXING:
        data = spec.to_dict()
        paths = [path for path, of_slot in _slots_in(spec.model) if of_slot == slot]
        for path in paths:
            table: Any = data
            for key in path[:-1]:
                table = table[key]
            table[path[-1]] = {"kind": MIXING_KIND}
        try:
            changed = read_spec(data, registry=registry).model
        except SpecError:
            continue  # refused
        subject: Any = changed.part if isinstance(changed, Host) else changed.generation
        if not paths or subject is None:
            continue  # it has no such part, or does not generate
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


def _silent(told: str, name: str, wrong: str) -> PromiseError:
    return PromiseError(
        f"{told}, `{name}` is empty, so that the model {wrong}\n"
        f"help: a block's property `{name}`, and a builder's `Generation(..., {name}=)`, collect "
        "what the parts inside say of themselves"
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
            yield (*path, name), mark.slot
        else:
            yield from _slots_in(inner, (*path, name))
