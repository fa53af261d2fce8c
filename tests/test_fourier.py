"""`fourier` against the discrete Fourier transform written out (Lee-Thorp et al. 2021,
arXiv:2105.03824)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references.attention_cases import check_equal, made, randn
from torch import Tensor

import zoo
from zoo.errors import SpecError
from zoo.reports.flops import flops
from zoo.showing.show import summary_data
from zoo_components.fourier import Fourier
from zoo_components.norm import NoNorm

WIDTH, LENGTH = 6, 5
SPEC: dict[str, Any] = {
    "format": 1,
    "name": "small",
    "builder": "encoder",
    "vocab": 11,
    "n_layers": 3,
    "d_model": WIDTH,
    "d_ff": 8,
    "position": {"kind": "learned", "max_length": 50},
    "attention": "fourier",
    "norm_placement": "post",
    "head": "none",
}
LEFT = torch.tensor([0, 0, 1, 1, 1]).bool()
MIDDLE = torch.tensor([0, 1, 1, 0, 1]).bool()
ALL = torch.ones(LENGTH, dtype=torch.bool)


def described() -> Fourier:
    return Fourier(kind="fourier", norm=NoNorm(kind="none", width=WIDTH), d_model=WIDTH)


def fourier(a: Fourier, w: object, x: Tensor, *, mask: Tensor | None = None, **_: object) -> Tensor:
    """One number of the output after the other: sums of cosines, the real parts of the roots of
    unity, over the tokens that are seen."""
    rows = []
    for b, row in enumerate(x):
        seen = ALL if mask is None else mask[b, 0, 0]
        tokens, output = row[seen], torch.zeros_like(row)
        length = len(tokens)
        t, d = torch.arange(length).double()[:, None], torch.arange(WIDTH).double()
        numbers = [
            (tokens * (2 * torch.pi * (k * t / length + j * d / WIDTH)).cos()).sum()
            for k in range(length)
            for j in range(WIDTH)
        ]
        place = torch.arange(len(row))[seen]
        rows.append(output.index_copy(0, place, torch.stack(numbers).view(length, WIDTH)))
    return torch.stack(rows)


def test_the_formula() -> None:
    x = randn(2, LENGTH, WIDTH)
    check_equal(described(), fourier, [x])
    for seen in ((LEFT, ALL), (MIDDLE, LEFT.flip(0))):
        check_equal(described(), fourier, [x], mask=torch.stack(seen)[:, None, None])


def test_a_sequence_without_tokens_is_no_nan() -> None:
    mask = torch.stack([~ALL, ALL])[:, None, None]
    found, _ = made(described())(randn(2, LENGTH, WIDTH), mask=mask)
    assert not found[0].any()
    assert found.isfinite().all()


def test_many_tokens_are_mixed_in_float32_as_exactly_as_few() -> None:
    """A product of two places is larger than the whole numbers that float32 holds."""
    module, x = made(described()), randn(1, 6000, WIDTH)
    seen = torch.ones(1, 1, 1, 6000, dtype=torch.bool)
    exact = module(x)[0]
    for mask in (None, seen):
        found = module(x.float(), mask=mask)[0].double()
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-5 * float(exact.abs().max()))


@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_beside_padding_are_as_alone(side: str) -> None:
    model = zoo.build(SPEC | {"position": "none"}, dtype=torch.float64).eval()
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 3, 1, 1, 1]])
    mask = torch.stack([torch.arange(7) >= 0, torch.arange(7) < 4])
    if side == "left":
        ids[1], mask[1] = ids[1].roll(3), mask[1].roll(3)
    found = model(ids, source_mask=mask)
    torch.testing.assert_close(found[1, mask[1]], model(ids[1:, mask[1]])[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[0], model(ids[:1])[0], rtol=0, atol=1e-12)
    assert not torch.allclose(model(ids)[1, mask[1]], found[1, mask[1]])  # padding is mixed in


def test_masks_that_differ_by_query_are_refused() -> None:
    mask = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)
    with pytest.raises(ValueError, match="takes no mask that differs by query"):
        described().build()(randn(2, LENGTH, WIDTH), mask=mask)


def test_what_show_says() -> None:
    """Nothing is learned, and the transform is no matrix product."""
    spec = zoo.read_spec(SPEC)
    ffn, norms = 2 * WIDTH * 8 + 8 + WIDTH, 2 * 2 * WIDTH
    assert spec.n_parameters == 11 * WIDTH + 50 * WIDTH + 3 * (ffn + norms)
    assert flops(spec, 50)["forward"] == 50 * 3 * 2 * 2 * WIDTH * 8
    assert not summary_data(spec)["kv_cache_bytes_per_token"]["float32"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"builder": "decoder", "head": "linear"}, "mixes each token with later ones too"),
        ({"position": "rotary"}, "rotary positions need a self-attention"),
        (
            {
                "builder": "decoder",
                "head": "linear",
                "attention": {
                    "kind": "parallel_hybrid",
                    "attention": "fourier",
                    "recurrence": {"kind": "linear", "n_heads": 2},
                },
            },
            "`parallel_hybrid` mixes each token with later ones too",
        ),
    ],
)
def test_what_it_cannot_be_in(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        zoo.read_spec(SPEC | changes)


def test_one_layer_of_a_decoder_is_told_in_its_rule() -> None:
    rule = {"at": [1], "self_attn": {"kind": "fourier"}}
    data = SPEC | {"builder": "decoder", "head": "linear", "n_heads": 2, "attention": "multi_head"}
    with pytest.raises(SpecError) as caught:
        zoo.read_spec(data | {"decoder": {"layers": [rule]}})
    assert str(caught.value).startswith("<data>: decoder.layers.0.self_attn.kind: error: `fourier`")


def test_it_is_no_cross_attention() -> None:
    data = SPEC | {"builder": "decoder", "head": "linear", "n_heads": 2, "attention": "multi_head"}
    with pytest.raises(SpecError, match="state it under `self_attn`"):
        zoo.read_spec(data | {"memory_width": 5, "decoder": {"cross_attn": {"kind": "fourier"}}})
