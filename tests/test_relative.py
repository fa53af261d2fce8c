"""Relative positions, against a reference for one query and one key at a time and transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from random_values import randomize
from torch import Tensor
from transformers.models.beit.modeling_beit import BeitRelativePositionBias
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as bloom_alibi
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.falcon.modeling_falcon import build_alibi_tensor as falcon_alibi
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

import zoo
from zoo.position import PositionScheme
from zoo_components.modules.relative import (
    DisentangledPositions,
    T5BucketPositions,
    alibi_slopes,
    log_buckets,
    t5_buckets,
)
from zoo_components.norm import LayerNorm, NoNorm
from zoo_components.relative import Alibi, DisentangledPosition, Fire, GridBias, T5Buckets

LENGTH = 9
SIZES = {"image_size": 6, "patch_size": 2}
HEAD_COUNTS = [1, 2, 3, 4, 8, 12, 16, 20]


def alibi(n_heads: int, dtype: torch.dtype = torch.float64, **fields: Any) -> Tensor:
    """Return the bias for LENGTH positions, (heads, query, key)."""
    module = Alibi(kind="alibi", d_model=16, n_heads=n_heads, **fields).build()
    at = torch.arange(LENGTH)
    bias = module.bias(at, at, dtype)
    assert bias is not None
    assert bias.dtype == dtype
    return bias


def same_attention(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    """Return whether two biases give the same causal weights. They may differ by a constant for
    each query."""
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    weights = [
        b.double().expand_as(ours).masked_fill(hidden, -torch.inf).softmax(-1)
        for b in (ours, theirs)
    ]
    torch.testing.assert_close(*weights, rtol=0, atol=tolerance)


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8, 16])
def test_slopes_of_the_paper(n_heads: int) -> None:
    """The geometric sequence with the first term and the ratio 2^(-8/n)."""
    expected = [(2 ** (-8 / n_heads)) ** (i + 1) for i in range(n_heads)]
    assert alibi_slopes(n_heads, 8.0) == pytest.approx(expected)


def test_bias_of_the_paper() -> None:
    """Slope times the distance, in both directions of an encoder."""
    bias = alibi(16, scale=0.5)
    for head in range(16):
        for query in range(LENGTH):
            for key in range(LENGTH):
                expected = -(2.0 ** (-(head + 1) / 2)) * abs(query - key) * 0.5
                assert bias[head, query, key] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_bias_in_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    assert torch.equal(alibi(12, dtype, scale=0.3), alibi(12, scale=0.3).to(dtype))


def test_bias_of_a_batch() -> None:
    module = Alibi(kind="alibi", d_model=16, n_heads=2).build()
    at = torch.tensor([[0, 1, 2], [-1, 0, 5]])
    bias = module.bias(at, at, torch.float64)
    assert bias is not None
    assert bias.shape == (2, 2, 3, 3)
    assert bias[1, 0, 2, 1] == -5 * 2.0**-4


@pytest.mark.parametrize("n_heads", HEAD_COUNTS)
def test_alibi_of_bloom(n_heads: int) -> None:
    mask = torch.ones(1, LENGTH)
    theirs = bloom_alibi(mask, n_heads, torch.float32).view(n_heads, 1, LENGTH)
    same_attention(alibi(n_heads), theirs, 1e-6)


@pytest.mark.parametrize("n_heads", HEAD_COUNTS)
@pytest.mark.parametrize("max_exponent", [8.0, 4.0])
def test_alibi_of_mpt(n_heads: int, max_exponent: float) -> None:
    theirs = build_mpt_alibi_tensor(n_heads, LENGTH, max_exponent)
    same_attention(alibi(n_heads, max_exponent=max_exponent), theirs, 1e-6)


@pytest.mark.parametrize("n_heads", [8, 12, 16])
def test_alibi_of_falcon(n_heads: int) -> None:
    """Rounded to bfloat16, bit by bit; for more than 8 heads, rounding changes the model."""
    mask = torch.ones(1, LENGTH, dtype=torch.long)
    theirs = falcon_alibi(mask, n_heads, torch.float32).view(n_heads, 1, LENGTH)
    ours = alibi(n_heads, torch.float32, rounding="bfloat16", scale=0.25)
    assert torch.equal(ours, (theirs * 0.25).expand_as(ours))
    if n_heads > 8:
        with pytest.raises(AssertionError):
            same_attention(alibi(n_heads), theirs, 1e-4)


# --- T5 buckets -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("n_buckets", "max_distance"),
    # in the last, a float64 logarithm would put one distance into another bucket
    [(32, 128), (8, 20), (4, 5), (64, 500), (32, 20), (10, 160)],
)
def test_buckets_of_t5(n_buckets: int, max_distance: int, bidirectional: bool) -> None:
    offsets = torch.arange(-600, 601)
    ours = t5_buckets(
        offsets, n_buckets=n_buckets, max_distance=max_distance, bidirectional=bidirectional
    )
    theirs = T5Attention._relative_position_bucket(offsets, bidirectional, n_buckets, max_distance)
    assert torch.equal(ours, theirs)
    assert ours.max() == n_buckets - 1


def test_known_buckets() -> None:
    """Of Raffel et al.'s setting, by hand: 8 exact distances in 16 buckets, then 16^(1/8) apart."""
    offsets = torch.tensor([0, -1, -7, -8, -15, -16, -100, -128, -999, 1, 7, 8, 999])
    buckets = t5_buckets(offsets, n_buckets=32, max_distance=128, bidirectional=True)
    assert buckets.tolist() == [0, 1, 7, 8, 9, 10, 15, 15, 15, 17, 23, 24, 31]
    one_way = t5_buckets(offsets, n_buckets=32, max_distance=128, bidirectional=False)
    assert one_way.tolist() == [0, 1, 7, 8, 15, 16, 30, 31, 31, 0, 0, 0, 0]


def t5(**fields: Any) -> T5Buckets:
    return T5Buckets(kind="t5_buckets", d_model=16, n_heads=3, **fields)


@pytest.mark.parametrize("causal", [True, False])
def test_a_bias_is_looked_up_by_bucket(causal: bool) -> None:
    description = t5(causal=causal, n_buckets=8, max_distance=6)
    assert description.bidirectional is not causal
    assert dict(description.layout().tensors())["weight"].shape == (8, 3)
    module = description.build().double()
    assert isinstance(module, T5BucketPositions)
    torch.nn.init.normal_(module.weight)
    at = torch.arange(LENGTH)
    bias = module.bias(at, at, torch.float64)
    used = set()
    for query in range(LENGTH):
        for key in range(LENGTH):
            bucket = int(
                T5Attention._relative_position_bucket(torch.tensor(key - query), not causal, 8, 6)
            )
            used.add(bucket)
            assert torch.equal(bias[:, query, key], module.weight[bucket])
    bias.sum().backward()
    assert {i for i, row in enumerate(module.weight.grad) if row.all()} == used


def test_buckets_do_not_depend_on_the_dtype() -> None:
    """10 is on the edge of two buckets; a float64 logarithm gives the other one."""
    module = t5(n_buckets=10, max_distance=160, causal=True).build()
    torch.nn.init.normal_(module.weight)
    at = torch.arange(300)
    biases = [module.to(d).bias(at, at, d).float() for d in (torch.float32, torch.float64)]
    assert torch.equal(*biases)


# --- FIRE -----------------------------------------------------------------------------------------


def fire(dtype: torch.dtype = torch.float64, **fields: Any) -> PositionScheme:
    """A module with random values, in which L is 4."""
    description = Fire(kind="fire", d_model=16, n_heads=3, d_hidden=5, threshold=10.0, **fields)
    module = randomize(description.build().to(dtype))
    module.length_factor.data.fill_(-0.4)
    module.c.data.fill_(-0.3)
    return module


def test_the_function_of_fire() -> None:
    """For one query and one key at a time; before L, queries have the scale of L."""
    module = fire()
    up, down, at = module.up_proj, module.down_proj, torch.arange(LENGTH)
    bias = module.bias(at[2:], at, torch.float64)
    assert bias.shape == (3, LENGTH - 2, LENGTH)
    for query in range(2, LENGTH):
        for key in range(LENGTH):
            share = math.log(0.3 * abs(query - key) + 1)
            share /= math.log(0.3 * max(query, 4) + 1) + 1e-6
            units = (share * up.weight[:, 0] + up.bias).clamp(min=0)
            expected = down.weight @ units + down.bias
            torch.testing.assert_close(bias[:, query - 2, key], expected, rtol=1e-12, atol=1e-12)


def test_fire_is_computed_in_float32() -> None:
    """In half precision, too, where the distances 299 and 300 would be one; and of a batch, whose
    padding may be at -1."""
    module = fire(torch.bfloat16)
    at = torch.tensor([[0, 1, 299, 300, 511], [-1, -1, 0, 1, 2]])
    found = module.bias(at, at, torch.bfloat16)
    assert found.shape == (2, 3, 5, 5)
    exact = module.double().bias(at, at, torch.float64)
    torch.testing.assert_close(found, exact.bfloat16(), rtol=2**-7, atol=1e-4)
    assert (found != exact.bfloat16()).double().mean() < 0.05


def test_each_layer_has_a_fire_of_its_own_or_all_have_one() -> None:
    own = {"block": {"kind": "residual", "self_position": {"kind": "fire", "c": 0.2}}}
    model = zoo.build(spec(n_layers=2, position="none", **own))
    found = {name for name in model.state_dict() if name.endswith("rel_bias.c")}
    assert found == {f"encoder.layers.{i}.self_attn.rel_bias.c" for i in range(2)}
    start = model.get_submodule("encoder.layers.0.self_attn.rel_bias")
    assert (start.c.item(), start.length_factor.item()) == (pytest.approx(0.2), 1.0)
    shared = zoo.build(spec(n_layers=2, position="fire"))
    found = {name for name in shared.state_dict() if name.endswith("rel_bias.c")}
    assert found == {"encoder.rel_bias.c"}


# --- disentangled ---------------------------------------------------------------------------------


def disentangled(**fields: Any) -> DisentangledPosition:
    norm = fields.pop("norm", NoNorm(kind="none", width=6))
    return DisentangledPosition(kind="disentangled", d_model=6, norm=norm, **fields)


@pytest.mark.parametrize(("n_buckets", "max_distance"), [(256, 512), (8, 30), (4, 5), (6, 100)])
def test_log_buckets_of_deberta(n_buckets: int, max_distance: int) -> None:
    distances = torch.arange(-2 * max_distance, 2 * max_distance + 1)
    theirs = make_log_bucket_position(distances, n_buckets, max_distance).long()
    ours = log_buckets(distances, n_buckets=n_buckets, max_distance=max_distance)
    assert torch.equal(ours, theirs)


def test_rows_of_distances() -> None:
    """The query's position minus the key's, clipped to the span."""
    module = disentangled(max_distance=3).build()
    assert isinstance(module, DisentangledPositions)
    rows = module.rows(torch.arange(6))
    for query in range(6):
        for key in range(6):
            assert rows[query, key] == min(5, max(0, query - key + 3))


def test_rows_of_buckets() -> None:
    module = disentangled(max_distance=40, n_buckets=8).build()
    rows = module.rows(torch.arange(50))
    expected = make_log_bucket_position(torch.tensor([49, 17, -17, 4]), 8, 40).long() + 8
    assert [rows[49, 0], rows[20, 3], rows[3, 20], rows[4, 0]] == expected.clamp(0, 15).tolist()


@pytest.mark.parametrize(("fields", "rows"), [({"max_distance": 5}, 10), ({"n_buckets": 8}, 16)])
def test_vectors_of_distances(fields: dict[str, Any], rows: int) -> None:
    description = disentangled(norm=LayerNorm(kind="layer_norm", width=6), **fields)
    shapes = {name: tensor.shape for name, tensor in description.layout().tensors()}
    module = description.build()
    assert shapes == {name: tuple(t.shape) for name, t in module.state_dict().items()}
    assert shapes["weight"] == (rows, 6)
    torch.nn.init.normal_(module.weight)
    torch.nn.init.normal_(module.norm.weight)
    centred = module.weight - module.weight.mean(1, keepdim=True)
    variance = centred.square().mean(1, keepdim=True)
    expected = centred / (variance + 1e-5).sqrt() * module.norm.weight
    torch.testing.assert_close(module.vectors(), expected)


# --- specs ----------------------------------------------------------------------------------------


def spec(builder: str = "encoder", **fields: Any) -> dict[str, Any]:
    common = {"format": 1, "name": "m", "builder": builder, "vocab": 11, "n_layers": 1}
    return {**common, "d_model": 16, "n_heads": 2, "d_ff": 4, **fields}


@pytest.mark.parametrize(
    ("position", "message"),
    [
        ({"kind": "t5_buckets", "n_buckets": 7}, "n_buckets = 7 cannot be halved"),
        ({"kind": "t5_buckets", "n_buckets": 2}, "n_buckets = 2 cannot be halved"),
        ({"kind": "t5_buckets", "max_distance": 8}, "more than the 8 distances"),
        ({"kind": "disentangled", "n_buckets": 3}, "n_buckets = 3 must be at least 4"),
        ({"kind": "disentangled", "n_buckets": 10, "max_distance": 6}, "less than 2"),
        ({"kind": "alibi", "rounding": "float16"}, "`rounding`"),
    ],
)
def test_contradictions(position: dict[str, Any], message: str) -> None:
    with pytest.raises(zoo.SpecError, match=message):
        zoo.read_spec(spec(position=position))


@pytest.mark.parametrize(("builder", "bidirectional"), [("encoder", True), ("decoder", False)])
def test_the_stack_says_whether_buckets_are_bidirectional(
    builder: str, bidirectional: bool
) -> None:
    read = zoo.read_spec(spec(builder, position="t5_buckets"))
    stack = getattr(read.model, builder)
    assert stack.position.bidirectional is bidirectional
    assert f"{builder}.rel_bias.weight" in read.tensors


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 3), (3, 2), (4, 4)])
def test_the_bias_of_a_grid(rows: int, columns: int) -> None:
    """One row of the table for each distance, and three for the class token, as in BEiT."""
    grid = (1, rows, columns)
    description = GridBias(kind="grid_bias", d_model=16, n_heads=2, grid=grid)
    module = description.build()
    n = description.layout().find("weight").shape[0]
    assert description.longest == 1 + rows * columns
    assert n == (2 * rows - 1) * (2 * columns - 1) + 3
    with torch.no_grad():
        module.weight.copy_(torch.arange(2 * n).view(n, 2))
    expected = BeitRelativePositionBias.generate_relative_position_index((rows, columns))
    at = torch.arange(1 + rows * columns)
    for row, bias in enumerate(module.bias(at, at, torch.float64)):
        assert torch.equal(bias, (2 * expected + row).double())
    part = module.bias(at[1:], at, torch.float64)  # of some queries alone
    assert torch.equal(part[0], 2 * expected[1:].double())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_registers": 2}, "one vector before the patches, the class token, and here are 3"),
        (
            {"embedding": {"kind": "patches", "class_token": False, **SIZES}},
            "one vector before the patches, the class token, and here are 0",
        ),
        ({"embedding": "tokens", "vocab": 9}, "these are positions of the patches of an image"),
    ],
)
@pytest.mark.parametrize("where", ["position", "relative", "block"])
def test_a_grid_after_a_class_token(where: str, changes: dict[str, Any], message: str) -> None:
    scheme: dict[str, Any] = {
        "position": {"position": "grid_bias"},
        "relative": {"position": "none", "encoder": {"relative": "grid_bias"}},
        "block": {"position": "none", "block": {"kind": "residual", "self_position": "grid_bias"}},
    }[where]
    sizes = {"n_layers": 2, "d_model": 16, "n_heads": 2, "d_ff": 12, "head": "none"}
    images = {"embedding": {"kind": "patches", **SIZES}}
    spec = {"format": 1, "name": "m", "builder": "encoder"} | sizes | images | scheme
    model = zoo.build(spec)
    tables = [name for name, _ in model.named_parameters() if "rel_bias" in name]
    assert len(tables) == (2 if where == "block" else 1)
    assert model(torch.rand(1, 3, 6, 6)).shape == (1, 10, 16)
    with pytest.raises(zoo.SpecError) as caught:
        zoo.read_spec(spec | changes)
    assert message in str(caught.value)
