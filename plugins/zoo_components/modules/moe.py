"""Mixtures of experts (Shazeer et al. 2017, arXiv:1701.06538)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zoo.linear import Linear
from zoo_components.modules.experts import Expert
from zoo_components.modules.routing import Router


class MixtureOfExperts(nn.Module):
    """The weighted sum of the experts that the router chooses for a token; only those are computed.

    Args:
        router: chooses the experts.
        experts: the experts, stacked.
        in_proj: maps what the experts read; without it they read d_model features.
        out_proj: maps the sum of what they write, back to d_model.
        weigh_inputs: whether the weights multiply the inputs of the experts instead of their
            outputs.
        shared: an expert that every token is sent to; its output is added.
        shared_gate: multiplies that output with sigmoid(shared_gate(x)).
        average_shared: whether the sum with that output is halved.
        auxiliary_loss: the coefficient of `self.auxiliary_loss`.

    `auxiliary_loss` is the load-balancing loss of the last call, times its coefficient: a scalar
    that `zoo.auxiliary_loss` finds; None in evaluation, and when the coefficient is 0.
    """

    auxiliary_loss: torch.Tensor | None

    def __init__(
        self,
        *,
        router: Router,
        experts: Expert,
        in_proj: Linear | None,
        out_proj: Linear | None,
        weigh_inputs: bool,
        shared: Expert | None,
        shared_gate: Linear | None,
        average_shared: bool,
        auxiliary_loss: float,
    ) -> None:
        super().__init__()
        self.router = router
        self.experts = experts
        self.in_proj, self.out_proj = in_proj, out_proj
        self.weigh_inputs = weigh_inputs
        self.shared = shared
        self.shared_gate = shared_gate
        self.average_shared = average_shared
        self.auxiliary_loss_coefficient = auxiliary_loss
        self.auxiliary_loss = None

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(..., d_model) to (..., d_model). `mask`, boolean and broadcast to (...), is False at
        padding, which is mapped like other tokens but left out of the auxiliary loss."""
        return self.sent(x, self.router(x.reshape(-1, x.shape[-1])), mask)

    def sent(
        self,
        x: torch.Tensor,
        routed: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """The output for x, whose tokens go to the experts that a router has `routed` them to: what
        the `forward` of a `Router` returns. `mask` is that of `forward`."""
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen, scores = routed
        self.auxiliary_loss = None
        if self.training and self.auxiliary_loss_coefficient > 0:
            real = None if mask is None else mask.expand(x.shape[:-1]).flatten()
            balance = load_balancing_loss(scores, chosen, real)
            self.auxiliary_loss = self.auxiliary_loss_coefficient * balance
        if self.in_proj is not None:
            tokens = self.in_proj(tokens)
        y = self.mixed(tokens, weights, chosen)
        if self.out_proj is not None:
            y = self.out_proj(y)
        y = y.view_as(x)
        if self.shared is None:
            return y
        shared = self.of_shared(self.shared, x)
        if self.shared_gate is not None:
            shared = torch.sigmoid(self.shared_gate(x)) * shared
        return (y + shared) / 2 if self.average_shared else y + shared

    def of_shared(self, shared: Expert, x: torch.Tensor) -> torch.Tensor:
        """What the shared expert makes of x, (..., d_model) to the same."""
        output: torch.Tensor = shared(x)
        return output

    def mixed(
        self, tokens: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
    ) -> torch.Tensor:
        """The weighted sum of the chosen experts, (tokens, width): each choice becomes a row;
        rows are sorted by expert, mapped, and added at their tokens."""
        top_k = chosen.shape[-1]
        experts, order = chosen.flatten().sort(stable=True)
        numbers = torch.arange(self.router.weight.shape[0], device=experts.device)
        ends = torch.searchsorted(experts, numbers, right=True)
        rows = tokens[order // top_k]
        if self.weigh_inputs:
            rows = (rows * weights.flatten()[order, None]).to(tokens.dtype)
        rows = self.experts(rows, experts, ends)
        choices = rows[order.argsort()].unflatten(0, (-1, top_k))
        if not self.weigh_inputs:
            choices = choices * weights[..., None]
        return choices.sum(-2).to(tokens.dtype)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the loss of the last call, whose graph cannot be copied."""
        return {**self.__dict__, "auxiliary_loss": None}


def load_balancing_loss(
    scores: torch.Tensor, chosen: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """The load-balancing loss of Fedus et al. (2021, arXiv:2101.03961, equations 4 to 6), for any
    number of choices: n_experts * sum over experts of (its share of the choices) * (its mean share
    of a token's scores). It is 1 where all experts are used alike, n_experts at most, and 0 where
    there are no tokens.

    Args:
        scores: of all experts, (tokens, n_experts), not negative.
        chosen: the numbers of the chosen experts, (tokens, top_k).
        mask: which tokens count, boolean, (tokens,); None for all.
    """
    n_tokens, n_experts = scores.shape
    counted = scores.new_ones(n_tokens) if mask is None else mask.to(scores.dtype)
    part = (counted / counted.sum().clamp(min=1))[:, None]
    taken = torch.zeros_like(scores).scatter(-1, chosen, 1.0) / chosen.shape[-1]
    shares = scores / scores.sum(-1, keepdim=True)
    return n_experts * ((part * taken).sum(0) * (part * shares).sum(0)).sum()
