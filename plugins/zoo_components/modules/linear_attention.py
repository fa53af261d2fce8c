"""Linear attention (Katharopoulos et al. 2020, arXiv:2006.16236)."""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import nn

from zoo.cache import AttentionCache
from zoo.linear import Linear, together
from zoo.position import Rotation
from zoo.sharding.parts import all_parts, own_part
from zoo_components.heads import heads_text
from zoo_components.modules.decay import chunks
from zoo_components.modules.heads import merge_heads, split_heads

CHUNK = 64
"""The number of tokens whose pairs are computed one by one; earlier chunks are seen by their sums.
Any number gives the same up to rounding; near the width of a head, both take as long."""


class LinearAttention(nn.Module):
    """o_proj(concat(head_1, ..., head_h)), where the output of a head for query i is
    sum_j phi(q_i) . phi(k_j) v_j / sum_j phi(q_i) . phi(k_j) over the keys j that it sees
    (Katharopoulos et al. 2020, arXiv:2006.16236, equations 4 and 8); 0 if it sees none."""

    def __init__(
        self, *, d_model: int, key_width: int, n_heads: int, head_dim: int, bias: Collection[str]
    ) -> None:
        super().__init__()
        self.n_heads, self.head_dim = n_heads, head_dim
        self.q_proj = Linear(d_model, n_heads * head_dim, bias="q" in bias)
        self.k_proj = Linear(key_width, n_heads * head_dim, bias="k" in bias)
        self.v_proj = Linear(key_width, n_heads * head_dim, bias="v" in bias)
        self.o_proj = Linear(n_heads * head_dim, d_model, bias="o" in bias)

    def extra_repr(self) -> str:
        """The heads, as `print(model)` shows them: `8 heads of 64`."""
        return heads_text(self.n_heads, self.n_heads, self.head_dim)

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

        The time grows with the length; with its square if `return_weights` is set, or if queries
        have masks of their own.

        Args:
            x: (..., query, d_model).
            memory: (..., key, key_width).
            mask: boolean, True = attend; broadcasts to (..., heads, query, key).
            causal: a query attends to no later key; joined with `mask`.
            rotation: not used: the description refuses position schemes that rotate.
            bias: not used: it refuses those that add a bias.
            positions: not used.
            cache: the sums over the earlier tokens; `x` are the next ones, and causal.
            return_weights: also return the weights, (..., heads, query, key).

        Returns:
            (..., query, d_model), and the weights or None.

        Raises:
            ValueError: the call needs each earlier token, of which a cache has the sums alone.
        """
        mask = own_part(mask, -3, self.q_proj)
        if return_weights or _differs_by_query(mask):
            if cache is not None and memory is None:
                raise ValueError(
                    "with a cache, linear attention has no single earlier tokens, which weights "
                    "and a mask with a row for each query are about"
                )
            q, k, v = self._heads_of(x, x if memory is None else memory)
            mixed, weights = _by_pairs(q, k, v, mask, causal=causal)
            weights = all_parts(weights.to(x.dtype), -3, self.q_proj)
        else:
            mixed, weights = self._by_sums(x, memory, mask, causal, cache), None
        output = self.o_proj(merge_heads(mixed.to(x.dtype)))
        return output, weights if return_weights else None

    def _by_sums(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None,
        mask: torch.Tensor | None,
        causal: bool,
        cache: AttentionCache | None,
    ) -> torch.Tensor:
        """The heads' outputs, (..., heads, query, head_dim), with a mask that is the same for all
        queries."""
        if memory is not None:
            (q,) = self._projected([self.q_proj], x)

            def summed() -> tuple[torch.Tensor, ...]:
                k, v = self._projected([self.k_proj, self.v_proj], memory)
                return (_sum_of(*_seen(_features(k), v, mask)),)

            (sums,) = summed() if cache is None else cache.of_memory(summed)
            return _divided(_features(q) @ sums)
        q, k, v = self._heads_of(x, x)
        if cache is not None and mask is not None:
            mask = cache.of_new(mask, x.shape[-2])
        k, v = _seen(k, v, mask)
        if not causal:
            return _divided(q @ _sum_of(k, v))
        before = None if cache is None or cache.state is None else cache.state[0]
        sums, after = causal_sums(q, k, v, before)
        if cache is not None:
            cache.keep_state(after)
        return _divided(sums)

    def _heads_of(
        self, x: torch.Tensor, source: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """phi(q) of x, and phi(k) and v of a source."""
        if source is x:
            q, k, v = self._projected([self.q_proj, self.k_proj, self.v_proj], x)
        else:
            (q,) = self._projected([self.q_proj], x)
            k, v = self._projected([self.k_proj, self.v_proj], source)
        return _features(q), _features(k), v

    def _projected(self, maps: list[Linear], x: torch.Tensor) -> list[torch.Tensor]:
        """The projections of x by these maps, each (..., heads, length, head_dim), in float32 at
        least, in which sums over many tokens are computed."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return [split_heads(one, self.head_dim).to(wide) for one in together(maps, x)]


def _features(x: torch.Tensor) -> torch.Tensor:
    """phi(x) = elu(x) + 1, without the rounding of exp(x) - 1 + 1."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def _differs_by_query(mask: torch.Tensor | None) -> bool:
    """Whether a mask has a row for each query. One that was expanded has the same for all."""
    return mask is not None and mask.shape[-2] > 1 and mask.stride(-2) != 0


def _seen(
    k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """phi(k), 0 at the keys that a mask (..., 1, key) hides, whose last columns are of these keys;
    and v, beside a column of ones, whose sums are the divisors."""
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    if mask is None:
        return k, v
    return k * mask[..., -1, -k.shape[-2] :, None], v


def _sum_of(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The sum over keys of phi(k) v^T, (..., heads, head_dim, head_dim + 1)."""
    return k.transpose(-1, -2) @ v


def causal_sums(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, before: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums over keys of q . k v, for each query up to its own key, chunk by chunk: the keys of
    a query's chunk are taken one by one, and those of the chunks before it by their sum. Of one
    token, this is the recurrence of the paper (equations 16 to 20).

    Args:
        q: (..., length, width).
        k: likewise.
        v: (..., length, value width).
        before: the sum over earlier tokens of k v^T, (..., width, value width); None if there are
            none.

    Returns:
        The sums, (..., length, value width), and `before` for what comes next.
    """
    length = q.shape[-2]
    size, n_missing = chunks(length, CHUNK)
    q, k, v = (F.pad(t, (0, 0, 0, n_missing)).unflatten(-2, (-1, size)) for t in (q, k, v))
    added = _sum_of(k, v)
    first = torch.zeros_like(added[..., :1, :, :]) if before is None else before.unsqueeze(-3)
    sums = torch.cat([first, added], -3).cumsum(-3)
    found = (q @ k.transpose(-1, -2)).tril() @ v + q @ sums[..., :-1, :, :]
    return found.flatten(-3, -2)[..., :length, :], sums[..., -1, :, :]


def _by_pairs(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The heads' outputs, (..., query, width), and the weights, (..., query, key)."""
    scores = q @ k.transpose(-1, -2)
    if causal:
        scores = scores.tril()
    if mask is not None:
        scores = scores * mask
    weights = scores / _divisor(scores.sum(-1, keepdim=True))
    return weights @ v, weights


def _divided(sums: torch.Tensor) -> torch.Tensor:
    """Divide by the last column."""
    return sums[..., :-1] / _divisor(sums[..., -1:])


def _divisor(total: torch.Tensor) -> torch.Tensor:
    """The total, which is 0 only if no key is seen; then 1, as what it divides is 0."""
    return total.masked_fill(total == 0, 1.0)
