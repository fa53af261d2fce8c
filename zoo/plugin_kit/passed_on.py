"""The promises of blocks and builders to pass on to their parts what these take."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch

from zoo.building import build
from zoo.component import Component, Slot, fields_of
from zoo.context import LayerContext, SharedKeys
from zoo.errors import SpecError
from zoo.plugin_kit.drivers import hosted
from zoo.plugin_kit.hosts import Host, put
from zoo.plugin_kit.inputs import LENGTH, vectors
from zoo.plugin_kit.part_modules import Hearing
from zoo.plugin_kit.parts import AVERAGING_KIND, HEARING_KIND, TIED_KIND
from zoo.plugin_kit.report import PromiseError
from zoo.plugin_kit.structure import layout
from zoo.position import PositionScheme
from zoo.reading import read_spec
from zoo.registry import Registry
from zoo.slots import Embedding
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
    model = build(changed).eval()
    offsets = torch.zeros(1, LENGTH, 2, dtype=torch.int64)
    context = LayerContext(
        positions=torch.arange(LENGTH),
        offsets=offsets,
        scheme=PositionScheme(),
        global_tokens=torch.zeros(1, LENGTH, dtype=torch.bool),
        keys=SharedKeys(),
    )
    model.get_submodule("part")(vectors(torch.float32, 0), context)
    heard = [m.heard for m in model.modules() if isinstance(m, Hearing) and "causal" in m.heard]
    helps: Mapping[str, str] = {
        **dict.fromkeys(
            ("scheme", "global_tokens", "coordinates"),
            "pass on `**{name: getattr(context, name) for name in takes}`, where `takes` is that "
            "of the attention's description",
        ),
        "keys": "pass on `keys=context.keys` unless it is None",
    }
    for name, help in helps.items():
        if heard and all(given.get(name) is None for given in heard):
            raise PromiseError(
                f"an attention inside that takes `{name}` is called without, and would compute "
                "something else than in the block `residual`",
                help=help,
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


def check_tied(spec: ModelSpec, registry: Registry) -> None:
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
