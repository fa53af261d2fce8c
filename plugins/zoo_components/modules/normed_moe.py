"""Mixtures of experts with norms inside."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from zoo_components.modules.experts import Expert
from zoo_components.modules.moe import MixtureOfExperts
from zoo_components.modules.norm import Norm, put_norm, widen
from zoo_components.modules.routing import Router


class NormedRouter(Router):
    """A `Router` whose logits are those of norm(x) / sqrt(d_model), and whose weights are
    multiplied by a learned factor of each expert, `expert_scale`."""

    norm: Norm

    def add_norm(self, norm: nn.Module) -> None:
        """Give the router the norm of what it reads, and the factors, (n_experts,)."""
        put_norm(self, "norm", norm)
        self.expert_scale = nn.Parameter(torch.empty(self.weight.shape[0]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As that of a `Router`."""
        weights, chosen, scores = super().forward(self.norm(x) / x.shape[-1] ** 0.5)
        return weights * widen(self.expert_scale)[chosen], chosen, scores


class NormedMixtureOfExperts(MixtureOfExperts):
    """A `MixtureOfExperts` with norms of what the experts read and of the weighted sum of what they
    write, and of what the shared expert reads and writes."""

    experts_pre_norm: Norm
    experts_post_norm: Norm
    shared_pre_norm: Norm
    shared_post_norm: Norm

    def add_norms(self, make: Callable[[], nn.Module]) -> None:
        """Give the experts, and the shared expert if there is one, norms that `make` makes."""
        for name in ("experts",) if self.shared is None else ("experts", "shared"):
            for site in ("pre", "post"):
                put_norm(self, f"{name}_{site}_norm", make())

    def mixed(
        self, tokens: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
    ) -> torch.Tensor:
        """The weighted sum of the chosen experts, (tokens, d_model), between their norms."""
        return self.experts_post_norm(super().mixed(self.experts_pre_norm(tokens), weights, chosen))

    def of_shared(self, shared: Expert, x: torch.Tensor) -> torch.Tensor:
        """What the shared expert makes of x, (..., d_model) to the same, between its norms."""
        return self.shared_post_norm(super().of_shared(shared, self.shared_pre_norm(x)))
