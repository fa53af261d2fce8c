"""Build a `Transformer` from a spec: the builder plugin makes the module on the meta device, then
every tensor is filled, from the spec's init or from stored weights."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from zoo.arguments import check_seed
from zoo.errors import PluginError, ZooError
from zoo.initial import empty, fill_initial, too_large
from zoo.machine.devices import usable_device
from zoo.machine.memory import Arena
from zoo.machine.memory_limit import memory_limit
from zoo.reading import read_spec
from zoo.registering.plugin_errors import plugin_code
from zoo.registry import Registry
from zoo.spec import ModelSpec
from zoo.transformer import Transformer
from zoo.weights.dtypes import usable_dtype
from zoo.weights.held_tensors import CLASSES, DESCRIPTION, differences_from_spec, owners, stored
from zoo.wording import first_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Spec = str | Path | Mapping[str, Any] | ModelSpec

_default_dtype = RLock()
"""Held while torch's default dtype, which is global to the process, is set for a build."""


def build(
    spec: Spec,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    registry: Registry | None = None,
    mesh: DeviceMesh | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Transformer:
    """Build the model of a spec with its initial weights.

    The weights depend on the spec and the seed alone (`zoo.init.v1`): not on the machine, the
    number of threads or torch's random state. They are computed in float32 and then cast.

    Args:
        spec: a path, the name of a registered model, TOML text, plain data, or a `ModelSpec`.
        seed: 0 up to 2**64 - 1.
        device: the device of the model; by default the CPU, or the device of the mesh. On "meta"
            it has shapes and no values.
        dtype: the dtype of the floating-point tensors, or its name, such as "bfloat16"; float32 by
            default.
        registry: looks up names; by default the registries around the working directory.
        mesh: a mesh of processes, all of which call this. Each gets its share of the model (see
            `zoo.load`), with the same values as in the whole model.
        on_bytes: called with the number of bytes filled since the last call.

    Returns:
        The model, in training mode.

    Raises:
        SpecError: the spec is wrong.
        InputError: the seed is no such integer.
        PluginError: a plugin cannot be loaded, or its module is not what it describes.
        ZooError: the model is larger than the memory, the device cannot be used, or `dtype` is the
            name of none.
        TypeError: `dtype` is another object, or one that no model can have.
    """
    seed = check_seed(seed)
    found = spec if isinstance(spec, ModelSpec) else read_spec(spec, registry=registry)
    model = build_on_meta(found, torch.float32 if dtype is None else usable_dtype(dtype))
    if mesh is not None:
        return _fill_share(model, mesh, device, seed=seed, on_bytes=on_bytes)
    device = usable_device(device)
    if device.type == "meta":
        return model
    _check_fits(model)
    arena = Arena()
    tensors = {
        name: empty(tuple(t.shape), t.dtype, found, arena) for name, t in stored(model).items()
    }
    fill_initial(tensors, found, seed=seed, on_bytes=on_bytes)
    return place(model, {name: t.to(device) for name, t in tensors.items()}, device=device)


def _fill_share(
    model: Transformer,
    mesh: DeviceMesh,
    device: str | torch.device | None,
    *,
    seed: int,
    on_bytes: Callable[[int], None] | None,
) -> Transformer:
    """Return this process's share of a meta-built model, with its initial values."""
    from zoo.sharding.filling import initial_shares
    from zoo.sharding.mesh import device_in

    device = device_in(mesh, device)
    start = partial(fill_initial, spec=model.spec, seed=seed, on_bytes=on_bytes)
    shares = initial_shares(model, mesh, device, start)
    return place(model, shares, device=device)


def _check_fits(model: Transformer) -> None:
    """Raise `ZooError` for a model that is larger than the memory, for which the kernel would kill
    the process. All values are in memory at once, even if they go to another device afterwards.
    Writing them to a file needs no copy."""
    n_bytes = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    limit = memory_limit()
    if limit is not None and n_bytes > limit:
        raise too_large(model.spec, n_bytes, f", and there are {limit:,} with swap")


def build_on_meta(spec: ModelSpec, dtype: torch.dtype) -> Transformer:
    """Build the module of a spec with shapes and no values, and compare it with its layout.

    Raises:
        ZooError: `accelerate.init_empty_weights` is on.
        PluginError: a plugin's module is not what it describes.
    """
    _refuse_empty_weights(spec.name)
    with _as_default(dtype), plugin_code(f"building {spec.name}"), torch.device("meta"), _Undrawn():
        model = spec.model.build()
        model.spec = spec
    _check_described(model)
    for name, layout in spec.layout.layers().items():
        vars(model.get_submodule(name))[DESCRIPTION] = layout.component
    vars(model)[CLASSES] = {name: type(module) for name, module in model.named_modules()}
    return model


def _refuse_empty_weights(name: str) -> None:
    """Raise `ZooError` inside `accelerate.init_empty_weights`, which makes another parameter of
    each that is registered: tied weights would not be tied, and the values come after it."""
    if nn.Module.register_parameter.__module__.partition(".")[0] == "accelerate":
        message = f"{name} cannot be built inside `accelerate.init_empty_weights`"
        help_ = (
            'leave it out: `zoo.build(spec, device="meta")` builds without values, and `zoo.load` '
            "maps a file that is read-only, for `accelerate.dispatch_model`"
        )
        raise ZooError(message, help=help_)


@contextmanager
def _as_default(dtype: torch.dtype) -> Generator[None]:
    """Set torch's default dtype for new tensors, in one thread at a time."""
    with _default_dtype:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


class _Undrawn(TorchFunctionMode):
    """Skips the random initialisation of torch's modules. On the meta device it has no effect, but
    it would import torch's compiler, which takes longer than the whole build."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS:
            tensor: torch.Tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


# The functions of `nn.init` that modes can intercept, and the methods that the others call.
_DRAWS = {
    nn.init.kaiming_uniform_,
    nn.init.normal_,
    nn.init.uniform_,
    torch.Tensor.normal_,
    torch.Tensor.uniform_,
}


def _check_described(model: Transformer) -> None:
    if differences := differences_from_spec(model):
        shown = "\n  ".join(first_of(differences, 8))
        raise PluginError(
            f"{model.spec.name}: a plugin's `layout` is not what its `build` makes\n  {shown}",
            help="make the two agree; `zoo show --tensors` lists the layout",
        )


def place(
    model: Transformer, tensors: Mapping[str, torch.Tensor], *, device: str | torch.device
) -> Transformer:
    """Replace the tensors of a meta-built model by these, on `device`; tied ones stay tied.

    Raises:
        PluginError: a module does not compute its buffers that are not stored.
    """
    held = owners(model)
    for name, meta in stored(model).items():
        tensor = tensors[name]
        if isinstance(meta, nn.Parameter):
            tensor = nn.Parameter(tensor, requires_grad=meta.requires_grad)
        for table, attribute in held[id(meta)]:
            table[attribute] = tensor
    if torch.device(device).type == "meta":
        return model
    for module in model.modules():
        reset_buffers = getattr(module, "reset_buffers", None)
        if reset_buffers is not None:
            with plugin_code(f"`reset_buffers` of {type(module).__name__}"):
                reset_buffers(device=device)
    left = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if left:
        hint = (
            "what a module puts there in `__init__` has no values: compute it in "
            "`def reset_buffers(self, *, device)`, on that device"
        )
        raise PluginError(
            f"the buffers {', '.join(left)} are not stored, and their module has no "
            "`reset_buffers` that computes them",
            help=hint,
        )
    return model
