"""The router of a mixture of experts: the experts of each token, and their weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from zoo_components.modules.norm import widen, without_autocast


class Groups(NamedTuple):
    """Groups of equal size, of which a token's experts are chosen from the best (DeepSeek-AI 2024,
    arXiv:2405.04434).

    Args:
        n: the number of groups.
        top: the number of groups that are chosen.
        best: the number of experts whose scores, summed, are the score of a group.
    """

    n: int
    top: int
    best: int

    def of_best(self, merit: torch.Tensor) -> torch.Tensor:
        """merit (tokens, n_experts), -inf in the groups that are not chosen."""
        groups = merit.unflatten(-1, (self.n, -1))
        scores = groups.topk(self.best).values.sum(-1)
        open_groups = scores.topk(self.top).indices
        closed = torch.ones_like(scores, dtype=torch.bool).scatter(-1, open_groups, False)
        return groups.masked_fill(closed[..., None], -torch.inf).flatten(-2)


class Normalization(NamedTuple):
    """Divides the weights of a token by max(their norm of this order + eps, least)."""

    order: float
    eps: float
    least: float

    def __call__(self, weights: torch.Tensor) -> torch.Tensor:
        """(tokens, top_k) to the same."""
        size = torch.linalg.vector_norm(weights, self.order, -1, keepdim=True)
        return weights / (size + self.eps).clamp(min=self.least)


class Router(nn.Module):
    """Scores every expert for a token, picks the best and weighs them; all of it in float32 at
    least. The arguments are fields of `zoo_components.moe.Router`; None for `groups` and
    `normalize` leaves out what they do."""

    correction_bias: torch.Tensor | None

    def __init__(
        self,
        *,
        d_model: int,
        n_experts: int,
        top_k: int,
        score: str,
        threshold: float | None,
        softcap: float | None,
        bias: bool,
        correction_bias: bool,
        groups: Groups | None,
        normalize: Normalization | None,
        scale: float,
    ) -> None:
        super().__init__()
        self.top_k = top_k
        self.score, self.threshold, self.softcap = score, threshold, softcap
        self.groups, self.normalize, self.scale = groups, normalize, scale
        self.weight = nn.Parameter(torch.empty(n_experts, d_model))
        self.bias = nn.Parameter(torch.empty(n_experts)) if bias else None
        self.register_buffer("correction_bias", torch.zeros(n_experts) if correction_bias else None)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Route tokens.

        Args:
            x: (tokens, d_model).

        Returns:
            The weights of the chosen experts (tokens, top_k), their numbers (tokens, top_k), and
            the scores of all experts (tokens, n_experts).
        """
        logits = self._logits(x)
        scores = self._scored(logits)
        chosen = self._choose(logits if self.score.startswith("topk") else scores)
        return self._weights(logits, scores, chosen), chosen, scores

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of all experts for tokens x (tokens, d_model), (tokens, n_experts)."""
        bias = None if self.bias is None else widen(self.bias)
        # Products that autocast rounds would let neighbouring scores tie.
        with without_autocast(x):
            logits = F.linear(widen(x), widen(self.weight), bias)
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits

    def _scored(self, logits: torch.Tensor) -> torch.Tensor:
        """The scores of all experts, of their logits, (tokens, n_experts)."""
        if self.score == "sqrt_softplus":
            # The slope of a root is infinite at 0, to which the logarithm may be rounded.
            return F.softplus(logits).clamp(min=torch.finfo(logits.dtype).tiny).sqrt()
        return logits.sigmoid() if "sigmoid" in self.score else logits.softmax(-1)

    def _weights(
        self, logits: torch.Tensor, scores: torch.Tensor, chosen: torch.Tensor
    ) -> torch.Tensor:
        """The weights of the chosen experts, (tokens, top_k)."""
        if self.score == "sparsemixer":
            weights = self._sparsemixer(logits, chosen)
        elif self.score == "topk_softmax":
            weights = logits.gather(-1, chosen).softmax(-1)
        else:
            weights = scores.gather(-1, chosen)
        if self.normalize is not None:
            weights = self.normalize(weights)
        return weights * self.scale

    def _choose(self, merit: torch.Tensor) -> torch.Tensor:
        """The experts (tokens, top_k) of greatest merit (tokens, n_experts)."""
        if self.correction_bias is not None:
            merit = merit + self.correction_bias
        if self.groups is not None:
            merit = self.groups.of_best(merit)
        return merit.topk(self.top_k).indices

    def _sparsemixer(self, logits: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """The weight of each choice in turn: its share in the softmax over the experts that were
        not chosen before and are not farther below it than 2 * threshold, relative to the larger of
        the two."""
        assert self.threshold is not None  # with this score
        left, weights = logits, []
        for number in range(self.top_k):
            expert = chosen[:, number : number + 1]
            best = logits.gather(-1, expert)
            distance = (best - logits) / torch.maximum(logits.abs(), best)
            near = left.masked_fill(distance > 2 * self.threshold, -torch.inf)
            weights.append(near.softmax(-1).gather(-1, expert))
            left = left.scatter(-1, expert, -torch.inf)
        return torch.cat(weights, -1)
