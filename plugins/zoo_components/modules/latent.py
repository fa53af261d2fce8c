"""Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from zoo.cache import AttentionCache
from zoo.linear import Linear
from zoo.position import Rotation
from zoo.sharding.parts import all_parts, entering, local, own_part
from zoo_components.modules.heads import Temperature, merge_heads, split_heads
from zoo_components.modules.scores import Scoring, attend


class LatentVector(NamedTuple):
    """The width of a latent, and its norm."""

    width: int
    norm: nn.Module


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434, section 2.1), with keys and
    values expanded from their latents `of_keys`, and queries from theirs, `of_queries`, or from the
    input itself. Of a query and key head, rotary positions rotate the last `rope` numbers and not
    the first `nope`."""

    def __init__(
        self,
        *,
        d_model: int,
        key_width: int,
        n_heads: int,
        nope: int,
        rope: int,
        v_head_dim: int,
        of_queries: LatentVector | None,
        of_keys: LatentVector,
        bias: bool,
        temperature: Temperature | None,
        scoring: Scoring,
    ) -> None:
        super().__init__()
        self.nope, self.rope, self.v_head_dim = nope, rope, v_head_dim
        self.temperature, self.scoring = temperature, scoring
        q_width = n_heads * (nope + rope)
        self.has_q_latent = of_queries is not None
        if of_queries is None:
            self.q_proj = Linear(d_model, q_width, bias=False)
        else:
            self.q_a_proj = Linear(d_model, of_queries.width, bias=bias)
            self.q_a_norm = of_queries.norm
            self.q_b_proj = Linear(of_queries.width, q_width, bias=False)
        self.kv_lora_rank = of_keys.width
        self.kv_a_proj = Linear(key_width, self.kv_lora_rank + rope, bias=bias)
        self.kv_a_norm = of_keys.norm
        kv_width = n_heads * (nope + v_head_dim)
        self.kv_b_proj = Linear(self.kv_lora_rank, kv_width, bias=False)
        self.o_proj = Linear(n_heads * v_head_dim, d_model, bias=bias)

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
        cache: AttentionCache | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from `x` to `memory`, or to `x` itself.

        Args:
            x: (..., query, d_model).
            memory: (..., key, key_width).
            mask: boolean, True = attend; broadcasts to (..., heads, query, key).
            causal: a query attends to no later key; joined with `mask`.
            rotation: rotates the rotary parts, (..., heads or 1, length, qk_rope_head_dim).
            bias: added to the scores; broadcasts to (..., heads, query, key).
            positions: those of the queries, (query,) or (..., query), for their temperature; 0, 1,
                ... by default. `rotation` holds its own.
            cache: the latents and rotated keys of the earlier tokens; `x` are the next ones.
            return_weights: also return the weights, (..., heads, query, key).

        Returns:
            (..., query, d_model), and the weights after dropout or None.
        """
        queries = self._queries(self._queried(x), rotation, positions)
        latent, k_rope = self._latents(x, memory, rotation, cache)
        return self._attended(
            queries,
            latent,
            k_rope,
            mask=mask,
            causal=causal,
            bias=bias,
            cached=cache is not None,
            return_weights=return_weights,
        )

    def _attended(
        self,
        queries: tuple[torch.Tensor, torch.Tensor],
        latent: torch.Tensor,
        k_rope: torch.Tensor,
        *,
        mask: torch.Tensor | None,
        causal: bool,
        bias: torch.Tensor | None,
        cached: bool,
        return_weights: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What `forward` returns, of what `_queries` and `_latents` do."""
        q_nope, q_rope = queries
        by_heads = self.kv_b_proj
        k_rope = entering(k_rope, by_heads)
        mask, bias = own_part(mask, -3, by_heads), own_part(bias, -3, by_heads)
        # Few queries are matched with the latents; for many, expanding the keys once is less work.
        absorb = cached and q_nope.shape[-2] < latent.shape[-2]
        q_nope, k_nope, v = (self._absorbed if absorb else self._expanded)(q_nope, latent)
        mixed, weights = attend(
            torch.cat([q_nope, q_rope], -1),
            torch.cat([k_nope, k_rope.expand(*k_nope.shape[:-1], self.rope)], -1),
            v,
            scoring=self.scoring,
            training=self.training,
            mask=mask,
            causal=causal,
            bias=bias,
            return_weights=return_weights,
        )
        if absorb:
            mixed = mixed @ self._key_and_value_maps()[1].transpose(-1, -2)
        return self.o_proj(merge_heads(mixed)), all_parts(weights, -3, by_heads)

    def _queried(self, x: torch.Tensor) -> torch.Tensor:
        """What the map to the queries of all heads reads: their latents (..., query, q_lora_rank),
        or x itself."""
        queried: torch.Tensor = self.q_a_norm(self.q_a_proj(x)) if self.has_q_latent else x
        return queried

    def _queries(
        self, queried: torch.Tensor, rotation: Rotation | None, positions: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The two parts of the queries, (..., heads, query, qk_nope_head_dim) and, rotated,
        (..., heads, query, qk_rope_head_dim), multiplied by their temperature."""
        q = self.q_b_proj(queried) if self.has_q_latent else self.q_proj(queried)
        q = split_heads(q, self.nope + self.rope)
        if self.temperature is not None:
            if positions is None:
                positions = torch.arange(queried.shape[-2], device=queried.device)
            q = self.temperature(q, positions)
        q_nope, q_rope = q.split([self.nope, self.rope], -1)
        return q_nope, q_rope if rotation is None else rotation(q_rope)

    def _latents(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None,
        rotation: Rotation | None,
        cache: AttentionCache | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents (..., 1, key, kv_lora_rank) and rotated keys (..., 1, key, qk_rope_head_dim),
        shared by all heads; with a cache, those of all tokens so far."""
        if memory is not None and cache is not None:
            latent, k_rope = cache.of_memory(lambda: self._latents(memory, None, rotation, None))
            return latent, k_rope
        both = self.kv_a_proj(x if memory is None else memory).unsqueeze(-3)
        latent, k_rope = both.split([self.kv_lora_rank, self.rope], -1)
        latent = self.kv_a_norm(latent)
        if rotation is not None:
            k_rope = rotation(k_rope)
        if cache is not None:
            latent, k_rope = cache.extend(latent, k_rope)
        return latent, k_rope

    def _expanded(
        self, q_nope: torch.Tensor, latent: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The queries unchanged, and the keys and values of each head, expanded from the
        latents."""
        expanded = split_heads(self.kv_b_proj(latent.squeeze(-3)), self.nope + self.v_head_dim)
        k_nope, v = expanded.split([self.nope, self.v_head_dim], -1)
        return q_nope, k_nope, v

    def _absorbed(
        self, q_nope: torch.Tensor, latent: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries mapped to the width of the latents, and the latents as the keys and values of one
        head: q (W c) = (q W) c (DeepSeek-AI 2024, section 2.1.2)."""
        latent = entering(latent, self.kv_b_proj)
        return q_nope @ self._key_and_value_maps()[0], latent, latent

    def _key_and_value_maps(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The matrices that expand latents to keys and to values, (heads, width, kv_lora_rank)."""
        maps = local(self.kv_b_proj.weight).unflatten(0, (-1, self.nope + self.v_head_dim))
        k_map, v_map = maps.split([self.nope, self.v_head_dim], 1)
        return k_map, v_map
