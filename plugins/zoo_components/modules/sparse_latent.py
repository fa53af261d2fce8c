"""Multi-head latent attention to a few keys (DeepSeek-AI 2025, arXiv:2512.02556)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from zoo.cache import AttentionCache
from zoo.context import SharedKeys
from zoo.linear import Linear
from zoo.position import Rotation
from zoo_components.modules.heads import split_heads
from zoo_components.modules.latent import LatentAttention
from zoo_components.modules.masks import causal_mask, join
from zoo_components.modules.norm import widen


class Indexer(nn.Module):
    """Scores all keys for a query: I = sum over heads j of w_j ReLU(q_j k) (DeepSeek-AI 2025,
    equation 1), with w_j divided by sqrt(n_heads * head_dim).

    Args:
        d_model: the width of the input.
        queried: the width of what queries are made of.
        n_heads: the number of heads.
        head_dim: the width of a head.
        rope: the number of leading elements of a head that are rotated.
        interleaved: whether the two halves of these are interleaved before.
        norm: of the keys.
    """

    def __init__(
        self,
        *,
        d_model: int,
        queried: int,
        n_heads: int,
        head_dim: int,
        rope: int,
        interleaved: bool,
        norm: nn.Module,
    ) -> None:
        super().__init__()
        self.head_dim, self.rope, self.interleaved = head_dim, rope, interleaved
        self.scale = (n_heads * head_dim) ** -0.5
        self.q_proj = Linear(queried, n_heads * head_dim, bias=False)
        self.k_proj = Linear(d_model, head_dim, bias=False)
        self.k_norm = norm
        self.weights_proj = Linear(d_model, n_heads, bias=False)

    def keys(self, x: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        """The keys of the tokens x (..., key, d_model), (..., 1, key, head_dim)."""
        return self._turned(self.k_norm(self.k_proj(x)).unsqueeze(-3), rotation)

    def forward(
        self,
        x: torch.Tensor,
        queried: torch.Tensor,
        keys: torch.Tensor,
        rotation: Rotation | None,
    ) -> torch.Tensor:
        """The scores of `keys` (..., 1, key, head_dim) for x (..., query, d_model), of which
        queries are made through `queried` (..., query, width): (..., 1, query, key), in float32 at
        least."""
        q = self._turned(split_heads(self.q_proj(queried), self.head_dim), rotation)
        return weighted_scores(q, keys, self.weights_proj(x), self.scale)

    def _turned(self, heads: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        """Rotate the leading elements of (..., heads, length, head_dim). Where their order is
        another then, it is so in queries and in keys."""
        if rotation is None:
            return heads
        rope, rest = heads.split([self.rope, self.head_dim - self.rope], -1)
        if self.interleaved:
            rope = rope.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
        return torch.cat([rotation(rope), rest], -1)


class Choosing(nn.Module):
    """What attentions have in common that attend to what an indexer chooses.

    `auxiliary_loss` is the loss of the indexer in the last call, times its coefficient: a scalar
    that `zoo.auxiliary_loss` finds; None in evaluation, and when the coefficient is 0. No other
    gradients reach the indexer, and this one reaches nothing else.
    """

    auxiliary_loss: torch.Tensor | None

    def add_indexer(self, indexer: nn.Module, *, topk: int, auxiliary_loss: float) -> None:
        """Give the attention its indexer, by which a query attends to `topk` of what it scores."""
        self.indexer, self.topk = indexer, topk
        self.auxiliary_loss_coefficient = auxiliary_loss
        self.auxiliary_loss = None

    def _learns(self, cache: AttentionCache | None) -> bool:
        """Whether the indexer learns from a call with this cache."""
        return self.training and self.auxiliary_loss_coefficient > 0 and cache is None

    def _hides(self, n: int) -> bool:
        """Whether, of so many that are scored, a query may not attend to all."""
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
            return True  # a graph is for sequences of all lengths
        return n > self.topk

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the loss of the last call, whose graph cannot be copied."""
        return {**self.__dict__, "auxiliary_loss": None}


class SparseLatentAttention(Choosing, LatentAttention):
    """A `LatentAttention` to the keys that an indexer chooses."""

    indexer: Indexer

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        bias: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        keys: SharedKeys | None = None,
        cache: AttentionCache | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As that of `LatentAttention`, from `x` to itself: the description refuses a memory. The
        cache holds the keys of the indexer too. `keys` is where later layers find the choice."""
        queried = self._queried(x)
        queries = self._queries(queried, rotation, positions)
        latent, k_rope = self._latents(x, None, rotation, None)
        index_keys = self.indexer.keys(x.detach(), rotation)
        if cache is not None:
            latent, k_rope, index_keys = cache.extend(latent, k_rope, index_keys)
        learns = self._learns(cache)
        scores = seen = choice = None
        if learns or self._hides(latent.shape[-2]):
            if causal and x.shape[-2] > 1:  # the one query is the last key
                earlier = causal_mask(x.shape[-2], latent.shape[-2], x.device)
                mask, causal = join(mask, earlier), False
            scores = self.indexer(x.detach(), queried.detach(), index_keys, rotation)
            choice = chosen(scores.detach(), mask, self.topk)
            seen, mask = mask, join(mask, choice)
        if keys is not None:
            keys.put_chosen(choice)
        output, weights = self._attended(
            queries,
            latent,
            k_rope,
            mask=mask,
            causal=causal,
            bias=bias,
            cached=cache is not None,
            return_weights=return_weights or learns,
        )
        self.auxiliary_loss = None
        if learns and scores is not None and mask is not None and weights is not None:
            loss = index_loss(scores, weights.detach(), mask, seeing_themselves(scores, seen))
            self.auxiliary_loss = self.auxiliary_loss_coefficient * loss
        return output, weights if return_weights else None


class SharedSparseLatentAttention(LatentAttention):
    """A `LatentAttention` to the keys that an earlier layer chose."""

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        bias: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        keys: SharedKeys | None = None,
        cache: AttentionCache | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As that of `LatentAttention`, from `x` to itself, with the choice that is in `keys`."""
        if keys is None:
            raise ValueError("this attention needs the `keys` that another layer chose")
        return super().forward(
            x,
            mask=join(mask, keys.get_chosen()),
            causal=causal,
            rotation=rotation,
            bias=bias,
            positions=positions,
            cache=cache,
            return_weights=return_weights,
        )


def weighted_scores(
    q: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor, scale: float
) -> torch.Tensor:
    """The sum over heads of scale * weight * ReLU(q k), in float32 at least.

    Args:
        q: (..., heads, query, head_dim).
        keys: of all heads, (..., 1, key, head_dim).
        weights: those of the heads, (..., query, heads).
        scale: a factor of the weights.

    Returns:
        (..., 1, query, key).
    """
    products = (widen(q) @ widen(keys).transpose(-1, -2)).relu()
    scores = (widen(weights) * scale).unsqueeze(-2) @ products.transpose(-3, -2)
    return scores.transpose(-3, -2)


def chosen(scores: torch.Tensor, mask: torch.Tensor | None, topk: int) -> torch.Tensor:
    """The `topk` keys of the largest scores for each query, boolean, (..., heads or 1, query, key);
    of equal scores the first, so that the choice does not depend on later keys.

    Args:
        scores: (..., 1, query, key).
        mask: boolean, True = attend; broadcasts to (..., heads, query, key). Hidden keys are chosen
            after all others.
    """
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    first = scores.sort(dim=-1, descending=True, stable=True).indices[..., :topk]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, first, True)


def seeing_themselves(scores: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
    """Which queries see themselves in some head, boolean, (..., 1, query): of scores (..., 1,
    query, key) and the mask of the keys that there are to choose from, which broadcasts to (...,
    heads, query, key); None for all."""
    every = torch.ones_like(scores, dtype=torch.bool)
    itself = (every if seen is None else every & seen).diagonal(dim1=-2, dim2=-1)
    return itself.any(-2, keepdim=True)


def index_loss(
    scores: torch.Tensor, weights: torch.Tensor, mask: torch.Tensor, counted: torch.Tensor
) -> torch.Tensor:
    """The mean over queries of KL(p || softmax(scores)) over the chosen keys, where p are the
    weights of all heads, summed and divided by their sum (DeepSeek-AI 2025, equation 4).

    Args:
        scores: of the indexer, (..., 1, query, key).
        weights: of the attention, (..., heads, query, key).
        mask: the chosen keys, boolean, (..., heads or 1, query, key).
        counted: the queries that count, which padding does not, boolean, (..., 1, query).
    """
    target = weights.to(scores.dtype).sum(-3, keepdim=True)
    target = target / target.sum(-1, keepdim=True).clamp(min=torch.finfo(target.dtype).tiny)
    hidden = ~mask.any(-3, keepdim=True)
    found = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).log_softmax(-1)
    divergence = F.kl_div(found, target, reduction="none").sum(-1)
    shares = counted.to(scores.dtype)
    return (divergence * shares).sum() / shares.sum().clamp(min=1.0)
