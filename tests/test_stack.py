"""Stacks and blocks: placements, scales, rules for single layers, shared layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references.transformer import Layer, stack

import zoo
from zoo.transformer import Transformer

D_MODEL, HEADS, VOCAB, LENGTH = 8, 2, 11, 5


def spec(builder: str = "encoder", **fields: Any) -> dict[str, Any]:
    common = {"format": 1, "name": "m", "builder": builder, "n_layers": 2, "d_model": D_MODEL}
    vocab = {"source_vocab": VOCAB, "target_vocab": VOCAB}
    vocab = vocab if builder == "encoder_decoder" else {"vocab": VOCAB}
    return {**common, **vocab, "n_heads": HEADS, "d_ff": 12, "head": "none", **fields}


def built(builder: str = "encoder", **fields: Any) -> Transformer:
    """A float64 model in which no vector is left at ones or zeros."""
    model = zoo.build(spec(builder, **fields), dtype=torch.float64)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()


def vectors(length: int = LENGTH) -> torch.Tensor:
    return torch.randn(2, length, D_MODEL, dtype=torch.float64)


def same(model: Transformer, layers: list[tuple[int, Layer]], *, causal: bool = False) -> None:
    """Whether a model of vectors is these layers: values, and gradients for every parameter."""
    prefix = "decoder" if causal else "encoder"
    x = vectors()
    expected = stack(
        dict(model.named_parameters()), prefix, x, layers, n_heads=HEADS, causal=causal
    )
    found = model(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    weights = torch.randn_like(found)
    tensors = list(model.parameters())
    ours, theirs = (torch.autograd.grad((y * weights).sum(), tensors) for y in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


FREE = {"embedding": "vectors", "position": "none"}
FORMS: dict[str, tuple[dict[str, Any], Layer]] = {
    "pre": ({}, Layer()),
    "post": ({"norm_placement": "post"}, Layer((["out"], ["out"]))),
    "sandwich": ({"norm_placement": "sandwich"}, Layer((["pre", "post"], ["pre", "post"]))),
    "post_branch": ({"norm_placement": "post_branch"}, Layer((["post"], ["post"]))),
    "none and all": (
        {
            "self_attn": {"kind": "multi_head", "norms": []},
            "ffn": {"kind": "mlp", "norms": ["pre", "post", "out"]},
        },
        Layer(([], ["pre", "post", "out"])),
    ),
    "parallel, two norms": (
        {"norm_placement": "parallel"},
        Layer((["pre"], ["pre"]), parallel=True),
    ),
    "parallel, one norm": (
        {"norm_placement": "parallel", "ffn": {"kind": "mlp", "norms": []}},
        Layer((["pre"], []), parallel=True),
    ),
    "parallel, sandwich": (
        {"norm_placement": "sandwich", "block": {"arrangement": "parallel"}},
        Layer((["pre", "post"], ["pre", "post"]), parallel=True),
    ),
    "scales": (
        {"block": {"residual_scale": 0.3, "skip_scale": 1.7}},
        Layer(residual_scale=0.3, skip_scale=1.7),
    ),
    "parallel scales": (
        {"norm_placement": "parallel", "block": {"residual_scale": 0.3, "skip_scale": 1.7}},
        Layer(parallel=True, residual_scale=0.3, skip_scale=1.7),
    ),
    "skip from the norm": ({"block": {"skip_from": "normed"}}, Layer(skip_normed=True)),
    "learned scale": ({"block": {"layer_scale": "learned"}}, Layer()),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_placements(name: str, causal: bool) -> None:
    fields, form = FORMS[name]
    model = built("decoder" if causal else "encoder", **FREE, **fields)
    same(model, [(0, form), (1, form)], causal=causal)
    assert ("layers.0.scalar" in " ".join(model.spec.tensors)) is (name == "learned scale")


@pytest.mark.parametrize(
    ("placement", "default"),
    [("pre", True), ("post", False), ("sandwich", True), ("parallel", True)],
)
@pytest.mark.parametrize("stated", [None, True, False])
def test_final_norm(placement: str, default: bool, stated: bool | None) -> None:
    own = {} if stated is None else {"encoder": {"final_norm": stated}}
    tensors = zoo.read_spec(spec(norm_placement=placement, **own)).tensors
    assert ("encoder.norm.weight" in tensors) is (default if stated is None else stated)


def test_without_a_final_norm() -> None:
    same(built(**FREE, encoder={"final_norm": False}), [(0, Layer()), (1, Layer())])


def test_output_width() -> None:
    model = built(**FREE, encoder={"output_width": 3})
    assert model.spec.tensors["encoder.out_proj.weight"].shape == (3, D_MODEL)
    same(model, [(0, Layer()), (1, Layer())])
    assert model(vectors()).shape == (2, LENGTH, 3)


def test_output_width_is_what_follows_sees() -> None:
    fields = {"encoder": {"output_width": 3}, "decoder": {"output_width": 5}, "head": "linear"}
    tensors = zoo.read_spec(spec("encoder_decoder", **fields)).tensors
    assert tensors["decoder.layers.0.cross_attn.k_proj.weight"].shape == (D_MODEL, 3)
    assert tensors["head.out.weight"].shape == (VOCAB, 5)
    ids = torch.randint(VOCAB, (2, LENGTH))
    assert zoo.build(spec("encoder_decoder", **fields))(ids, ids).shape == (2, LENGTH, VOCAB)


def test_shared_layers() -> None:
    model = built(n_layers=3, encoder={"share_layers": True}, **FREE)
    assert len(model.encoder.layers) == 1
    same(model, [(0, Layer())] * 3)
    _, maps = model(vectors(), return_attention=True)
    assert len(maps.encoder) == 3
    alone = zoo.read_spec(spec(n_layers=1, **FREE))
    assert model.spec.n_parameters == alone.n_parameters


def test_rules_for_single_layers() -> None:
    """Rotary positions with another base in each third layer, none in the last, which is post-norm
    and wider."""
    rules = [
        {"every": 3, "position": {"kind": "rotary", "base": 7.0}},
        {
            "last": 1,
            "position": "none",
            "ffn": {"kind": "mlp", "d_ff": 20, "norms": ["out"]},
            "block": {"residual_scale": 0.5},
        },
    ]
    model = built(
        n_layers=7,
        embedding="vectors",
        position="rotary",
        encoder={"layers": rules, "final_norm": False},
    )
    local, far = Layer(base=10000.0), Layer(base=7.0)
    last = Layer((["pre"], ["out"]), residual_scale=0.5)
    same(model, list(enumerate([local, local, far, local, local, far, last])))
    widths = [
        model.spec.tensors[f"encoder.layers.{i}.ffn.up_proj.weight"].shape[0] for i in range(7)
    ]
    assert widths == [12] * 6 + [20]
    assert zoo.read_spec(model.spec.to_toml()) == model.spec


@pytest.mark.parametrize(
    ("rules", "widths"),
    [
        ([{"every": 2, "d_ff": 3}], [12, 3, 12, 3, 12, 3]),
        ([{"every": 2, "start": 0, "d_ff": 3}], [3, 12, 3, 12, 3, 12]),
        ([{"every": 3, "start": 1, "d_ff": 3}], [12, 3, 12, 12, 3, 12]),
        ([{"first": 2, "d_ff": 3}, {"last": 1, "d_ff": 4}], [3, 3, 12, 12, 12, 4]),
        ([{"at": [5, 0], "d_ff": 3}], [3, 12, 12, 12, 12, 3]),
        ([{"first": 4, "d_ff": 3}, {"every": 2, "d_ff": 4}], [3, 4, 3, 4, 12, 4]),
        ([{"every": 2, "d_ff": 4}, {"first": 4, "d_ff": 3}], [3, 3, 3, 3, 12, 4]),
        ([{"first": 6, "d_ff": 3}], [3] * 6),
    ],
)
def test_which_layers_a_rule_means(rules: list[dict[str, Any]], widths: list[int]) -> None:
    read = zoo.read_spec(spec(n_layers=6, encoder={"layers": rules}))
    found = [read.tensors[f"encoder.layers.{i}.ffn.up_proj.weight"].shape[0] for i in range(6)]
    assert found == widths


# --- position schemes, seen in attention maps: without queries, weights are softmax(bias) ----------


def maps(model: Transformer, *inputs: torch.Tensor) -> Any:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name:
                parameter.zero_()
    return model(*inputs, return_attention=True)[1]


def alibi(n_heads: int = HEADS, *, causal: bool) -> torch.Tensor:
    at = torch.arange(LENGTH)
    bias = torch.stack(
        [-(2.0 ** (-8 * (h + 1) / n_heads)) * (at[:, None] - at).abs() for h in range(n_heads)]
    )
    return softmax(bias, causal=causal)


def softmax(bias: torch.Tensor, *, causal: bool) -> torch.Tensor:
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1) if causal else torch.tensor(False)
    return bias.double().masked_fill(hidden, -torch.inf).softmax(-1)


def test_positions_of_single_layers() -> None:
    rules = [{"at": [1], "position": "none"}]
    model = built(**FREE | {"position": "alibi"}, encoder={"layers": rules})
    first, second = maps(model, vectors()).encoder
    torch.testing.assert_close(first[0], alibi(causal=False))
    torch.testing.assert_close(second, torch.full_like(second, 1 / LENGTH))


@pytest.mark.parametrize("builder", ["encoder", "decoder"])
def test_a_second_scheme_is_added(builder: str) -> None:
    own = {builder: {"relative": {"kind": "t5_buckets", "n_buckets": 8, "max_distance": 6}}}
    model = built(builder, embedding="vectors", position="alibi", **own)
    scheme = getattr(model, builder).rel_bias
    at = torch.arange(LENGTH)
    bias = scheme.bias(at, at, torch.float64)
    expected = softmax(alibi(causal=False).log() + bias, causal=builder == "decoder")
    for found in getattr(maps(model, vectors()), builder):
        torch.testing.assert_close(found[0], expected)


def test_cross_attention_has_no_positions() -> None:
    model = built("encoder_decoder", position="t5_buckets")
    ids = torch.randint(VOCAB, (2, LENGTH))
    cross = maps(model, ids, ids).cross[0]
    torch.testing.assert_close(cross, torch.full_like(cross, 1 / LENGTH))
    tables = {name for name in model.spec.tensors if "rel_bias" in name}
    assert tables == {"encoder.rel_bias.weight", "decoder.rel_bias.weight"}


def test_a_table_in_every_layer() -> None:
    """UMT5: each layer has buckets of its own, for its sequence only, beside the stack's scheme."""
    block = {
        "kind": "residual",
        "self_position": {"kind": "t5_buckets", "n_buckets": 8, "max_distance": 6},
    }
    model = built("encoder_decoder", position="alibi", block=block)
    tables = {name for name in model.spec.tensors if "rel_bias" in name}
    assert tables == {
        f"{s}.layers.{i}.self_attn.rel_bias.weight" for s in ("encoder", "decoder") for i in (0, 1)
    }
    ids = torch.randint(VOCAB, (2, LENGTH))
    found, at = maps(model, ids, ids), torch.arange(LENGTH)
    for name in ("encoder", "decoder"):
        for layer, weights in zip(getattr(model, name).layers, getattr(found, name), strict=True):
            bias = layer.self_attn.rel_bias.bias(at, at, torch.float64)
            total = alibi(causal=False).log() + bias
            torch.testing.assert_close(weights[0], softmax(total, causal=name == "decoder"))
    assert model.decoder.layers[0].self_attn.rel_bias.bidirectional is False
    assert model.encoder.layers[0].self_attn.rel_bias.bidirectional is True


def test_a_rotation_of_one_layer_alone() -> None:
    block = {"kind": "residual", "self_position": {"kind": "rotary", "base": 50.0}}
    model = built(**FREE, block=block)
    same(model, [(0, Layer(base=50.0)), (1, Layer(base=50.0))])


# --- which position a token has -------------------------------------------------------------------

IDS = torch.tensor([[5, 6, 0, 7], [0, 0, 8, 9]])
MASK = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]]).bool()


@pytest.mark.parametrize(
    ("count", "mask", "expected"),
    [
        ("all", MASK, [0, 1, 2, 3]),
        ("unpadded", MASK, [[0, 1, -1, 2], [-1, -1, 0, 1]]),
        ("unpadded", None, [[0, 1, -1, 2], [-1, -1, 0, 1]]),
        ("unmasked", MASK, [[0, 1, 2, -1], [-1, 0, 1, 2]]),
        ("unmasked", MASK[:, None].expand(-1, 4, -1), [0, 1, 2, 3]),
        ("unmasked", None, [0, 1, 2, 3]),
    ],
)
def test_positions_are_counted(count: str, mask: Any, expected: Any) -> None:
    model = zoo.build(spec(pad_id=0, encoder={"count_positions": count}))
    assert model.encoder.positions(IDS, mask).tolist() == expected


@pytest.mark.parametrize("count", ["unpadded", "unmasked"])
@pytest.mark.parametrize("position", [{"kind": "learned", "offset": 2, "max_length": 9}, "rotary"])
def test_padding_on_the_left_changes_nothing(count: str, position: Any) -> None:
    model = built(position=position, pad_id=0, encoder={"count_positions": count})
    ids = torch.tensor([[5, 6, 7]])
    padded = torch.tensor([[0, 0, 5, 6, 7]])
    mask = padded != 0
    torch.testing.assert_close(model(padded, source_mask=mask)[:, 2:], model(ids))


def test_padding_is_hidden() -> None:
    model = built(pad_id=0)
    padded = torch.tensor([[5, 6, 7, 0], [8, 9, 1, 2]])
    together = model(padded)
    torch.testing.assert_close(model(padded[:1, :3]), together[:1, :3])
    torch.testing.assert_close(model(padded[1:]), together[1:])


def test_a_mask_is_checked_before_anything_reads_it() -> None:
    model = zoo.build(spec(encoder={"count_positions": "unmasked"}))
    with pytest.raises(TypeError, match="a mask is boolean"):
        model(IDS, source_mask=torch.ones(2, 4))
    with pytest.raises(ValueError, match="does not fit"):
        model(IDS, source_mask=torch.ones(2, 3).bool())


# --- contradictions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoder": {"count_positions": "unpadded"}}, "state `pad_id`"),
        (
            {"encoder": {"share_layers": True, "layers": [{"first": 1, "d_ff": 3}]}},
            "layers that are all one cannot differ",
        ),
        (
            {"encoder": {"layers": [{"first": 1, "position": "none"}]}},
            "added to the embeddings are the same for all layers",
        ),
        ({"encoder": {"relative": "sinusoidal"}}, "state them as `position`"),
        (
            {
                "position": "t5_buckets",
                "encoder": {"relative": {"kind": "t5_buckets", "n_buckets": 8}},
            },
            "one table `rel_bias`",
        ),
        (
            {"block": {"kind": "residual", "self_position": "sinusoidal"}},
            "a layer cannot have its own",
        ),
        (
            {"norm_placement": "post", "block": {"arrangement": "parallel"}},
            "a parallel layer has one sum",
        ),
        (
            {"norm_placement": "parallel", "block": {"skip_from": "normed"}},
            "the branches of a parallel layer may have different norms",
        ),
        (
            {"builder": "decoder", "memory_width": 4, "norm_placement": "parallel"},
            "no place for the cross-attention",
        ),
        ({"self_attn": {"kind": "multi_head", "d_out": 4}}, "needs d_model = 8"),
    ],
)
def test_contradictions(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(zoo.SpecError, match=message):
        zoo.read_spec(spec(**fields))
