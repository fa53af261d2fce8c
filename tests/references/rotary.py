"""Rotary positions of every scaling: our fields, and those of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo_components.rotary import (
    DynamicRotary,
    LinearRotary,
    Llama3Rotary,
    LongRotary,
    Rotary,
    YarnRotary,
)

HEAD, ORIGINAL = 32, 64
SHORT = [1.0 + 0.1 * k for k in range(HEAD // 2)]
LONG = [1.0 + 0.7 * k for k in range(HEAD // 2)]
SCALED: dict[str, tuple[type[Rotary], dict[str, Any], dict[str, Any]]] = {
    "linear": (LinearRotary, {"factor": 4.0}, {"factor": 4.0}),
    "dynamic": (
        DynamicRotary,
        {"factor": 3.0, "original_length": ORIGINAL},
        {"factor": 3.0},
    ),
    "yarn": (
        YarnRotary,
        {"factor": 8.0, "original_length": ORIGINAL, "beta_fast": 8.0, "beta_slow": 0.5},
        {"factor": 8.0, "beta_fast": 8.0, "beta_slow": 0.5},
    ),
    "yarn untruncated": (
        YarnRotary,
        {"factor": 8.0, "original_length": ORIGINAL, "truncate": False, "beta_fast": 8.0},
        {"factor": 8.0, "truncate": False, "beta_fast": 8.0},
    ),
    "yarn defaults": (
        YarnRotary,
        {"factor": 2.0, "original_length": ORIGINAL},
        {"factor": 2.0},
    ),
    "longrope": (
        LongRotary,
        {
            "factor": 4.0,
            "original_length": ORIGINAL,
            "short_factors": tuple(SHORT),
            "long_factors": tuple(LONG),
        },
        {"factor": 4.0, "short_factor": SHORT, "long_factor": LONG},
    ),
    "llama3": (
        Llama3Rotary,
        {"factor": 8.0, "original_length": ORIGINAL, "high_freq_factor": 5.0},
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 5.0},
    ),
}


def described(cls: type[Rotary], head_dim: int = HEAD, **fields: Any) -> Rotary:
    return cls(kind="rotary", d_model=2 * head_dim, n_heads=2, head_dim=head_dim, **fields)


def frequencies(description: Rotary, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The frequencies for a sequence of `length` tokens."""
    return description.frequencies()(torch.arange(length), dtype)
