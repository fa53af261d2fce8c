"""reference_0 in plain PyTorch, independent of the system under test.

States these sentences of the issue: "pre-norm encoder-decoder; defaults N=6, d_model 512, d_ff
2048, 8 heads, dropout 0.1. Embedding times sqrt(d_model); interleaved sinusoids (base 10000, max
5000), dropout after the sum. Bias-free q, k, v, o; scores / sqrt(d_k); mask fills -1e9 before the
softmax, so a fully masked row is uniform; dropout on the weights. FFN ReLU with dropout between.
LayerNorm: alpha (x - mean) / (std + eps) + beta, with the unbiased std and eps 1e-6 outside the
root. Residual x + dropout(sublayer(norm(x))); final norm on both stacks. The head is linear +
log_softmax and separate: decoder states are to be had without it."

Masks are given by the caller, 1 or True = attend, in any shape that broadcasts to (batch, heads,
query, key); so a per-head mask is (heads, query, key).
"""

import math

import torch
from torch import Tensor, nn


def sinusoids(length: int, d_model: int) -> Tensor:
    """sin in the even columns, cos in the odd ones; (length, d_model), float64."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = position / 10000.0 ** (even / d_model)
    table = torch.zeros(length, d_model, dtype=torch.float64)
    table[:, 0::2] = torch.sin(angle)
    table[:, 1::2] = torch.cos(angle[:, : d_model // 2])
    return table


class LayerNorm(nn.Module):
    def __init__(self, *, d_model: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.alpha = nn.Parameter(torch.ones(d_model))
        self.beta = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=-1, keepdim=True)
        std = x.std(dim=-1, keepdim=True, unbiased=True)
        return self.alpha * (x - mean) / (std + self.eps) + self.beta


class Attention(nn.Module):
    def __init__(self, *, d_model: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.d_k = d_model // n_heads
        self.q = nn.Linear(d_model, d_model, bias=False)
        self.k = nn.Linear(d_model, d_model, bias=False)
        self.v = nn.Linear(d_model, d_model, bias=False)
        self.o = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)

    def split(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) -> (batch, heads, length, d_k)."""
        batch, length, _ = x.shape
        return x.view(batch, length, self.n_heads, self.d_k).transpose(1, 2)

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(query)), self.split(self.k(memory)), self.split(self.v(memory))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = self.dropout(torch.softmax(scores, dim=-1))
        heads = weights @ v
        joined: Tensor = self.o(heads.transpose(1, 2).reshape(query.shape))
        return joined


class FeedForward(nn.Module):
    def __init__(self, *, d_model: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.dropout(torch.relu(self.up(x))))
        return y


class EncoderLayer(nn.Module):
    def __init__(self, *, d_model: int, n_heads: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = Attention(d_model=d_model, n_heads=n_heads, dropout=dropout)
        self.self_attn_norm = LayerNorm(d_model=d_model)
        self.ffn = FeedForward(d_model=d_model, d_ff=d_ff, dropout=dropout)
        self.ffn_norm = LayerNorm(d_model=d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        y = self.self_attn_norm(x)
        x = x + self.dropout(self.self_attn(y, y, mask))
        out: Tensor = x + self.dropout(self.ffn(self.ffn_norm(x)))
        return out


class DecoderLayer(nn.Module):
    def __init__(self, *, d_model: int, n_heads: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = Attention(d_model=d_model, n_heads=n_heads, dropout=dropout)
        self.self_attn_norm = LayerNorm(d_model=d_model)
        self.cross_attn = Attention(d_model=d_model, n_heads=n_heads, dropout=dropout)
        self.cross_attn_norm = LayerNorm(d_model=d_model)
        self.ffn = FeedForward(d_model=d_model, d_ff=d_ff, dropout=dropout)
        self.ffn_norm = LayerNorm(d_model=d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, memory: Tensor, target_mask: Tensor | None, source_mask: Tensor | None
    ) -> Tensor:
        y = self.self_attn_norm(x)
        x = x + self.dropout(self.self_attn(y, y, target_mask))
        x = x + self.dropout(self.cross_attn(self.cross_attn_norm(x), memory, source_mask))
        out: Tensor = x + self.dropout(self.ffn(self.ffn_norm(x)))
        return out


class Generator(nn.Module):
    def __init__(self, *, d_model: int, vocab: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, vocab)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.linear(x), dim=-1)


class Reference0(nn.Module):
    def __init__(
        self,
        *,
        source_vocab: int,
        target_vocab: int,
        n_layers: int = 6,
        d_model: int = 512,
        n_heads: int = 8,
        d_ff: int = 2048,
        dropout: float = 0.1,
        max_length: int = 5000,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.max_length = max_length
        self.source_embed = nn.Embedding(source_vocab, d_model)
        self.target_embed = nn.Embedding(target_vocab, d_model)
        self.encoder_layers = nn.ModuleList()
        self.decoder_layers = nn.ModuleList()
        for _ in range(n_layers):
            self.encoder_layers.append(
                EncoderLayer(d_model=d_model, n_heads=n_heads, d_ff=d_ff, dropout=dropout)
            )
            self.decoder_layers.append(
                DecoderLayer(d_model=d_model, n_heads=n_heads, d_ff=d_ff, dropout=dropout)
            )
        self.encoder_norm = LayerNorm(d_model=d_model)
        self.decoder_norm = LayerNorm(d_model=d_model)
        self.generator = Generator(d_model=d_model, vocab=target_vocab)
        self.dropout = nn.Dropout(dropout)

    def embed(self, ids: Tensor, table: nn.Embedding) -> Tensor:
        x = table(ids) * math.sqrt(self.d_model)
        y: Tensor = self.dropout(x + sinusoids(self.max_length, self.d_model)[: ids.shape[1]].to(x))
        return y

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """(batch, source length) ids -> (batch, source length, d_model)."""
        x = self.embed(source, self.source_embed)
        for layer in self.encoder_layers:
            x = layer(x, source_mask)
        y: Tensor = self.encoder_norm(x)
        return y

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        target_mask: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> Tensor:
        """Decoder states without the head, (batch, target length, d_model)."""
        x = self.embed(target, self.target_embed)
        for layer in self.decoder_layers:
            x = layer(x, memory, target_mask, source_mask)
        y: Tensor = self.decoder_norm(x)
        return y

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Log-probabilities, (batch, target length, target vocab)."""
        memory = self.encode(source, source_mask)
        y: Tensor = self.generator(self.decode(target, memory, target_mask, source_mask))
        return y
