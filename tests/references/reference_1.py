"""reference_1 in plain PyTorch, independent of the system under test.

States these sentences of the issue: "post-norm; d_k = d_v = 64 stated apart from d_model;
projections with bias; norm(residual + sublayer(x)); unscaled embeddings; the padding mask made
from pad id 0 over keys, joined with the causal mask; FFN as two kernel-1 Conv1d with bias, or as
two Linear without; output projection without bias; returns logits and the encoder, decoder and
cross attention maps."

Where the issue is silent: positions are interleaved sinusoids (base 10000) added to the
embeddings, then dropout, 0 by default; masked scores become -1e9; scores are divided by sqrt(d_k);
the "output projection" is the one to the vocabulary, and the attention's own o has a bias.
"""

import math

import torch
from torch import Tensor, nn


def sinusoids(length: int, d_model: int) -> Tensor:
    """sin in the even columns, cos in the odd ones; (length, d_model), float64."""
    table = torch.zeros(length, d_model, dtype=torch.float64)
    for position in range(length):
        for column in range(d_model):
            angle = position / 10000.0 ** (2 * (column // 2) / d_model)
            table[position, column] = math.sin(angle) if column % 2 == 0 else math.cos(angle)
    return table


def padding_mask(keys: Tensor, query_length: int, pad_id: int = 0) -> Tensor:
    """True where the key is padding, (batch, query length, key length)."""
    batch, key_length = keys.shape
    return (keys == pad_id)[:, None, :].expand(batch, query_length, key_length)


def future_mask(length: int) -> Tensor:
    """True where the key comes after the query, (length, length)."""
    return torch.ones(length, length, dtype=torch.bool).triu(diagonal=1)


class Attention(nn.Module):
    def __init__(self, *, d_model: int, n_heads: int, d_k: int, d_v: int) -> None:
        super().__init__()
        self.n_heads, self.d_k, self.d_v = n_heads, d_k, d_v
        self.q = nn.Linear(d_model, n_heads * d_k)
        self.k = nn.Linear(d_model, n_heads * d_k)
        self.v = nn.Linear(d_model, n_heads * d_v)
        self.o = nn.Linear(n_heads * d_v, d_model)

    def forward(self, query: Tensor, memory: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """hidden: True = do not attend, (batch, query, key). Returns output and map."""
        batch, n_query, _ = query.shape
        n_key = memory.shape[1]
        q = self.q(query).view(batch, n_query, self.n_heads, self.d_k).transpose(1, 2)
        k = self.k(memory).view(batch, n_key, self.n_heads, self.d_k).transpose(1, 2)
        v = self.v(memory).view(batch, n_key, self.n_heads, self.d_v).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        weights = torch.softmax(scores.masked_fill(hidden[:, None], -1e9), dim=-1)
        heads = (weights @ v).transpose(1, 2).reshape(batch, n_query, self.n_heads * self.d_v)
        return self.o(heads), weights


class ConvFeedForward(nn.Module):
    def __init__(self, *, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.up = nn.Conv1d(d_model, d_ff, kernel_size=1)
        self.down = nn.Conv1d(d_ff, d_model, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(x.transpose(1, 2))))
        return y.transpose(1, 2)


class LinearFeedForward(nn.Module):
    def __init__(self, *, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(x)))
        return y


def feed_forward(kind: str, *, d_model: int, d_ff: int) -> nn.Module:
    if kind == "conv1d":
        return ConvFeedForward(d_model=d_model, d_ff=d_ff)
    if kind == "linear":
        return LinearFeedForward(d_model=d_model, d_ff=d_ff)
    raise ValueError(f"ffn is conv1d or linear, not {kind!r}")


class EncoderLayer(nn.Module):
    def __init__(
        self, *, d_model: int, n_heads: int, d_k: int, d_v: int, d_ff: int, ffn: str
    ) -> None:
        super().__init__()
        self.self_attn = Attention(d_model=d_model, n_heads=n_heads, d_k=d_k, d_v=d_v)
        self.self_attn_norm = nn.LayerNorm(d_model)
        self.ffn = feed_forward(ffn, d_model=d_model, d_ff=d_ff)
        self.ffn_norm = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        y, weights = self.self_attn(x, x, hidden)
        x = self.self_attn_norm(x + y)
        return self.ffn_norm(x + self.ffn(x)), weights


class DecoderLayer(nn.Module):
    def __init__(
        self, *, d_model: int, n_heads: int, d_k: int, d_v: int, d_ff: int, ffn: str
    ) -> None:
        super().__init__()
        self.self_attn = Attention(d_model=d_model, n_heads=n_heads, d_k=d_k, d_v=d_v)
        self.self_attn_norm = nn.LayerNorm(d_model)
        self.cross_attn = Attention(d_model=d_model, n_heads=n_heads, d_k=d_k, d_v=d_v)
        self.cross_attn_norm = nn.LayerNorm(d_model)
        self.ffn = feed_forward(ffn, d_model=d_model, d_ff=d_ff)
        self.ffn_norm = nn.LayerNorm(d_model)

    def forward(
        self, x: Tensor, memory: Tensor, hidden: Tensor, memory_hidden: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, self_weights = self.self_attn(x, x, hidden)
        x = self.self_attn_norm(x + y)
        y, cross_weights = self.cross_attn(x, memory, memory_hidden)
        x = self.cross_attn_norm(x + y)
        return self.ffn_norm(x + self.ffn(x)), self_weights, cross_weights


class Reference1(nn.Module):
    def __init__(
        self,
        *,
        source_vocab: int,
        target_vocab: int,
        n_layers: int = 6,
        d_model: int = 512,
        n_heads: int = 8,
        d_k: int = 64,
        d_v: int = 64,
        d_ff: int = 2048,
        ffn: str = "conv1d",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.source_embed = nn.Embedding(source_vocab, d_model)
        self.target_embed = nn.Embedding(target_vocab, d_model)
        self.encoder_layers = nn.ModuleList()
        self.decoder_layers = nn.ModuleList()
        for _ in range(n_layers):
            self.encoder_layers.append(
                EncoderLayer(d_model=d_model, n_heads=n_heads, d_k=d_k, d_v=d_v, d_ff=d_ff, ffn=ffn)
            )
            self.decoder_layers.append(
                DecoderLayer(d_model=d_model, n_heads=n_heads, d_k=d_k, d_v=d_v, d_ff=d_ff, ffn=ffn)
            )
        self.head = nn.Linear(d_model, target_vocab, bias=False)
        self.dropout = nn.Dropout(dropout)

    def embed(self, ids: Tensor, table: nn.Embedding) -> Tensor:
        x = table(ids)
        y: Tensor = self.dropout(x + sinusoids(ids.shape[1], self.d_model).to(x))
        return y

    def forward(
        self, source: Tensor, target: Tensor
    ) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
        """Logits (batch, target length, target vocab); encoder, decoder and cross maps per layer,
        each (batch, heads, query, key)."""
        encoder_maps: list[Tensor] = []
        decoder_maps: list[Tensor] = []
        cross_maps: list[Tensor] = []
        n_source, n_target = source.shape[1], target.shape[1]
        memory = self.embed(source, self.source_embed)
        for layer in self.encoder_layers:
            memory, weights = layer(memory, padding_mask(source, n_source))
            encoder_maps.append(weights)
        hidden = padding_mask(target, n_target) | future_mask(n_target).to(target.device)
        x = self.embed(target, self.target_embed)
        for layer in self.decoder_layers:
            x, weights, cross = layer(x, memory, hidden, padding_mask(source, n_target))
            decoder_maps.append(weights)
            cross_maps.append(cross)
        return self.head(x), encoder_maps, decoder_maps, cross_maps
