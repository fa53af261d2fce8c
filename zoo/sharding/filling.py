"""Initial values for a process' shard of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch.distributed.device_mesh import DeviceMesh

from zoo.fill import Runs
from zoo.sharding.model import shard
from zoo.sharding.parts import local
from zoo.sharding.shares import runs_of
from zoo.transformer import Transformer
from zoo.weights.held_tensors import stored


class Fill(Protocol):
    """Fills tensors on the CPU, by name, with the initial values of the spec. `runs` says which
    elements of the whole tensor each has, as for `zoo.fill.fill`."""

    def __call__(
        self, tensors: Mapping[str, torch.Tensor], *, runs: Mapping[str, Runs]
    ) -> None: ...


def initial_shares(
    model: Transformer, mesh: DeviceMesh, device: torch.device, fill: Fill
) -> dict[str, torch.Tensor]:
    """Shard a meta-built model, and return this process' shard of each tensor, by name, with
    initial values. Raises as `shard`."""
    shard(model, mesh)
    shares = {name: torch.empty_like(t, device=device) for name, t in stored(model).items()}
    fill_shares(shares, fill)
    return shares


def fill_shares(shares: Mapping[str, torch.Tensor], fill: Fill) -> None:
    """Fill shards of some of the spec's tensors, by name, with their initial values."""
    parts = {name: local(share) for name, share in shares.items()}
    # Values are made on the CPU.
    made = {name: part if part.is_cpu else part.to("cpu") for name, part in parts.items()}
    fill(made, runs={name: list(runs_of(share)) for name, share in shares.items()})
    for name, part in parts.items():
        if not part.is_cpu:
            part.copy_(made[name])
