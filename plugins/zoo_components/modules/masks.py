"""Which keys a query may attend to: boolean masks, True = attend."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch


class Reach(NamedTuple):
    """How far a query sees.

    Args:
        past: how many tokens, itself included, it sees at most where it sees no later one.
        window: w; a query at i sees a key at j if i - j < w, or, on both sides, |i - j| <= w.
        sides: where the window ends.
        chunk: the length of the pieces that the sequence is cut into, which do not see each other.
    """

    past: int
    window: int | None = None
    sides: Literal["past", "both"] = "past"
    chunk: int | None = None

    def hides(self, n_keys: int) -> bool:
        """Whether one of so many tokens may be too far from another."""
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
            return True  # a graph is for sequences of all lengths
        return self.window is None or n_keys > self.past

    def mask(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Positions (..., query) and (..., key) to (..., 1, query, key) for all heads; without a
        batch, (query, key). The queries are the last of the keys. Chunks are counted by positions;
        windows measure places in the sequence, padding included."""
        if self.chunk is not None:
            seen = queries[..., :, None] // self.chunk == keys[..., None, :] // self.chunk
            return seen if seen.dim() == 2 else seen.unsqueeze(-3)
        n_queries, n_keys = queries.shape[-1], keys.shape[-1]
        j = torch.arange(n_keys, device=keys.device)
        distance = j[n_keys - n_queries :, None] - j
        assert self.window is not None  # without chunks
        return distance.abs() <= self.window if self.sides == "both" else distance < self.window


def causal_mask(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """(query, key) for q (..., query, width) and k (..., key, width), True where the key is not
    later than the query. The queries are the last of the keys."""
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    every = torch.ones(n_queries, n_keys, dtype=torch.bool, device=q.device)
    return every.tril(n_keys - n_queries)


def last_keys(x: torch.Tensor | None, n_keys: int) -> torch.Tensor | None:
    """The columns of the last keys, of a mask or bias (..., query, key) that has more."""
    return x if x is None or x.shape[-1] <= n_keys else x[..., x.shape[-1] - n_keys :]


def join(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    """What both allow; None allows all."""
    if a is None or b is None:
        return b if a is None else a
    return a & b
