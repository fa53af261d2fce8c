"""A forward pass, compared with the same model in other libraries: float32, inference mode, no
caches. Weights are the same and results agree, except for peers that are marked as having only the
same sizes. The limit is the rate of matrix products; 80 % of it is a ratio of 1.25. In the rows
"arranged", the zoo's weights are arranged (`zoo.arrange_weights`), elsewhere they are as loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

import zoo
from benchmarks import limits
from benchmarks.measure import Ratio, compared, timed
from benchmarks.peers import hugging_face, peer, plain

Case = Callable[[], torch.Tensor]
Sizes = Mapping[str, Any]

SIZES_ONLY = "(sizes only)"
LIMIT = "limit: matrix products"
TRANSLATOR: Sizes = {"layers": 6, "width": 512, "heads": 8, "hidden": 2048, "vocab": 32000}
BERT: Sizes = {"layers": 12, "width": 768, "heads": 12, "vocab": 30522, "length": 512}
GPT2: Sizes = {"layers": 12, "width": 768, "heads": 12, "vocab": 50257, "length": 1024}
LLAMA: Sizes = {**GPT2, "kv_heads": 4, "hidden": 2048, "vocab": 32000}
LENGTHS = (128, 16, 96, 32, 64, 64, 80, 32)
"""The lengths of 8 sequences without padding: half of 8 x 128 tokens."""


@dataclass(frozen=True, slots=True)
class Group:
    """A model in several libraries.

    Args:
        what: the model and its input.
        ours: the zoo's model.
        call: computes the zoo's model.
        tokens: the number of tokens that are not padding.
        peers: the calls that compute it in other libraries, by their names.
        bars: the bars of the ratios to peers for which they are not 1.
        mask: the positions where the results must agree; None for all.
    """

    what: str
    ours: zoo.Transformer
    call: Callable[[zoo.Transformer], torch.Tensor]
    tokens: int
    peers: Mapping[str, Case]
    bars: Mapping[str, float] = field(default_factory=dict)
    mask: torch.Tensor | None = None

    def measure(self, rounds: int) -> list[Ratio]:
        """Return the ratio to each peer and to the limit, and with arranged weights to the limit.

        Raises:
            AssertionError: a peer with the same weights has another result.
        """
        arranged = deepcopy(self.ours)
        zoo.arrange_weights(arranged, rows=self.tokens)
        bars = {LIMIT: limits.OF_PRODUCTS}
        with torch.inference_mode():
            ours = partial(self.call, self.ours)
            self._check(ours)
            limit = limits.products(ours)
            runs: dict[str, Case] = {"zoo": ours, **self.peers}
            cases = {**{name: timed(run) for name, run in runs.items()}, LIMIT: limit}
            found = compared(self.what, cases, rounds, {**self.bars, **bars})
            pair = {"zoo": timed(partial(self.call, arranged)), LIMIT: limit}
            return found + compared(f"{self.what}, arranged", pair, rounds, bars)

    def _check(self, ours: Case) -> None:
        wanted = ours()
        for name, case in self.peers.items():
            found = case()
            if not name.endswith(SIZES_ONLY):
                # Compared as vectors: random weights amplify the rounding of single numbers.
                where = ... if self.mask is None else self.mask
                error = (found[where] - wanted[where]).norm() / wanted[where].norm()
                assert error < 1e-2, f"{self.what}: {name} is off by {error:.3f}"


def measure(rounds: int = 5) -> list[Ratio]:
    """Return the ratios of all models."""
    # One model at a time is in memory.
    return [ratio for group in groups() for ratio in group.measure(rounds)]


def groups() -> Iterator[Group]:
    """Yield all models that are compared."""
    yield translation(TRANSLATOR)
    yield bert(BERT, padded=False)
    yield bert(BERT, padded=True)
    yield gpt2(GPT2)
    yield llama(LLAMA)


def translation(sizes: Sizes) -> Group:
    """The encoder-decoder of Vaswani et al. (2017)."""
    theirs, ours = hugging_face.marian(**sizes, eos=0, start=sizes["vocab"] - 1)
    torchs = plain.Translator(theirs).eval()
    source, target = ids(8, 64, sizes), ids(8, 64, sizes)
    peers: dict[str, Case] = {
        "Marian of transformers": lambda: (
            theirs(input_ids=source, decoder_input_ids=target, use_cache=False).logits
        ),
        "nn.Transformer": lambda: torchs(source, target),
    }
    if x := peer("x-transformers"):
        others = x.Translator(**sizes, dropout=0.0).eval()
        peers[f"x-transformers {SIZES_ONLY}"] = lambda: others(source, target)
    bars = {"Marian of transformers": 1 / 1.15}
    what = "encoder-decoder base, 8 x 64"
    return Group(what, ours, lambda model: model(source, target), 8 * 64, peers, bars)


def bert(sizes: Sizes, *, padded: bool) -> Group:
    """BERT's encoder; with `padded` half of the tokens are padding."""
    theirs, ours = hugging_face.bert(**sizes)
    torchs = plain.Encoder(theirs).eval()
    tokens = ids(8, 128, sizes)
    mask = torch.arange(128) < torch.tensor(LENGTHS)[:, None] if padded else None
    peers: dict[str, Case] = {
        "BertModel of transformers": lambda: theirs(tokens, attention_mask=mask).last_hidden_state,
        "nn.TransformerEncoder": lambda: torchs(tokens, mask),
    }
    if curated := peer("curated-transformers"):
        encoder = curated.Encoder(theirs)
        peers["curated-transformers"] = lambda: encoder(tokens, mask)
    what = "BERT-base, 8 x 128" + (", half of it padding" if padded else "")
    bars = {"BertModel of transformers": 1 / 1.3} if padded else {}
    n_tokens = sum(LENGTHS) if padded else tokens.numel()
    return Group(
        what, ours, lambda model: model(tokens, source_mask=mask), n_tokens, peers, bars, mask
    )


def gpt2(sizes: Sizes) -> Group:
    """A decoder with learned positions."""
    theirs, ours = hugging_face.gpt2(**sizes)
    others = {
        f"{package} {SIZES_ONLY}": library.gpt2(**sizes)
        for package in ("x-transformers", "litgpt")
        if (library := peer(package))
    }
    return decoder("GPT-2 small", sizes, theirs, ours, others)


def llama(sizes: Sizes) -> Group:
    """A decoder with rotary positions and grouped queries."""
    theirs, ours = hugging_face.llama(**sizes)
    others = {
        package: library.llama(theirs)
        for package in ("x-transformers", "litgpt")
        if (library := peer(package))
    }
    what = f"Llama, {sizes['heads']} heads over {sizes['kv_heads']}"
    return decoder(what, sizes, theirs, ours, others)


def decoder(
    what: str,
    sizes: Sizes,
    theirs: nn.Module,
    ours: zoo.Transformer,
    others: Mapping[str, nn.Module],
) -> Group:
    """The same decoder in `transformers`, in the zoo and in other libraries."""
    tokens = ids(1, 256, sizes)
    peers: dict[str, Case] = {
        "transformers": lambda: theirs(tokens, use_cache=False).logits,
        **{name: partial(other, tokens) for name, other in others.items()},
    }
    return Group(f"{what}, 1 x 256", ours, lambda model: model(tokens), tokens.numel(), peers)


def ids(batch: int, length: int, sizes: Sizes) -> torch.Tensor:
    """Random ids, (batch, length), without the first and last few, which may be special."""
    random = torch.Generator().manual_seed(0)
    return torch.randint(5, sizes["vocab"] - 5, (batch, length), generator=random)
