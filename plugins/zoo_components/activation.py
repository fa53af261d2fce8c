"""Activation functions by name, for the feed-forward components."""

from __future__ import annotations

from typing import Literal

from zoo.layout import Layout, vector

Activation = Literal[
    "relu", "gelu", "gelu_tanh", "gelu_quick", "silu", "relu_squared", "prelu", "none"
]
"""ReLU; GELU (Hendrycks and Gimpel 2016, arXiv:1606.08415) exact, by tanh, and as
x * sigmoid(1.702 x); SiLU (Elfwing et al. 2017, arXiv:1702.03118); squared ReLU (So et al. 2021,
arXiv:2109.08668); PReLU with one learned slope (He et al. 2015, arXiv:1502.01852); none."""


def activation_parts(activation: Activation, slope: float) -> dict[str, Layout]:
    """The layout of an activation: only PReLU has a tensor, its slope."""
    return {"activation": Layout({"weight": vector(1, value=slope)})} if activation == "prelu" else {}
