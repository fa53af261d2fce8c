"""Inputs of single layers, and the layer that reads its own."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from zoo.context import LayerContext
from zoo.linear import Linear, activated
from zoo.sharding.parts import own_part
from zoo_components.modules.block import Branch, ResidualBlock
from zoo_components.modules.norm import Norm, put_norm
from zoo_components.modules.unpadding import at_places, taken


class LayerInputs(nn.Module):
    """(norm(proj(x) / sqrt(d_model)) + sqrt(width) * table[ids]) / sqrt(2), for each layer."""

    norm: Norm

    def __init__(
        self, *, vocab: int, d_model: int, n_layers: int, width: int, norm: nn.Module
    ) -> None:
        super().__init__()
        self.shape = n_layers, width
        self.tokens = nn.Embedding(vocab, n_layers * width)
        self.proj = Linear(d_model, n_layers * width, bias=False)
        put_norm(self, "norm", norm)

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """ids (batch, length) and their vectors x (batch, length, d_model) to (batch, length,
        n_layers, width). Ids beyond the table, which stand for vectors that are no token's or for
        tokens that it does not have, have its first row."""
        ids = ids.masked_fill(ids >= self.tokens.num_embeddings, 0)
        of_states = (self.proj(x) * x.shape[-1] ** -0.5).unflatten(-1, self.shape)
        of_ids = (self.tokens(ids) * self.shape[1] ** 0.5).unflatten(-1, self.shape)
        return (self.norm(of_states) + of_ids) * 2**-0.5


class GatedInput(nn.Module):
    """out(activation(gate(x)) * own), where `own` is the input of a layer."""

    def __init__(self, *, d_model: int, width: int, activation: nn.Module) -> None:
        super().__init__()
        self.gate_proj = Linear(d_model, width, bias=False)
        self.activation = activation
        self.out_proj = Linear(width, d_model, bias=False)

    def forward(self, x: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """(..., d_model) and (..., width) to (..., d_model)."""
        gate = activated(self.gate_proj, self.activation, x)
        return self.out_proj(gate * own_part(own, -1, self.gate_proj))


class LayerInputBlock(ResidualBlock):
    """A `ResidualBlock` with a branch `layer_input`, a `GatedInput`."""

    def _fed(self, name: str, f: Branch, x: torch.Tensor, context: LayerContext) -> torch.Tensor:
        if name != "layer_input":
            return super()._fed(name, f, x, context)
        own = context.layer_input
        assert own is not None  # the description has checked it
        return at_places(partial(f, own=taken(own, context.places)), x, context.places)
