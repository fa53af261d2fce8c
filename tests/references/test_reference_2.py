"""reference_2, the decoder over an external memory, against its plain-PyTorch statement."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import zoo
from references.comparison import DTYPES, Twins, example
from references.masks import MASKS, full, some
from references.reference_2 import Attention, Reference2
from zoo_components.attention import MultiHead
from zoo_components.norm import NoNorm

NAMES_2 = {
    "decoder.layers": "decoder_layers",
    ".out_norm": "_norm",
    "_proj": "",
    "head.out": "head",
}


@DTYPES
@MASKS
def test_reference_2(dtype: torch.dtype, mask: Tensor | None) -> None:
    sizes = {"n_layers": 2, "d_model": 16, "n_heads": 4, "d_ff": 32}
    model = zoo.build(example("reference_2", **sizes, vocab=9, memory_width=16), dtype=dtype)
    reference = Reference2(**sizes, attn_dim=16, n_words=9).to(dtype)
    twins = Twins(model, reference, NAMES_2)

    def run(x: Tensor, memory: Tensor) -> list[Tensor]:
        explicit, _ = model(x, memory, target_mask=mask, return_attention=True)
        return [
            model(x, memory, target_mask=mask),
            explicit,
            model.decode(x, memory, target_mask=mask),
        ]

    def run_reference(x: Tensor, memory: Tensor) -> list[Tensor]:
        output = reference(x, memory, full(mask))
        return [output, output, reference.decode(x, memory, full(mask))]

    twins.assert_equal(
        run, run_reference, [torch.randn(2, 5, 16, dtype=dtype), torch.randn(2, 3, 16, dtype=dtype)]
    )


@DTYPES
def test_reference_2_at_its_size(dtype: torch.dtype) -> None:
    model, reference = zoo.build(example("reference_2"), dtype=dtype), Reference2().to(dtype)
    twins = Twins(model, reference, NAMES_2)
    mask = some(2, 1, 6, 6) & (torch.arange(6) != 3)[:, None]
    twins.assert_equal(
        lambda x, memory: [model(x, memory, target_mask=mask)],
        lambda x, memory: [reference(x, memory, mask)],
        [torch.randn(2, 6, 512, dtype=dtype), torch.randn(2, 4, 512, dtype=dtype)],
        gradients=dtype == torch.float64,
    )


def test_reference_2_gives_a_masked_row_zero_weights() -> None:
    model = zoo.build(example("reference_2", n_layers=1))
    mask = some(2, 6, 6)
    mask[1, 3] = False
    _, maps = model(
        torch.randn(2, 6, 512), torch.randn(2, 4, 512), target_mask=mask, return_attention=True
    )
    assert not maps.decoder[0][1, :, 3].any()
    rest = maps.decoder[0].sum(-1)[mask.any(-1)[:, None].expand(2, 8, 6)]
    assert torch.allclose(rest, torch.ones_like(rest))


@DTYPES
@pytest.mark.parametrize(("embed", "attn", "out"), [(16, 16, 16), (12, 10, 7)])
def test_reference_2_attention_of_two_heads(
    dtype: torch.dtype, embed: int, attn: int, out: int
) -> None:
    described = MultiHead(
        kind="multi_head",
        d_model=embed,
        n_heads=2,
        head_dim=attn // 2,
        d_out=out,
        norm=NoNorm(kind="none", width=embed),
    )
    attention = described.build().to(dtype)
    reference = Attention(embed_dim=embed, attn_dim=attn, output_dim=out, n_heads=2).to(dtype)
    mask = some(2, 2, 5, 6) & (torch.arange(5) != 1)[:, None]
    twins = Twins(attention, reference, {"_proj": ""})
    twins.assert_equal(
        lambda x, memory: [attention(x, memory, mask=mask)[0], attention(x, memory)[0]],
        lambda x, memory: [reference(x, memory, mask), reference(x, memory)],
        [torch.randn(2, 5, embed, dtype=dtype), torch.randn(2, 6, embed, dtype=dtype)],
    )
