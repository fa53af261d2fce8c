"""Multi-head attention: softmax(scale * q k^T + mask) v for each head (Vaswani et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import torch
from torch import nn

from zoo.cache import AttentionCache
from zoo.context import SharedKeys
from zoo.linear import Linear, together
from zoo.position import Rotation
from zoo.sharding.parts import all_parts, local, mesh_of, own_part
from zoo_components.heads import heads_text
from zoo_components.modules.heads import Gate, Temperature, merge_heads, split_heads
from zoo_components.modules.masks import Reach, join, last_keys
from zoo_components.modules.norm import Norm, put_norm
from zoo_components.modules.scores import Scoring, attend
from zoo_components.modules.unpadding import (
    at_places,
    lengths,
    places_of_tokens,
    put_back,
    taken,
)


class MultiHeadAttention(nn.Module):
    """o_proj(concat(head_1, ..., head_h)) with head_i = attend(q_i, k_i, v_i), where q_i, k_i and
    v_i are the i-th parts of q_proj(x), k_proj(memory) and v_proj(memory) (Vaswani et al. 2017,
    section 3.2.2); several heads may share one key-value head.

    `projections` are the names of the maps to queries, keys and values: `qkv`, or `qk` where the
    keys are the values. `norms` holds `q_norm`, `k_norm` and `v_norm`, which are applied to each
    head, and `sub_norm`, which is applied to the concatenated outputs of all heads. With
    `full_width_norm`, `q_norm` and `k_norm` are also applied to all heads concatenated.
    """

    q_proj: Linear
    k_proj: Linear
    q_norm: Norm
    k_norm: Norm
    v_norm: Norm
    sub_norm: Norm

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
        projections: str,
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
        first_is_global: bool,
        v_scale: float,
        gate: Gate | None,
    ) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads  # in all processes together
        self.head_dim, self.v_head_dim = head_dim, v_head_dim
        self.full_width_norm, self.norm_after_rotation = full_width_norm, norm_after_rotation
        self.rotate_values = rotate_values
        self.clip, self.v_scale = clip, v_scale
        self.temperature, self.reach, self.scoring = temperature, reach, scoring
        self.gate, self.first_is_global = gate, first_is_global
        sizes = {
            "q": (d_model, n_heads * head_dim),
            "k": (key_width, n_kv_heads * head_dim),
            "v": (key_width, n_kv_heads * v_head_dim),
        }
        for prefix in ("", "global_") if global_tokens else ("",):
            for name in projections:
                n_in, n_out = sizes[name]
                self.add_module(f"{prefix}{name}_proj", Linear(n_in, n_out, bias=name in bias))
        self.projections = projections
        for name, norm in norms.items():
            put_norm(self, name, norm)
        self.sinks = nn.Parameter(torch.empty(n_heads)) if sinks else None
        self.gate_bias = None
        if gate is not None:
            gates = n_heads if gate.per_head else n_heads * v_head_dim
            self.gate_proj = Linear(d_model, gates, bias=gate.bias == "projection")
            if gate.bias == "head":
                self.gate_bias = nn.Parameter(torch.empty(n_heads))
        self.o_proj: nn.Module = (
            Linear(n_heads * v_head_dim, d_out, bias="o" in bias)
            if output_projection
            else nn.Identity()
        )

    def extra_repr(self) -> str:
        """The heads and what bounds their scores, as `print(model)` shows them: `8 heads of 64`, or
        `32 over 8 heads of 128, window=4096` if 8 key-value heads serve 32 query heads, which see
        4,096 tokens. So torch does not print layers that differ in this as equal ones."""
        heads = heads_text(self.n_heads, self.n_kv_heads, self.head_dim)
        told: dict[str, object] = {}
        if self.reach is not None and self.reach.window is not None:
            told["window"] = self.reach.window
            told |= {"window_sides": "both"} if self.reach.sides == "both" else {}
        if self.reach is not None and self.reach.chunk is not None:
            told["chunk"] = self.reach.chunk
        if self.scoring.scale != self.head_dim**-0.5:
            told["scale"] = self.scoring.scale
        if self.scoring.softcap is not None:
            told["softcap"] = self.scoring.softcap
        more = "".join(f", {name}={value}" for name, value in told.items())
        return f"{heads}{more}"

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
        keys: SharedKeys | None = None,
        cache: AttentionCache | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from `x` to `memory`, or to `x` itself.

        Args:
            x: (..., query, d_model).
            memory: (..., key, key_width).
            mask: boolean, True = attend; broadcasts to (..., heads, query, key).
            causal: a query attends to no later key; joined with `mask`.
            rotation: rotates queries and keys by their positions.
            bias: added to the scores; broadcasts to (..., heads, query, key).
            positions: of the queries, (query,) or (..., query); by default 0, 1, ....
            global_tokens: boolean, (..., query), True = attends to all and is attended to by all,
                as far as `mask` allows; only if the layer was built for it, never with a cache. By
                default none or, if the layer was built so, the first one.
            keys: where the keys and values are put for later layers.
            cache: the keys and values of the earlier tokens; `x` are the next ones.
            return_weights: also return the weights, (..., heads, query, key).

        Returns:
            (..., query, d_out), and the weights after dropout or None.
        """
        if global_tokens is None and self.first_is_global:
            global_tokens = (torch.arange(x.shape[-2], device=x.device) == 0).expand(x.shape[:-1])
        whole = return_weights or memory is not None
        places = None if whole else places_of_tokens(x, mask, self)
        mask, bias = self._own_heads(mask), self._own_heads(bias)
        positional = self.temperature is not None or self.reach is not None
        if positions is None and positional:
            positions = torch.arange(x.shape[-2], device=x.device)
        mix = partial(
            attend,
            scoring=self.scoring,
            training=self.training,
            causal=causal,
            bias=bias,
            sinks=None if self.sinks is None else local(self.sinks),
            return_weights=return_weights,
        )
        q, k, v = self._heads(x, memory, rotation, positions, keys, cache, places)
        seen = self._within_reach(mask, k.shape[-2], positions, global_tokens, cache)
        n_tokens = None
        if places is not None and mask is not None and seen is mask and bias is None:
            n_tokens = lengths(mask) if global_tokens is None else None
        if n_tokens is None:
            mixed, weights = mix(q, k, v, mask=seen)
        else:
            mixed, weights = one_by_one(mix, q, k, v, n_tokens), None
        if global_tokens is not None:
            q, k, v = self._heads(x, None, rotation, positions, None, None, places, "global_")
            theirs = mix(q, k, v, mask=mask)
            mixed, weights = at_global_tokens(global_tokens, theirs, (mixed, weights))
        if self.v_scale != 1.0:
            mixed = mixed * self.v_scale
        if self.gate is not None:
            mixed = mixed * self._gates(x, self.gate)
        merged = self.sub_norm(merge_heads(mixed))
        if weights is not None:
            weights = all_parts(weights, -3, self.q_proj)
        return at_places(self.o_proj, merged, places), weights

    def _own_heads(self, scores: torch.Tensor | None) -> torch.Tensor | None:
        """The part of a mask or bias for all heads that belongs to the heads of this process."""
        return None if scores is None else own_part(scores, -3, self.q_proj)

    def _within_reach(
        self,
        mask: torch.Tensor | None,
        n_keys: int,
        positions: torch.Tensor | None,
        global_tokens: torch.Tensor | None,
        cache: AttentionCache | None,
    ) -> torch.Tensor | None:
        """The mask, less the keys outside of a query's window or chunk that are no global tokens;
        `mask` itself if none is outside."""
        if self.reach is None or not self.reach.hides(n_keys):
            return mask
        assert positions is not None  # `forward` ensures it
        if cache is None:
            near = self.reach.mask(positions, positions)
        else:
            at = cache.places(positions.shape[-1], n_keys)
            near = self.reach.mask(positions, cache.positions(n_keys), at)
        if global_tokens is not None:
            near = near | global_tokens[..., None, None, :]
        return join(last_keys(mask, n_keys), near)

    def _heads(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None,
        rotation: Rotation | None,
        positions: torch.Tensor | None,
        keys: SharedKeys | None,
        cache: AttentionCache | None,
        places: torch.Tensor | None,
        prefix: str = "",
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries of `x`, and keys and values of `memory` or `x`, each (..., heads, length, width),
        by the projections whose names start with `prefix`; with a cache, the keys and values of all
        tokens that it keeps."""
        names = self.projections.removeprefix("q")
        if memory is not None:
            (q,) = self._projected("q", x, places, prefix)

            def made() -> tuple[torch.Tensor, ...]:
                return self._finished(rotation, *self._projected(names, memory, None, prefix))

            k, v = made() if cache is None else cache.of_memory(made)
        else:
            q, *of_keys = self._projected("q" + names, x, places, prefix)
            k, v = self._finished(rotation, *of_keys)
            if cache is not None:
                window = None if self.reach is None else self.reach.past
                k, v = cache.extend(k, v, window=window)
            if keys is not None:
                keys.put(k, v, mesh=mesh_of(self.k_proj))
        return self._asking(q, rotation, positions), k, v

    def _asking(
        self, q: torch.Tensor, rotation: Rotation | None, positions: torch.Tensor | None
    ) -> torch.Tensor:
        """Queries, normalised, rotated and multiplied by their temperature."""
        q = self._turned(q, self.q_norm, rotation)
        if self.temperature is None:
            return q
        assert positions is not None  # `forward` ensures it
        return self.temperature(q, positions)

    def _projected(
        self, names: str, x: torch.Tensor, places: torch.Tensor | None, prefix: str
    ) -> list[torch.Tensor]:
        """The projections of x by the maps of these names (`q`, `k`, `v`), each (..., heads,
        length, width)."""
        maps = [getattr(self, f"{prefix}{name}_proj") for name in names]
        found = [put_back(one, x, places) for one in together(maps, taken(x, places))]
        if self.clip is not None:
            found = [one.clamp(-self.clip, self.clip) for one in found]
        widths = {"q": self.head_dim, "k": self.head_dim, "v": self.v_head_dim}
        return [split_heads(one, widths[name]) for name, one in zip(names, found, strict=True)]

    def _finished(
        self, rotation: Rotation | None, k: torch.Tensor, v: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, normalised and rotated; without `v`, the keys are the values too."""
        v = self.v_norm(k if v is None else v)
        if self.rotate_values and rotation is not None:
            v = rotation(v)
        return self._turned(k, self.k_norm, rotation), v

    def _turned(self, heads: torch.Tensor, norm: Norm, rotation: Rotation | None) -> torch.Tensor:
        """Queries or keys, normalised and rotated by their positions."""
        if not self.norm_after_rotation:
            heads = self._normed(norm, heads)
        if rotation is not None:
            heads = rotation(heads)
        return self._normed(norm, heads) if self.norm_after_rotation else heads

    def _normed(self, norm: Norm, heads: torch.Tensor) -> torch.Tensor:
        if not self.full_width_norm:
            return norm(heads)
        return split_heads(norm(merge_heads(heads)), heads.shape[-1])

    def _gates(self, x: torch.Tensor, gate: Gate) -> torch.Tensor:
        """The gates, (..., heads, query, v_head_dim or 1)."""
        gates = split_heads(self.gate_proj(x), 1 if gate.per_head else self.v_head_dim)
        if self.gate_bias is not None:
            gates = gates + local(self.gate_bias)[:, None, None]
        return gate(gates)


def at_global_tokens(
    global_tokens: torch.Tensor,
    theirs: tuple[torch.Tensor, torch.Tensor | None],
    others: tuple[torch.Tensor, torch.Tensor | None],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Outputs and weights: `theirs` for the queries that are global tokens, (..., query), and
    `others` for all others (Beltagy et al. 2020, arXiv:2004.05150, section 3.1)."""
    mine = global_tokens[..., None, :, None]
    mixed = torch.where(mine, theirs[0], others[0])
    if theirs[1] is None or others[1] is None:
        return mixed, None
    return mixed, torch.where(mine, theirs[1], others[1])


def one_by_one(
    mix: Callable[..., tuple[torch.Tensor, torch.Tensor | None]],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    n_tokens: Sequence[int],
) -> torch.Tensor:
    """The outputs of `mix` for the first tokens of each sequence of a batch, (batch, heads, length,
    value width); 0 at the others, which are padding."""
    batch, n_heads, length, _ = q.shape
    # As a token's heads are merged, they are adjacent.
    mixed = q.new_zeros(batch, length, n_heads, v.shape[-1]).transpose(1, 2)
    for row, n in enumerate(n_tokens):
        own = (slice(row, row + 1), slice(None), slice(n))
        mixed[own] = mix(q[own], k[own], v[own])[0]
    return mixed
