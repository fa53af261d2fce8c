"""reference_3, units that share their weights and rotary positions, against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import zoo
from references.comparison import DTYPES, ROUNDED, Twins, difference, example
from references.masks import some
from references.reference_3 import Block, Reference3

NAMES_3 = {
    "decoder.embed.tokens": "embed",
    "decoder.layers": "layers",
    "decoder.norm": "norm",
    "self_attn.pre_norm": "self_attn_norm",
    "ffn.unit_norm": "ffn.unit.norm",
    "ffn.activation": "ffn.unit.activation",
    "ffn.up_proj": "ffn.unit.up",
    "ffn.down_proj": "ffn.unit.down",
    "_proj": "",
    "head.out": "head",
}


@DTYPES
def test_reference_3(dtype: torch.dtype) -> None:
    sizes = {"vocab": 13, "n_layers": 2, "d_model": 16}
    units = {"n_units": 3, "expansion_factor": 2.3}
    model = zoo.build(example("reference_3", **sizes, ffn=units), dtype=dtype).eval()
    reference = Reference3(**sizes, expansion_factor=2.3, num_units=3).to(dtype).eval()
    assert model.decoder.layers[0].ffn.up_proj.weight.shape == (36, 16)  # int(16 * 2.3)
    ids = torch.randint(13, (2, 9))
    Twins(model, reference, NAMES_3).assert_equal(
        lambda: [model(ids), model(ids, return_attention=True)[0]], lambda: [reference(ids)] * 2
    )


@DTYPES
def test_reference_3_at_its_size(dtype: torch.dtype) -> None:
    model = zoo.build(example("reference_3"), dtype=dtype).eval()
    reference = Reference3(vocab=1000, n_layers=4, d_model=256).to(dtype).eval()
    ids = torch.randint(1000, (2, 16))
    Twins(model, reference, NAMES_3).assert_equal(
        lambda: [model(ids)],
        lambda: [reference(ids)],
        gradients=dtype == torch.float64,
        tolerance=ROUNDED[dtype],
    )


def blocks(dtype: torch.dtype) -> Twins:
    spec = example("reference_3_blocks", n_layers=2, d_model=15)
    layers = [Block(d_model=15, expansion_factor=4.0, num_units=2) for _ in range(2)]
    reference = nn.ModuleList(layers).to(dtype).eval()
    return Twins(zoo.build(spec, dtype=dtype).eval(), reference, {"decoder.layers.": "", **NAMES_3})


def through(layers: nn.Module, x: Tensor, mask: Tensor | None = None) -> Tensor:
    assert isinstance(layers, nn.ModuleList)
    for layer in layers:
        x = layer(x, mask)
    return x


@DTYPES
@pytest.mark.parametrize("shape", [(2, 7, 15), (7, 15)], ids=["batched", "unbatched"])
def test_reference_3_blocks(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    twins = blocks(dtype)
    mask = some(7, 7)

    def run(x: Tensor) -> list[Tensor]:
        explicit, maps = twins.model(x, return_attention=True)
        assert maps.decoder[1].shape == (*shape[:-2], 1, 7, 7)
        return [twins.model(x), explicit, twins.model(x, target_mask=mask[None])]

    twins.assert_equal(
        run,
        lambda x: [
            through(twins.reference, x),
            through(twins.reference, x),
            through(twins.reference, x, mask),
        ],
        [torch.rand(shape, dtype=dtype)],
    )


def test_reference_3_in_bfloat16() -> None:
    """As near to the float64 result as the reference itself is in bfloat16."""
    twins = blocks(torch.float64)
    low = blocks(torch.bfloat16)
    low.reference.load_state_dict(twins.reference.state_dict())
    low.model.load_state_dict(twins.model.state_dict())
    x = torch.randn(2, 7, 15, dtype=torch.float64)
    with torch.no_grad():
        exact = through(twins.reference, x)
        ours = low.model(x.bfloat16())
        theirs = through(low.reference, x.bfloat16())
    assert ours.dtype == torch.bfloat16
    assert (ours - exact).norm() <= 1.5 * (theirs - exact).norm()


@pytest.mark.parametrize("n_units", [1, 5])
def test_reference_3_units_share_their_weights(n_units: int) -> None:
    units = {"kind": "residual_stack", "n_units": n_units}
    spec = zoo.read_spec(example("reference_3_blocks", n_layers=1, ffn=units))
    d, wide = 256, 1024
    attention = 2 * d + 3 * (d * d + d)
    unit = 2 * d + (d * wide + wide) + 1 + (wide * d + d)
    assert spec.n_parameters == attention + unit


def test_reference_3_slopes_start_small() -> None:
    model = zoo.build(example("reference_3", d_model=8))
    slopes = [model.decoder.layers[i].ffn.activation.weight for i in range(4)]
    assert all(torch.equal(slope, torch.tensor([5e-3])) for slope in slopes)


def test_reference_3_drops_inside_the_units_only() -> None:
    twins = blocks(torch.float64)
    twins.model.train()
    twins.reference.train()

    def seeded(run: nn.Module, x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return through(run, x) if isinstance(run, nn.ModuleList) else run(x)

    x = torch.randn(2, 7, 15, dtype=torch.float64)
    twins.assert_equal(
        lambda x: [seeded(twins.model, x)], lambda x: [seeded(twins.reference, x)], [x]
    )
    assert difference(seeded(twins.model, x), seeded(twins.model.eval(), x)) > 1e-3
