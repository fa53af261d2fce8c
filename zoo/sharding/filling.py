"""A process' share of initial weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.distributed.device_mesh import DeviceMesh

from zoo.building import fill_initial, stored
from zoo.sharding.model import shard
from zoo.sharding.shares import local_of, runs_of
from zoo.spec import ModelSpec
from zoo.transformer import Transformer


def initial_shares(
    model: Transformer,
    mesh: DeviceMesh,
    device: torch.device,
    *,
    seed: int = 0,
    on_bytes: Callable[[int], None] | None = None,
) -> dict[str, torch.Tensor]:
    """Shard a meta-built model, and make this process' share of each of its tensors, by name, with
    initial values. Raises as `shard`."""
    shard(model, mesh)
    shares = {name: torch.empty_like(t, device=device) for name, t in stored(model).items()}
    fill_shares(shares, model.spec, seed=seed, on_bytes=on_bytes)
    return shares


def fill_shares(
    shares: Mapping[str, torch.Tensor],
    spec: ModelSpec,
    *,
    seed: int = 0,
    on_bytes: Callable[[int], None] | None = None,
) -> None:
    """Give shares of some of the spec's tensors, by name, the values that those start from."""
    parts = {name: local_of(share) for name, share in shares.items()}
    # Values are made on the CPU.
    made = {name: part if part.is_cpu else part.to("cpu") for name, part in parts.items()}
    runs = {name: list(runs_of(share)) for name, share in shares.items()}
    fill_initial(made, spec, seed=seed, on_bytes=on_bytes, runs=runs)
    for name, part in parts.items():
        if not part.is_cpu:
            part.copy_(made[name])
