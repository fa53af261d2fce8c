"""The layer of Mamba-2 (Dao and Gu 2024, arXiv:2405.21060)."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn

from zoo.cache import AttentionCache
from zoo.linear import Linear, together
from zoo.position import Rotation
from zoo_components.heads import heads_text
from zoo_components.modules.convolution import CausalConvolution
from zoo_components.modules.decay import decayed_sums
from zoo_components.modules.heads import merge_heads, split_heads
from zoo_components.modules.masks import new_tokens
from zoo_components.modules.norm import is_autocast, widen


class Mamba2(nn.Module):
    """o_proj(inner_norm(gate * y)), where y_t = C_t S_t + skip x_t for each head, with
    S_t = exp(-d_t exp(log_rate)) S_(t-1) + d_t B_t x_t^T."""

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        head_dim: int,
        n_groups: int,
        state_size: int,
        kernel_size: int,
        conv_bias: bool,
        bias: bool,
        eps: float,
    ) -> None:
        super().__init__()
        self.n_heads, self.head_dim = n_heads, head_dim
        self.n_groups, self.state_size = n_groups, state_size
        inner, vectors = n_heads * head_dim, n_groups * state_size
        self.gate_proj = Linear(d_model, inner, bias=bias)
        self.v_proj = Linear(d_model, inner, bias=bias)
        self.b_proj = Linear(d_model, vectors, bias=bias)
        self.c_proj = Linear(d_model, vectors, bias=bias)
        self.step_proj = Linear(d_model, n_heads, bias=bias)
        self.v_conv = CausalConvolution(inner, kernel_size, bias=conv_bias)
        self.b_conv = CausalConvolution(vectors, kernel_size, bias=conv_bias)
        self.c_conv = CausalConvolution(vectors, kernel_size, bias=conv_bias)
        self.log_rate = nn.Parameter(torch.empty(n_heads))
        self.step_bias = nn.Parameter(torch.empty(n_heads))
        self.skip = nn.Parameter(torch.ones(n_heads))
        self.inner_norm = GroupedRmsNorm(inner, n_groups, eps=eps)
        self.o_proj = Linear(inner, d_model, bias=bias)

    def extra_repr(self) -> str:
        """The heads, as `print(model)` shows them: `24 heads of 64`."""
        return heads_text(self.n_heads, self.n_heads, self.head_dim)

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
            mask: boolean, (..., 1, 1, tokens so far), False = neither read nor a decay.
            causal: not used: the description refuses a stack that is not causal.
            rotation: not used: it refuses position schemes that rotate.
            bias: not used: it refuses those that add a bias.
            positions: not used.
            cache: the state after the earlier tokens; `x` are the next ones.
            return_weights: not used: there are no weights.

        Returns:
            (..., length, d_model), and None.

        Raises:
            ValueError: the mask differs by query or head.
        """
        maps = [self.v_proj, self.b_proj, self.c_proj, self.gate_proj, self.step_proj]
        *mixed, gate, step = together(maps, x)
        seen = new_tokens(mask, x.shape[-2])
        kept = (None,) * 4 if cache is None or cache.state is None else cache.state
        convolved, left = [], []
        convolutions = (self.v_conv, self.b_conv, self.c_conv)
        for conv, one, before in zip(convolutions, mixed, kept[:3], strict=True):
            if seen is not None:
                one = one.masked_fill(~seen[..., None], 0)
            found, after = conv(one, before)
            convolved.append(F.silu(widen(found)))
            left.append(after)
        step = F.softplus(widen(step) + widen(self.step_bias))
        if seen is not None:
            step = step.masked_fill(~seen[..., None], 0)
        groups = (self.n_groups, -1)
        heads = split_heads(convolved[0], self.head_dim)
        v = (step.transpose(-1, -2)[..., None] * heads).unflatten(-3, groups)
        log_decay = (-step * widen(self.log_rate).exp()).transpose(-1, -2).unflatten(-2, groups)
        b, c = (split_heads(t, self.state_size).unsqueeze(-3) for t in convolved[1:])
        # Products that autocast rounds would be lost in a sum over many tokens.
        with torch.autocast(x.device.type, enabled=False) if is_autocast(x) else nullcontext():
            read, state = decayed_sums(c, b, v, log_decay, kept[3])
        if cache is not None:
            cache.keep_state(*left, state)
        y = read.flatten(-4, -3) + widen(self.skip)[:, None, None] * heads
        output: torch.Tensor = self.o_proj(
            self.inner_norm(merge_heads(y) * F.silu(widen(gate))).to(x.dtype)
        )
        return output, None


class GroupedRmsNorm(nn.Module):
    """weight * x / sqrt(mean(x**2) + eps), where each of equal groups of channels has a mean of its
    own."""

    def __init__(self, width: int, n_groups: int, *, eps: float) -> None:
        super().__init__()
        self.n_groups, self.eps = n_groups, eps
        self.weight = nn.Parameter(torch.ones(width))

    def extra_repr(self) -> str:
        """The width, the groups and `eps`, as `print(model)` shows them."""
        return f"{self.weight.shape[0]}, n_groups={self.n_groups}, eps={self.eps}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., width), in float32 or wider."""
        groups = widen(x).unflatten(-1, (self.n_groups, -1))
        normed = F.rms_norm(groups, groups.shape[-1:], None, self.eps)
        return normed.flatten(-2) * widen(self.weight)
