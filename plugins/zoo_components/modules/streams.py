"""Several residual streams of each token, (..., n_streams, d_model): what reads and writes them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn

from zoo.context import LayerContext
from zoo.sharding.parts import local
from zoo_components.modules.block import Branch, ResidualBlock
from zoo_components.modules.norm import Norm, put_norm, widen, without_autocast

Connected = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""What a branch reads of the streams (..., d_model), the streams to which its output is added (...,
n_streams, d_model), and the weight of the output in each, (..., n_streams)."""


class StreamedBlock(ResidualBlock):
    """A `ResidualBlock` of several streams: streams = out_norm(kept + write * dropout(post_norm(
    f(pre_norm(read))))) for each sublayer f."""

    def add_streams(self, connections: Mapping[str, nn.Module]) -> None:
        """Give the layer what stands between the streams and each sublayer: a module that maps the
        streams (..., n_streams, d_model) to what is `Connected`."""
        self.streams = nn.ModuleDict(connections)

    def forward(
        self, x: torch.Tensor, context: LayerContext
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """(..., length, n_streams, d_model) to the same, and the attention weights by sublayer if
        asked."""
        maps: dict[str, torch.Tensor] = {}
        for name, connection in self.streams.items():
            f: Branch = getattr(self, name)
            read, kept, write = connection(x)
            added = self._branch(name, f, f.pre_norm(read), context, maps)
            spread = write.unsqueeze(-1) * added.unsqueeze(-2)
            x = f.out_norm(self._skipped(name, kept) + spread)
        return (x if self.scalar is None else x * self.scalar), maps


def weighted_sum(weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The sum over streams x (..., n_streams, d_model) with weights (..., n_streams)."""
    return (weights.unsqueeze(-1) * x).sum(-2).to(x.dtype)


def mixed_by(mix: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sums of the streams x (..., n_streams, d_model), of which a row of `mix` (..., n_streams,
    n_streams) has the weights of one stream. Autocast would round all streams in each branch."""
    with without_autocast(x):
        return mix.to(x.dtype).mT @ x


class HyperConnection(nn.Module):
    """Weights of the streams, learned for all tokens and, with a norm, for each (Zhu et al. 2024,
    arXiv:2409.19606). What is learned is added to what a new model does: a branch reads the first
    stream, and the streams move up by one. In the paper, the k-th branch reads the stream k mod n
    instead, and the streams stay in place."""

    norm: Norm

    def __init__(self, d_model: int, n_streams: int, norm: nn.Module | None) -> None:
        super().__init__()
        self.read = nn.Parameter(torch.zeros(n_streams))
        self.mix = nn.Parameter(torch.zeros(n_streams, n_streams))
        self.write = nn.Parameter(torch.ones(n_streams))
        self.dynamic = norm is not None
        if norm is not None:
            put_norm(self, "norm", norm)
            self.read_map = nn.Parameter(torch.zeros(d_model))
            self.mix_map = nn.Parameter(torch.zeros(n_streams, d_model))
            self.write_map = nn.Parameter(torch.zeros(d_model))
            self.width_scale = nn.Parameter(torch.empty(1))
            self.depth_scale = nn.Parameter(torch.empty(1))

    def forward(self, x: torch.Tensor) -> Connected:
        """(..., n_streams, d_model) to `Connected`."""
        read, mix, write = local(self.read), local(self.mix), local(self.write)
        if self.dynamic:
            h = self.norm(x)
            width, depth = local(self.width_scale), local(self.depth_scale)
            read = read + width * torch.tanh(h @ local(self.read_map))
            mix = mix + width * torch.tanh(h @ local(self.mix_map).T)
            # The weight in a stream is by the stream itself, where it was before it moves up.
            own = torch.tanh(h @ local(self.write_map)).roll(-1, -1)
            write = write + depth * own
        return x[..., 0, :] + weighted_sum(read, x), x.roll(-1, -2) + mixed_by(mix, x), write


class Gate(nn.Module):
    """scale * (x @ weight.T) + bias, with one number as the scale."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_out, n_in))
        self.bias = nn.Parameter(torch.empty(n_out))
        self.scale = nn.Parameter(torch.empty(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., n_in) in float32 or wider to (..., n_out) in the same."""
        weight, bias, scale = (local(t).to(x.dtype) for t in (self.weight, self.bias, self.scale))
        return scale * F.linear(x, weight) + bias


def normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    """The streams (..., n_streams, d_model) as one vector, divided by the root of its mean square,
    in float32 or wider."""
    flat = widen(x.flatten(-2))
    return F.rms_norm(flat, flat.shape[-1:], None, eps)


class ManifoldHyperConnection(nn.Module):
    """Weights of the streams that gates make for each token (Xie et al. 2025, arXiv:2512.24880).
    They are computed in float32 or wider, under autocast too: many roundings would follow each
    other where a matrix is made doubly stochastic."""

    def __init__(
        self, d_model: int, n_streams: int, *, steps: int, norm_eps: float, gate_eps: float
    ) -> None:
        super().__init__()
        self.steps, self.norm_eps, self.gate_eps = steps, norm_eps, gate_eps
        n_in = n_streams * d_model
        self.read = Gate(n_in, n_streams)
        self.mix = Gate(n_in, n_streams * n_streams)
        self.write = Gate(n_in, n_streams)

    def forward(self, x: torch.Tensor) -> Connected:
        """(..., n_streams, d_model) to `Connected`."""
        with without_autocast(x):
            flat = normed(x, self.norm_eps)
            read = torch.sigmoid(self.read(flat)) + self.gate_eps
            mix = self.doubly_stochastic(self.mix(flat).unflatten(-1, (-1, x.shape[-2])))
            write = 2 * torch.sigmoid(self.write(flat))
        return weighted_sum(read, x), mixed_by(mix, x), write.to(x.dtype)

    def doubly_stochastic(self, x: torch.Tensor) -> torch.Tensor:
        """(..., n, n) to matrices of positive numbers whose rows and columns sum to 1, almost."""
        x = torch.softmax(x, -1) + self.gate_eps  # the first division of the rows
        for step in range(self.steps):
            if step:
                x = x / (x.sum(-1, keepdim=True) + self.gate_eps)
            x = x / (x.sum(-2, keepdim=True) + self.gate_eps)
        return x


class Summed(nn.Module):
    """The sum of the streams, or their mean."""

    def __init__(self, *, mean: bool) -> None:
        super().__init__()
        self.mean = mean

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., n_streams, d_model) to (..., d_model)."""
        return x.mean(-2) if self.mean else x.sum(-2)


class Weighted(nn.Module):
    """The sum of the streams, each multiplied by a gate that reads all of them."""

    def __init__(self, d_model: int, n_streams: int, *, norm_eps: float, gate_eps: float) -> None:
        super().__init__()
        self.norm_eps, self.gate_eps = norm_eps, gate_eps
        self.read = Gate(n_streams * d_model, n_streams)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., n_streams, d_model) to (..., d_model)."""
        with without_autocast(x):
            weights = torch.sigmoid(self.read(normed(x, self.norm_eps))) + self.gate_eps
        return weighted_sum(weights, x)
