"""Helpers for the tests of stacks."""

from __future__ import annotations

from typing import Any

import torch
from random_values import add_noise

import zoo
from references.transformer import Layer, stack
from zoo.transformer import Transformer

D_MODEL, HEADS, VOCAB, LENGTH = 8, 2, 11, 5
FREE = {"embedding": "vectors", "position": "none"}


def spec(builder: str = "encoder", **fields: Any) -> dict[str, Any]:
    common = {"format": 1, "name": "m", "builder": builder, "n_layers": 2, "d_model": D_MODEL}
    vocab = {"source_vocab": VOCAB, "target_vocab": VOCAB}
    vocab = vocab if builder == "encoder_decoder" else {"vocab": VOCAB}
    if fields.get("embedding") == "vectors" and fields.get("head", "none") == "none":
        vocab = {}  # which nothing would read
    return {**common, **vocab, "n_heads": HEADS, "d_ff": 12, "head": "none", **fields}


def built(builder: str = "encoder", **fields: Any) -> Transformer:
    """Build a float64 model in which no vector has only ones or zeros."""
    return add_noise(zoo.build(spec(builder, **fields), dtype=torch.float64).eval())


def vectors(length: int = LENGTH) -> torch.Tensor:
    return torch.randn(2, length, D_MODEL, dtype=torch.float64)


def same(model: Transformer, layers: list[tuple[int, Layer]], *, causal: bool = False) -> None:
    """Check that a model of vectors computes the same as these layers: values, and gradients of
    every parameter."""
    prefix = "decoder" if causal else "encoder"
    x = vectors()
    expected = stack(
        dict(model.named_parameters()), prefix, x, layers, n_heads=HEADS, causal=causal
    )
    found = model(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    weights = torch.randn_like(found)
    tensors = list(model.parameters())
    ours, theirs = (torch.autograd.grad((y * weights).sum(), tensors) for y in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
