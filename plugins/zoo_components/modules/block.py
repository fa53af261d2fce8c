"""Block modules."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from zoo.context import LayerContext
from zoo.errors import PluginError
from zoo.slots import Sublayer

SITES = ("pre", "post", "out")


def with_norms(sublayer: Sublayer) -> nn.Module:
    """A branch's module with its norms registered inside, so that their names are
    `self_attn.pre_norm` and so on.

    Raises:
        PluginError: the module is a container that would run the norms as its own children.
    """
    module = sublayer.build()
    if isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        raise PluginError(
            f"the module of {sublayer.kind!r} is a bare {type(module).__name__}; return a module "
            "of a class of your own, which can hold the norms around it"
        )
    for site in SITES:
        norm = sublayer.norm.build() if site in sublayer.norms else nn.Identity()
        module.add_module(f"{site}_norm", norm)
    return module


class ResidualBlock(nn.Module):
    """x = out_norm(x + dropout(post_norm(f(pre_norm(x))))) for each sublayer f in order."""

    def __init__(self, sublayers: Mapping[str, nn.Module], *, dropout: float) -> None:
        super().__init__()
        self.names = tuple(sublayers)
        for name, module in sublayers.items():
            self.add_module(name, module)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: torch.Tensor, context: LayerContext
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """(..., length, d_model) to the same, and the attention weights by sublayer if asked."""
        maps: dict[str, torch.Tensor] = {}
        for name in self.names:
            f = self.get_submodule(name)
            hidden = f.pre_norm(x)
            if name == "ffn":
                hidden = f(hidden)
            else:
                hidden, weights = self._attend(name, f, hidden, context)
                if weights is not None:
                    maps[name] = weights
            x = f.out_norm(x + self.dropout(f.post_norm(hidden)))
        return x, maps

    def _attend(
        self, name: str, attention: nn.Module, x: torch.Tensor, context: LayerContext
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if name == "cross_attn":
            return attention(
                x,
                context.memory,
                mask=context.memory_mask,
                return_weights=context.return_weights,
            )
        return attention(
            x,
            mask=context.mask,
            causal=context.causal,
            rotation=context.rotation,
            bias=context.bias,
            return_weights=context.return_weights,
        )
