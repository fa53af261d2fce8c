"""The promises of blocks and builders to pass on to their parts what these take, and to say of
themselves what their parts declare."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from zoo.building import build
from zoo.component import Component, Slot, fields_of
from zoo.context import LayerContext, SharedKeys
from zoo.errors import SpecError
from zoo.plugin_kit.drivers import hosted
from zoo.plugin_kit.hosts import BlockHost, Host, put
from zoo.plugin_kit.inputs import LENGTH, ids, streams, turning_at, vectors
from zoo.plugin_kit.part_modules import Hearing, HearingIds
from zoo.plugin_kit.parts import (
    AVERAGING_KIND,
    HEARING_KIND,
    MIXING,
    MIXING_KIND,
    TIED_KIND,
    FewPositions,
)
from zoo.plugin_kit.report import PromiseError
from zoo.plugin_kit.structure import layout
from zoo.position import PositionScheme
from zoo.purpose import Generation
from zoo.reading import read_spec
from zoo.registry import Registry
from zoo.slots import Embedding, Position
from zoo.spec import ModelSpec
from zoo.wording import dotted


def slots_in(
    component: Component, slots: Collection[str], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str, Component]]:
    """Yield the components inside that fill one of these slots: path, slot and component. Nothing
    is looked for inside them."""
    for name, mark in fields_of(type(component)).items():
        inner = getattr(component, name)
        if not isinstance(inner, Component):
            continue
        if isinstance(mark, Slot) and mark.slot in slots:
            yield (*path, name), mark.slot, inner
        else:
            yield from slots_in(inner, slots, (*path, name))


def with_parts(
    spec: ModelSpec, paths: Collection[tuple[str, ...]], kind: str, registry: Registry
) -> ModelSpec | None:
    """Return the spec with another kind at these paths; None if there are none, or if the component
    refuses it."""
    data = spec.to_dict()
    for path in paths:
        put(data, path, {"kind": kind})
    try:
        return read_spec(data, registry=registry) if paths else None
    except SpecError:
        return None


def named(spec: ModelSpec, paths: Collection[tuple[str, ...]]) -> str:
    """The paths, as the component under test has them, for a message."""
    own = [path[1:] if isinstance(spec.model, Host) else path for path in paths]
    return " and ".join(f"`{dotted(path)}`" for path in own)


def check_heard(spec: ModelSpec, registry: Registry) -> None:
    """Raises PromiseError unless the attention of a block gets all that it takes."""
    paths = [path for path, _, _ in slots_in(spec.model, ["attention"])]
    changed = with_parts(spec, paths, HEARING_KIND, registry)
    if changed is None:
        return
    model, x = build(changed).eval(), vectors(torch.float32, 0)
    host: Any = changed.model
    offsets = torch.zeros(1, LENGTH, 2, dtype=torch.int64)
    context = LayerContext(
        positions=torch.arange(LENGTH),
        offsets=offsets,
        scheme=PositionScheme(),
        rotations=turning_at,
        global_tokens=torch.zeros(1, LENGTH, dtype=torch.bool),
        keys=SharedKeys(),
        embedded=x,
        layer_input=x[..., : host.part.layer_input_width],
        return_weights=True,
    )
    merging = host.part.merging
    model.get_submodule("part")(x if merging is None else streams(x, merging.n_streams), context)
    heard = [m.heard for m in model.modules() if isinstance(m, Hearing) and "causal" in m.heard]
    helps: Mapping[str, str] = {
        **dict.fromkeys(
            ("scheme", "global_tokens", "coordinates", "rotations"),
            "pass on `**{name: getattr(context, name) for name in takes}`, where `takes` is that "
            "of the attention's description",
        ),
        "keys": "pass on `keys=context.keys` unless it is None",
        "return_weights": "pass on `return_weights=context.return_weights`",
    }
    for name, help in helps.items():
        if heard and all(given.get(name) is None for given in heard):
            raise PromiseError(
                f"an attention inside that takes `{name}` is called without, and would give "
                "something else than in the block `residual`",
                help=help,
            )


def check_ids(spec: ModelSpec, registry: Registry) -> None:
    """Raises PromiseError unless each network of a block that reads ids of tokens gets them, and
    the block says so."""
    paths = [path for path, _, _ in slots_in(spec.model, ["ffn"])]
    changed = with_parts(spec, paths, HEARING_KIND, registry)
    if changed is None:
        return
    host: Any = changed.model
    told = f"with {named(spec, paths)} that reads the ids of tokens"
    if not host.part.takes_ids:
        raise PromiseError(
            f"{told}, `takes_ids` is False, so that a stack which is called with vectors is not "
            "refused",
            help="a property `takes_ids` of the block returns that of its networks",
        )
    model, x, found = build(changed).eval(), vectors(torch.float32, 0), ids(0)
    merging = host.part.merging
    states = x if merging is None else streams(x, merging.n_streams)
    context = LayerContext(
        positions=torch.arange(LENGTH),
        ids=found,
        embedded=x,
        layer_input=x[..., : host.part.layer_input_width],
    )
    model.get_submodule("part")(states, context)
    heard = [module.heard for module in model.modules() if isinstance(module, HearingIds)]
    if any(one is None or not torch.equal(one, found) for one in heard):
        raise PromiseError(
            f"{told}, these are not passed on",
            help="call a network whose `takes_ids` is True with `ids=context.ids`",
        )


def leaks_of_parts(spec: ModelSpec, registry: Registry) -> Iterator[str]:
    """Yield a message for each leak with parts that leave padding out of what they sum up, if they
    are told what is padding."""
    helps = {
        "ffn": "pass on `mask=context.tokens` to a network whose `takes_mask` is True, and in a "
        "builder `LayerContext(tokens=...)`: what is no padding, (batch, length)",
        "embedding": "pass on `mask`, what is no padding, (batch, length)",
    }
    for slot, help in helps.items():
        paths = [
            path
            for path, _, inner in slots_in(spec.model, [slot])
            if not isinstance(inner, Embedding) or inner.takes_ids
        ]
        changed = with_parts(spec, paths, AVERAGING_KIND, registry)
        if changed is None:
            continue
        leak = next(hosted(changed).leaks_of_padding(), None)
        if leak is not None:
            yield f"with {named(spec, paths)} that takes a mask: {leak}\nhelp: {help}"


def declared(spec: ModelSpec, registry: Registry) -> None:
    """With parts that mix tokens, a block or a builder says that it needs all tokens at once, that
    a token sees later ones, and that a step of generation cannot be recorded; a builder also how
    many positions there are, and that they change. A builder ties what the head says is tied."""
    if isinstance(spec.model, BlockHost):
        _check_self_attention(spec.model)
    else:
        _check_tied(spec, registry)
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


def _check_self_attention(host: BlockHost) -> None:
    """Raises PromiseError unless a block with an attention inside says which one is its own."""
    block = host.part
    inside = any(True for _ in slots_in(block, ["attention"]))
    if inside and block.attends and block.self_attention is None:
        raise PromiseError(
            "`self_attention` is None, so that the stack cannot ask the attention inside which "
            "positions it takes, and whether it is causal alone",
            help="a property `self_attention` of the block returns it",
        )


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


def _check_tied(spec: ModelSpec, registry: Registry) -> None:
    """Raises PromiseError unless a builder ties the head to the token table if the head says so."""
    paths = [path for path, _, _ in slots_in(spec.model, ["head"])]
    changed = with_parts(spec, paths, TIED_KIND, registry)
    if changed is None:
        return
    if not changed.ties:
        raise PromiseError(
            f"with {named(spec, paths)} that is tied to the token table, `ties` is empty, so that "
            "both have tensors of their own",
            help="`ties` passes on `self.head.ties(...)`, as the template of `zoo plugin new "
            "builder` does; or a validator refuses such a head",
        )
    layout(changed, registry)
