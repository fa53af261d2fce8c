"""A step of training: forward, cross-entropy, backward, AdamW. Float32. Dropout of 0.1 behind every
sublayer and embedding, and none elsewhere; losses without it agree, except for the peer that has
only the same sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.forward import SIZES_ONLY, TRANSLATOR, Sizes, ids
from benchmarks.measure import Ratio, compared, timed
from benchmarks.peers import hugging_face, peer, plain

DROPOUT = 0.1
Model = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def measure(rounds: int = 5) -> list[Ratio]:
    """Return a ratio for each peer."""
    return translation(TRANSLATOR, rounds)


def translation(sizes: Sizes, rounds: int) -> list[Ratio]:
    """A step of the encoder-decoder of Vaswani et al. (2017), 8 x 64."""
    theirs, ours = hugging_face.marian(**sizes, eos=0, start=sizes["vocab"] - 1, dropout=DROPOUT)
    models: dict[str, nn.Module] = {
        "zoo": ours,
        "Marian of transformers": Marian(theirs),
        "nn.Transformer": plain.Translator(theirs),
    }
    if x := peer("x-transformers"):
        models[f"x-transformers {SIZES_ONLY}"] = x.Translator(**sizes, dropout=DROPOUT)
    batch = ids(8, 64, sizes), ids(8, 65, sizes)
    check(models, *batch)
    steps = {name: timed(step(model, *batch)) for name, model in models.items()}
    return compared("training step, encoder-decoder base, 8 x 64", steps, rounds)


class Marian(nn.Module):
    """A Marian model of `transformers`, from ids to logits."""

    def __init__(self, marian: nn.Module) -> None:
        super().__init__()
        self.marian = marian

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.marian(
            input_ids=source, decoder_input_ids=target, use_cache=False
        ).logits
        return logits


def step(model: nn.Module, source: torch.Tensor, target: torch.Tensor) -> Callable[[], None]:
    """Return a function that does one step of training, with an optimiser of its own."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def run() -> None:
        loss(model, source, target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def loss(model: nn.Module, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of all tokens of the target except the first."""
    logits = model(source, target[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())


def check(models: Mapping[str, nn.Module], source: torch.Tensor, target: torch.Tensor) -> None:
    """Raise AssertionError unless the losses of models with the same weights agree."""
    with torch.no_grad():
        losses = {name: loss(model.eval(), source, target) for name, model in models.items()}
    for name, found in losses.items():
        if not name.endswith(SIZES_ONLY):
            torch.testing.assert_close(found, losses["zoo"], rtol=1e-4, atol=0)
