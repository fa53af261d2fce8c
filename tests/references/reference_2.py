"""reference_2 in plain PyTorch, independent of the system under test.

States these sentences of the issue: "a decoder stack over external memory: attention with
separate embed, attention and output widths; -inf mask; post-norm; 6 layers, 8 heads, d_ff 2048;
cross-attention to a (2, 4, 512) memory without a mask; then linear to 100 words and softmax. Its
attention also runs with 2 heads." And of the API: masks are boolean, True = attend; "a fully
masked row never gives NaN": here its attention weights are zeros, so its output is o's bias.

Where the issue is silent: the stack takes vectors, not ids; q, k and v have the total width
attn_dim, o maps attn_dim to output_dim, all with bias; scores are divided by sqrt(attn_dim /
heads); the FFN is Linear, ReLU, Linear with bias; no dropout; masks broadcast to (batch, heads,
query, key).
"""

import math

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, *, embed_dim: int, attn_dim: int, output_dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = attn_dim // n_heads
        self.q = nn.Linear(embed_dim, attn_dim)
        self.k = nn.Linear(embed_dim, attn_dim)
        self.v = nn.Linear(embed_dim, attn_dim)
        self.o = nn.Linear(attn_dim, output_dim)

    def split(self, x: Tensor) -> Tensor:
        """(batch, length, attn_dim) -> (batch, heads, length, head_dim)."""
        batch, length, _ = x.shape
        return x.view(batch, length, self.n_heads, self.head_dim).transpose(1, 2)

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """(batch, query, embed_dim), (batch, key, embed_dim) -> (batch, query, output_dim)."""
        q, k, v = self.split(self.q(query)), self.split(self.k(memory)), self.split(self.v(memory))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        if mask is None:
            weights = torch.softmax(scores, dim=-1)
        else:
            # The softmax of a row of -inf is NaN, forward and backward: such rows are kept out
            # of it and set to zero after it.
            empty = ~mask.any(dim=-1, keepdim=True)
            scores = scores.masked_fill(~mask, -math.inf).masked_fill(empty, 0.0)
            weights = torch.softmax(scores, dim=-1).masked_fill(empty, 0.0)
        heads = (weights @ v).transpose(1, 2)
        joined: Tensor = self.o(heads.reshape(query.shape[0], query.shape[1], -1))
        return joined


class FeedForward(nn.Module):
    def __init__(self, *, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(x)))
        return y


class DecoderLayer(nn.Module):
    def __init__(self, *, d_model: int, attn_dim: int, n_heads: int, d_ff: int) -> None:
        super().__init__()
        self.self_attn = Attention(
            embed_dim=d_model, attn_dim=attn_dim, output_dim=d_model, n_heads=n_heads
        )
        self.self_attn_norm = nn.LayerNorm(d_model)
        self.cross_attn = Attention(
            embed_dim=d_model, attn_dim=attn_dim, output_dim=d_model, n_heads=n_heads
        )
        self.cross_attn_norm = nn.LayerNorm(d_model)
        self.ffn = FeedForward(d_model=d_model, d_ff=d_ff)
        self.ffn_norm = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        x = self.self_attn_norm(x + self.self_attn(x, x, mask))
        x = self.cross_attn_norm(x + self.cross_attn(x, memory))
        y: Tensor = self.ffn_norm(x + self.ffn(x))
        return y


class Reference2(nn.Module):
    def __init__(
        self,
        *,
        n_layers: int = 6,
        d_model: int = 512,
        attn_dim: int = 512,
        n_heads: int = 8,
        d_ff: int = 2048,
        n_words: int = 100,
    ) -> None:
        super().__init__()
        self.decoder_layers = nn.ModuleList()
        for _ in range(n_layers):
            self.decoder_layers.append(
                DecoderLayer(d_model=d_model, attn_dim=attn_dim, n_heads=n_heads, d_ff=d_ff)
            )
        self.head = nn.Linear(d_model, n_words)

    def decode(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """States without the head, (batch, length, d_model)."""
        for layer in self.decoder_layers:
            x = layer(x, memory, mask)
        return x

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """(batch, length, d_model), (batch, memory length, d_model) -> probabilities (batch,
        length, n_words)."""
        return torch.softmax(self.head(self.decode(x, memory, mask)), dim=-1)
