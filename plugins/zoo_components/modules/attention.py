"""The module of multi-head attention."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import nn

from zoo.position import Rotation
from zoo_components.modules.heads import Gate, Temperature, merge_heads, split_heads
from zoo_components.modules.masks import Reach, join
from zoo_components.modules.scores import Scoring, attend


class MultiHeadAttention(nn.Module):
    """Multi-head attention with any number of key-value heads (Vaswani et al. 2017).

    `norms` are `q_norm`, `k_norm` and `v_norm`, for heads, and `sub_norm`, for the outputs of all
    heads together; with `full_width_norm`, `q_norm` and `k_norm` too see all heads together.
    """

    def __init__(
        self,
        *,
        d_model: int,
        key_width: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        v_head_dim: int,
        d_out: int,
        bias: Collection[str],
        keys_as_values: bool,
        output_projection: bool,
        norms: Mapping[str, nn.Module],
        full_width_norm: bool,
        norm_after_rotation: bool,
        rotate_values: bool,
        clip: float | None,
        temperature: Temperature | None,
        reach: Reach | None,
        scoring: Scoring,
        sinks: bool,
        global_tokens: bool,
        v_scale: float,
        gate: Gate | None,
    ) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.full_width_norm, self.norm_after_rotation = full_width_norm, norm_after_rotation
        self.rotate_values = rotate_values
        self.clip, self.v_scale = clip, v_scale
        self.temperature, self.reach, self.scoring = temperature, reach, scoring
        self.gate = gate
        for prefix in ("", "global_") if global_tokens else ("",):
            q = nn.Linear(d_model, n_heads * head_dim, bias="q" in bias)
            self.add_module(f"{prefix}q_proj", q)
            k = nn.Linear(key_width, n_kv_heads * head_dim, bias="k" in bias)
            self.add_module(f"{prefix}k_proj", k)
            if not keys_as_values:
                v = nn.Linear(key_width, n_kv_heads * v_head_dim, bias="v" in bias)
                self.add_module(f"{prefix}v_proj", v)
        self.keys_as_values = keys_as_values
        for name, norm in norms.items():
            self.add_module(name, norm)
        self.sinks = nn.Parameter(torch.empty(n_heads)) if sinks else None
        self.gate_bias = None
        if gate is not None:
            gates = n_heads if gate.per_head else n_heads * v_head_dim
            self.gate_proj = nn.Linear(d_model, gates, bias=gate.bias == "projection")
            if gate.bias == "head":
                self.gate_bias = nn.Parameter(torch.empty(n_heads))
        self.o_proj: nn.Module = (
            nn.Linear(n_heads * v_head_dim, d_out, bias="o" in bias)
            if output_projection
            else nn.Identity()
        )

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
        global_tokens: torch.Tensor | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from `x` to `memory`, or to `x` itself.

        Args:
            x: (..., query, d_model).
            memory: (..., key, key_width).
            mask: boolean, True = attend; broadcasts to (..., heads, query, key).
            causal: a query attends to no later key; joined with `mask`.
            rotation: turns queries and keys by their positions.
            bias: added to the scores; broadcasts to (..., heads, query, key).
            positions: of the queries, (query,) or (..., query); 0, 1, ... unless given.
            global_tokens: boolean, (..., query), True = sees all and is seen by all, as far as
                `mask` allows; only if the layer was made for it.
            return_weights: also return the weights, (..., heads, query, key).

        Returns:
            (..., query, d_out), and the weights after dropout or None.
        """
        source = x if memory is None else memory
        if positions is None:
            positions = torch.arange(x.shape[-2], device=x.device)
        seen = mask
        if self.reach is not None:
            near = self.reach.mask(positions, positions)
            seen = join(mask, near if global_tokens is None else near | _of_keys(global_tokens))

        def mix(prefix: str, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
            q, k, v = self._heads(x, source, rotation, prefix)
            return attend(
                q if self.temperature is None else self.temperature(q, positions),
                k,
                v,
                scoring=self.scoring,
                training=self.training,
                mask=mask,
                causal=causal,
                bias=bias,
                sinks=self.sinks,
                return_weights=return_weights,
            )

        mixed, weights = mix("", seen)
        if global_tokens is not None:
            theirs, their_weights = mix("global_", mask)
            mine = global_tokens[..., None, :, None]
            mixed = torch.where(mine, theirs, mixed)
            if weights is not None and their_weights is not None:
                weights = torch.where(mine, their_weights, weights)
        if self.v_scale != 1.0:
            mixed = mixed * self.v_scale
        if self.gate is not None:
            mixed = mixed * self._gates(x, self.gate)
        return self.o_proj(self.sub_norm(merge_heads(mixed))), weights

    def _heads(
        self, x: torch.Tensor, source: torch.Tensor, rotation: Rotation | None, prefix: str
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, (..., heads, length, width), by the projections whose names
        start with `prefix`."""
        q = self.get_submodule(f"{prefix}q_proj")(x)
        k = self.get_submodule(f"{prefix}k_proj")(source)
        v = k if self.keys_as_values else self.get_submodule(f"{prefix}v_proj")(source)
        if self.clip is not None:
            q, k, v = (heads.clamp(-self.clip, self.clip) for heads in (q, k, v))
        q = split_heads(q, self.n_heads)
        k, v = split_heads(k, self.n_kv_heads), split_heads(v, self.n_kv_heads)
        v = self.v_norm(v)
        if not self.norm_after_rotation:
            q, k = self._normed(self.q_norm, q), self._normed(self.k_norm, k)
        if rotation is not None:
            q, k = rotation(q), rotation(k)
            v = rotation(v) if self.rotate_values else v
        if self.norm_after_rotation:
            q, k = self._normed(self.q_norm, q), self._normed(self.k_norm, k)
        return q, k, v

    def _normed(self, norm: nn.Module, heads: torch.Tensor) -> torch.Tensor:
        if not self.full_width_norm:
            return norm(heads)
        return split_heads(norm(merge_heads(heads)), heads.shape[-3])

    def _gates(self, x: torch.Tensor, gate: Gate) -> torch.Tensor:
        """(..., heads, query, v_head_dim or 1)."""
        gates = split_heads(self.gate_proj(x), self.n_heads)
        if self.gate_bias is not None:
            gates = gates + self.gate_bias[:, None, None]
        return gate(gates)


def _of_keys(tokens: torch.Tensor) -> torch.Tensor:
    """(..., key) for all heads and queries."""
    return tokens[..., None, None, :]
