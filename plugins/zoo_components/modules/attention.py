"""Multi-head attention: softmax(scale * q k^T + mask) v for each head (Vaswani et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import nn

from zoo.cache import AttentionCache
from zoo.context import SharedKeys
from zoo.linear import Linear, together
from zoo.position import Rotation
from zoo.sharding.parts import all_parts, local, mesh_of, own_part
from zoo_components.heads import heads_text
from zoo_components.modules.heads import Gate, Heads, Preparation, merge_heads, split_heads
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

Mix = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]
"""`attend` for queries, keys, values and a `mask`, with everything else given."""


class LinearMaps(NamedTuple):
    """The linear maps W^Q, W^K, W^V and W^O (Vaswani et al. 2017, section 3.2.2).

    Args:
        d_model: the width of what queries are made of.
        key_width: the width of what keys and values are made of.
        d_out: the width of the output.
        names: the maps that there are, in this order, `qkvo`. Without `v`, the keys are the values
            too; without both `k` and `v`, another layer has them; without `o`, the concatenated
            heads are the output.
        bias: those that have a bias.
    """

    d_model: int
    key_width: int
    d_out: int
    names: str
    bias: Collection[str]


class MultiHeadAttention(nn.Module):
    """o_proj(concat(head_1, ..., head_h)) with head_i = attend(q_i, k_i, v_i), where q_i, k_i and
    v_i are the i-th parts of q_proj(x), k_proj(memory) and v_proj(memory) (Vaswani et al. 2017,
    section 3.2.2); several heads may share one key-value head.

    Args:
        heads: the numbers and widths of the heads, in all processes together.
        maps: the linear maps.
        norms: `q_norm`, `k_norm` and `v_norm`, those of `preparation`, and `sub_norm`, which is
            applied to the concatenated outputs of all heads.
        preparation: what is done to queries, keys and values before they are matched.
        reach: which keys are near enough to a query; None for all.
        scoring: how scores become weights.
        sinks: whether each head has one more key, with a learned logit and the value 0.
        v_scale: a factor of the heads' outputs.
        gate: what multiplies the heads' outputs too, made of `x`.
    """

    map_sets: ClassVar[tuple[str, ...]] = ("",)
    """How the names of each set of maps to queries, keys and values begin."""
    q_proj: Linear
    k_proj: Linear
    q_norm: Norm
    k_norm: Norm
    v_norm: Norm
    sub_norm: Norm

    def __init__(
        self,
        heads: Heads,
        maps: LinearMaps,
        *,
        norms: Mapping[str, nn.Module],
        preparation: Preparation,
        reach: Reach | None,
        scoring: Scoring,
        sinks: bool,
        v_scale: float,
        gate: Gate | None,
    ) -> None:
        super().__init__()
        self.heads, self.preparation = heads, preparation
        self.reach, self.scoring = reach, scoring
        self.v_scale, self.gate = v_scale, gate
        self.needs_positions = reach is not None or preparation.temperature is not None
        sizes = {
            "q": (maps.d_model, heads.n_heads * heads.head_dim),
            "k": (maps.key_width, heads.n_kv_heads * heads.head_dim),
            "v": (maps.key_width, heads.n_kv_heads * heads.v_head_dim),
        }
        self.of_keys = "".join(name for name in maps.names if name in "kv")
        for beginning in self.map_sets:
            for name in "q" + self.of_keys:
                linear = Linear(*sizes[name], bias=name in maps.bias)
                self.add_module(f"{beginning}{name}_proj", linear)
        for name, norm in norms.items():
            put_norm(self, name, norm)
        self.sinks = nn.Parameter(torch.empty(heads.n_heads)) if sinks else None
        self.gate_bias = None
        width = heads.n_heads * heads.v_head_dim
        if gate is not None:
            gates = heads.n_heads if gate.per_head else width
            self.gate_proj = Linear(maps.d_model, gates, bias=gate.bias == "projection")
            if gate.bias == "head":
                self.gate_bias = nn.Parameter(torch.empty(heads.n_heads))
        self.o_proj: nn.Module = (
            Linear(width, maps.d_out, bias="o" in maps.bias) if "o" in maps.names else nn.Identity()
        )

    def extra_repr(self) -> str:
        """The heads and what bounds their scores, as `print(model)` shows them: `8 heads of 64`, or
        `32 over 8 heads of 128, window=4096` if 8 key-value heads serve 32 query heads, which see
        4,096 tokens. So torch does not print layers that differ in this as equal ones."""
        told: dict[str, object] = {}
        if self.reach is not None and self.reach.window is not None:
            told["window"] = self.reach.window
            told |= {"window_sides": "both"} if self.reach.sides == "both" else {}
        if self.reach is not None and self.reach.chunk is not None:
            told["chunk"] = self.reach.chunk
        if self.scoring.scale != self.heads.head_dim**-0.5:
            told["scale"] = self.scoring.scale
        if self.scoring.softcap is not None:
            told["softcap"] = self.scoring.softcap
        more = "".join(f", {name}={value}" for name, value in told.items())
        heads = heads_text(self.heads.n_heads, self.heads.n_kv_heads, self.heads.head_dim)
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
            keys: where the keys and values are put for later layers.
            cache: the keys and values of the earlier tokens; `x` are the next ones.
            return_weights: also return the weights, (..., heads, query, key).

        Returns:
            (..., query, d_out), and the weights after dropout or None.
        """
        whole = return_weights or memory is not None
        places = None if whole else places_of_tokens(x, mask, self)
        if positions is None and self.needs_positions:
            positions = torch.arange(x.shape[-2], device=x.device)
        by_heads = self.q_proj
        mask, bias = own_part(mask, -3, by_heads), own_part(bias, -3, by_heads)
        q, k, v = self._heads(x, memory, rotation, positions, keys, cache, places)
        seen = self._within_reach(mask, k.shape[-2], positions, cache)
        mix = self._mix(causal, bias, return_weights)
        n_tokens = None
        if places is not None and mask is not None and seen is mask and bias is None:
            n_tokens = lengths(mask)
        if n_tokens is None:
            mixed, weights = mix(q, k, v, mask=seen)
        else:
            mixed, weights = one_by_one(mix, q, k, v, n_tokens), None
        return self._output(x, mixed, places), all_parts(weights, -3, by_heads)

    def _mix(self, causal: bool, bias: torch.Tensor | None, return_weights: bool) -> Mix:
        return partial(
            attend,
            scoring=self.scoring,
            training=self.training,
            causal=causal,
            bias=bias,
            sinks=None if self.sinks is None else local(self.sinks),
            return_weights=return_weights,
        )

    def _within_reach(
        self,
        mask: torch.Tensor | None,
        n_keys: int,
        positions: torch.Tensor | None,
        cache: AttentionCache | None,
    ) -> torch.Tensor | None:
        """The mask, less the keys outside of a query's window or chunk; `mask` itself if none is
        outside."""
        if self.reach is None or not self.reach.hides(n_keys):
            return mask
        assert positions is not None  # `forward` ensures it
        if cache is None:
            near = self.reach.mask(positions, positions)
        else:
            at = cache.places(positions.shape[-1], n_keys)
            near = self.reach.mask(positions, cache.positions(n_keys), at)
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
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries of `x`, and keys and values of `memory` or `x`, each (..., heads, length, width);
        with a cache, the keys and values of all tokens that it keeps."""
        if memory is not None:
            (q,) = self._projected("q", x, places)

            def made() -> tuple[torch.Tensor, ...]:
                return self._keys_and_values(rotation, *self._projected(self.of_keys, memory, None))

            k, v = made() if cache is None else cache.of_memory(made)
        else:
            q, *of_keys = self._projected("q" + self.of_keys, x, places)
            k, v = self._keys_and_values(rotation, *of_keys)
            if cache is not None:
                window = None if self.reach is None else self.reach.past
                k, v = cache.extend(k, v, window=window)
            if keys is not None:
                keys.put(k, v, mesh=mesh_of(self.k_proj))
        return self.preparation.query(q, self.q_norm, rotation, positions), k, v

    def _projected(
        self, names: str, x: torch.Tensor, places: torch.Tensor | None, beginning: str = ""
    ) -> list[torch.Tensor]:
        """The projections of x by the maps of these names (`q`, `k`, `v`) in one of the sets, each
        (..., heads, length, width)."""
        mapped = self._mapped([f"{beginning}{name}" for name in names], taken(x, places))
        found = [put_back(one, x, places) for one in mapped]
        if (clip := self.preparation.clip) is not None:
            found = [one.clamp(-clip, clip) for one in found]
        widths = {"q": self.heads.head_dim, "k": self.heads.head_dim, "v": self.heads.v_head_dim}
        return [split_heads(one, widths[name]) for name, one in zip(names, found, strict=True)]

    def _mapped(self, names: Sequence[str], x: torch.Tensor) -> Sequence[torch.Tensor]:
        """x (..., width) by the maps of these names, such as `q`, each (..., heads * width)."""
        return together([getattr(self, f"{name}_proj") for name in names], x)

    def _keys_and_values(
        self, rotation: Rotation | None, k: torch.Tensor, v: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values as they are matched and mixed; without `v`, the keys are the values
        too."""
        v = self.preparation.value(k if v is None else v, self.v_norm, rotation)
        return self.preparation.key(k, self.k_norm, rotation), v

    def _output(
        self, x: torch.Tensor, mixed: torch.Tensor, places: torch.Tensor | None
    ) -> torch.Tensor:
        """From the outputs of the heads, (..., heads, query, v_head_dim), that of the layer."""
        if self.v_scale != 1.0:
            mixed = mixed * self.v_scale
        if self.gate is not None:
            mixed = mixed * self._gates(x, self.gate)
        return at_places(self.o_proj, self.sub_norm(merge_heads(mixed)), places)

    def _gates(self, x: torch.Tensor, gate: Gate) -> torch.Tensor:
        """The gates, (..., heads, query, v_head_dim or 1)."""
        gates = split_heads(self.gate_proj(x), 1 if gate.per_head else self.heads.v_head_dim)
        if self.gate_bias is not None:
            gates = gates + local(self.gate_bias)[:, None, None]
        return gate(gates)


def one_by_one(
    mix: Mix,
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
