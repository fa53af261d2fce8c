"""The router of a mixture of experts: the experts of each token, and their weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from zoo_components.modules.norm import widen, without_autocast


class Router(nn.Module):
    """Scores every expert for a token, picks the best and weighs them; all of it in float32 at
    least. The arguments are the fields of `zoo_components.moe.Router`."""

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
        n_groups: int,
        top_groups: int,
        group_score: str | None,
        normalize: bool,
        normalize_order: float | None,
        normalize_eps: float | None,
        normalize_min: float | None,
        scale: float,
    ) -> None:
        super().__init__()
        self.top_k = top_k
        self.score, self.threshold, self.softcap = score, threshold, softcap
        self.n_groups, self.top_groups, self.group_score = n_groups, top_groups, group_score
        self.normalize, self.normalize_order = normalize, normalize_order
        self.normalize_eps, self.normalize_min = normalize_eps, normalize_min
        self.scale = scale
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
        bias = None if self.bias is None else widen(self.bias)
        # Products that autocast rounds would let neighbouring scores tie.
        with without_autocast(x):
            logits = F.linear(widen(x), widen(self.weight), bias)
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        scores = logits.sigmoid() if "sigmoid" in self.score else logits.softmax(-1)
        chosen = self._choose(logits if self.score.startswith("topk") else scores)
        if self.score == "sparsemixer":
            weights = self._sparsemixer(logits, chosen)
        elif self.score == "topk_softmax":
            weights = logits.gather(-1, chosen).softmax(-1)
        else:
            weights = scores.gather(-1, chosen)
        if self.normalize:
            size = torch.linalg.vector_norm(weights, self.normalize_order, -1, keepdim=True)
            weights = weights / (size + self.normalize_eps).clamp(min=self.normalize_min)
        return weights * self.scale, chosen, scores

    def _choose(self, merit: torch.Tensor) -> torch.Tensor:
        """The experts (tokens, top_k) of greatest merit (tokens, n_experts)."""
        if self.correction_bias is not None:
            merit = merit + self.correction_bias
        if self.top_groups < self.n_groups:
            groups = merit.unflatten(-1, (self.n_groups, -1))
            best = groups.topk(2 if self.group_score == "top2" else 1).values.sum(-1)
            open_groups = best.topk(self.top_groups).indices
            closed = torch.ones_like(best, dtype=torch.bool).scatter(-1, open_groups, False)
            merit = groups.masked_fill(closed[..., None], -torch.inf).flatten(-2)
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
