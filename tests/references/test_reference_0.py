"""reference_0, the pre-norm encoder-decoder, against its plain-PyTorch statement."""

from __future__ import annotations

import torch
from torch import Tensor

import zoo
from references.comparison import DTYPES, ROUNDED, TOLERANCE, Twins, difference, example
from references.masks import MASKS, full, nothing, padding, some
from references.reference_0 import Reference0
from zoo import AttentionMaps

SMALL_0 = {"source_vocab": 11, "target_vocab": 13, "n_layers": 2, "d_model": 16, "n_heads": 4}
NAMES_0 = {
    "encoder.embed.tokens": "source_embed",
    "decoder.embed.tokens": "target_embed",
    "encoder.layers": "encoder_layers",
    "decoder.layers": "decoder_layers",
    "encoder.norm.weight": "encoder_norm.alpha",
    "encoder.norm.bias": "encoder_norm.beta",
    "decoder.norm.weight": "decoder_norm.alpha",
    "decoder.norm.bias": "decoder_norm.beta",
    ".pre_norm.weight": "_norm.alpha",
    ".pre_norm.bias": "_norm.beta",
    "_proj": "",
    "head.out": "generator.linear",
}


def twins_0(dtype: torch.dtype) -> Twins:
    model = zoo.build(example("reference_0", **SMALL_0, d_ff=32), dtype=dtype)
    return Twins(model.eval(), Reference0(**SMALL_0, d_ff=32).to(dtype).eval(), NAMES_0)


@DTYPES
@MASKS
def test_reference_0(dtype: torch.dtype, mask: Tensor | None) -> None:
    twins = twins_0(dtype)
    source, target = torch.randint(11, (2, 5)), torch.randint(13, (2, 5))
    masks = {"source_mask": mask, "target_mask": mask}

    def run() -> list[Tensor]:
        explicit, _ = twins.model(source, target, **masks, return_attention=True)
        return [twins.model(source, target, **masks), explicit]

    twins.assert_equal(run, lambda: [twins.reference(source, target, full(mask), full(mask))] * 2)


@DTYPES
def test_reference_0_states_without_the_head(dtype: torch.dtype) -> None:
    twins = twins_0(dtype)
    source, target = torch.randint(11, (2, 7)), torch.randint(13, (2, 5))
    hidden, causal = padding(7, 4), torch.ones(1, 5, 5, dtype=torch.bool).tril()

    def run() -> list[Tensor]:
        memory = twins.model.encode(source, source_mask=hidden)
        return [
            memory,
            twins.model.decode(target, memory, target_mask=causal, memory_mask=hidden),
        ]

    def run_reference() -> list[Tensor]:
        memory = twins.reference.encode(source, full(hidden))
        return [memory, twins.reference.decode(target, memory, full(causal), full(hidden))]

    twins.assert_equal(run, run_reference)


def test_reference_0_drops_where_the_reference_drops() -> None:
    twins = twins_0(torch.float64)
    twins.model.train()
    twins.reference.train()
    source, target = torch.randint(11, (2, 5)), torch.randint(13, (2, 5))

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        return [twins.model(source, target, return_attention=True)[0]]

    def run_reference() -> list[Tensor]:
        torch.manual_seed(1)
        return [twins.reference(source, target)]

    twins.assert_equal(run, run_reference)
    twins.model.eval()
    with torch.no_grad():
        # In evaluation they differ, so the equality above is that of dropout.
        assert difference(*run(), *run_reference()) > 1e-3


@DTYPES
def test_reference_0_demo(dtype: torch.dtype) -> None:
    """At full size, with a random mask for each head, and with a mask of every key."""
    spec = zoo.read_spec(example("reference_0_demo"))
    reference = Reference0(source_vocab=1000, target_vocab=1000, n_layers=8).to(dtype).eval()
    twins = Twins(zoo.build(spec, dtype=dtype).eval(), reference, NAMES_0)
    assert spec.n_parameters == sum(p.numel() for p in reference.parameters())
    source, target = torch.randint(1000, (2, 4)), torch.randint(1000, (2, 4))

    def check(mask: Tensor, *, gradients: bool) -> AttentionMaps:
        masks = {"source_mask": mask, "target_mask": mask}
        expected = reference(source, target, mask[0], mask[0])
        twins.assert_equal(
            lambda: [twins.model(source, target, **masks)],
            lambda: [expected],
            gradients=gradients,
            tolerance=ROUNDED[dtype],
        )
        output, maps = twins.model(source, target, **masks, return_attention=True)
        assert difference(output, expected) <= TOLERANCE[dtype]
        return maps

    check(some(1, 8, 4, 4), gradients=dtype == torch.float64)
    for layers in check(nothing(1, 8, 4, 4), gradients=False):
        assert len(layers) == 8
        assert all(torch.equal(w, torch.full((2, 8, 4, 4), 0.25, dtype=dtype)) for w in layers)
