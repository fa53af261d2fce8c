"""reference_3 in plain PyTorch, independent of the system under test.

States these sentences of the issue: "blocks over given vectors, no vocabulary: single-head
self-attention with q, k, v biases and no output projection, scores / sqrt(embed_dim), batched or
not, bfloat16 too; and a stack of FFN units, each norm (eps 1e-9), Linear to int(d x
expansion_factor), PReLU with one weight from 5e-3, dropout 0.05, Linear, plus residual, whose
`num_layers` units share one set of weights. Complete it to a whole Transformer with rotary
positions."

Where the issue is silent: a block is x + attention(norm(x)), then the stack of units with no norm
and no residual around it; rotary positions are rotate-half, base 10000, on q and k over the whole
width, which must then be even; the whole is a causal decoder with token embedding, final LayerNorm
(eps 1e-9) and a linear head without bias.
"""

import math

import torch
from torch import Tensor, nn

NORM_EPS = 1e-9


def rotate(x: Tensor, base: float = 10000.0) -> Tensor:
    """Turn the pair (x[i], x[i + d/2]) at position p by the angle p * base^(-2i/d); the same shape
    (..., length, d)."""
    length, width = x.shape[-2:]
    half = width // 2
    position = torch.arange(length, dtype=torch.float64)[:, None]
    angle = position * base ** (-2.0 * torch.arange(half, dtype=torch.float64) / width)
    cos, sin = torch.cos(angle).to(x), torch.sin(angle).to(x)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class SingleHeadSelfAttention(nn.Module):
    def __init__(self, embed_dim: int, *, rotary: bool = False) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.rotary = rotary
        self.q = nn.Linear(embed_dim, embed_dim)
        self.k = nn.Linear(embed_dim, embed_dim)
        self.v = nn.Linear(embed_dim, embed_dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(length, d) or (batch, length, d) -> the same; mask: True = attend, (length, length)."""
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.embed_dim)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        y: Tensor = torch.softmax(scores, dim=-1) @ v
        return y


class FeedForwardUnit(nn.Module):
    def __init__(self, d: int, expansion_factor: float, dropout: float) -> None:
        super().__init__()
        wide = int(d * expansion_factor)
        self.norm = nn.LayerNorm(d, eps=NORM_EPS)
        self.up = nn.Linear(d, wide)
        self.activation = nn.PReLU(1, init=5e-3)
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Linear(wide, d)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.dropout(self.activation(self.up(self.norm(x)))))
        return x + y


class FeedForwardUnits(nn.Module):
    """`num_layers` passes through one unit: the weights exist once."""

    def __init__(
        self, d: int, expansion_factor: float, num_layers: int, dropout: float = 0.05
    ) -> None:
        super().__init__()
        self.num_layers = num_layers
        self.unit = FeedForwardUnit(d, expansion_factor, dropout)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.num_layers):
            x = self.unit(x)
        return x


class Block(nn.Module):
    def __init__(
        self,
        *,
        d_model: int,
        expansion_factor: float,
        num_units: int,
        dropout: float = 0.05,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        self.self_attn_norm = nn.LayerNorm(d_model, eps=NORM_EPS)
        self.self_attn = SingleHeadSelfAttention(d_model, rotary=rotary)
        self.ffn = FeedForwardUnits(d_model, expansion_factor, num_units, dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.self_attn(self.self_attn_norm(x), mask)
        y: Tensor = self.ffn(x)
        return y


class Reference3(nn.Module):
    def __init__(
        self,
        *,
        vocab: int,
        n_layers: int,
        d_model: int,
        expansion_factor: float = 4.0,
        num_units: int = 2,
        dropout: float = 0.05,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, d_model)
        self.layers = nn.ModuleList()
        for _ in range(n_layers):
            self.layers.append(
                Block(
                    d_model=d_model,
                    expansion_factor=expansion_factor,
                    num_units=num_units,
                    dropout=dropout,
                    rotary=True,
                )
            )
        self.norm = nn.LayerNorm(d_model, eps=NORM_EPS)
        self.head = nn.Linear(d_model, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, length) ids -> logits (batch, length, vocab)."""
        length = ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, causal)
        y: Tensor = self.head(self.norm(x))
        return y
