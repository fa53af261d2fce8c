"""Mixtures of experts that are chosen by the ids of tokens (Roller et al. 2021,
arXiv:2106.04426)."""

from __future__ import annotations

import torch

from zoo.sharding.parts import local
from zoo_components.modules.moe import MixtureOfExperts
from zoo_components.modules.routing import Router


class HashRouter(Router):
    """A `Router` that weighs the experts of a token, and does not choose them: those of each id are
    in the table `experts_of_ids`, (vocab, top_k)."""

    experts_of_ids: torch.Tensor

    def add_table(self, vocab: int) -> None:
        """Give the router its table."""
        table = torch.empty(vocab, self.top_k, dtype=torch.int64)
        self.register_buffer("experts_of_ids", table)

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As `Router.forward`, for tokens x (tokens, d_model) with these ids, (tokens,)."""
        logits = self._logits(x)
        scores, chosen = self._scored(logits), local(self.experts_of_ids)[ids]
        return self._weights(logits, scores, chosen), chosen, scores


class HashMixtureOfExperts(MixtureOfExperts):
    """A `MixtureOfExperts` whose router, a `HashRouter`, is told the ids of the tokens."""

    router: HashRouter

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None = None,
        *,
        ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(..., d_model) to (..., d_model), for tokens with these ids, integers (...). `mask` is
        that of `MixtureOfExperts.forward`.

        Raises:
            ValueError: the ids are missing.
        """
        if ids is None:
            raise ValueError("the experts are chosen by the `ids` of the tokens, which are missing")
        tokens = x.reshape(-1, x.shape[-1])
        return self.sent(x, self.router(tokens, ids.reshape(-1)), mask)
