"""Training in one process or in many: devices, and the weights of each process.

accelerate detects the launcher (`torchrun`, `accelerate launch`) and the device, and replicates the
weights. Sharding is done by `zoo.build` and `zoo.load`, so that no process ever has more than its
shard. accelerate 1.15 shards on accelerators only, so that tests on a CPU could not run it, and it
expects tied tables to have the names that they have in `transformers`.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from zoo.building import build
from zoo.errors import Problem, TrainingError, placing
from zoo.generation.evaluating import evaluating
from zoo.loading import load
from zoo.purpose import Generation
from zoo.registry import Registry
from zoo.sharding.together import failure_of, raise_failure
from zoo.training.extras import imported
from zoo.training.low_rank import add_updates
from zoo.training.recompute import recompute_layers
from zoo.training.sides import Sides
from zoo.training.start import Start
from zoo.transformer import Transformer

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_SHARDING_BY_ACCELERATE = (
    "ACCELERATE_USE_FSDP",
    "ACCELERATE_USE_DEEPSPEED",
    "ACCELERATE_USE_MEGATRON_LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG",
)
"""What `accelerate launch` sets, by its options or its configuration, where accelerate is to divide
the model."""


def make_accelerator() -> Any:
    """The `accelerate.Accelerator` of this process. What a recipe states is stated to it too, or
    the configuration of `accelerate launch` would replace it: by it, gradients would be divided by
    another number of parts, or computed in another precision.

    Raises:
        TrainingError: accelerate is configured to divide the model.
    """
    for name in _SHARDING_BY_ACCELERATE:
        if os.environ.get(name, "").lower() == "true":
            message = f"accelerate is configured to divide the model: `{name}` is true"
            hint = (
                "`shard = true` in `[training]` divides it; launch it with `torchrun`, or with "
                "another configuration: `accelerate launch --config_file FILE`"
            )
            raise TrainingError(message, help=hint)
    whole = imported("accelerate.utils").GradientAccumulationPlugin(num_steps=1)
    return imported("accelerate").Accelerator(
        cpu=not torch.accelerator.is_available(),
        mixed_precision="no",
        gradient_accumulation_plugin=whole,
        dynamo_backend="no",
    )


@contextmanager
def in_first_process(accelerator: Any) -> Generator[bool]:
    """Yield whether this process is the first one, which does the work of the body for all. The
    others wait for it and fail if it fails, so that none waits for a process that has given up.

    Raises:
        ZooError: in the others, the error of the first process.
    """
    failure: Exception | None = None
    try:
        yield accelerator.is_main_process
    except Exception as error:
        failure = error
    (failed,) = imported("accelerate.utils").broadcast_object_list([failure_of(failure)])
    if failure is not None:
        raise failure
    raise_failure(failed)


def check_same_in_all(own: Mapping[str, object]) -> None:
    """Check that all processes were given the same; otherwise they would learn from something that
    none of them has, or wait for each other for ever.

    Args:
        own: what this process was given, by what it is: plain data.

    Raises:
        TrainingError: in all processes, what some of them have otherwise than the first one.
    """
    first, *others = imported("accelerate.utils").gather_object([own])
    different = {
        name: [str(number) for number, other in enumerate(others, 1) if other[name] != first[name]]
        for name in first
    }
    problems = [
        Problem(
            f"not all processes have the same {name}: that of process {', '.join(numbers)} is not "
            "that of process 0",
            help="give every machine the same files, and every process the same command line",
        )
        for name, numbers in different.items()
        if numbers
    ]
    if problems:
        raise TrainingError(problems)


def make_model(start: Start, accelerator: Any, registry: Registry) -> nn.Module:
    """Make the model that this process trains, in float32: the only one, a replica, or a shard.

    Args:
        start: the model, and the recipe, which has the seed, and whether the weights are sharded
            and the layers computed again.
        accelerator: the `accelerate.Accelerator` of this process.
        registry: where the plugins are looked up.

    Raises:
        TrainingError: a weight that `[lora]` means cannot be adapted.
    """
    recipe, mesh = start.recipe, None
    if recipe.training.shard and accelerator.num_processes > 1:
        from torch.distributed.device_mesh import init_device_mesh

        n_processes = (accelerator.num_processes,)
        mesh = init_device_mesh(accelerator.device.type, n_processes, mesh_dim_names=("fsdp",))
    model = _begun(start, mesh, registry)
    replicated = accelerator.num_processes > 1 and mesh is None
    if replicated and not _reaches_all(model, start.sides):
        # A search in each step, after which no process waits for gradients that never come.
        kwargs = imported("accelerate.utils").DistributedDataParallelKwargs
        accelerator.ddp_handler = kwargs(find_unused_parameters=True)
    if recipe.training.recompute:
        recompute_layers(model)
    prepared: nn.Module = model if mesh is not None else accelerator.prepare_model(model)
    return prepared


def _begun(start: Start, mesh: DeviceMesh | None, registry: Registry) -> Transformer:
    """The model as training begins with it: with its first weights, of which some are frozen, and
    low-rank updates. Raises as `make_model`."""
    recipe, saved = start.recipe, start.saved
    if saved is None:
        model = build(start.spec, seed=recipe.head.seed, mesh=mesh)
    elif saved.taken is None:
        model = load(saved.source, dtype=torch.float32, mesh=mesh, registry=registry)
    else:
        model = build(start.spec, seed=recipe.head.seed, mesh=mesh)
        other = load(saved.source, dtype=torch.float32, mesh=mesh, registry=registry)
        mine, theirs = model.state_dict(), other.state_dict()
        for name, there in saved.taken.items():
            mine[name].copy_(theirs[there])
    if recipe.lora is not None:
        with placing(recipe.place("lora", "weights")):
            add_updates(model, start.adapted, recipe.lora, seed=recipe.head.seed)
    for name in start.frozen:
        model.get_parameter(name).requires_grad_(False)
    return model


def _reaches_all(model: Transformer, sides: Sides) -> bool:
    """Whether what a call returns depends on all weights that are trained. A pooler beside the head
    that is trained, for one, gets no gradient."""
    ids = torch.arange(2, device="cpu")[None]  # at least one of them is no padding
    of_pair = isinstance(sides, Generation) and sides.has_source
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with evaluating(model):
        output = model(ids, ids) if of_pair else model(ids)
    if not output.requires_grad:
        return False
    found = torch.autograd.grad(output.sum(), trained, allow_unused=True)
    return all(gradient is not None for gradient in found)
