"""Reference stacks of any norm placement, computed from the weights by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
EPS = 1e-5


@dataclass(frozen=True)
class Layer:
    """The structure of a layer.

    Args:
        norms: the norms around the attention and around the network: any of `pre`, `post`, `out`.
        parallel: whether both branches read the layer's input, and one sum adds both.
        residual_scale, skip_scale: the factors of the branch's output and of the other summand.
        skip_normed: whether the other summand is the output of the norm before the branch.
        base: the base of rotary positions; None without them.
    """

    norms: tuple[Sequence[str], Sequence[str]] = (("pre",), ("pre",))
    parallel: bool = False
    residual_scale: float = 1.0
    skip_scale: float = 1.0
    skip_normed: bool = False
    base: float | None = None


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def norm(w: Weights, name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    y = centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt()
    return y * w[f"{name}.weight"] + w[f"{name}.bias"]


def rotated(x: Tensor, base: float) -> Tensor:
    """x (batch, heads, length, width)."""
    half = x.shape[-1] // 2
    frequencies = torch.tensor([base ** (-k / half) for k in range(half)], dtype=torch.float64)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequencies
    z = torch.complex(x[..., :half], x[..., half:]) * torch.exp(1j * angles)
    return torch.cat([z.real, z.imag], -1)


def attention(
    w: Weights, name: str, x: Tensor, n_heads: int, seen: Tensor | None, base: float | None
) -> Tensor:
    """seen: boolean, (query, key)."""
    q, k, v = (
        linear(w, f"{name}.{p}_proj", x).unflatten(-1, (n_heads, -1)).transpose(1, 2) for p in "qkv"
    )
    if base is not None:
        q, k = rotated(q, base), rotated(k, base)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return linear(w, f"{name}.o_proj", mixed)


def layer(
    w: Weights, name: str, x: Tensor, form: Layer, n_heads: int, seen: Tensor | None
) -> Tensor:
    branches: dict[str, Callable[[Tensor], Tensor]] = {
        "self_attn": lambda y: attention(w, f"{name}.self_attn", y, n_heads, seen, form.base),
        "ffn": lambda y: linear(
            w, f"{name}.ffn.down_proj", torch.relu(linear(w, f"{name}.ffn.up_proj", y))
        ),
    }
    start, total, normed = x, torch.zeros_like(x), x
    for (branch, f), norms in zip(branches.items(), form.norms, strict=True):
        read = start if form.parallel else x
        if "pre" in norms:
            normed = norm(w, f"{name}.{branch}.pre_norm", read)
        elif not form.parallel:
            normed = read
        y = f(normed)
        if "post" in norms:
            y = norm(w, f"{name}.{branch}.post_norm", y)
        if f"{name}.{branch}.channel_scale" in w:
            y = y * w[f"{name}.{branch}.channel_scale"]
        if f"{name}.alpha" in w:
            y = y * w[f"{name}.alpha"]
        if form.parallel:
            total = total + y
            continue
        skip = normed if form.skip_normed else x
        x = form.skip_scale * skip + form.residual_scale * y
        if "out" in norms:
            x = norm(w, f"{name}.{branch}.out_norm", x)
    if form.parallel:
        x = form.skip_scale * start + form.residual_scale * total
    return x * w[f"{name}.scalar"] if f"{name}.scalar" in w else x


def stack(
    w: Weights,
    prefix: str,
    x: Tensor,
    layers: Sequence[tuple[int, Layer]],
    *,
    n_heads: int,
    causal: bool = False,
) -> Tensor:
    """Apply the layers with these numbers to x (batch, length, d_model), then the final norm and
    the output projection, if they exist."""
    length = x.shape[1]
    seen = torch.ones(length, length, dtype=torch.bool).tril() if causal else None
    for number, form in layers:
        x = layer(w, f"{prefix}.layers.{number}", x, form, n_heads, seen)
    if f"{prefix}.norm.weight" in w:
        x = norm(w, f"{prefix}.norm", x)
    return linear(w, f"{prefix}.out_proj", x) if f"{prefix}.out_proj.weight" in w else x
