"""reference_1, the post-norm encoder-decoder that learns one sentence, against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import zoo
from references.comparison import DTYPES, ROUNDED, TOLERANCE, Twins, difference, example
from references.reference_1 import Reference1

NAMES_1 = {
    "encoder.embed.tokens": "source_embed",
    "decoder.embed.tokens": "target_embed",
    "encoder.layers": "encoder_layers",
    "decoder.layers": "decoder_layers",
    ".out_norm": "_norm",
    "_proj": "",
    "head.out": "head",
}
# Padding at the end, at the start (whose query sees no key), inside, and only padding.
SOURCE = torch.tensor([[1, 2, 3, 4, 0], [4, 4, 0, 2, 0], [0, 0, 0, 0, 0]])
TARGET = torch.tensor([[5, 1, 2, 3], [0, 1, 0, 2], [5, 6, 1, 0]])
SOURCE_WORDS = ["P", "ich", "mochte", "ein", "bier"]
TARGET_WORDS = ["P", "i", "want", "a", "beer", "S", "E"]


@DTYPES
@pytest.mark.parametrize(
    ("stem", "ffn"), [("reference_1", "conv1d"), ("reference_1_linear", "linear")]
)
def test_reference_1(dtype: torch.dtype, stem: str, ffn: str) -> None:
    sizes = {"source_vocab": 5, "target_vocab": 7, "n_layers": 2, "d_model": 12, "n_heads": 3}
    spec = example(
        stem, **sizes, head_dim=6, d_ff=20, attention={"kind": "multi_head", "v_head_dim": 5}
    )
    reference = Reference1(**sizes, d_k=6, d_v=5, d_ff=20, ffn=ffn).to(dtype)
    twins = Twins(zoo.build(spec, dtype=dtype), reference, NAMES_1)

    def run() -> list[Tensor]:
        logits, maps = twins.model(SOURCE, TARGET, return_attention=True)
        return [twins.model(SOURCE, TARGET), logits, *maps.encoder, *maps.decoder, *maps.cross]

    def run_reference() -> list[Tensor]:
        logits, encoder, decoder, cross = reference(SOURCE, TARGET)
        return [logits, logits, *encoder, *decoder, *cross]

    twins.assert_equal(run, run_reference)


@DTYPES
@pytest.mark.parametrize(
    ("stem", "ffn"), [("reference_1", "conv1d"), ("reference_1_linear", "linear")]
)
def test_reference_1_at_its_size(dtype: torch.dtype, stem: str, ffn: str) -> None:
    reference = Reference1(source_vocab=5, target_vocab=7, ffn=ffn).to(dtype)
    twins = Twins(zoo.build(example(stem), dtype=dtype), reference, NAMES_1)
    expected = reference(SOURCE, TARGET)[0]
    twins.assert_equal(
        lambda: [twins.model(SOURCE, TARGET)],
        lambda: [expected],
        gradients=dtype == torch.float64,
        tolerance=ROUNDED[dtype],
    )
    explicit, _ = twins.model(SOURCE, TARGET, return_attention=True)
    assert difference(explicit, expected) <= TOLERANCE[dtype]


def test_reference_1_learns_its_sentence() -> None:
    def ids(sentence: str, words: list[str]) -> Tensor:
        return torch.tensor([[words.index(word) for word in sentence.split()]])

    model = zoo.build(example("reference_1"))
    source = ids("ich mochte ein bier P", SOURCE_WORDS)
    target, expected = ids("S i want a beer", TARGET_WORDS), ids("i want a beer E", TARGET_WORDS)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.99)
    for _ in range(100):
        loss = F.cross_entropy(model(source, target)[0], expected[0], ignore_index=0)
        if loss < 1e-3:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 1e-3
    said = ids("S", TARGET_WORDS)
    while TARGET_WORDS[said[0, -1]] != "E" and said.shape[1] < 9:
        said = torch.cat([said, model(source, said)[:, -1:].argmax(-1)], 1)
    assert " ".join(TARGET_WORDS[i] for i in said[0, 1:]) == "i want a beer E"
