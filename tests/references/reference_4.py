"""reference_4 in plain PyTorch, independent of the system under test.

States these sentences of the issue: "encoder with odd and even d_model sinusoids; attention equal
to `nn.MultiheadAttention` with the same weights; FFN with optional dropout; post-norm; LayerNorm
or BatchNorm (over features) by one word in the spec. Complete it to a whole Transformer with
embeddings and head."

Where the issue is silent: embeddings are unscaled; sinusoids are interleaved, base 10000, and with
an odd d_model the cosines have one column fewer than the sines; attention has biases and no
dropout; the FFN is Linear, ReLU, dropout, Linear with bias; no final norm, since each layer ends in
one; the head is linear with bias. BatchNorm takes its statistics over all positions, padding too.
The mask is (batch, length), True = attend. nn.MultiheadAttention gives NaN for a row of a batch
whose keys are all masked, so this reference says nothing about such rows.
"""

import torch
from torch import Tensor, nn


def sinusoids(length: int, d_model: int) -> Tensor:
    """sin in the even columns, cos in the odd ones; (length, d_model), float64."""
    n_sin, n_cos = (d_model + 1) // 2, d_model // 2
    position = torch.arange(length, dtype=torch.float64)[:, None]
    rate = 10000.0 ** (-2.0 * torch.arange(n_sin, dtype=torch.float64) / d_model)
    table = torch.empty(length, d_model, dtype=torch.float64)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate[:n_cos])
    return table


class FeedForward(nn.Module):
    def __init__(self, *, d_model: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, d_ff)
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.dropout(torch.relu(self.up(x))))
        return y


class FeatureBatchNorm(nn.BatchNorm1d):
    """BatchNorm1d over the last dimension of (batch, length, d)."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.transpose(1, 2)).transpose(1, 2)


def norm(kind: str, d_model: int) -> nn.Module:
    if kind == "layernorm":
        return nn.LayerNorm(d_model)
    if kind == "batchnorm":
        return FeatureBatchNorm(d_model)
    raise ValueError(f"norm is layernorm or batchnorm, not {kind!r}")


class EncoderLayer(nn.Module):
    def __init__(
        self, *, d_model: int, n_heads: int, d_ff: int, norm_kind: str, dropout: float
    ) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, n_heads, bias=True, batch_first=True)
        self.self_attn_norm = norm(norm_kind, d_model)
        self.ffn = FeedForward(d_model=d_model, d_ff=d_ff, dropout=dropout)
        self.ffn_norm = norm(norm_kind, d_model)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        y, weights = self.self_attn(
            x,
            x,
            x,
            key_padding_mask=None if mask is None else ~mask,
            need_weights=need_weights,
            average_attn_weights=False,
        )
        x = self.self_attn_norm(x + y)
        return self.ffn_norm(x + self.ffn(x)), weights


class Reference4(nn.Module):
    def __init__(
        self,
        *,
        vocab: int,
        n_layers: int = 6,
        d_model: int = 512,
        n_heads: int = 8,
        d_ff: int = 2048,
        norm_kind: str = "layernorm",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.embed = nn.Embedding(vocab, d_model)
        self.layers = nn.ModuleList()
        for _ in range(n_layers):
            self.layers.append(
                EncoderLayer(
                    d_model=d_model,
                    n_heads=n_heads,
                    d_ff=d_ff,
                    norm_kind=norm_kind,
                    dropout=dropout,
                )
            )
        self.head = nn.Linear(d_model, vocab)

    def encode(
        self, ids: Tensor, mask: Tensor | None = None, need_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """States (batch, length, d_model), and with need_weights the maps of every layer, each
        (batch, heads, query, key)."""
        x = self.embed(ids)
        x = x + sinusoids(ids.shape[1], self.d_model).to(x)
        maps: list[Tensor] = []
        for layer in self.layers:
            x, weights = layer(x, mask, need_weights)
            if weights is not None:
                maps.append(weights)
        return x, maps

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """(batch, length) ids -> logits (batch, length, vocab)."""
        states, _ = self.encode(ids, mask)
        y: Tensor = self.head(states)
        return y
