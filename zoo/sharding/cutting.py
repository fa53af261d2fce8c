"""Tensor parallelism: each process has some of a module's heads, hidden units or tokens.

The spec's layout says which modules can be cut, and how (`zoo.layout.Cut`); all others are whole in
every process. A module that is cut computes with DTensors, or takes its parts itself (`parts.py`).
Its inputs and outputs are plain tensors, so that the modules around it need not know of the mesh.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from zoo.errors import Problem, ZooError
from zoo.layout import Cut
from zoo.spec import ModelSpec
from zoo.transformer import Transformer
from zoo.weights.held_tensors import owners, stored


def cut(model: Transformer, mesh: DeviceMesh) -> None:
    """Cut the modules of a meta-built model that can be cut over the processes of a 1-D mesh.

    Raises:
        ZooError: some heads or hidden units cannot be spread evenly.
    """
    cuts = _cuts_of(model.spec, mesh.size())
    axes = _axes_of(model.spec, cuts)
    held = owners(model)
    for name, tensor in stored(model).items():
        if name in axes:
            part = distribute_tensor(
                tensor.detach(), mesh, [_placement(axes[name])], src_data_rank=None
            )
            parameter = nn.Parameter(part, requires_grad=tensor.requires_grad)
            for table, attribute in held[id(tensor)]:
                table[attribute] = parameter
    for name, found in cuts.items():
        if found.by_itself:
            continue
        module = model.get_submodule(name)
        module.register_forward_pre_hook(partial(_enter, mesh, _placement(found.inputs)))
        module.register_forward_hook(partial(_leave, _placement(found.outputs)))


def _cuts_of(spec: ModelSpec, n_processes: int) -> dict[str, Cut]:
    """Return the modules to cut, by name, with their cuts."""
    cuts = dict(spec.layout.cuts())
    problems: dict[tuple[str, int], Problem] = {}
    for name, found in cuts.items():
        if found.units is not None and found.units % n_processes:
            message = (
                f"`{name}` has {found.units:,} heads or hidden units, which {n_processes} "
                "processes of the dimension `tp` cannot share evenly"
            )
            # All layers have the same problem: report it once.
            problems.setdefault((name.rpartition(".")[2], found.units), Problem(message))
    if problems:
        raise ZooError(problems.values())
    # A table that is tied to an uncut one is not cut either.
    for first, aliases in spec.aliases.items():
        names = [name.rpartition(".")[::2] for name in (first, *aliases)]
        if len({_axis(cuts, module, tensor) for module, tensor in names}) > 1:
            for module, _ in names:
                cuts.pop(module, None)
    return cuts


def _axes_of(spec: ModelSpec, cuts: Mapping[str, Cut]) -> dict[str, int | None]:
    """Return the axis along which each stored tensor of the modules is cut; None if it is whole."""
    parts = ((name, *name.rpartition(".")[::2]) for name in spec.tensors)
    return {name: cuts[module].axes.get(tensor) for name, module, tensor in parts if module in cuts}


def _axis(cuts: Mapping[str, Cut], module: str, tensor: str) -> int | None:
    return cuts[module].axes.get(tensor) if module in cuts else None


def _placement(dim: int | None) -> Placement:
    return Replicate() if dim is None else Shard(dim)


def _enter(
    mesh: DeviceMesh, placement: Placement, module: nn.Module, args: tuple[torch.Tensor]
) -> DTensor:
    (x,) = args
    if not x.is_floating_point():
        _check_ids(x, module.get_parameter("weight").shape[0])
    return DTensor.from_local(x, mesh, [placement], run_check=False)


def _check_ids(ids: torch.Tensor, n_rows: int) -> None:
    """Raise the same error as `nn.Embedding` for ids outside the table. The parts of a cut table
    would return 0 for them."""
    outside = (ids < 0) | (ids >= n_rows)
    if not ids.is_cpu:
        torch._assert_async(~outside.any(), "index out of range in self")
    elif bool(outside.any()):
        raise IndexError("index out of range in self")


def _leave(
    placement: Placement, module: nn.Module, args: tuple[DTensor], output: DTensor
) -> torch.Tensor:
    return output.redistribute(placements=[placement]).to_local()
