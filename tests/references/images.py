"""The Vision Transformer (Dosovitskiy et al. 2020, equations 1 to 4), stated from the weights by
name: a class token and a linear map of each patch, then layers of attention and of an MLP with
GELU, each with a norm before it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from references.transformer import Weights, attention, linear, norm


def patches(image: Tensor, size: int) -> Tensor:
    """The pixels of each patch of an image (channels, height, width): (patches, pixels), from left
    to right and from the top to the bottom; of each patch all pixels of the first channel first."""
    _, height, width = image.shape
    return torch.stack(
        [
            image[:, top : top + size, left : left + size].reshape(-1)
            for top in range(0, height, size)
            for left in range(0, width, size)
        ]
    )


def embedded(w: Weights, name: str, images: Tensor, size: int) -> Tensor:
    """Images (batch, channels, height, width) to (batch, vectors, d_model): the class token, the
    distillation token, the registers, which have no positions, and the patches, all
    normalised if there is a norm."""
    kernels = w[f"{name}.patches.weight"].flatten(1)
    rows = []
    for image in images:
        vectors = patches(image, size) @ kernels.T
        if f"{name}.patches.bias" in w:
            vectors = vectors + w[f"{name}.patches.bias"]
        for token in ("distillation_token", "class_token"):
            if f"{name}.{token}" in w:
                vectors = torch.cat([w[f"{name}.{token}"][None], vectors])
        vectors = vectors + w[f"{name}.positions.weight"]
        if f"{name}.registers" in w:
            place = len(vectors) - (image.shape[1] // size) * (image.shape[2] // size)
            vectors = torch.cat([vectors[:place], w[f"{name}.registers"], vectors[place:]])
        if f"{name}.norm.weight" in w:
            vectors = norm(w, f"{name}.norm", vectors)
        rows.append(vectors)
    return torch.stack(rows)


def states(w: Weights, images: Tensor, size: int, n_heads: int, n_layers: int) -> Tensor:
    """What the encoder returns, with positions that are learned."""
    x = embedded(w, "encoder.embed", images, size)
    for i in range(n_layers):
        own, ffn = f"encoder.layers.{i}.self_attn", f"encoder.layers.{i}.ffn"
        x = x + attention(w, own, norm(w, f"{own}.pre_norm", x), n_heads, None, None)
        hidden = linear(w, f"{ffn}.up_proj", norm(w, f"{ffn}.pre_norm", x))
        active = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
        x = x + linear(w, f"{ffn}.down_proj", active)
    return norm(w, "encoder.norm", x)


def scores(w: Weights, images: Tensor, size: int, n_heads: int, n_layers: int) -> Tensor:
    """The scores of classes, (batch, classes): a linear map of the class token's state."""
    return linear(w, "head.out", states(w, images, size, n_heads, n_layers)[:, 0])
