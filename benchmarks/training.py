"""A step of training: forward, cross-entropy, backward, AdamW; weights are float32, and in other
dtypes `torch.autocast` computes. Dropout of 0.1 behind every sublayer and embedding, and none
elsewhere; losses without it agree in float32, except for the peer that has only the same sizes. In
the rows "compiled", `torch.compile` compiles the layers of the zoo and of `transformers`, each by
itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.forward import COMPILED, LIMIT, SIZES_ONLY, TRANSLATOR, Sizes, ids
from benchmarks.limits import products
from benchmarks.measure import Ratio, compared, timed
from benchmarks.peers import hugging_face, peer, plain
from benchmarks.place import CPU, Place, compile_layers

DROPOUT = 0.1
FULL = 256
"""The number of sequences that are measured elsewhere than on CPUs as well, whose rate fewer do not
reach."""
Model = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def measure(place: Place = CPU, rounds: int = 5) -> list[Ratio]:
    """Return a ratio for each peer, and for the limit elsewhere than on CPUs."""
    found = translation(TRANSLATOR, rounds, place)
    return found if place.on_cpu else found + translation(TRANSLATOR, rounds, place, batch=FULL)


def translation(sizes: Sizes, rounds: int, place: Place = CPU, batch: int = 8) -> list[Ratio]:
    """A step of the encoder-decoder of Vaswani et al. (2017), sequences of 64 tokens."""
    theirs, ours = hugging_face.marian(**sizes, eos=0, start=sizes["vocab"] - 1, dropout=DROPOUT)
    models: dict[str, nn.Module] = {
        "zoo": ours,
        "Marian of transformers": Marian(theirs),
        "nn.Transformer": plain.Translator(theirs),
    }
    if x := peer("x-transformers"):
        models[f"x-transformers {SIZES_ONLY}"] = x.Translator(**sizes, dropout=DROPOUT)
    for model in models.values():
        model.to(place.device)
    pair = ids(batch, 64, sizes, place), ids(batch, 65, sizes, place)
    check(models, *pair)
    steps = {name: step(model, *pair, place) for name, model in models.items()}
    what, tokens = f"training step, encoder-decoder base, {batch} x 64", batch * 64
    cases = {name: timed(one, place) for name, one in steps.items()}
    if place.on_cpu:
        return compared(what, cases, rounds, tokens=tokens)
    cases[LIMIT] = products(steps["zoo"], place)
    found = compared(what, cases, rounds, {LIMIT: None}, tokens)
    compiled = list(models)[:COMPILED]
    for name in compiled:
        compile_layers(models[name])
    cases = {name: cases[name] for name in (*compiled, LIMIT)}
    return found + compared(f"{what}, compiled", cases, rounds, {LIMIT: None}, tokens)


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


def step(
    model: nn.Module, source: torch.Tensor, target: torch.Tensor, place: Place = CPU
) -> Callable[[], None]:
    """Return a function that does one step of training, with an optimiser of its own."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    mixed = torch.autocast(place.device.type, place.dtype, enabled=place.dtype != torch.float32)

    def run() -> None:
        with mixed:
            found = loss(model, source, target)
        found.backward()
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
