"""Causal convolutions over the last few tokens, and the layer that has little else (LFM2)."""

from __future__ import annotations

import torch
from torch import nn

from zoo.cache import AttentionCache
from zoo.linear import Linear, together
from zoo.position import Rotation
from zoo_components.modules.masks import new_tokens
from zoo_components.modules.norm import widen


class CausalConvolution(nn.Module):
    """y_t = bias + sum_j weight_j x_(t - kernel_size + 1 + j) for each channel by itself, over the
    token itself and those before it; before the first one there are zeros. The tensors are those of
    an `nn.Conv1d` with a group for each channel.

    A sum of shifted products, in which the channels stay last: for 512 tokens of 1,024 channels it
    takes less than half the time of that module on a CPU, and in float64 a tenth.
    """

    def __init__(self, n_channels: int, kernel_size: int, *, bias: bool) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.weight = nn.Parameter(torch.empty(n_channels, 1, kernel_size))
        self.bias = nn.Parameter(torch.empty(n_channels)) if bias else None

    def extra_repr(self) -> str:
        """The channels and the tokens that each output depends on: `64, kernel_size=4`."""
        return f"{self.weight.shape[0]}, kernel_size={self.kernel_size}"

    def forward(
        self, x: torch.Tensor, before: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Convolve x.

        Args:
            x: (..., length, channels).
            before: the last tokens before them, (..., kernel_size - 1, channels); None at the
                start.

        Returns:
            The same shape as x, and `before` for what comes next.
        """
        n_before, length = self.kernel_size - 1, x.shape[-2]
        if before is None:
            before = x.new_zeros(*x.shape[:-2], n_before, x.shape[-1])
        whole = torch.cat([widen(before), widen(x)], -2)
        weight = widen(self.weight[:, 0])
        y = whole[..., :length, :] * weight[:, 0]
        for j in range(1, self.kernel_size):
            y = torch.addcmul(y, whole[..., j : j + length, :], weight[:, j])
        if self.bias is not None:
            y = y + widen(self.bias)
        return y.to(x.dtype), whole[..., length:, :].clone()  # without the rest


class ShortConvolution(nn.Module):
    """o_proj(out_gate * conv(in_gate * v)) with v, in_gate and out_gate linear maps of the
    input."""

    def __init__(self, *, d_model: int, kernel_size: int, bias: bool) -> None:
        super().__init__()
        self.v_proj = Linear(d_model, d_model, bias=bias)
        self.in_gate_proj = Linear(d_model, d_model, bias=bias)
        self.out_gate_proj = Linear(d_model, d_model, bias=bias)
        self.o_proj = Linear(d_model, d_model, bias=bias)
        self.conv = CausalConvolution(d_model, kernel_size, bias=bias)

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        causal: bool = True,
        rotation: Rotation | None = None,
        bias: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        cache: AttentionCache | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, None]:
        """Mix each token with those before it.

        Args:
            x: (..., length, d_model).
            memory: not used: the description refuses one.
            mask: boolean, (..., 1, 1, tokens so far), False = zero to later tokens.
            causal: not used: the description refuses a stack that is not causal.
            rotation: not used: it refuses position schemes that rotate.
            bias: not used: it refuses those that add a bias.
            positions: not used.
            cache: what the earlier tokens left; `x` are the next ones.
            return_weights: not used: there are no weights.

        Returns:
            (..., length, d_model), and None.

        Raises:
            ValueError: the mask differs by query or head.
        """
        maps = [self.v_proj, self.in_gate_proj, self.out_gate_proj]
        v, in_gate, out_gate = together(maps, x)
        inner = in_gate * v
        seen = new_tokens(mask, x.shape[-2])
        if seen is not None:
            inner = inner.masked_fill(~seen[..., None], 0)
        before = None if cache is None or cache.state is None else cache.state[0]
        mixed, after = self.conv(inner, before)
        if cache is not None:
            cache.keep_state(after)
        output: torch.Tensor = self.o_proj(out_gate * mixed)
        return output, None
