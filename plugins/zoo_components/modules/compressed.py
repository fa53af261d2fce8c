"""Attention to the last tokens and to summaries of those before (DeepSeek-V4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from zoo.cache import AttentionCache, Tensors
from zoo.linear import Linear
from zoo.position import Rotation
from zoo.sharding.parts import local
from zoo_components.modules.heads import merge_heads, split_heads
from zoo_components.modules.masks import join, last_keys, new_tokens
from zoo_components.modules.norm import Norm, put_norm, widen
from zoo_components.modules.scores import Scoring, attend
from zoo_components.modules.sparse_latent import Choosing, chosen, index_loss, weighted_scores

Rotations = Callable[[torch.Tensor], Rotation | None]
NOTHING = -1e30
"""The logarithm of no weight at all: finite, so that what it is subtracted from stays a number."""


class GroupedLinear(nn.Module):
    """A linear map for each of the groups that its input is divided into, stacked: weight (n_groups
    * n_out, n_in / n_groups)."""

    def __init__(self, n_in: int, n_out: int, n_groups: int) -> None:
        super().__init__()
        self.n_groups = n_groups
        self.weight = nn.Parameter(torch.empty(n_groups * n_out, n_in // n_groups))

    def extra_repr(self) -> str:
        """The groups and the widths, as `print(model)` shows them."""
        n_out, n_in = self.weight.shape
        return f"{self.n_groups} groups, in_features={n_in * self.n_groups}, out_features={n_out}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., n_in) to (..., n_groups * n_out)."""
        maps = local(self.weight).unflatten(0, (self.n_groups, -1))
        groups = x.unflatten(-1, (self.n_groups, -1)).unsqueeze(-2)
        return (groups @ maps.mT).squeeze(-2).flatten(-2)


class SharedKeyValueAttention(nn.Module):
    """Attention to the last tokens, in which one vector of each token is the key and the value of
    all heads (DeepSeek-V4, section 2.3). The last `rope` numbers of it are rotated, and so are
    those of the queries; those of what a query gets are rotated back by its own position, so that
    what a value adds depends on the distance too.

    Args:
        d_model: the width of the input and of the output.
        n_heads: the number of heads.
        nope: the number of elements of a head that are not rotated.
        rope: of those that are.
        q_norms: of the latent of the queries, q_lora_rank wide, and of each query head.
        q_lora_rank: the width of that latent.
        kv_norm: of the keys and values.
        window: the number of last tokens, itself included, that a token attends to.
        o_groups: the number of groups of heads that are mapped one by one.
        o_lora_rank: the width that each group is mapped to.
        scoring: how scores become weights.
    """

    q_a_norm: Norm
    q_norm: Norm
    kv_norm: Norm

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        nope: int,
        rope: int,
        q_norms: tuple[nn.Module, nn.Module],
        q_lora_rank: int,
        kv_norm: nn.Module,
        window: int,
        o_groups: int,
        o_lora_rank: int,
        scoring: Scoring,
    ) -> None:
        super().__init__()
        self.nope, self.head_dim = nope, nope + rope
        self.window, self.scoring = window, scoring
        self.q_a_proj = Linear(d_model, q_lora_rank, bias=False)
        put_norm(self, "q_a_norm", q_norms[0])
        self.q_b_proj = Linear(q_lora_rank, n_heads * self.head_dim, bias=False)
        put_norm(self, "q_norm", q_norms[1])
        self.kv_proj = Linear(d_model, self.head_dim, bias=False)
        put_norm(self, "kv_norm", kv_norm)
        self.sinks = nn.Parameter(torch.empty(n_heads))
        self.o_a_proj = GroupedLinear(n_heads * self.head_dim, o_lora_rank, o_groups)
        self.o_b_proj = Linear(o_groups * o_lora_rank, d_model, bias=False)

    def extra_repr(self) -> str:
        """The heads and the window, as `print(model)` shows them."""
        return f"{len(self.sinks)} heads of {self.head_dim}, window={self.window}"

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        causal: bool = True,
        rotation: Rotation | None = None,
        rotations: Rotations | None = None,
        bias: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        cache: AttentionCache | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from each token to itself and earlier ones.

        Args:
            x: (batch, length, d_model).
            memory: not used: the description refuses one.
            mask: boolean, True = attend; broadcasts to (batch, heads, query, key).
            causal: not used: no token sees later ones in any case.
            rotation: rotates the rotated parts, (..., heads or 1, length, rope).
            rotations: those at any positions, (..., length).
            bias: not used: the description refuses one.
            positions: of the queries, (query,) or (batch, query); by default 0, 1, ....
            cache: what is kept of the earlier tokens; `x` are the next ones.
            return_weights: also return the weights, (batch, heads, query, key); the summaries, if
                there are any, are keys after those of the tokens.

        Returns:
            (batch, length, d_model), and the weights after dropout or None.

        Raises:
            ValueError: there are summaries, and the mask differs by query or head.
        """
        if positions is None:
            positions = torch.arange(x.shape[-2], device=x.device)
        queried = self.q_a_norm(self.q_a_proj(x))
        q = self.turned(self.q_norm(split_heads(self.q_b_proj(queried), self.head_dim)), rotation)
        kv = self.turned(self.kv_norm(self.kv_proj(x)).unsqueeze(-3), rotation)
        if cache is not None:
            (kv,) = cache.extend(kv, window=self.window)
        near = join(last_keys(mask, kv.shape[-2]), self._near(x.shape[-2], kv.shape[-2], x.device))
        found = self._summarized(Call(x, queried, mask, rotation, rotations, positions, cache))
        if found is not None:
            near = _beside(near, kv.shape[-2], found.seen)
            kv = torch.cat([kv, found.summaries.unsqueeze(-3)], -2)
        learns = found is not None and found.scores is not None
        mixed, weights = attend(
            q,
            kv,
            kv,
            scoring=self.scoring,
            training=self.training,
            mask=near,
            sinks=local(self.sinks),
            return_weights=return_weights or learns,
        )
        if found is not None and weights is not None:
            self._learn(found, weights.detach())
        back = None if rotations is None else rotations(-positions)
        output = self.o_b_proj(self.o_a_proj(merge_heads(self.turned(mixed, back))))
        return output, weights if return_weights else None

    def turned(self, heads: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        """Rotate the last elements of (..., heads, length, head_dim)."""
        if rotation is None:
            return heads
        n_left = heads.shape[-1] - (self.head_dim - self.nope)
        return torch.cat([heads[..., :n_left], rotation(heads[..., n_left:])], -1)

    def _near(self, n_queries: int, n_keys: int, device: torch.device) -> torch.Tensor | None:
        """(n_queries, n_keys), True at the keys of the last tokens; None for one query, as the
        cache has dropped what it does not see. The queries are the last of the keys."""
        if n_queries == 1:
            return None
        j = torch.arange(n_keys, device=device)
        distance = j[n_keys - n_queries :, None] - j
        return (distance >= 0) & (distance < self.window)

    def _summarized(self, call: Call) -> Summarized | None:
        """The summaries of earlier tokens; None where there are none."""
        return None

    def _learn(self, found: Summarized, weights: torch.Tensor) -> None:
        """Learn from the weights of a call, (batch, heads, query, key), which summaries to
        choose."""


class Call(NamedTuple):
    """What summaries are made of. All but `queried` are arguments of `forward`.

    Args:
        queried: what queries are made of, (batch, length, q_lora_rank).
    """

    x: torch.Tensor
    queried: torch.Tensor
    mask: torch.Tensor | None
    rotation: Rotation | None
    rotations: Rotations | None
    positions: torch.Tensor
    cache: AttentionCache | None


class Summarized(NamedTuple):
    """Summaries of earlier tokens.

    Args:
        summaries: (batch, n, head_dim).
        seen: which of them a query attends to, boolean, (batch or 1, 1, query, n).
        scores: by which they were chosen, (batch, 1, query, n), if an indexer learns.
        counted: the queries that it learns from, boolean, (batch, 1, query), if it does.
    """

    summaries: torch.Tensor
    seen: torch.Tensor
    scores: torch.Tensor | None = None
    counted: torch.Tensor | None = None


def _beside(mask: torch.Tensor | None, n_keys: int, more: torch.Tensor) -> torch.Tensor:
    """The mask of so many keys, which broadcasts to (batch, 1, query, key), None for all, with
    further columns (batch or 1, 1, query, n)."""
    if mask is None:
        return F.pad(more, (n_keys, 0), value=True)
    mask = mask if mask.dim() == 4 else mask[None, None]
    rows, n_queries = max(mask.shape[0], more.shape[0]), more.shape[-2]
    return torch.cat([one.expand(rows, 1, n_queries, one.shape[-1]) for one in (mask, more)], -1)


class Windows(NamedTuple):
    """Where the tokens of a call are among all that a sequence has: runs of `every` tokens that are
    not hidden are a window each, of which a summary is made.

    Args:
        every: the number of tokens of a window.
        n: the number of windows that the tokens of the call can be in.
        first: the number of the first of these, (rows, 1).
        offset: the number of tokens of that one that came in calls before, (rows, 1).
        ranks: the number of the tokens before each token, or before the next one if it is hidden,
            (rows, length).
        slots: the place of each token in these windows, those of hidden ones after all others,
            (rows, length).
        end: the place after the last token, (rows, 1).
    """

    every: int
    n: int
    first: torch.Tensor
    offset: torch.Tensor
    ranks: torch.Tensor
    slots: torch.Tensor
    end: torch.Tensor

    @classmethod
    def of(
        cls,
        x: torch.Tensor,
        mask: torch.Tensor | None,
        cache: AttentionCache | None,
        *,
        every: int,
    ) -> Windows:
        """Those of the tokens x (rows, length, width). With a cache, `mask` has a column for each
        token so far."""
        rows, length = x.shape[:2]
        n_past = 0 if cache is None else cache.past.length - length
        # Of tokens that begin anywhere in a window, the first may be its last.
        n = (length + every - 1) // every if cache is None else (length + every - 2) // every + 1
        seen = new_tokens(mask, n_past + length)
        if seen is None:
            before = torch.full((rows, 1), n_past, device=x.device)
            counts = torch.arange(1, length + 1, device=x.device).expand(rows, -1)
            hidden = None
        else:
            seen = seen.reshape(-1, n_past + length).expand(rows, -1)
            before = seen[:, :n_past].sum(1, keepdim=True)
            counts = seen[:, n_past:].cumsum(1)
            hidden = ~seen[:, n_past:]
        first = before // every
        ranks = before + counts - 1
        slots = ranks - first * every
        end = slots[:, -1:] + 1
        slots = slots if hidden is None else slots.masked_fill(hidden, n * every)
        return cls(every, n, first, before % every, ranks, slots, end)

    @property
    def real(self) -> torch.Tensor:
        """Which tokens are not hidden, (rows, length)."""
        return self.slots < self.n * self.every

    def grid(self, x: torch.Tensor, nothing: float) -> torch.Tensor:
        """x (rows, length, width), one vector for each token, as (rows, n + 1, every, width), with
        `nothing` where there is no token of the call, and in the whole of the last window."""
        room = x.new_full((x.shape[0], (self.n + 1) * self.every, x.shape[-1]), nothing)
        filled = room.scatter(1, self.slots[..., None].expand_as(x), x)
        # What is hidden was put into the last window.
        kept = F.pad(filled[:, : self.n * self.every], (0, 0, 0, self.every), value=nothing)
        return kept.unflatten(1, (-1, self.every))

    def complete(self, n_summaries: int) -> torch.Tensor:
        """Whether a token comes after all that a summary is made of, or is the last of it: (rows,
        1, length, n_summaries)."""
        numbers = torch.arange(n_summaries, device=self.ranks.device)
        return (numbers < ((self.ranks + 1) // self.every)[..., None]).unsqueeze(1)

    def begun(self, x: torch.Tensor) -> torch.Tensor:
        """What is there of the window that comes next, of x (rows, n + 1, ...), (rows, ...)."""
        return x[torch.arange(x.shape[0], device=x.device), self.end[:, 0] // self.every]

    def put(self, cache: AttentionCache, *summaries: torch.Tensor) -> Tensors:
        """Store summaries of these windows, (rows, n, width), and return those of all so far."""
        numbers = torch.arange(self.n, device=self.end.device)
        # In windows after the last token there is nothing: the last one is stored again.
        last = ((self.end - 1) // self.every).clamp(min=0)
        at = torch.minimum(numbers, last)
        there = [one.take_along_dim(at[..., None], 1) for one in summaries]
        return cache.put_summaries(self.first + at, *there, every=self.every)


class Mean(NamedTuple):
    """The mean of vectors whose weights are given by logarithms, for each element, and the
    logarithm of their sum; both (..., width)."""

    value: torch.Tensor
    log_weight: torch.Tensor

    def joined(self, other: Mean) -> Mean:
        """The mean of the vectors of both."""
        log_weight = torch.logaddexp(self.log_weight, other.log_weight)
        value = self.value * (self.log_weight - log_weight).exp()
        return Mean(value + other.value * (other.log_weight - log_weight).exp(), log_weight)

    def each(self, f: Callable[[torch.Tensor, float], torch.Tensor]) -> Mean:
        """f of both tensors, with what each has where there are no vectors."""
        return Mean(f(self.value, 0.0), f(self.log_weight, NOTHING))

    def continuing(self, before: Mean) -> Mean:
        """Means (rows, n, width) of which the first goes on from another one, (rows, width)."""

        def first_of(x: torch.Tensor, nothing: float) -> torch.Tensor:
            return F.pad(x.unsqueeze(1), (0, 0, 0, self.value.shape[1] - 1), value=nothing)

        return self.joined(before.each(first_of))


class Compressor(nn.Module):
    """Makes one vector of every few tokens: the norm of the mean of their projections, weighted for
    each element by a softmax over gates, made of the tokens too, to which a learned number of the
    place in the window is added. If windows overlap, the mean is that of the tokens of the window
    before too, by projections and gates of their own.

    Args:
        d_model: the width of the input.
        width: that of a summary.
        every: the number of tokens of a window.
        overlaps: whether a summary is also made of the tokens of the window before.
        norm: of the means.
    """

    norm: Norm

    def __init__(
        self, *, d_model: int, width: int, every: int, overlaps: bool, norm: nn.Module
    ) -> None:
        super().__init__()
        n_out = 2 * width if overlaps else width
        self.overlaps = overlaps
        self.kv_proj = Linear(d_model, n_out, bias=False)
        self.gate_proj = Linear(d_model, n_out, bias=False)
        self.position_bias = nn.Parameter(torch.empty(every, n_out))
        put_norm(self, "norm", norm)

    @property
    def n_kept(self) -> int:
        """The number of tensors of its state."""
        return 4 if self.overlaps else 2

    def forward(
        self, x: torch.Tensor, windows: Windows, state: Tensors | None
    ) -> tuple[torch.Tensor, Tensors]:
        """Sum up tokens.

        Args:
            x: the tokens, (rows, length, d_model).
            windows: where they are.
            state: what the call before left of the window that has begun, if there was one.

        Returns:
            The summaries of the windows, (rows, n, width), and what is left for the next call.
        """
        values = windows.grid(widen(self.kv_proj(x)), 0.0)
        gates = windows.grid(widen(self.gate_proj(x)), NOTHING)
        gates = gates + widen(local(self.position_bias))
        whole = Mean((gates.softmax(2) * values).sum(2), gates.logsumexp(2))
        if not self.overlaps:
            own = whole if state is None else whole.continuing(Mean(*state))
            means, left = own, [own]
        else:
            (next_value, value), (next_weight, weight) = (t.chunk(2, -1) for t in whole)
            for_next, own = Mean(next_value, next_weight), Mean(value, weight)
            if state is not None:
                own = own.continuing(Mean(*state[:2]))
                for_next = for_next.continuing(Mean(*state[2:]))
            means = own.joined(for_next.each(_moved_on))
            left = [means, for_next]
        summaries = self.norm(means.value[:, :-1].to(x.dtype))
        return summaries, tuple(windows.begun(t) for mean in left for t in mean)


def _moved_on(x: torch.Tensor, nothing: float) -> torch.Tensor:
    """x (rows, n, width), each window at the place of the next one."""
    return F.pad(x[:, :-1], (0, 0, 1, 0), value=nothing)


class HeavilyCompressedAttention(SharedKeyValueAttention):
    """A `SharedKeyValueAttention` that also attends to summaries of all earlier tokens
    (DeepSeek-V4, section 2.3.2)."""

    def add_compressor(self, compressor: Compressor, *, every: int) -> None:
        """Give the attention what makes a summary of every so many tokens."""
        self.compressor, self.every = compressor, every

    def _summarized(self, call: Call) -> Summarized:
        windows = Windows.of(call.x, call.mask, call.cache, every=self.every)
        (summaries,) = self._made([(self.compressor, call.x)], windows, call)
        return Summarized(summaries, windows.complete(summaries.shape[1]))

    def _made(
        self,
        pairs: Sequence[tuple[Compressor, torch.Tensor]],
        windows: Windows,
        call: Call,
    ) -> Tensors:
        """The summaries that each compressor makes of tokens, (batch, n, width), rotated by the
        positions of the first tokens of their windows; with a cache, of all tokens so far."""
        state = None if call.cache is None else call.cache.state
        starts = windows.grid(call.positions.expand_as(windows.slots)[..., None], -1)[:, :, 0, 0]
        if state is not None:  # the first window may have begun earlier
            first = torch.where(windows.offset > 0, state[0][:, None], starts[:, :1])
            starts = torch.cat([first, starts[:, 1:]], 1)
        rotation = None if call.rotations is None else call.rotations(starts[:, :-1])
        made, kept, at = [], [windows.begun(starts)], 1
        for compressor, x in pairs:
            before = None if state is None else state[at : at + compressor.n_kept]
            summaries, left = compressor(x, windows, before)
            made.append(self.turned(summaries.unsqueeze(-3), rotation).squeeze(-3))
            kept += left
            at += compressor.n_kept
        if call.cache is None:
            return tuple(made)
        call.cache.keep_state(*kept)
        return windows.put(call.cache, *made)


class Indexer(nn.Module):
    """Scores summaries for a query: I = sum over heads j of w_j ReLU(q_j k), where k are narrower
    summaries of the same tokens, and w_j is divided by sqrt(n_heads * head_dim) (DeepSeek-V4,
    section 2.3.1).

    Args:
        d_model: the width of the input.
        q_lora_rank: the width of what queries are made of.
        n_heads: the number of heads.
        head_dim: the width of a head.
        compressor: makes the keys.
    """

    def __init__(
        self,
        *,
        d_model: int,
        q_lora_rank: int,
        n_heads: int,
        head_dim: int,
        compressor: Compressor,
    ) -> None:
        super().__init__()
        self.head_dim, self.scale = head_dim, (n_heads * head_dim) ** -0.5
        self.q_proj = Linear(q_lora_rank, n_heads * head_dim, bias=False)
        self.weights_proj = Linear(d_model, n_heads, bias=False)
        self.compressor = compressor

    def queries(self, queried: torch.Tensor) -> torch.Tensor:
        """(..., query, q_lora_rank) to (..., heads, query, head_dim), not rotated."""
        return split_heads(self.q_proj(queried), self.head_dim)

    def forward(self, x: torch.Tensor, q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """The scores of `keys` (..., key, head_dim) for the tokens x (..., query, d_model) and
        their queries q, (..., heads, query, head_dim): (..., 1, query, key), in float32 at
        least."""
        return weighted_scores(q, keys.unsqueeze(-3), self.weights_proj(x), self.scale)


class CompressedSparseAttention(Choosing, HeavilyCompressedAttention):
    """A `SharedKeyValueAttention` that also attends to the summaries of earlier tokens that an
    indexer chooses (DeepSeek-V4, section 2.3.1)."""

    indexer: Indexer

    def _summarized(self, call: Call) -> Summarized:
        self.auxiliary_loss = None
        windows = Windows.of(call.x, call.mask, call.cache, every=self.every)
        detached = call.x.detach()
        pairs = [(self.compressor, call.x), (self.indexer.compressor, detached)]
        summaries, keys = self._made(pairs, windows, call)
        complete = windows.complete(summaries.shape[1])
        learns = self._learns(call.cache)
        if not (learns or self._hides(summaries.shape[1])):
            return Summarized(summaries, complete)
        q = self.turned(self.indexer.queries(call.queried.detach()), call.rotation)
        scores = self.indexer(detached, q, keys)
        choice = chosen(scores.detach(), complete, self.topk) & complete
        if not learns:
            return Summarized(summaries, choice)
        counted = complete.any(-1) & windows.real.unsqueeze(1)
        return Summarized(summaries, choice, scores, counted)

    def _learn(self, found: Summarized, weights: torch.Tensor) -> None:
        if found.scores is None or found.counted is None:
            return
        of_summaries = weights[..., weights.shape[-1] - found.summaries.shape[1] :]
        loss = index_loss(found.scores, of_summaries, found.seen, found.counted)
        self.auxiliary_loss = self.auxiliary_loss_coefficient * loss
