"""A spec in, a ready `Transformer` out: the builder plugin makes it on the meta device, then every
tensor is filled, from the spec's init or from stored weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zoo.distribution import Distribution
from zoo.errors import PluginError, Problem
from zoo.fill import fill
from zoo.plugin_errors import plugin_code
from zoo.reading import read_spec
from zoo.registry import Registry
from zoo.spec import ModelSpec
from zoo.transformer import Transformer

Spec = str | Path | Mapping[str, Any] | ModelSpec


def build(
    spec: Spec,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    registry: Registry | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Transformer:
    """Build the model of a spec with its initial weights.

    The weights depend on the spec and the seed alone (`zoo.init.v1`): not on the machine, the
    number of threads or torch's random state. They are made in float32 and cast last.

    Args:
        spec: a path, the name of a registered model, TOML text, plain data, or a `ModelSpec`.
        seed: 0 up to 2**64 - 1.
        device: where the model is placed; on "meta" it has shapes and no values.
        dtype: of the floating-point tensors; float32 unless given.
        registry: where names are looked up; the layers around the working directory unless given.
        on_bytes: called with the number of bytes filled since the last call.

    Raises:
        SpecError: the spec is wrong.
        PluginError: a plugin cannot be loaded, or its module is not what it describes.
    """
    found = spec if isinstance(spec, ModelSpec) else read_spec(spec, registry=registry)
    model = build_on_meta(found, dtype or torch.float32)
    if torch.device(device).type == "meta":
        return model
    tensors = {name: torch.empty_like(t, device="cpu") for name, t in stored(model).items()}
    starts = _starts(found)
    fill({name: (tensors[name], starts[name]) for name in starts}, seed=seed, on_bytes=on_bytes)
    return place(model, {name: tensor.to(device) for name, tensor in tensors.items()})


def _starts(spec: ModelSpec) -> dict[str, Distribution]:
    with plugin_code(f"the init of {spec.name}"):
        starts = {name: spec.model.init.start_of(t) for name, t in spec.tensors.items()}
        for name, start in starts.items():
            if not isinstance(start, Distribution):
                raise TypeError(f"`{name}` starts from {start!r}, which is no distribution")
    return starts


def build_on_meta(spec: ModelSpec, dtype: torch.dtype) -> Transformer:
    """The spec's module with shapes and no values, checked against what its plugins describe."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with plugin_code(f"building {spec.name}"), torch.device("meta"):
            model = spec.model.build()
            if not isinstance(model, Transformer):
                raise TypeError(f"`build` returned a {type(model).__name__}, not a zoo.Transformer")
            model.spec = spec
    finally:
        torch.set_default_dtype(before)
    _check_described(model)
    return model


def _check_described(model: Transformer) -> None:
    built = {name: tuple(tensor.shape) for name, tensor in stored(model).items()}
    described = {name: tensor.shape for name, tensor in model.spec.tensors.items()}
    if built == described:
        return
    problems = [
        f"`{name}` is {_shape(built, name)} in the module and {_shape(described, name)} in the layout"
        for name in sorted(built.keys() | described.keys())
        if built.get(name) != described.get(name)
    ]
    shown = "\n  ".join(problems[:8])
    raise PluginError(
        Problem(
            f"{model.spec.name}: a plugin's `layout` is not what its `build` makes\n  {shown}",
            help="make the two agree; `zoo show --tensors` lists the layout",
        )
    )


def _shape(shapes: Mapping[str, tuple[int, ...]], name: str) -> str:
    return str(shapes[name]) if name in shapes else "absent"


def stored(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers under their stored names: of tied ones, the first name."""
    unique: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        first = unique.get(id(tensor))
        if first is None or name < first[0]:
            unique[id(tensor)] = (name, tensor)
    return dict(sorted(unique.values(), key=lambda item: item[0]))


def place(model: Transformer, tensors: Mapping[str, torch.Tensor]) -> Transformer:
    """Put real tensors in the place of a meta-built model's; tied ones stay tied."""
    owners = _owners(model)
    for name, meta in stored(model).items():
        tensor = tensors[name]
        if isinstance(meta, nn.Parameter):
            tensor = nn.Parameter(tensor, requires_grad=meta.requires_grad)
        for module, attribute in owners[id(meta)]:
            setattr(module, attribute, tensor)
    for module in model.modules():
        tables = getattr(module, "reset_buffers", None)
        if tables is not None:
            with plugin_code(f"`reset_buffers` of {type(module).__name__}"):
                tables(device=next(iter(tensors.values())).device if tensors else "cpu")
    left = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if left:
        raise PluginError(
            f"the buffers {', '.join(left)} are not stored, and their module has no "
            "`reset_buffers(device)` that computes them"
        )
    return model


def _owners(model: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for attribute, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            owners.setdefault(id(tensor), []).append((module, attribute))
    return owners
