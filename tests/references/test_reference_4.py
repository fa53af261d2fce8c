"""reference_4, the post-norm encoder with either norm, against its plain-PyTorch statement."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import zoo
from references.comparison import (
    DTYPES,
    ROUNDED,
    TOLERANCE,
    Tensors,
    Twins,
    difference,
    example,
)
from references.masks import padding, some
from references.reference_4 import Reference4
from zoo_components.attention import MultiHead
from zoo_components.norm import NoNorm

NAMES_4 = {
    "encoder.embed.tokens": "embed",
    "encoder.layers": "layers",
    ".out_norm": "_norm",
    "head.out": "head",
}
NORMS_4 = pytest.mark.parametrize(
    ("stem", "norm"),
    [("reference_4", "layernorm"), ("reference_4_batch_norm", "batchnorm")],
)


def unpack(tensors: Tensors) -> Tensors:
    """nn.MultiheadAttention keeps q, k and v in one."""
    unpacked: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        name = name.replace("out_proj", "o_proj")
        if "in_proj_" in name:
            parts = zip("qkv", tensor.chunk(3), strict=True)
            unpacked |= {name.replace("in_proj_", f"{x}_proj."): part for x, part in parts}
        elif "ffn." in name:
            unpacked[name.replace(".up.", ".up_proj.").replace(".down.", ".down_proj.")] = tensor
        else:
            unpacked[name] = tensor
    return unpacked


def twins_4(
    stem: str, norm: str, dtype: torch.dtype, d_model: int = 12, dropout: float = 0.0
) -> Twins:
    sizes = {"vocab": 11, "n_layers": 2, "d_model": d_model, "n_heads": 3, "d_ff": 20}
    spec = example(stem, **sizes, ffn={"kind": "mlp", "dropout": dropout})
    reference = Reference4(**sizes, norm_kind=norm, dropout=dropout).to(dtype)
    return Twins(zoo.build(spec, dtype=dtype), reference, NAMES_4, unpack)


@DTYPES
@NORMS_4
@pytest.mark.parametrize("d_model", [12, 9])
@pytest.mark.parametrize(
    "mask", [None, padding(8, 6, 8, 5), some(4, 8)], ids=["none", "padding", "random"]
)
def test_reference_4(
    dtype: torch.dtype, stem: str, norm: str, d_model: int, mask: Tensor | None
) -> None:
    """In training mode first, whose statistics evaluation then uses."""
    twins = twins_4(stem, norm, dtype, d_model)
    ids = torch.randint(11, (4, 8))

    def run() -> list[Tensor]:
        states, maps = twins.model.encode(ids, source_mask=mask, return_attention=True)
        return [states, *maps.encoder, twins.model(ids, source_mask=mask)]

    def run_reference() -> list[Tensor]:
        states, maps = twins.reference.encode(ids, mask, need_weights=True)
        return [states, *maps, twins.reference(ids, mask)]

    tolerance = TOLERANCE[dtype] if norm == "layernorm" else ROUNDED[dtype]
    twins.assert_equal(run, run_reference, tolerance=tolerance)
    buffers = dict(twins.reference.named_buffers())
    assert (norm == "batchnorm") == bool(buffers)
    for name, buffer in twins.model.named_buffers():
        if not name.endswith("positions.table"):
            assert (
                difference(buffer.double(), buffers[twins.renamed(name)].double())
                <= TOLERANCE[dtype]
            )
    twins.model.eval()
    twins.reference.eval()
    twins.assert_equal(run, run_reference, tolerance=tolerance)


@DTYPES
@NORMS_4
def test_reference_4_at_its_size(dtype: torch.dtype, stem: str, norm: str) -> None:
    model, reference = zoo.build(example(stem), dtype=dtype), Reference4(vocab=1000, norm_kind=norm)
    twins = Twins(model, reference.to(dtype), NAMES_4, unpack)
    ids = torch.randint(1000, (2, 16))
    twins.assert_equal(
        lambda: [model(ids)],
        lambda: [reference(ids)],
        gradients=dtype == torch.float64,
        tolerance=ROUNDED[dtype],
    )


def test_reference_4_drops_inside_the_ffn() -> None:
    twins = twins_4("reference_4", "layernorm", torch.float64, dropout=0.3)
    ids = torch.randint(11, (2, 6))

    def seeded(run: nn.Module) -> list[Tensor]:
        torch.manual_seed(1)
        return [run(ids)]

    twins.assert_equal(lambda: seeded(twins.model), lambda: seeded(twins.reference))
    assert difference(*seeded(twins.model), *seeded(twins.model.eval())) > 1e-3


@DTYPES
def test_reference_4_attention_is_that_of_torch(dtype: torch.dtype) -> None:
    described = MultiHead(
        kind="multi_head", d_model=12, n_heads=3, norm=NoNorm(kind="none", width=12)
    )
    attention = described.build().to(dtype)
    reference = nn.MultiheadAttention(12, 3, batch_first=True).to(dtype)
    mask = some(2, 3, 5, 6)

    def run(x: Tensor, memory: Tensor) -> list[Tensor]:
        output, weights = attention(x, memory, mask=mask, return_weights=True)
        return [output, weights, attention(x, memory, mask=mask)[0]]

    def run_reference(x: Tensor, memory: Tensor) -> list[Tensor]:
        hidden = ~mask.flatten(0, 1)
        output, weights = reference(x, memory, memory, attn_mask=hidden, average_attn_weights=False)
        return [output, weights, output]

    inputs = [torch.randn(2, 5, 12, dtype=dtype), torch.randn(2, 6, 12, dtype=dtype)]
    Twins(attention, reference, {}, unpack).assert_equal(run, run_reference, inputs)
