"""Reference attention, computed for one query, one head and one key at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
Turn = Callable[[Tensor, int], Tensor]


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    """Return weight x + bias, or weight x without a bias; x is one vector."""
    y = w[f"{name}.weight"] @ x
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def norm(description: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """LayerNorm or RMSNorm of one vector."""
    if description.kind == "none":
        return x
    centred = x - x.sum() / len(x) if description.kind == "layer_norm" else x
    y = centred / torch.sqrt((centred * centred).sum() / len(x) + description.eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def named_norm(w: Weights, name: str, description: Any, x: Tensor) -> Tensor:
    return norm(description, x, w.get(f"{name}.weight"), w.get(f"{name}.bias"))


def turned(x: Tensor, position: int) -> Tensor:
    """Rotary positions of one head: the pair (2k, 2k + 1) is rotated by position / 10**k."""
    out = []
    for k in range(len(x) // 2):
        cosine, sine = math.cos(position / 10**k), math.sin(position / 10**k)
        a, b = x[2 * k], x[2 * k + 1]
        out += [cosine * a - sine * b, sine * a + cosine * b]
    return torch.stack(out + list(x[2 * (len(x) // 2) :]))


def projected(a: Any, w: Weights, name: str, x: Tensor, n_heads: int) -> Tensor:
    """One position's queries, keys or values before norm and rotation, (heads, width)."""
    y = linear(w, name, x)
    if a.clip != "none":
        y = torch.minimum(torch.maximum(y, -torch.full_like(y, a.clip)), torch.full_like(y, a.clip))
    return y.reshape(n_heads, -1)


def normed(a: Any, w: Weights, name: str, heads: Tensor) -> Tensor:
    if a.qk_norm_scope == "full":
        return named_norm(w, name, a.qk_norm, heads.reshape(-1)).reshape(heads.shape)
    if a.qk_norm_scope == "head":
        return torch.stack([named_norm(w, name, a.qk_norm, head) for head in heads])
    tensors = [w.get(f"{name}.weight"), w.get(f"{name}.bias")]
    return torch.stack(
        [
            norm(a.qk_norm, head, *(None if t is None else t[h] for t in tensors))
            for h, head in enumerate(heads)
        ]
    )


def query_or_key(
    a: Any, w: Weights, which: str, x: Tensor, n_heads: int, position: int, turn: Turn | None
) -> Tensor:
    """One position's queries or keys as they enter the scores, (heads, width)."""
    heads = projected(a, w, f"{which}_proj", x, n_heads)
    if a.qk_norm_site == "before_rotation":
        heads = normed(a, w, f"{which}_norm", heads)
    if turn is not None:
        heads = torch.stack([turn(head, position) for head in heads])
    if a.qk_norm_site == "after_rotation":
        heads = normed(a, w, f"{which}_norm", heads)
    return heads


def value(a: Any, w: Weights, x: Tensor, position: int, turn: Turn | None) -> Tensor:
    name = "k_proj" if a.values == "keys" else "v_proj"
    heads = projected(a, w, name, x, a.n_kv_heads)
    heads = torch.stack([named_norm(w, "v_norm", a.v_norm, head) for head in heads])
    if a.rotate_values and turn is not None:
        heads = torch.stack([turn(head, position) for head in heads])
    return heads


def temperature(a: Any, position: int) -> float:
    if a.q_temperature in ("none", None):
        return 1.0
    steps = (max(position, 0) + a.q_temperature_shift) / a.q_temperature_floor
    if a.q_temperature == "log":
        return 1 + a.q_temperature_scale * math.log(1 + math.floor(steps))
    scale: float = (1 + steps) ** a.q_temperature_scale
    return scale


def sees(a: Any, i: int, j: int, at: int, key_at: int) -> bool:
    """Whether index i may attend to index j by the window, and position `at` to `key_at` by the
    chunk."""
    if a.window != "none":
        return abs(i - j) <= a.window if a.window_sides == "both" else i - j < a.window
    return a.chunk == "none" or at // a.chunk == key_at // a.chunk


def gate(a: Any, w: Weights, x: Tensor) -> Tensor:
    """One position's gates, (heads, v_head_dim or 1)."""
    y = linear(w, "gate_proj", x).reshape(a.n_heads, -1)
    if "gate_bias" in w:
        y = torch.stack([y[h] + w["gate_bias"][h] for h in range(a.n_heads)])
    return 1 / (1 + torch.exp(-y)) if a.output_gate == "sigmoid" else torch.log(1 + torch.exp(y))


def may_attend(
    n_heads: int, x: Tensor, source: Tensor, mask: Tensor | None, *, causal: bool
) -> Tensor:
    """Which keys, of `source`, each query of each head may attend to: (batch, heads, query, key)
    of a mask that broadcasts to it."""
    allowed = torch.ones(len(x), n_heads, x.shape[1], source.shape[1], dtype=torch.bool)
    allowed = allowed if mask is None else allowed & mask
    return allowed.tril() if causal else allowed


def one_query(
    logits: dict[int, Tensor], values: Tensor, *, sink: Tensor | None, uniform: bool
) -> tuple[Tensor, Tensor]:
    """The mixed values (width,) and the weights (key,) of one query in one head, from the logits
    of the keys that it may attend to."""
    n_keys = len(values)
    weights = [values.new_zeros(()) for _ in range(n_keys)]
    if not logits and uniform:
        weights = [values.new_full((), 1 / n_keys) for _ in range(n_keys)]
    total = sum((torch.exp(s) for s in logits.values()), start=values.new_zeros(()))
    total = total if sink is None else total + torch.exp(sink)
    for j, s in logits.items():
        weights[j] = torch.exp(s) / total
    mixed = sum((p * v for p, v in zip(weights, values, strict=True)), start=0 * values[0])
    return mixed, torch.stack(weights)


def multi_head(
    a: Any,
    w: Weights,
    x: Tensor,
    memory: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    turn: Turn | None = None,
    bias: Tensor | None = None,
    positions: list[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """The output and the weights of the multi-head attention `a` for x (batch, query, d_model)."""
    source = x if memory is None else memory
    n_batch, n_query, n_key = len(x), x.shape[1], source.shape[1]
    at = list(range(n_query)) if positions is None else positions
    key_at = at if memory is None else list(range(n_key))
    allowed = may_attend(a.n_heads, x, source, mask, causal=causal)
    outputs, maps = [], []
    for b in range(n_batch):
        k = [
            query_or_key(a, w, "k", row, a.n_kv_heads, p, turn)
            for row, p in zip(source[b], key_at, strict=True)
        ]
        v = [value(a, w, row, p, turn) for row, p in zip(source[b], key_at, strict=True)]
        for i in range(n_query):
            q = query_or_key(a, w, "q", x[b, i], a.n_heads, at[i], turn) * temperature(a, at[i])
            heads = []
            for h in range(a.n_heads):
                group = h // (a.n_heads // a.n_kv_heads)
                logits = {}
                for j in range(n_key):
                    if not (allowed[b, h, i, j] and sees(a, i, j, at[i], key_at[j])):
                        continue
                    s = (q[h] @ k[j][group]) * a.scale
                    s = s if bias is None else s + bias[h, i, j]
                    logits[j] = s if a.softcap == "none" else a.softcap * torch.tanh(s / a.softcap)
                mixed, weights = one_query(
                    logits,
                    torch.stack([row[group] for row in v]),
                    sink=w["sinks"][h] if a.sinks else None,
                    uniform=a.masked_rows == "uniform",
                )
                maps.append(weights)
                mixed = mixed * a.v_scale
                heads.append(mixed if a.output_gate == "none" else mixed * gate(a, w, x[b, i])[h])
            y = named_norm(w, "sub_norm", a.sub_norm, torch.cat(heads))
            outputs.append(linear(w, "o_proj", y) if a.output_projection else y)
    weights = torch.stack(maps).reshape(n_batch, n_query, a.n_heads, n_key).transpose(1, 2)
    return torch.stack(outputs).reshape(n_batch, n_query, -1), weights


def latent(
    a: Any,
    w: Weights,
    x: Tensor,
    memory: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    turn: Turn | None = None,
    bias: Tensor | None = None,
    positions: list[int] | None = None,
) -> Tensor:
    """Equations (9) to (19) of DeepSeek-V2 (arXiv:2405.04434), with the norms of its code."""
    n, r = a.qk_nope_head_dim, a.qk_rope_head_dim
    source = x if memory is None else memory
    rotate = turn or (lambda head, _: head)
    allowed = may_attend(a.n_heads, x, source, mask, causal=causal)
    at = list(range(x.shape[1])) if positions is None else positions
    key_at = at if memory is None else list(range(source.shape[1]))
    outputs = []
    for b in range(len(x)):
        keys, values = [], []
        for p, row in zip(key_at, source[b], strict=True):
            down = linear(w, "kv_a_proj", row)
            c = named_norm(w, "kv_a_norm", a.latent_norm, down[: a.kv_lora_rank])
            up = linear(w, "kv_b_proj", c).reshape(a.n_heads, n + a.v_head_dim)
            shared = rotate(down[a.kv_lora_rank :], p)
            keys.append([torch.cat([head[:n], shared]) for head in up])
            values.append(up[:, n:])
        for i, row in enumerate(x[b]):
            if a.q_lora_rank == "none":
                q = linear(w, "q_proj", row)
            else:
                c = named_norm(w, "q_a_norm", a.latent_norm, linear(w, "q_a_proj", row))
                q = linear(w, "q_b_proj", c)
            q = q.reshape(a.n_heads, n + r) * temperature(a, at[i])
            heads = []
            for h in range(a.n_heads):
                query = torch.cat([q[h, :n], rotate(q[h, n:], at[i])])
                logits = {}
                for j in range(len(source[b])):
                    if allowed[b, h, i, j]:
                        s = (query @ keys[j][h]) * a.scale
                        logits[j] = s if bias is None else s + bias[h, i, j]
                stacked = torch.stack([row[h] for row in values])
                heads.append(one_query(logits, stacked, sink=None, uniform=False)[0])
            outputs.append(linear(w, "o_proj", torch.cat(heads)))
    return torch.stack(outputs).reshape(len(x), x.shape[1], -1)


def sparse_latent(
    a: Any,
    w: Weights,
    x: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    turn: Turn | None = None,
    bias: Tensor | None = None,
    positions: list[int] | None = None,
) -> Tensor:
    """`latent` with the keys that equation (1) of DeepSeek-V3.2 (arXiv:2512.02556) chooses."""
    chosen = chosen_keys(a, w, x, mask=mask, causal=causal, turn=turn, positions=positions)
    return latent(a, w, x, mask=chosen, turn=turn, bias=bias, positions=positions)


def chosen_keys(
    a: Any,
    w: Weights,
    x: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    turn: Turn | None = None,
    positions: list[int] | None = None,
) -> Tensor:
    """Which keys each query of each head attends to, (rows, heads, query, key)."""
    allowed = may_attend(a.n_heads, x, x, mask, causal=causal)
    scores = index_scores(a, w, x, turn=turn, positions=positions)
    chosen = torch.zeros_like(allowed)
    for b, h, i in product(*map(range, allowed.shape[:3])):
        seen = [j for j in range(x.shape[1]) if allowed[b, h, i, j]]
        best = sorted(seen, key=lambda j: (-scores[b][i][j].item(), j))
        chosen[b, h, i, best[: a.index_topk]] = True
    return chosen


def index_scores(
    a: Any,
    w: Weights,
    x: Tensor,
    *,
    turn: Turn | None = None,
    positions: list[int] | None = None,
) -> list[list[list[Tensor]]]:
    """The scores of the indexer, by row, query and key."""
    r, n, d = a.qk_rope_head_dim, a.index_n_heads, a.index_head_dim

    def turned_head(head: Tensor, position: int) -> Tensor:
        if turn is None:
            return head
        first = head[:r]
        if a.index_halves == "interleaved":
            pairs = [head[[k, k + r // 2]] for k in range(r // 2)]
            first = torch.cat(pairs)
        return torch.cat([turn(first, position), head[r:]])

    at = list(range(x.shape[1])) if positions is None else positions
    found = []
    for row in x:
        keys = [
            turned_head(named_norm(w, "indexer.k_norm", a.index_norm, key), p)
            for key, p in zip([linear(w, "indexer.k_proj", t) for t in row], at, strict=True)
        ]
        of_row = []
        for t, p in zip(row, at, strict=True):
            c = t
            if a.q_lora_rank != "none":
                c = named_norm(w, "q_a_norm", a.latent_norm, linear(w, "q_a_proj", t))
            queries = linear(w, "indexer.q_proj", c).reshape(n, d)
            weights = linear(w, "indexer.weights_proj", t) / math.sqrt(n)
            queries = torch.stack([turned_head(q, p) for q in queries])
            of_row.append([(weights * torch.relu(queries @ k / math.sqrt(d))).sum() for k in keys])
        found.append(of_row)
    return found


def differential(
    a: Any,
    w: Weights,
    x: Tensor,
    memory: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    turn: Turn | None = None,
    bias: Tensor | None = None,
    positions: list[int] | None = None,
) -> Tensor:
    """Equations (1) to (3) of Ye et al. (arXiv:2410.05258), where pair p is of the heads p and
    n_heads / 2 + p."""
    source = x if memory is None else memory
    rotate = turn or (lambda head, _: head)
    pairs, key_pairs, d = a.n_heads // 2, a.n_kv_heads // 2, a.head_dim
    allowed = may_attend(a.n_heads, x, source, mask, causal=causal)
    at = list(range(x.shape[1])) if positions is None else positions
    key_at = at if memory is None else list(range(source.shape[1]))
    dots = [w[f"lambda_q{n}"] @ w[f"lambda_k{n}"] for n in (1, 2)]
    factor = torch.exp(dots[0]) - torch.exp(dots[1]) + a.lambda_init
    outputs = []
    for b in range(len(x)):
        keys = [linear(w, "k_proj", row).reshape(2, key_pairs, d) for row in source[b]]
        values = [linear(w, "v_proj", row).reshape(2, key_pairs, d) for row in source[b]]
        for i, row in enumerate(x[b]):
            q = linear(w, "q_proj", row).reshape(2, pairs, d)
            heads = []
            for p in range(pairs):
                served = p * key_pairs // pairs
                both = torch.stack([torch.cat([v[0, served], v[1, served]]) for v in values])
                mixed = []
                for one in (0, 1):
                    head = one * pairs + p
                    query = rotate(q[one, p], at[i])
                    logits = {}
                    for j in range(len(source[b])):
                        if allowed[b, head, i, j]:
                            s = query @ rotate(keys[j][one, served], key_at[j]) * a.scale
                            logits[j] = s if bias is None else s + bias[head, i, j]
                    mixed.append(one_query(logits, both, sink=None, uniform=False)[0])
                normed = named_norm(w, "head_norm", a.head_norm, mixed[0] - factor * mixed[1])
                heads.append((1 - a.lambda_init) * normed)
            outputs.append(linear(w, "o_proj", torch.cat(heads)))
    return torch.stack(outputs).reshape(len(x), x.shape[1], -1)


def linear_attention(
    a: Any,
    w: Weights,
    x: Tensor,
    memory: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    turn: Turn | None = None,
    positions: list[int] | None = None,
) -> Tensor:
    """Equations (4) and (8) of Katharopoulos et al. (arXiv:2006.16236), with the feature map
    elu(x) + 1; 0 for a query that may attend to nothing."""
    assert turn is None
    assert positions is None
    source, d = x if memory is None else memory, a.head_dim
    allowed = may_attend(a.n_heads, x, source, mask, causal=causal)
    outputs = []
    for b in range(len(x)):
        keys = [linear(w, "k_proj", row).reshape(a.n_heads, d) for row in source[b]]
        values = [linear(w, "v_proj", row).reshape(a.n_heads, d) for row in source[b]]
        for i, row in enumerate(x[b]):
            q = linear(w, "q_proj", row).reshape(a.n_heads, d)
            heads = []
            for h in range(a.n_heads):
                weights = {
                    j: (torch.nn.functional.elu(q[h]) + 1)
                    @ (torch.nn.functional.elu(keys[j][h]) + 1)
                    for j in range(len(source[b]))
                    if allowed[b, h, i, j]
                }
                mixed = sum((s * values[j][h] for j, s in weights.items()), torch.zeros_like(q[h]))
                total = sum(weights.values(), torch.zeros(()).double())
                heads.append(mixed / total if weights else mixed)
            outputs.append(linear(w, "o_proj", torch.cat(heads)))
    return torch.stack(outputs).reshape(len(x), x.shape[1], -1)
