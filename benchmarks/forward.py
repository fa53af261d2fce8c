"""How long a forward pass takes, against the same model elsewhere: the same sizes, and for models
of `transformers` the same weights. Float32, no gradients."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import nn

from benchmarks import peers
from benchmarks.measure import Ratio, in_turn

VOCAB = 32000
Case = Callable[[], object]


def measure(rounds: int = 5) -> list[Ratio]:
    """A ratio for each model and peer."""
    return [
        *translation(rounds),
        *bert(rounds, padded=False),
        *bert(rounds, padded=True),
        *gpt2(rounds),
        *llama(rounds),
    ]


def translation(rounds: int) -> list[Ratio]:
    """The encoder-decoder of Vaswani et al., base size, 8 x 64."""
    theirs, ours = peers.marian(
        layers=6, width=512, heads=8, hidden=2048, vocab=VOCAB, eos=0, start=VOCAB - 1
    )
    plain = PlainTransformer().eval()
    source, target = ids(8, 64), ids(8, 64)
    cases: dict[str, Case] = {
        "zoo": lambda: ours(source, target),
        "Marian": lambda: theirs(input_ids=source, decoder_input_ids=target),
        "nn.Transformer": lambda: plain(source, target),
    }
    agree(ours(source, target), theirs(input_ids=source, decoder_input_ids=target).logits)
    return ratios("encoder-decoder base, 8 x 64", cases, rounds, {"Marian": 1 / 1.15})


class PlainTransformer(nn.Module):
    """`nn.Transformer` of base size with one table of tokens, without positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, 512)
        self.transformer = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
        self.head = nn.Linear(512, VOCAB, bias=False)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Ids (batch, length) to logits."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        states = self.transformer(
            self.tokens(source), self.tokens(target), tgt_mask=mask, tgt_is_causal=True
        )
        return self.head(states)


def bert(rounds: int, *, padded: bool) -> list[Ratio]:
    """BERT-base, 8 x 128; with `padded` half of the tokens are padding."""
    theirs, ours = peers.bert(layers=12, width=768, heads=12, vocab=30522, length=512)
    tokens = ids(8, 128)
    mask = None
    if padded:
        lengths = torch.tensor([128, 16, 96, 32, 64, 64, 80, 32])
        mask = torch.arange(128) < lengths[:, None]
    layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
    plain = nn.TransformerEncoder(layer, 12).eval()
    hidden = None if mask is None else ~mask
    embedded = torch.randn(8, 128, 768)
    cases: dict[str, Case] = {
        "zoo": lambda: ours(tokens, source_mask=mask),
        "BertModel": lambda: theirs(tokens, attention_mask=mask),
        "nn.TransformerEncoder": lambda: plain(embedded, src_key_padding_mask=hidden),
    }
    wanted = theirs(tokens, attention_mask=mask).last_hidden_state
    found = ours(tokens, source_mask=mask)
    agree(found if mask is None else found[mask], wanted if mask is None else wanted[mask])
    name = "BERT-base, 8 x 128" + (", half of it padding" if padded else "")
    return ratios(name, cases, rounds, {"BertModel": 1 / 1.3} if padded else {})


def gpt2(rounds: int) -> list[Ratio]:
    """GPT-2 small, 1 x 256."""
    theirs, ours = peers.gpt2(layers=12, width=768, heads=12, vocab=50257, length=1024)
    tokens = ids(1, 256)
    cases: dict[str, Case] = {"zoo": lambda: ours(tokens), "transformers": lambda: theirs(tokens)}
    agree(ours(tokens), theirs(tokens).logits)
    return ratios("GPT-2 small, 1 x 256", cases, rounds)


def llama(rounds: int) -> list[Ratio]:
    """A Llama with grouped queries, 1 x 256."""
    theirs, ours = peers.llama(
        layers=12, width=768, heads=12, kv_heads=4, hidden=2048, vocab=VOCAB, length=1024
    )
    tokens = ids(1, 256)
    cases: dict[str, Case] = {"zoo": lambda: ours(tokens), "transformers": lambda: theirs(tokens)}
    agree(ours(tokens), theirs(tokens).logits)
    return ratios("Llama shape, 12 over 4 heads, 1 x 256", cases, rounds)


def ids(batch: int, length: int) -> torch.Tensor:
    """Random ids, (batch, length)."""
    return torch.randint(5, 30000, (batch, length), generator=torch.Generator().manual_seed(0))


def agree(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Raises AssertionError unless both models compute the same."""
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def ratios(
    name: str, cases: Mapping[str, Case], rounds: int, bars: Mapping[str, float] | None = None
) -> list[Ratio]:
    """The zoo's time over that of each peer."""
    with torch.inference_mode():
        times = in_turn({peer: timed(case) for peer, case in cases.items()}, rounds)
    return [
        Ratio(name, peer, times["zoo"], times[peer], (bars or {}).get(peer, 1.0))
        for peer in cases
        if peer != "zoo"
    ]


def timed(case: Case) -> Callable[[], float]:
    """Runs a case and gives its seconds."""

    def run() -> float:
        start = time.perf_counter()
        case()
        return time.perf_counter() - start

    return run
