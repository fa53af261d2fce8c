"""Several residual streams of each token, (..., n_streams, d_model), of which a layer computes one
and predicts the others (AltUp: Baykal et al. 2023, arXiv:2301.13310)."""

from __future__ import annotations

import torch
from torch import nn

from zoo.context import LayerContext
from zoo.linear import Linear
from zoo.sharding.parts import local
from zoo_components.modules.block import Branch, ResidualBlock
from zoo_components.modules.layer_inputs import LayerInputBlock
from zoo_components.modules.norm import Norm, put_norm, widen

LEAST = 1e-5
"""The least mean of squares that a vector is divided by the root of."""


class Router(nn.Module):
    """The weights by which streams are predicted and corrected, for each token."""

    router_norm: Norm

    def __init__(self, d_model: int, n_streams: int, norm: nn.Module) -> None:
        super().__init__()
        put_norm(self, "router_norm", norm)
        self.router = Linear(d_model, n_streams, bias=False)
        self.predict = Linear(n_streams, n_streams**2, bias=False)
        self.correct = Linear(n_streams, n_streams, bias=False)

    def routed(self, x: torch.Tensor) -> torch.Tensor:
        """tanh(router(norm(x)) / d_model), (..., d_model) to (..., n_streams)."""
        found = self.router(self.router_norm(x) * x.shape[-1] ** -1.0)
        return widen(found).tanh().to(x.dtype)

    def predicted(self, x: torch.Tensor) -> torch.Tensor:
        """(..., n_streams, d_model) to the same."""
        weights = self.predict(self.routed(x[..., 0, :])).unflatten(-1, (x.shape[-2], -1))
        return x + (weights @ x).to(x.dtype)

    def corrected(self, predicted: torch.Tensor, computed: torch.Tensor) -> torch.Tensor:
        """The streams (..., n_streams, d_model) and what the layer made of the first one, (...,
        d_model), to (..., n_streams, d_model)."""
        weights = self.correct(self.routed(computed)) + 1.0
        found = computed - predicted[..., 0, :]
        return predicted + (weights.unsqueeze(-1) * found.unsqueeze(-2)).to(predicted.dtype)


class Laurel(nn.Module):
    """x + norm(up(down(x))) (Menghani et al. 2024, arXiv:2411.07501)."""

    norm: Norm

    def __init__(self, d_model: int, rank: int, norm: nn.Module) -> None:
        super().__init__()
        self.down_proj = Linear(d_model, rank, bias=False)
        self.up_proj = Linear(rank, d_model, bias=False)
        put_norm(self, "norm", norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., d_model) to (..., d_model)."""
        return x + self.norm(self.up_proj(self.down_proj(x)))


class AlternatingBlock(ResidualBlock):
    """A `ResidualBlock` of the first of several streams, by which the others are corrected."""

    altup: Router
    laurel: Laurel | None

    def forward(
        self, x: torch.Tensor, context: LayerContext
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """(..., length, n_streams, d_model) to the same, and the attention weights by sublayer if
        asked."""
        maps: dict[str, torch.Tensor] = {}
        predicted = self.altup.predicted(x)
        h = predicted[..., 0, :]
        for name in self.of_first:
            f: Branch = getattr(self, name)
            normed = f.pre_norm(h)
            h = self._skipped(name, h) + self._branch(name, f, normed, context, maps)
            if name == "self_attn" and self.laurel is not None:
                h = (h + self.laurel(normed)) * 2**-0.5
            h = f.out_norm(h)
        x = self.altup.corrected(predicted, h)
        return (x if self.scalar is None else x * self.scalar), maps

    @property
    def of_first(self) -> tuple[str, ...]:
        """The names of the branches that compute the first stream."""
        return self.names


class AlternatingLayerInputBlock(AlternatingBlock, LayerInputBlock):
    """An `AlternatingBlock` with a branch `layer_input`, a `GatedInput`, which reads the first
    stream and adds to the others."""

    layer_input: Branch

    def add_input_scale(self, d_model: int) -> None:
        """Give the layer the factors of what that branch reads, (d_model,)."""
        self.input_scale = nn.Parameter(torch.empty(d_model))

    @property
    def of_first(self) -> tuple[str, ...]:
        """As in `AlternatingBlock`."""
        return tuple(name for name in self.names if name != "layer_input")

    def forward(
        self, x: torch.Tensor, context: LayerContext
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """As in `AlternatingBlock`."""
        x, maps = super().forward(x, context)
        f: Branch = self.layer_input
        first, others = x[..., :1, :], x[..., 1:, :]
        read = first[..., 0, :] * local(self.input_scale)
        added = self._branch("layer_input", f, f.pre_norm(read), context, maps).unsqueeze(-2)
        others = f.out_norm(self._skipped("layer_input", others) + added)
        return torch.cat([first, others], -2), maps


class Projected(nn.Module):
    """Maps of each stream but the first, from the embedded state and to the final one."""

    def __init__(self, d_model: int, n_streams: int) -> None:
        super().__init__()
        self.spread, self.merge = (
            nn.ModuleList(Linear(d_model, d_model, bias=False) for _ in range(n_streams - 1))
            for _ in range(2)
        )

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """(..., d_model) to the streams, (..., n_streams, d_model)."""
        return torch.stack([x, *(as_large_as(x, one(x)) for one in self.spread)], -2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., n_streams, d_model) to (..., d_model)."""
        first, *others = x.unbind(-2)
        mapped = (one(stream) for one, stream in zip(self.merge, others, strict=True))
        return torch.stack([first, *(as_large_as(first, one) for one in mapped)], -2).mean(-2)


def as_large_as(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """y with the root mean square of x; both (..., d_model)."""
    wanted = x.square().mean(-1, keepdim=True).sqrt()
    found = y.square().mean(-1, keepdim=True).clamp(min=LEAST).sqrt()
    return y * wanted / found
