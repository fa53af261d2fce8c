"""One of the processes that try a cut: it computes with its part of a small model, and compares the
inputs and outputs of each module that is cut with those in the whole model.

Reads tasks as JSON lines from stdin and writes one JSON line for each: null, or the failure.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from zoo.building import build
from zoo.layout import Cut
from zoo.plugin_kit.assertions import SAME, close
from zoo.plugin_kit.driver import Driver, weighted_sum
from zoo.plugin_kit.drivers import driver_for, hosted
from zoo.plugin_kit.inputs import Tensors
from zoo.plugin_kit.report import PromiseError
from zoo.plugin_kit.workers import serve
from zoo.reading import read_spec
from zoo.registering.plugin_errors import describe_failure
from zoo.registry import Registry
from zoo.spec import ModelSpec

TIMEOUT = timedelta(seconds=30)
"""Timeout for waiting for another process, which may have failed."""

START_TIMEOUT = timedelta(seconds=300)
"""Timeout for waiting until the others have started: a busy machine takes long to import torch."""


def main() -> None:
    n_processes, rank, rendezvous = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=n_processes,
        timeout=START_TIMEOUT,
    )
    group = dist.new_group(timeout=TIMEOUT)
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("tp",))
    serve(partial(_wrong, mesh))


def _wrong(mesh: DeviceMesh, text: str, registry: Registry) -> str | None:
    try:
        _compare(read_spec(text, registry=registry), mesh)
    except PromiseError as error:
        return str(error)
    except Exception as error:
        told = describe_failure(f"computing in {mesh.size()} processes", error).message
        return f"{told}\nhelp: {_BETWEEN}"
    return None


def _compare(spec: ModelSpec, mesh: DeviceMesh) -> None:
    whole = hosted(spec)
    model = build(spec, dtype=torch.float64, mesh=mesh).eval()
    shared = driver_for(spec, model, torch.float64)
    values = dict(whole.model.named_parameters())
    with torch.no_grad():
        for name, parameter in shared.model.named_parameters():
            parameter.copy_(_like(parameter, values[name]))
    inputs = whole.inputs()
    calls: list[tuple[str, Tensors]] = []
    cuts = {name: cut for name, cut in spec.layout.cuts() if not cut.by_itself}
    for name in cuts:
        module = whole.model.get_submodule(name)
        module.register_forward_hook(partial(_note, calls, name))
    expected = _outputs_and_gradients(whole, inputs)
    expecting = iter(calls)
    for name, cut in cuts.items():
        module = shared.model.get_submodule(name)
        module.register_forward_pre_hook(partial(_check_input, name, cut, expecting), prepend=True)
        module.register_forward_hook(partial(_check_output, name, cut))
    found = _outputs_and_gradients(shared, inputs)
    largest = max(float(tensor.detach().abs().max()) for tensor in expected.values())
    for name, tensor in expected.items():
        if name not in found:
            raise PromiseError(
                f"there is no {name.removeprefix('the ')} in {mesh.size()} processes, each with "
                "its parts",
                help=_BETWEEN,
            )
        # Relative to the largest of all: some gradients, such as that of a bias of keys, are 0. No
        # comparison with NaN is true.
        difference = float((found[name] - tensor).detach().abs().max())
        if not difference <= SAME * largest:
            raise PromiseError(
                f"{name} is another in {mesh.size()} processes, each with its parts, than in one",
                help=_BETWEEN,
            )


_BETWEEN = (
    "between a map that is cut by its outputs and one that is cut by its inputs there are parts "
    "alone; a norm, a softmax or a number of all units has no place there. What is for the weights "
    "of all heads is cut by `own_part` of zoo.sharding.parts, and weights are joined by `all_parts`"
)
_ROLES = {
    (False, False): "all of its input to all of its output",
    (False, True): "all of its input to a part of its output (column_wise)",
    (True, False): "a part of its input to all of its output (row_wise)",
    (True, True): "a part of its input to a part of its output",
}


def _role(cut: Cut) -> str:
    return _ROLES[cut.inputs is not None, cut.outputs is not None]


def _outputs_and_gradients(driver: Driver, inputs: Tensors) -> dict[str, torch.Tensor]:
    """Return the outputs of the model and the full gradients of its parameters."""
    random = torch.Generator().manual_seed(0)
    found = dict(zip(driver.outputs, driver(*inputs), strict=False))
    weighted_sum(found.values(), random).backward()  # type: ignore[no-untyped-call]
    for name, parameter in driver.model.named_parameters():
        if parameter.grad is not None:
            found[f"the gradient of `{name}`"] = _full(parameter.grad)
    return found


def _full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _like(parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Distribute the whole tensor in the same way as the parameter."""
    if not isinstance(parameter, DTensor):
        return whole
    mesh = parameter.device_mesh
    return distribute_tensor(whole.detach(), mesh, parameter.placements, src_data_rank=None)


def _note(
    calls: list[tuple[str, Tensors]],
    name: str,
    module: nn.Module,
    args: Tensors,
    output: Any,
) -> None:
    calls.append((name, (*args, output)))


def _check_input(
    name: str,
    cut: Cut,
    expecting: Iterator[tuple[str, Tensors]],
    module: nn.Module,
    args: Tensors,
) -> None:
    called, (expected, *_, output) = next(expecting)
    if called != name:
        raise PromiseError(f"`{name}` is called where the whole model calls `{called}`")
    module.__dict__["_expected"] = output
    x = args[0]
    mine = _part(expected, cut.inputs)
    if x.shape == mine.shape and close(x, mine, SAME):
        return
    if x.shape == mine.shape:
        why = "but what it is given is no part of what the whole model computes there"
        help = _BETWEEN
    else:
        why = f"but it is given x {tuple(x.shape)}, where that would be {tuple(mine.shape)}"
        help = (
            "column_wise takes what all processes have, row_wise what a column_wise map has "
            "returned"
        )
    raise PromiseError(f"`{name}` is cut to make of {_role(cut)}, {why}", help=help)


def _check_output(name: str, cut: Cut, module: nn.Module, _args: Tensors, output: Any) -> None:
    expected = module.__dict__.pop("_expected")
    if not isinstance(expected, torch.Tensor):
        return
    mine = _part(expected, cut.outputs)
    if output.shape != mine.shape or not close(output, mine, SAME):
        raise PromiseError(
            f"`{name}` is cut to make of {_role(cut)}, but what it returns, {tuple(output.shape)}, "
            f"is not that of the whole module, {tuple(mine.shape)}"
        )


def _part(tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
    """Return the part of this process along a dimension; the whole tensor for None."""
    if dim is None:
        return tensor
    return tensor.detach().tensor_split(dist.get_world_size(), dim)[dist.get_rank()]


if __name__ == "__main__":
    main()
