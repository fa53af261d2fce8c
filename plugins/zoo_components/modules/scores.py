"""Scaled dot-product attention: from queries, keys and values to the outputs of the heads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from zoo.backends import Backend, cannot, choose
from zoo_components.heads import against_fused
from zoo_components.modules.masks import causal_mask, join, last_keys


class Scoring(NamedTuple):
    """How attention scores become weights.

    Args:
        scale: the factor that multiplies q k^T.
        softcap: a bound c that scores approach: c * tanh(score / c).
        dropout: on the weights, in training.
        uniform_masked_rows: whether a query whose keys are all masked gets equal weights instead of
            zeros.
    """

    scale: float
    softcap: float | None = None
    dropout: float = 0.0
    uniform_masked_rows: bool = False


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scoring: Scoring,
    training: bool,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    mixing: tuple[torch.Tensor, torch.Tensor] | None = None,
    return_weights: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """softmax(scale * q k^T + bias) v for every head (Vaswani et al. 2017, section 3.2.1), without
    the keys that a mask hides; a query whose keys are all masked does not give NaN. Where the
    weights are not asked for, a fused kernel of torch may compute it; `_weights` has the steps.

    Args:
        q: (..., heads, query, width).
        k: (..., key-value heads, key, width); each of them serves the same number of heads.
        v: (..., key-value heads, key, value width).
        mask: boolean, True = attend; broadcasts to (..., heads, query, key). If it has more keys
            than k, its last ones are used.
        causal: a query attends to no later key; joined with `mask`. The queries are the last keys.
        bias: added to the scores before they are capped; broadcasts to (..., heads, query, key).
            If it has more keys than k, its last ones are used.
        sinks: (heads,), the logit of a further key, whose value is zero.
        mixing: two linear maps across heads, (heads, heads): of scale * q k^T, and of the weights.

    Returns:
        (..., heads, query, value width), and the weights (..., heads, query, key) or None; with
        `mixing`, those before its second map.

    Raises:
        TypeError: the mask is not boolean.
        ValueError: the mask is for another number of heads.
    """
    _check_mask(mask, q.shape[-3])
    mask, bias = last_keys(mask, k.shape[-2]), last_keys(bias, k.shape[-2])
    if q.shape[-2] == 1:
        causal = False  # the one query is the last key
    by_head = q.shape[:-1]
    sinks = None if sinks is None else sinks[:, None]
    single = q.shape[-2] == 1 and _one_for_all_heads(mask) and _one_for_all_heads(bias)
    if single and q.shape[-3] != k.shape[-3] and mixing is None:
        # Heads that share keys are treated as further queries of one head: no keys are repeated.
        q = q.reshape(*k.shape[:-2], -1, q.shape[-1])
        sinks = None if sinks is None else sinks.reshape(q.shape[-3:-1])
    against = against_fused(
        sinks=sinks is not None, softcap=scoring.softcap is not None, mixing=mixing is not None
    )
    if return_weights:
        against = "fused kernels return no weights, which were asked for"
    backend = choose(against, lambda: _described_mask(mask, bias, causal=causal))
    square = q.shape[-2] == k.shape[-2]
    written_out = backend == "math"
    if causal and (written_out or not square or mask is not None or bias is not None):
        mask, causal = join(mask, causal_mask(q.shape[-2], k.shape[-2], q.device)), False
    zeros = None
    if mask is not None and scoring.uniform_masked_rows:
        q, mask, bias = _with_uniform_rows(q, mask, bias)
    elif not (written_out or mask is None or bias is None) and torch.compiler.is_exporting():
        # Mask and bias become one bias. Where it hides all keys, torch's kernels return zeros, and
        # ONNX Runtime NaN.
        zeros = ~mask.any(-1, keepdim=True)
        q, mask, bias = _with_uniform_rows(q, mask, bias)
    weights = None
    if written_out:
        maps = (None, None) if mixing is None else mixing
        weights = _weights(q, _repeated(k, q), scoring, mask, bias, sinks, maps[0])
        weights = F.dropout(weights, scoring.dropout, training)
        mixed = _across_heads(maps[1], weights) @ _repeated(v, q)
    else:
        added, dropout = _joined(mask, bias, q.dtype), scoring.dropout if training else 0.0
        fused = partial(_fused, q, k, v, added, causal, scoring.scale, dropout)
        mixed = fused() if backend == "fused" else _by_kernel(backend, fused)
        mixed = mixed if zeros is None else mixed.masked_fill(zeros, 0.0)
    mixed = mixed.reshape(*by_head, v.shape[-1])
    if weights is None or not return_weights:
        return mixed, None
    return mixed, weights.reshape(*by_head, -1)


def _check_mask(mask: torch.Tensor | None, n_heads: int) -> None:
    """Refuse a mask that attention would take for something else.

    Raises:
        TypeError: the mask is not boolean.
        ValueError: the mask is for another number of heads.
    """
    if mask is not None and mask.dtype != torch.bool:  # a fused kernel would add numbers to scores
        raise TypeError(f"a mask is boolean, True = attend, not {mask.dtype}; compare with `!= 0`")
    if mask is not None and mask.dim() > 2 and mask.shape[-3] not in (1, n_heads):
        raise ValueError(
            f"a mask for {mask.shape[-3]} heads does not fit attention with {n_heads}: it has "
            "as many, or 1 for all"
        )


def _one_for_all_heads(mask: torch.Tensor | None) -> bool:
    """Whether a mask or bias is the same for all heads and queries."""
    return mask is None or mask.shape[-3:-1] == (1, 1)


def _described_mask(mask: torch.Tensor | None, bias: torch.Tensor | None, *, causal: bool) -> str:
    given = {"mask": mask, "bias": bias}
    shapes = [f"{name} {tuple(t.shape)}" for name, t in given.items() if t is not None]
    return ", ".join([*shapes, *["causal flag"] * causal]) or "none"


KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def _by_kernel(backend: Backend, fused: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Call `fused` with the kernel of a backend. Raises InputError if torch has none."""
    try:
        with sdpa_kernel(KERNELS[backend]):
            return fused()
    except RuntimeError as error:
        if not str(error).startswith(("No available kernel", "No viable backend")):
            raise
        raise cannot(backend, "torch has no such kernel for these inputs here") from None


def _with_uniform_rows(
    q: torch.Tensor, mask: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Queries, mask and bias by which a query whose keys are all masked gets equal weights."""
    dead = ~mask.any(-1, keepdim=True)
    return (
        q.masked_fill(dead, 0.0),
        mask | dead,
        None if bias is None else torch.where(dead, 0.0, bias),
    )


def _fused(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
) -> torch.Tensor:
    # With a mask, no fast CUDA kernel shares key-value heads; repeating them keeps it fast.
    grouped = mask is None
    if not grouped:
        k, v = _repeated(k, q), _repeated(v, q)
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=causal,
        dropout_p=dropout,
        scale=scale,
        # Under `torch.jit.trace`, sizes are tensors.
        enable_gqa=grouped and bool(k.shape[-3] != q.shape[-3]),
    )


def _weights(
    q: torch.Tensor,
    k: torch.Tensor,
    scoring: Scoring,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
    sinks: torch.Tensor | None,
    mixing: torch.Tensor | None,
) -> torch.Tensor:
    """The attention weights, step by step. `sinks` are (heads, query) or (heads, 1), and `mixing`
    is the map of the scores across heads."""
    scores = _across_heads(mixing, q @ k.transpose(-1, -2) * scoring.scale)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if scoring.softcap is not None:
        scores = (scores / scoring.softcap).tanh() * scoring.softcap
    return _softmax(scores, mask, sinks)


def _across_heads(mixing: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """For each query and key of x (..., heads, query, key), the linear map of what the heads have
    there; x itself without a map."""
    return x if mixing is None else torch.unflatten(mixing @ x.flatten(-2), -1, x.shape[-2:])


def _joined(
    mask: torch.Tensor | None, bias: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor | None:
    """Mask and bias as the one mask or bias that the fused kernels take."""
    if bias is None:
        return mask
    bias = bias.to(dtype)
    return bias if mask is None else torch.where(mask, bias, -torch.inf)


def _softmax(
    scores: torch.Tensor, mask: torch.Tensor | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    if mask is not None:
        # The lowest finite score keeps a fully masked row free of NaN; its weights become 0.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        sink = sinks.to(scores.dtype)[..., None].expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def _repeated(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Repeat each of the key-value heads (..., key-value heads, key, width) for every query head
    that it serves."""
    times = q.shape[-3] // x.shape[-3]
    return x if times == 1 else x.repeat_interleave(times, -3)
