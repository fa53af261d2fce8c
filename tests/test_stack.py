"""Stacks and blocks: placements, scales, rules for single layers, shared layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drawings import SMALL
from references.stacks import D_MODEL, FREE, LENGTH, VOCAB, built, same, spec, vectors
from references.transformer import Layer
from torch.utils.flop_counter import FlopCounterMode

import zoo
from zoo.context import LayerContext
from zoo.showing.show import summary_data, summary_text

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
    "none": ({"norm_placement": "none"}, Layer(([], []))),
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
    "channel scales": (
        {"block": {"kind": "channel_scaled", "channel_scale": 0.2}, "norm_placement": "sandwich"},
        Layer((["pre", "post"],) * 2),
    ),
    "parallel channel scales": (
        {"block": {"kind": "channel_scaled", "channel_scale": 0.2}, "norm_placement": "parallel"},
        Layer(parallel=True),
    ),
    "rezero": (
        {"block": {"kind": "rezero", "alpha": 0.2}, "norm_placement": "none"},
        Layer(([], [])),
    ),
    "parallel rezero": (
        {"block": {"kind": "rezero", "alpha": 0.2}, "norm_placement": "parallel"},
        Layer(parallel=True),
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
    tensors = set(model.spec.tensors)
    stack = "decoder" if causal else "encoder"
    assert (f"{stack}.layers.0.scalar" in tensors) is (name == "learned scale")
    assert (f"{stack}.layers.1.alpha" in tensors) is ("rezero" in name)
    for branch in ("self_attn", "ffn"):
        scale = f"{stack}.layers.1.{branch}.channel_scale"
        assert (scale in tensors) is ("channel scales" in name)


def test_channel_scales_start_at_the_stated_value() -> None:
    second = {"at": [1], "block": {"channel_scale": 3.0}}
    block = {"kind": "channel_scaled", "channel_scale": 0.2}
    model = zoo.build(spec(**FREE, block=block, encoder={"layers": [second]}))
    for layer, value in zip(model.encoder.layers, (0.2, 3.0), strict=True):
        for branch in (layer.self_attn, layer.ffn):
            torch.testing.assert_close(branch.channel_scale, torch.full((D_MODEL,), value))


def test_a_new_layer_of_rezero_is_the_identity() -> None:
    model = zoo.build(spec(**FREE, block="rezero", norm_placement="none")).eval()
    x = torch.randn(2, 5, D_MODEL)
    for layer in model.encoder.layers:
        assert layer.alpha.shape == (1,)
        assert torch.equal(layer(x, LayerContext())[0], x)
    layer(x, LayerContext())[0].sum().backward()
    assert layer.alpha.grad != 0


@pytest.mark.parametrize(
    ("placement", "default"),
    [("pre", True), ("post", False), ("sandwich", True), ("parallel", True), ("none", False)],
)
@pytest.mark.parametrize("stated", [None, True, False])
def test_final_norm(placement: str, default: bool, stated: bool | None) -> None:
    own = {} if stated is None else {"encoder": {"final_norm": stated}}
    tensors = zoo.read_spec(spec(norm_placement=placement, **own)).tensors
    assert ("encoder.norm.weight" in tensors) is (default if stated is None else stated)


@pytest.mark.parametrize(
    "extra",
    ["", "[decoder]\ncausal = false", *(f"ffn.kernel_size = {k}" for k in (1, 3))],
)
def test_a_stack_says_whether_it_looks_ahead(extra: str) -> None:
    kind = 'ffn.kind = "conv1d"' if "kernel" in extra else ""
    model = zoo.build(f"{SMALL}\n{kind}\n{extra}", dtype=torch.float64).eval()
    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]])
    with torch.no_grad():
        one, other = model(ids)[:, :-1]
    assert model.spec.model.generation is not None
    assert torch.allclose(one, other) == (not model.spec.model.generation.looks_ahead)


def test_a_causal_stack_over_an_embedding_that_looks_ahead_says_so() -> None:
    embedding = {"kind": "conv_frontend", "n_features": 3, "kernel_sizes": [3], "strides": [1]}
    extra = {"embedding": embedding, "head": "none"}
    sizes = {"format": 1, "name": "m", "n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}
    model: Any = zoo.build({**sizes, "builder": "decoder", **extra}, dtype=torch.float64).eval()
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    x[1, :-1] = x[0, :-1]
    with torch.no_grad():
        one, other = model(x)[:, :-1]
    assert not torch.allclose(one, other)
    assert model.spec.model.decoder.looks_ahead == ("embedding `conv_frontend`",)


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


def test_printed_attention_maps_are_shapes() -> None:
    model = built(n_layers=2, **FREE)
    _, maps = model(vectors(), return_attention=True)
    shape = (2, 2, LENGTH, LENGTH)  # batch, heads, query, key
    assert repr(maps) == f"AttentionMaps(encoder=[{shape}, {shape}], decoder=[], cross=[])"


def test_what_print_shows_of_a_model() -> None:
    """What torch's own lines leave out: two models that differ in their heads look different."""
    model = zoo.build(spec("encoder_decoder", head="linear", position="sinusoidal"))
    assert "(encoder): Stack(\n    (embed)" in str(model)
    assert "(decoder): Stack(\n    causal\n    (embed)" in str(model)
    assert f"(positions): SinusoidalPositions(5000, {D_MODEL})" in str(model)
    assert str(model).count("MultiHeadAttention(\n          2 heads of 4\n") == 3
    changed = {"n_heads": 4, "n_kv_heads": 2, "position": {"kind": "learned", "max_length": 9}}
    shown = str(zoo.build(spec("encoder_decoder", head="linear", **changed)))
    assert shown.count("MultiHeadAttention(\n          4 over 2 heads of 2\n") == 3
    assert f"(positions): LearnedPositions(9, {D_MODEL})" in shown
    assert repr(model.spec) == "<ModelSpec m: encoder_decoder; print() shows its parts>"


def test_print_shows_layers_apart_that_differ_in_attention() -> None:
    """torch prints equal lines once: without the window, these would be three equal layers."""
    rule = {"at": [1], "self_attn": {"window": 3, "window_sides": "both", "softcap": 5.0}}
    rope = {"kind": "rotary_linear", "base": 500.0, "factor": 2.0, "pairs": "interleaved"}
    model = zoo.build(
        spec("decoder", head="linear", n_layers=3, position=rope, decoder={"layers": [rule]})
    )
    heads = "2 heads of 4"
    assert str(model).count(f"MultiHeadAttention(\n          {heads}\n") == 2
    told = f"{heads}, window=3, window_sides=both, softcap=5.0"
    assert str(model).count(f"MultiHeadAttention(\n          {told}\n") == 1
    assert "RotaryPositions(width=4, base=500.0, factor=2.0, pairs=interleaved)" in str(model)
    chunked = zoo.build(spec("decoder", head="linear", self_attn={"chunk": 4, "scale": 0.25}))
    assert f"{heads}, chunk=4, scale=0.25\n" in str(chunked)


def test_shared_layers() -> None:
    model = built(n_layers=3, encoder={"share_layers": True}, **FREE)
    assert len(model.encoder.layers) == 1
    same(model, [(0, Layer())] * 3)
    _, maps = model(vectors(), return_attention=True)
    assert len(maps.encoder) == 3
    alone = zoo.read_spec(spec(n_layers=1, **FREE))
    assert model.spec.n_parameters == alone.n_parameters


@pytest.mark.parametrize("order", [[0, 0, 1, 1, 1], [0, 1, 0, 1], [1, 0, 0, 2]])
def test_layers_that_share_weights_in_sets(order: list[int]) -> None:
    model = built("decoder", **FREE, n_layers=len(order), decoder={"share_layers": order})
    same(model, [(number, Layer()) for number in order], causal=True)
    _, maps = model(vectors(), return_attention=True)
    assert len(maps.decoder) == len(order)
    alone = zoo.read_spec(spec("decoder", n_layers=len(set(order)), **FREE))
    assert list(model.spec.tensors) == list(alone.tensors)
    each_its_own = zoo.read_spec(spec("decoder", n_layers=len(order), **FREE))
    assert model.spec.layout.cache_per_token == each_its_own.layout.cache_per_token
    assert zoo.read_spec(model.spec.to_toml()) == model.spec


@pytest.mark.parametrize(
    ("order", "same_as"), [([0, 0, 0], True), ([0, 1, 2], False), ([0], False), ([0, 0], True)]
)
def test_a_list_may_say_what_a_word_says(order: list[int], same_as: bool) -> None:
    specs = [
        zoo.read_spec(spec(n_layers=len(order), encoder={"share_layers": stated}))
        for stated in (order, same_as)
    ]
    assert specs[0].digest == specs[1].digest


def test_rules_for_layers_that_share_weights() -> None:
    """A rule for all layers that use the same weights."""
    rules = [{"last": 2, "ffn": {"kind": "mlp", "norms": ["out"]}}, {"at": [0, 2]}]
    sharing = {"share_layers": [0, 1, 0, 2, 2], "layers": rules, "final_norm": False}
    model = built(**FREE, n_layers=5, encoder=sharing)
    plain, other = Layer(), Layer((["pre"], ["out"]))
    same(model, [(0, plain), (1, plain), (0, plain), (2, other), (2, other)])
    rows = summary_data(model.spec)["parts"][0]["parts"]
    of_layers = [row for row in rows if row["layers"] is not None]
    assert [(row["layers"], row["runs"]) for row in of_layers] == [([0], 2), ([1], 1), ([2], 2)]
    assert "layers 2 x 1, run 2 times" in summary_text(summary_data(model.spec))


def test_rules_for_single_layers() -> None:
    """Rotary positions with another base in every third layer, and none in the last, which is
    post-norm and wider."""
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


def test_a_second_scheme_that_rotates_is_enough_for_what_is_about_rotation() -> None:
    stack = {"relative": "rotary", "self_attn": {"kind": "multi_head", "rotate_values": True}}
    assert zoo.read_spec(spec(encoder=stack)).model.encoder.relative.rotates


# --- contradictions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoder": {"count_positions": "unpadded"}}, "state `pad_id`"),
        ({"padding": "seen"}, "state `pad_id`"),
        ({"pad_id": VOCAB}, "pad_id = 11 is beyond the vocabulary of 11 tokens"),
        (
            {"encoder": {"share_layers": True, "layers": [{"first": 1, "d_ff": 3}]}},
            "layers 0 and 1 share their weights and cannot differ",
        ),
        (
            {
                "n_layers": 3,
                "encoder": {"share_layers": [0, 1, 1], "layers": [{"last": 1, "d_ff": 3}]},
            },
            "layers 1 and 2 share their weights and cannot differ",
        ),
        (
            {
                "position": "rotary",
                "encoder": {"share_layers": True, "layers": [{"first": 1, "position": "alibi"}]},
            },
            "layers 0 and 1 share their weights and cannot differ",
        ),
        ({"encoder": {"share_layers": [0]}}, "has 1 number for 2 layers"),
        ({"encoder": {"share_layers": []}}, "has 0 numbers for 2 layers"),
        ({"encoder": {"share_layers": [1, 1]}}, "the weights 1 and never 0"),
        ({"encoder": {"share_layers": [0, 2**53 - 1]}}, "the weights 9007199254740991 and never 1"),
        ({"encoder": {"share_layers": [0, -1]}}, "must be at least 0, not the integer `-1`"),
        ({"encoder": {"share_layers": 1}}, "must be `true` or `false` or an array, not"),
        (
            {"encoder": {"layers": [{"first": 1, "position": "none"}]}},
            "added to the embeddings are the same for all layers",
        ),
        ({"encoder": {"relative": "sinusoidal"}}, "state them as `position`"),
        ({"position": "rotary", "encoder": {"relative": "rotary"}}, "two position schemes of one"),
        (
            {"position": "rotary", "block": {"kind": "residual", "self_position": "rotary"}},
            "two position schemes of one layer",
        ),
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


def test_a_memory_is_given_where_one_is_attended_to() -> None:
    """And only there: a missing memory is not replaced by the sequence itself, and no memory is
    ignored."""
    ids, memory = torch.zeros(2, LENGTH).long(), torch.randn(2, 3, 4, dtype=torch.float64)
    attends = zoo.build(spec("decoder", memory_width=4), dtype=torch.float64)
    assert attends(ids, memory).shape == (2, LENGTH, D_MODEL)
    pair = zoo.build(spec("encoder_decoder"))
    for call in (attends, attends.decode, lambda ids: pair.decode(ids, None)):
        with pytest.raises(ValueError, match="attends to a memory: pass `memory`, "):
            call(ids)
    with pytest.raises(ValueError, match="attends to no memory"):
        zoo.build(spec("decoder"))(ids, memory)


def padded_encoder() -> tuple[zoo.Transformer, torch.Tensor]:
    """An encoder, and ids of which half are padding."""
    text = SMALL.replace('builder = "decoder"', 'builder = "encoder"') + "pad_id = 0\n"
    ids = torch.tensor([[5, 3, 9, 2, 7, 4], [8, 0, 0, 0, 0, 0]])
    return zoo.build(text, dtype=torch.float64).eval(), ids


@pytest.mark.parametrize("part", ["ffn", "ffn.up_proj", "self_attn.q_proj", "self_attn.o_proj"])
@pytest.mark.parametrize("before", [False, True], ids=["output", "input"])
def test_a_hook_sees_all_tokens(part: str, before: bool) -> None:
    """Without gradients, padding is left out of the layers, but not from what hooks see."""
    model, ids = padded_encoder()
    module = model.encoder.layers[1].get_submodule(part)
    shapes: list[tuple[int, ...]] = []
    with torch.no_grad():
        clean = model(ids)
        if before:
            module.register_forward_pre_hook(lambda m, x: shapes.append(tuple(x[0].shape[:-1])))
        else:
            module.register_forward_hook(lambda m, x, y: shapes.append(tuple(y.shape[:-1])))
        hooked = model(ids)
    assert shapes == [(2, 6)]
    torch.testing.assert_close(hooked[0], clean[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(hooked[1, :1], clean[1, :1], atol=1e-12, rtol=0)


def test_a_hook_of_all_modules_sees_all_tokens() -> None:
    model, ids = padded_encoder()
    shapes: set[tuple[int, ...]] = set()
    with torch.no_grad():
        parts = {model.encoder.layers[0].ffn.up_proj, model.encoder.layers[0].self_attn.k_proj}
        hook = torch.nn.modules.module.register_module_forward_hook(
            lambda m, x, y: shapes.add(tuple(y.shape[:-1])) if m in parts else None
        )
        try:
            model(ids)
        finally:
            hook.remove()
        assert shapes == {(2, 6)}


def test_torchs_counter_of_operations_counts_what_is_computed() -> None:
    model, ids = padded_encoder()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(ids)
    of_layers = counter.get_flop_counts()["Global"][torch.ops.aten.addmm]
    assert of_layers == 4 * 2 * 7 * (4 * 32 * 32 + 2 * 32 * 64)  # 7 tokens of 12, in 4 layers


def test_layers_that_were_added_or_removed_are_refused() -> None:
    model = zoo.build(SMALL)
    ids = torch.tensor([[1, 2]])
    model.decoder.layers.append(model.decoder.layers[0])
    with pytest.raises(ValueError, match="built with 4 layers and now has 5"):
        model(ids)
    model.decoder.layers = model.decoder.layers[:1]
    with pytest.raises(ValueError, match="built with 4 layers and now has 1"):
        model(ids)


@pytest.mark.parametrize("mask", ["keys", "queries", "heads"])
def test_masks_of_one_sequence_have_no_batch(mask: str) -> None:
    spec = {"format": 1, "name": "v", "builder": "encoder", "n_layers": 2, "d_model": 16}
    spec |= {"n_heads": 2, "d_ff": 16, "embedding": "vectors", "head": "none"}
    model = zoo.build(spec, dtype=torch.float64).eval()
    x = torch.randn(5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    there = torch.tensor([True, True, True, False, True])
    made = {"keys": there, "queries": torch.tril(torch.ones(5, 5)) > 0}
    made["heads"] = torch.stack([made["queries"], made["queries"].T])
    one = model(x, source_mask=made[mask])
    batch = model(x[None], source_mask=made[mask][None])
    assert torch.equal(one, batch[0])
    assert not torch.allclose(one, model(x))


@pytest.mark.parametrize("rules", [False, True], ids=["all", "one layer"])
def test_a_window_where_tokens_see_later_ones_says_which_sides(rules: bool) -> None:
    small = {"format": 1, "name": "w", "vocab": 9, "n_layers": 2, "d_model": 8, "n_heads": 2}
    small |= {"d_ff": 8, "position": "rotary"}

    def encoder(**stated: object) -> dict[str, Any]:
        rule = {"at": [1], "self_attn": stated}
        where = {"encoder": {"layers": [rule]}} if rules else {"self_attn": stated}
        return {**small, "builder": "encoder", **where}

    with pytest.raises(zoo.SpecError, match='state `window_sides = "both"`'):
        zoo.read_spec(encoder(window=2))
    for sides in ("past", "both"):
        made = zoo.read_spec(encoder(window=2, window_sides=sides))
        assert zoo.read_spec(made.to_dict()).digest == made.digest
    causal = {**small, "builder": "decoder", "self_attn": {"window": 2}}
    assert zoo.read_spec(zoo.read_spec(causal).to_dict()).digest == zoo.read_spec(causal).digest
