"""The tensors that a model holds, by the names under which they are stored, and their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from zoo.errors import PluginError
from zoo.weights.dtypes import dtype_name

if TYPE_CHECKING:
    from zoo.transformer import Transformer

DESCRIPTION = "_zoo_description"
"""The attribute of a layer that holds the description from which the zoo has built it."""
CLASSES = "_zoo_classes"
"""The attribute of a model that holds the class of each module as the zoo has built it, by name."""


def stored(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by stored name, which is the first name if tied."""
    return {names[0]: tensor for names, tensor in _by_name(model)}


def _by_name(model: nn.Module) -> list[tuple[list[str], torch.Tensor]]:
    """Each stored tensor with all its names, sorted."""
    found: dict[int, tuple[list[str], torch.Tensor]] = {}
    for name, tensor in sorted(model.state_dict(keep_vars=True).items()):
        if not isinstance(tensor, torch.Tensor):
            raise PluginError(f"`{name}` is extra state of a module; only tensors are stored")
        found.setdefault(id(tensor), ([], tensor))[0].append(name)
    return [*found.values()]


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor."""
    raw: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(raw)


def owners(model: nn.Module) -> dict[int, list[tuple[dict[str, Any], str]]]:
    """The places that hold each tensor, by the tensor's `id`: a module's dict of parameters or
    buffers, and the key in it."""
    # Reads the dicts directly: going through module attributes takes longer than mapping the file
    # of a model.
    found: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for attribute, tensor in table.items():
                found.setdefault(id(tensor), []).append((table, attribute))
    return found


def differences_from_spec(model: Transformer) -> list[str]:
    """Describe the differences between a model's tensors and its spec: names, shapes, dtypes,
    parameter or buffer, and ties."""
    by_name = _by_name(model)
    tensors = {
        names[0]: _Described(
            tensor.shape,
            "float" if tensor.is_floating_point() else dtype_name(tensor.dtype),
            not isinstance(tensor, nn.Parameter),
        )
        for names, tensor in by_name
    }
    described = {
        name: _Described(tensor.shape, tensor.dtype, tensor.buffer)
        for name, tensor in model.spec.tensors.items()
    }
    ties = {other: first for (first, *others), _ in by_name for other in others}
    stated = model.spec.ties
    otherwise_tied = {n for n in ties.keys() | stated.keys() if ties.get(n) != stated.get(n)}
    differences = [
        f"`{name}` is {tensors.get(name, 'absent')} in the module and "
        f"{described.get(name, 'absent')} in the layout"
        for name in sorted((tensors.keys() | described.keys()) - otherwise_tied)
        if tensors.get(name) != described.get(name)
    ]
    differences += [
        f"`{name}` is tied to {ties.get(name, 'nothing')} in the module and to "
        f"{stated.get(name, 'nothing')} in the spec"
        for name in sorted(otherwise_tied)
    ]
    return differences


def other_layers(model: Transformer) -> list[str]:
    """Return the names of layers that were built from another description than the spec has there:
    their tensors may be alike, as with windows of two sizes."""
    return [
        name
        for name, layout in model.spec.layout.layers().items()
        if getattr(model.get_submodule(name), DESCRIPTION, layout.component) != layout.component
    ]


def swapped_modules(model: Transformer) -> list[str]:
    """Describe the modules that have taken the place of others since the model was built, were
    added or are gone. Their tensors may be alike, as those of two activations."""
    built: dict[str, type[nn.Module]] | None = getattr(model, CLASSES, None)
    if built is None:
        return []
    nothing = type(None)
    held = {name: type(module) for name, module in model.named_modules()}
    pairs = [
        (name, held.get(name, nothing), built.get(name, nothing))
        for name in sorted(held.keys() | built.keys())
    ]
    # A subclass may stand for its base: torch makes some for shares and parametrizations.
    return [
        f"`{name}` is {now.__name__}, and was built as {then.__name__}"
        for name, now, then in pairs
        if not issubclass(now, then)
    ]


class _Described(NamedTuple):
    shape: tuple[int, ...]
    dtype: str
    buffer: bool

    def __str__(self) -> str:
        return f"a {self.dtype} {'buffer' if self.buffer else 'parameter'} {list(self.shape)}"
