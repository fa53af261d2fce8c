"""Which keys a query may attend to: boolean masks, True = attend."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch.nn import functional as F


class Reach(NamedTuple):
    """The keys that a query may attend to by their distance.

    Args:
        past: the largest number of tokens, itself included, that a query attends to if it attends
            to no later one.
        window: w; a query at i attends to a key at j if i - j < w, or, with both sides, if
            |i - j| <= w.
        sides: the sides that the window limits.
        chunk: the length of the chunks of the sequence; a query attends only to its own chunk.
    """

    past: int
    window: int | None = None
    sides: Literal["past", "both"] = "past"
    chunk: int | None = None

    def hides(self, n_keys: int) -> bool:
        """Whether, among this number of tokens, some may be too far from others."""
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
            return True  # a graph is for sequences of all lengths
        return self.window is None or n_keys > self.past

    def mask(
        self, queries: torch.Tensor, keys: torch.Tensor, at: torch.Tensor | None = None
    ) -> torch.Tensor:
        """From positions (..., query) and (..., key), the mask (..., 1, query, key) for all heads;
        without a batch, (query, key). `at` are the places of the queries among the keys, (query,);
        by default they are the last. Chunks are counted by positions; windows measure places in the
        sequence, padding included."""
        if self.chunk is not None:
            seen = queries[..., :, None] // self.chunk == keys[..., None, :] // self.chunk
            return seen if seen.dim() == 2 else seen.unsqueeze(-3)
        n_queries, n_keys = queries.shape[-1], keys.shape[-1]
        j = torch.arange(n_keys, device=keys.device)
        i = j[n_keys - n_queries :] if at is None else at
        distance = i[:, None] - j
        assert self.window is not None  # without chunks
        return distance.abs() <= self.window if self.sides == "both" else distance < self.window


def causal_mask(n_queries: int, n_keys: int, device: torch.device) -> torch.Tensor:
    """(n_queries, n_keys), True where the key is not later than the query. The queries are the last
    of the keys."""
    every = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    return every.tril(n_keys - n_queries)


def causal_or_same(blocks: torch.Tensor, n_keys: int) -> torch.Tensor:
    """(batch, 1, query, n_keys), True where the key is not later than the query, or of the same
    block. The queries are the last of the keys; `blocks` are the numbers of theirs, (batch, query),
    and negative for those of no block."""
    n_queries = blocks.shape[1]
    same = (blocks[:, :, None] == blocks[:, None]) & (blocks[:, :, None] >= 0)
    earlier = causal_mask(n_queries, n_keys, blocks.device)
    return (F.pad(same, (n_keys - n_queries, 0)) | earlier)[:, None]


def last_keys(x: torch.Tensor | None, n_keys: int) -> torch.Tensor | None:
    """The columns of the last keys of a mask or bias (..., query, key) that covers more keys."""
    return x if x is None or x.shape[-1] <= n_keys else x[..., x.shape[-1] - n_keys :]


def join(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    """The conjunction of two masks; None allows all."""
    if a is None or b is None:
        return b if a is None else a
    return a & b


def differs(mask: torch.Tensor, axis: int) -> bool:
    """Whether a mask has several values along an axis, counted from the last, and was not expanded
    there."""
    return mask.dim() >= -axis and mask.shape[axis] > 1 and mask.stride(axis) != 0


def new_tokens(mask: torch.Tensor | None, n_tokens: int) -> torch.Tensor | None:
    """Which of the new tokens a mask shows, (..., tokens), for a layer that sums up its tokens: the
    last columns of a mask (..., head, query, key) that is the same for all heads and queries.

    Raises:
        ValueError: it differs by query or head.
    """
    if mask is None:
        return None
    for axis, what in ((-2, "query"), (-3, "head")):
        if differs(mask, axis):
            raise ValueError(
                f"a layer that sums up its tokens does so for all queries and heads alike, and "
                f"takes no mask that differs by {what}"
            )
    seen = mask[..., -1, -n_tokens:]
    return seen[..., -1, :] if mask.dim() > 2 else seen
