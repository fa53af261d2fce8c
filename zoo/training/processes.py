"""One process or many: who computes what, and who has which weights.

accelerate knows the launcher (`torchrun`, `accelerate launch`), and the device, and replicates the
weights. Where they are shared out, torch's `fully_shard` (FSDP2) does that directly:
accelerate 1.15 shares on accelerators only, so no test without one could run it, and it looks for
tied tables under the names that `transformers` gives them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zoo.training.extras import extra
from zoo.training.tables import Training
from zoo.transformer import Transformer


def make_accelerator() -> Any:
    """The `accelerate.Accelerator` of this process."""
    return extra("accelerate").Accelerator(cpu=not torch.accelerator.is_available())


def spread(model: Transformer, accelerator: Any, training: Training) -> nn.Module:
    """The model as this process trains it: alone, as one of equal copies, or as a share."""
    if training.shard and accelerator.num_processes > 1:
        return _sharded(model, accelerator)
    prepared: nn.Module = accelerator.prepare_model(model)
    return prepared


def _sharded(model: Transformer, accelerator: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    model.to(accelerator.device)
    for layers in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        # A layer that stands in several places is one.
        for layer in dict.fromkeys(layers):
            fully_shard(layer, mesh=mesh)
    # The rest is one share, so that tied tables stay together, and one.
    fully_shard(model, mesh=mesh)
    return model
