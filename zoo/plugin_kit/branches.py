"""The promise of blocks, and of builders without them, about their residual branches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

import torch

from zoo.component import Component, Slot, fields_of
from zoo.errors import SpecError
from zoo.plugin_kit.assertions import SAME, close
from zoo.plugin_kit.drivers import hosted
from zoo.plugin_kit.hosts import BlockHost, complete, host_data, put
from zoo.plugin_kit.passed_on import named
from zoo.plugin_kit.report import PromiseError
from zoo.reading import read_spec
from zoo.registry import Registry
from zoo.slots import Block, NormSite, Sublayer
from zoo.spec import ModelSpec

_SITES = get_args(NormSite)


def branches(spec: ModelSpec, registry: Registry) -> None:
    """A block, or a builder with branches outside of blocks, applies the norms and the scales of
    each branch (`zoo.slots.Sublayer`). A block sums branches up in parallel where `norm_placement`
    says so, or refuses that."""
    paths = list(_branches_of(spec.model))
    for path in paths:
        full: dict[str, Any] = {"norms": list(_SITES)}
        changes: dict[str, dict[str, Any]] = {
            f"the norm at `{site}`": {"norms": [other for other in _SITES if other != site]}
            for site in _SITES
        }
        plain = _output_with(spec, path, full, registry)
        if plain is None:  # it has no place for some norm
            full, changes, plain = {}, {}, _output_of(spec)
        for scale in ("residual_scale", "skip_scale"):
            changes[f"`{scale}`"] = {**full, scale: 0.5}
        for what, change in changes.items():
            output = _output_with(spec, path, change, registry)
            if output is not None and close(output, plain, SAME):
                raise PromiseError(
                    f"{what} of the branch {named(spec, [path])} changes nothing",
                    help="x = out(skip_scale * x + residual_scale * post(f(pre(x))))",
                )
    if len(paths) > 1 and isinstance(spec.model, BlockHost):
        _check_parallel(spec, registry)


def _check_parallel(spec: ModelSpec, registry: Registry) -> None:
    """Raises PromiseError if a block that goes by `norm_placement` goes by all but `"parallel"`,
    which has the norms of `"pre"`."""
    outputs = {name: _output_placed(spec, name, registry) for name in ("pre", "post", "parallel")}
    pre, post, parallel = outputs.values()
    if pre is None or post is None or parallel is None or close(post, pre, SAME):
        return
    if close(parallel, pre, SAME):
        raise PromiseError(
            '`norm_placement = "parallel"`, by which all branches read the same x, changes nothing',
            help="a block whose branches run one after the other refuses it in a validator: "
            '`raise contradiction("...", "norm_placement")`',
        )


def _output_placed(spec: ModelSpec, placement: str, registry: Registry) -> torch.Tensor | None:
    """Return the output of the block with this `norm_placement`; None if it is refused."""
    host: Any = spec.model
    block = host.part
    stated = {"memory_width": host.memory_width} if host.memory_width is not None else {}
    data = host_data("block", block.kind, type(block).example, registry)
    try:
        placed = complete({**data, **stated, "norm_placement": placement}, registry)
    except SpecError:
        return None
    return _output_of(placed)


def _branches_of(holder: Component, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the residual branches of a block, or of those of a builder that are not in
    blocks; what another component holds is its own affair."""
    for name, mark in fields_of(type(holder)).items():
        inner = getattr(holder, name)
        if isinstance(inner, Sublayer):
            yield (*path, name)
        elif isinstance(inner, Component) and (
            not isinstance(mark, Slot)
            or (isinstance(inner, Block) and isinstance(holder, BlockHost | Block))
        ):
            yield from _branches_of(inner, (*path, name))


def _output_with(
    spec: ModelSpec, path: tuple[str, ...], values: Mapping[str, Any], registry: Registry
) -> torch.Tensor | None:
    """Return the output of the block with these values in a branch; None if they are invalid."""
    data = spec.to_dict()
    for key, value in values.items():
        put(data, (*path, key), value)
    try:
        changed = read_spec(data, registry=registry)
    except SpecError:
        return None
    return _output_of(changed)


def _output_of(spec: ModelSpec) -> torch.Tensor:
    driver = hosted(spec)
    return driver(*driver.inputs())[0]
