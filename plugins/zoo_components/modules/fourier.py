"""Mixing tokens by a Fourier transform (FNet: Lee-Thorp et al. 2021, arXiv:2105.03824)."""

from __future__ import annotations

from math import tau

import torch
from torch import nn

from zoo.position import Rotation
from zoo_components.modules.masks import new_tokens
from zoo_components.modules.norm import widen


class FourierMixing(nn.Module):
    """Re(F_n x F_d), where F_n is the matrix of the discrete Fourier transform of n values: of the
    n tokens of a sequence, and of their d_model features (Lee-Thorp et al. 2021, section 3.2)."""

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
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, None]:
        """Mix all tokens of each sequence.

        Args:
            x: (..., length, d_model).
            memory: not used: the description refuses one.
            mask: boolean, (..., 1, 1, length), False = no token of the sequence.
            causal: not used: the description refuses a stack that is causal.
            rotation: not used: it refuses position schemes that rotate.
            bias: not used: it refuses those that add a bias.
            positions: not used.
            return_weights: not used: there are no weights.

        Returns:
            (..., length, d_model), 0 at tokens that the mask hides, and None.

        Raises:
            ValueError: the mask differs by query or head.
        """
        seen, wide = new_tokens(mask, x.shape[-2]), widen(x)
        mixed = torch.fft.fft2(wide).real if seen is None else _mixed(torch.fft.fft(wide), seen)
        return mixed.to(x.dtype), None


def _mixed(features: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """The real part of the transform over the tokens that are seen. Sequences have different
    numbers of these, so it is written out as products with the parts of each F_n.

    Args:
        features: complex, (..., length, d_model).
        seen: boolean, (..., length).

    Returns:
        (..., length, d_model), 0 at other tokens.
    """
    place, n = seen.cumsum(-1) - 1, seen.sum(-1).clamp(min=1)[..., None, None]
    # In whole numbers: a rounded product of large places would be an angle far off.
    turns = place[..., :, None] * place[..., None, :] % n
    angles = tau * turns.to(features.real.dtype) / n
    hidden = ~(seen[..., :, None] & seen[..., None, :])
    cos, sin = angles.cos().masked_fill(hidden, 0.0), angles.sin().masked_fill(hidden, 0.0)
    return cos @ features.real + sin @ features.imag
