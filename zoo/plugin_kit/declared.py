"""The promise of blocks and builders to pass on what their parts declare."""

from __future__ import annotations

from typing import Any

from zoo.plugin_kit.hosts import Host
from zoo.plugin_kit.parts import MIXING, MIXING_KIND, FewPositions
from zoo.plugin_kit.passed_on import check_tied, named, slots_in, with_parts
from zoo.plugin_kit.report import PromiseError
from zoo.purpose import Generation
from zoo.registry import Registry
from zoo.slots import Position
from zoo.spec import ModelSpec


def declared(spec: ModelSpec, registry: Registry) -> None:
    """With parts that mix tokens, a block or a builder says that it needs all tokens at once, that
    a token sees later ones, and that a step of generation cannot be recorded; a builder also how
    many positions there are, and that they change. A builder ties what the head says is tied."""
    if not isinstance(spec.model, Host):
        check_tied(spec, registry)
    for slot in MIXING:
        paths = [
            path
            for path, of_slot, inner in slots_in(spec.model, MIXING)
            # Where there are no positions, the attention may take none.
            if of_slot == slot and not (isinstance(inner, Position) and inner.absent)
        ]
        found = with_parts(spec, paths, MIXING_KIND, registry)
        if found is None:
            continue
        changed = found.model
        subject: Any = changed.part if isinstance(changed, Host) else changed.generation
        if subject is None:
            continue  # it does not generate
        if slot == "position":
            if not isinstance(changed, Host):  # a block is asked nothing of its own ones
                _check_positions(subject)
            continue
        told = f"with {named(spec, paths)} that"
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
    say, which are those of `zoo.plugin_kit.parts.FewPositions`."""
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
