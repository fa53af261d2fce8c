"""A forward pass, compared with the same model in other libraries: inference mode, no caches.
Weights are the same and results agree in float32, except for peers that are marked as having only
the same sizes. The limit is the rate of matrix products; 80 % of it is a ratio of 1.25. In the rows
"arranged", the zoo's weights are arranged (`zoo.arrange_weights`), elsewhere they are as loaded. In
the rows "compiled", `torch.compile` compiles the layers of the zoo and of `transformers`, each by
itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import zoo
from benchmarks import limits
from benchmarks.measure import Ratio, compared, timed
from benchmarks.peers import hugging_face, peer, plain
from benchmarks.place import CPU, Place, compile_layers

Sizes = Mapping[str, Any]

SIZES_ONLY = "(sizes only)"
COMPILED = 2
"""The models that are compiled too: the zoo's, and that of `transformers`, the first peer."""
LIMIT = "limit: matrix products"
FULL = 32, 1024
"""The batch and the length of the inputs that are measured elsewhere than on CPUs as well, whose
rate the others do not reach."""

TRANSLATOR: Sizes = {"layers": 6, "width": 512, "heads": 8, "hidden": 2048, "vocab": 32000}
BERT: Sizes = {"layers": 12, "width": 768, "heads": 12, "vocab": 30522, "length": 512}
GPT2: Sizes = {"layers": 12, "width": 768, "heads": 12, "vocab": 50257, "length": 1024}
LLAMA: Sizes = {**GPT2, "kv_heads": 4, "hidden": 2048, "vocab": 32000}
LENGTHS = (128, 16, 96, 32, 64, 64, 80, 32)
"""The lengths of 8 sequences without padding: half of 8 x 128 tokens."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A model, and how it computes an input.

    Args:
        model: the model.
        call: computes the model.
    """

    model: nn.Module
    call: Callable[[Any], torch.Tensor]

    def __call__(self) -> torch.Tensor:
        return self.call(self.model)


@dataclass(frozen=True, slots=True)
class Group:
    """A model in several libraries, in float32.

    Args:
        what: the model and its input.
        place: where it is measured, and in which dtype.
        ours: the zoo's.
        tokens: the number of tokens that are not padding.
        peers: the same in other libraries, by their names.
        targets: the targets of the ratios to peers for which they are not 1.
        mask: the positions where the results must agree; None for all.
    """

    what: str
    place: Place
    ours: Peer
    tokens: int
    peers: Mapping[str, Peer]
    targets: Mapping[str, float] = field(default_factory=dict)
    mask: torch.Tensor | None = None

    @torch.inference_mode()
    def measure(self, rounds: int) -> list[Ratio]:
        """Return the ratio to each peer and to the limit. On a CPU, follow those of the zoo with
        arranged weights to the limit; elsewhere, those of compiled layers.

        Raises:
            AssertionError: a peer with the same weights has another result.
        """
        models = {"zoo": self.ours, **self.peers}
        for one in models.values():
            one.model.to(self.place.device)
        self._check()
        for one in models.values():
            one.model.to(self.place.dtype)
        limit = limits.products(self.ours, self.place)
        found = self._compared(self.what, models, limit, rounds)
        if self.place.on_cpu:
            arranged = Peer(deepcopy(self.ours.model), self.ours.call)
            zoo.arrange_weights(arranged.model, rows=self.tokens)
            models = {"zoo": arranged}
            return found + self._compared(f"{self.what}, arranged", models, limit, rounds)
        compiled = dict(list(models.items())[:COMPILED])
        for one in compiled.values():
            compile_layers(one.model)
        return found + self._compared(f"{self.what}, compiled", compiled, limit, rounds)

    def _compared(
        self,
        what: str,
        models: Mapping[str, Peer],
        limit: Callable[[], float],
        rounds: int,
    ) -> list[Ratio]:
        cases = {name: timed(one, self.place) for name, one in models.items()}
        targets = {**self.targets, LIMIT: limits.OF_PRODUCTS if self.place.on_cpu else None}
        return compared(what, {**cases, LIMIT: limit}, rounds, targets, self.tokens)

    def _check(self) -> None:
        wanted = self.ours()
        for name, case in self.peers.items():
            found = case()
            if not name.endswith(SIZES_ONLY):
                # Compared as vectors: random weights amplify the rounding of single numbers.
                where = ... if self.mask is None else self.mask
                error = (found[where] - wanted[where]).norm() / wanted[where].norm()
                assert error < 1e-2, f"{self.what}: {name} is off by {error:.3f}"


def measure(place: Place = CPU, rounds: int = 5) -> list[Ratio]:
    """Return the ratios of all models."""
    # One model at a time is in memory.
    return [ratio for group in groups(place) for ratio in group.measure(rounds)]


def groups(place: Place) -> Iterator[Group]:
    """Yield all models that are compared."""
    yield translation(TRANSLATOR, place)
    yield bert(BERT, place, padded=False)
    yield bert(BERT, place, padded=True)
    yield gpt2(GPT2, place)
    yield llama(LLAMA, place)
    if not place.on_cpu:
        yield llama(LLAMA, place, *FULL)


def translation(sizes: Sizes, place: Place = CPU) -> Group:
    """The encoder-decoder of Vaswani et al. (2017)."""
    theirs, ours = hugging_face.marian(**sizes, eos=0, start=sizes["vocab"] - 1)
    source, target = ids(8, 64, sizes, place), ids(8, 64, sizes, place)

    def pair(model: nn.Module) -> torch.Tensor:
        logits: torch.Tensor = model(source, target)
        return logits

    peers = {
        "Marian of transformers": Peer(
            theirs,
            lambda model: model(input_ids=source, decoder_input_ids=target, use_cache=False).logits,
        ),
        "nn.Transformer": Peer(plain.Translator(theirs).eval(), pair),
    }
    if x := peer("x-transformers"):
        peers[f"x-transformers {SIZES_ONLY}"] = Peer(
            x.Translator(**sizes, dropout=0.0).eval(), pair
        )
    targets = {"Marian of transformers": 1 / 1.15}
    what = "encoder-decoder base, 8 x 64"
    return Group(what, place, Peer(ours, pair), 8 * 64, peers, targets)


def bert(sizes: Sizes, place: Place = CPU, *, padded: bool) -> Group:
    """BERT's encoder; with `padded` half of the tokens are padding."""
    theirs, ours = hugging_face.bert(**sizes)
    tokens = ids(8, 128, sizes, place)
    mask = None
    if padded:
        lengths = torch.tensor(LENGTHS, device=place.device)
        mask = torch.arange(128, device=place.device) < lengths[:, None]

    def masked(model: nn.Module) -> torch.Tensor:
        states: torch.Tensor = model(tokens, mask)
        return states

    peers = {
        "BertModel of transformers": Peer(
            theirs, lambda model: model(tokens, attention_mask=mask).last_hidden_state
        ),
        "nn.TransformerEncoder": Peer(plain.Encoder(theirs).eval(), masked),
    }
    if curated := peer("curated-transformers"):
        peers["curated-transformers"] = Peer(curated.Encoder(theirs), masked)
    what = "BERT-base, 8 x 128" + (", half of it padding" if padded else "")
    targets = {"BertModel of transformers": 1 / 1.3} if padded else {}
    n_tokens = sum(LENGTHS) if padded else tokens.numel()
    own = Peer(ours, lambda model: model(tokens, source_mask=mask))
    return Group(what, place, own, n_tokens, peers, targets, mask)


def gpt2(sizes: Sizes, place: Place = CPU) -> Group:
    """A decoder with learned positions."""
    theirs, ours = hugging_face.gpt2(**sizes)
    others = {
        f"{package} {SIZES_ONLY}": library.gpt2(**sizes)
        for package in ("x-transformers", "litgpt")
        if (library := peer(package))
    }
    return decoder("GPT-2 small", ids(1, 256, sizes, place), place, theirs, ours, others)


def llama(sizes: Sizes, place: Place = CPU, batch: int = 1, length: int = 256) -> Group:
    """A decoder with rotary positions and grouped queries."""
    theirs, ours = hugging_face.llama(**sizes)
    others = {
        package: library.llama(theirs)
        for package in ("x-transformers", "litgpt")
        if (library := peer(package))
    }
    what = f"Llama, {sizes['heads']} heads over {sizes['kv_heads']}"
    return decoder(what, ids(batch, length, sizes, place), place, theirs, ours, others)


def decoder(
    what: str,
    tokens: torch.Tensor,
    place: Place,
    theirs: nn.Module,
    ours: zoo.Transformer,
    others: Mapping[str, nn.Module],
) -> Group:
    """The same decoder in `transformers`, in the zoo and in other libraries."""

    def logits(model: nn.Module) -> torch.Tensor:
        found: torch.Tensor = model(tokens)
        return found

    peers = {
        "transformers": Peer(theirs, lambda model: model(tokens, use_cache=False).logits),
        **{name: Peer(other, logits) for name, other in others.items()},
    }
    batch, length = tokens.shape
    what = f"{what}, {batch} x {length:,}"
    return Group(what, place, Peer(ours, logits), tokens.numel(), peers)


def ids(batch: int, length: int, sizes: Sizes, place: Place = CPU) -> torch.Tensor:
    """Random ids, (batch, length), without the first and last few, which may be special."""
    random = torch.Generator().manual_seed(0)
    found = torch.randint(5, sizes["vocab"] - 5, (batch, length), generator=random)
    return found.to(place.device)
