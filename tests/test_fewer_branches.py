"""Layers without attention or without a feed-forward network, against plain PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from drawings import SMALL, drawn
from torch import Tensor, nn
from torch.nn import functional as F
from trials import Refused

import zoo
from zoo.cli import run
from zoo.showing.show import backends_data

Fields = dict[str, Any]
N_LAYERS, HEADS, WIDTH, VOCAB = 4, 2, 8, 11
BASE: Fields = {
    "format": 1,
    "name": "fewer",
    "builder": "decoder",
    "vocab": VOCAB,
    "n_layers": N_LAYERS,
    "d_model": WIDTH,
    "n_heads": HEADS,
}
FULL = BASE | {"d_ff": 12}
IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])


def built(fields: Fields, **changes: Any) -> zoo.Transformer:
    """Return a model in float64 whose biases and norms are not 0 and 1."""
    model = zoo.build(fields | changes, dtype=torch.float64).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                torch.manual_seed(len(name) + sum(map(ord, name)))
                parameter += 0.3 * torch.randn_like(parameter)
    return model


def test_one_layer_of_attention_is_a_sum_over_paths() -> None:
    """Elhage et al. (2021): the logits of an attention-only layer without norms are
    Id x W_U W_E + sum over heads of A^h x W_U W_OV^h W_E."""
    model = built(
        BASE,
        n_layers=1,
        ffn="none",
        position="none",
        self_attn={"norms": [], "bias": False},
        decoder={"final_norm": False},
    )
    logits, maps = model(IDS, return_attention=True)
    w = dict(model.named_parameters())
    embed, unembed = w["decoder.embed.tokens.weight"], w["head.out.weight"]
    q, k, v, o = (w[f"decoder.layers.0.self_attn.{name}_proj.weight"] for name in "qkvo")
    assert len(w) == 6
    expected = F.one_hot(IDS, VOCAB).double() @ (unembed @ embed.T).T
    x, head_dim = embed[IDS], WIDTH // HEADS
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    for h in range(HEADS):
        at = slice(h * head_dim, (h + 1) * head_dim)
        scores = x @ q[at].T @ k[at] @ x.transpose(1, 2) / head_dim**0.5
        pattern = scores.masked_fill(later, float("-inf")).softmax(-1)
        torch.testing.assert_close(maps.decoder[0][:, h], pattern)
        expected += (
            pattern @ F.one_hot(IDS, VOCAB).double() @ (unembed @ o[:, at] @ v[at] @ embed.T).T
        )
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)


def test_layers_without_any_branch_are_a_table_of_bigrams() -> None:
    """The zero-layer Transformer of Elhage et al. (2021): W_U W_E."""
    sizes = {key: value for key, value in BASE.items() if key != "n_heads"}
    model = built(
        sizes, attention="none", ffn="none", position="none", decoder={"final_norm": False}
    )
    w = dict(model.named_parameters())
    assert sorted(w) == ["decoder.embed.tokens.weight", "head.out.weight"]
    bigrams = w["decoder.embed.tokens.weight"] @ w["head.out.weight"].T
    torch.testing.assert_close(model(IDS), bigrams[IDS], rtol=0, atol=1e-12)


def norm(module: nn.Module, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], module.weight, module.bias, 1e-5)


def in_plain_torch(placement: str, f: Any, x: Tensor, added: Tensor | None = None) -> Tensor:
    """Return x after the branch f at a placement of norms."""
    inner = x if placement in ("post", "post_branch") else norm(f.pre_norm, x)
    y = f(inner, causal=True)[0] if hasattr(f, "q_proj") else f(inner)
    if placement in ("sandwich", "post_branch"):
        y = norm(f.post_norm, y)
    return norm(f.out_norm, x + y) if placement == "post" else x + y


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "post_branch", "parallel"])
def test_each_layer_runs_the_branches_that_it_has(placement: str) -> None:
    model = built(
        {key: value for key, value in FULL.items() if key != "vocab"},
        norm_placement=placement,
        self_attn={"per_layer": ["none", "multi_head", "none", "multi_head"]},
        ffn={"per_layer": ["mlp", "none", "none", "mlp"]},
        embedding="vectors",
        position="none",
        head="none",
        decoder={"final_norm": False},
    )
    layers = model.decoder.layers
    inside = [[name for name, _ in layer.named_children() if name != "dropout"] for layer in layers]
    assert inside == [["ffn"], ["self_attn"], [], ["self_attn", "ffn"]]
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    expected = in_plain_torch(placement, layers[0].ffn, x)
    expected = in_plain_torch(placement, layers[1].self_attn, expected)
    attended = in_plain_torch(placement, layers[3].self_attn, expected)
    if placement == "parallel":
        expected = attended + in_plain_torch(placement, layers[3].ffn, expected) - expected
    else:
        expected = in_plain_torch(placement, layers[3].ffn, attended)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", ["rotary", "t5_buckets", "learned", "alibi"])
@pytest.mark.parametrize(
    "block",
    [
        "residual",
        {"kind": "channel_scaled", "channel_scale": 0.1},
        {"kind": "rezero", "alpha": 0.1},
    ],
)
def test_a_layer_without_a_branch_is_one_whose_branch_adds_nothing(
    position: str, block: str | Fields
) -> None:
    """All that is left has the names, and so the initial values, of the model with all branches."""
    scheme = {"kind": position, "max_length": 16} if position == "learned" else position
    fields = FULL | {"position": scheme, "block": block}
    whole = zoo.build(fields, dtype=torch.float64).eval()
    rules = [{"at": [0, 2], "self_attn": "none"}, {"at": [1, 2], "ffn": "none"}]
    fewer = zoo.build(fields | {"decoder": {"layers": rules}}, dtype=torch.float64).eval()
    left = dict(fewer.named_parameters())
    dropped = whole.state_dict().keys() - left.keys()
    # A layer without branches has no `alpha` either.
    assert {".".join(name.split(".")[2:4]) for name in dropped} - {"2.alpha"} == {
        "0.self_attn", "1.ffn", "2.self_attn", "2.ffn"
    }  # fmt: skip
    assert all(torch.equal(tensor, whole.get_parameter(name)) for name, tensor in left.items())
    with torch.no_grad():
        for name in dropped:
            if "o_proj" in name or "down_proj" in name:
                whole.get_parameter(name).zero_()
    torch.testing.assert_close(fewer(IDS), whole(IDS), rtol=0, atol=1e-12)


def test_a_decoder_may_cross_attend_in_some_layers_alone() -> None:
    fields = BASE | {
        "builder": "encoder_decoder",
        "source_vocab": VOCAB,
        "target_vocab": VOCAB,
        "d_ff": 12,
        "cross_attn": {"per_layer": ["none", "multi_head", "none", "none"]},
        "self_attn": {"per_layer": ["multi_head", "none", "multi_head", "none"]},
    }
    del fields["vocab"]
    fields["decoder"] = {key: fields.pop(key) for key in ("cross_attn", "self_attn")}
    model = built(fields)
    _, maps = model(IDS, IDS[:, :3], return_attention=True)
    assert (len(maps.encoder), len(maps.decoder), len(maps.cross)) == (4, 2, 1)
    other = IDS.flip(1)
    assert not torch.allclose(model(IDS, IDS[:, :3]), model(other, IDS[:, :3]))


PAIR = {key: value for key, value in FULL.items() if key != "vocab"} | {
    "builder": "encoder_decoder",
    "source_vocab": VOCAB,
    "target_vocab": VOCAB,
}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        (PAIR | {"decoder": {"cross_attn": "none"}}, "decoder.cross_attn"),
        (PAIR | {"attention": "none", "self_attn": "multi_head"}, "attention"),
        (
            PAIR | {"decoder": {"layers": [{"first": N_LAYERS, "cross_attn": "none"}]}},
            "decoder.layers.0.cross_attn",
        ),
        (FULL | {"memory_width": 5, "cross_attn": "none"}, "cross_attn"),
    ],
)
def test_a_memory_that_no_layer_attends_to_is_refused(fields: Fields, place: str) -> None:
    with pytest.raises(zoo.SpecError, match="no layer attends to the memory") as caught:
        zoo.read_spec(fields)
    assert str(caught.value.problems[0].place).split(": ")[1] == place


@pytest.mark.parametrize("fewer", [{"ffn": "none"}, {"attention": "none", "d_ff": 12}], ids=str)
def test_generation_with_a_cache_is_that_without(fewer: Fields) -> None:
    sizes = {k: v for k, v in BASE.items() if k != "n_heads" or "attention" not in fewer}
    model = built(sizes, **fewer)
    ids = list(zoo.generate(model, [[3, 1, 4]], max_new_tokens=6)[0].ids)
    tokens = [3, 1, 4]
    for _ in range(6):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    assert tokens[3:] == ids


def test_the_sizes_are_those_of_what_is_there(tmp_path: Path) -> None:
    rules = [{"at": [0, 2], "self_attn": "none"}, {"at": [1, 2], "ffn": "none"}]
    spec = zoo.read_spec(FULL | {"position": "rotary", "decoder": {"layers": rules}})
    attention, ffn = 4 * (WIDTH * WIDTH + WIDTH), 2 * WIDTH * 12 + WIDTH + 12
    n_norms = 2 + 2 + 1
    assert spec.n_parameters == 2 * (attention + ffn) + n_norms * 2 * WIDTH + 2 * VOCAB * WIDTH
    assert spec.layout.cache_per_token == 2 * 2 * WIDTH
    length = 6
    products = length * (2 * (4 * WIDTH * WIDTH + 2 * WIDTH * 12) + WIDTH * VOCAB)
    scores = 2 * 2 * length * length * WIDTH
    assert zoo.flops(spec, length)["forward"] == 2 * (products + scores)
    assert [row["kind"] for row in backends_data(spec)] == ["multi_head"] * 2

    assert zoo.read_spec(spec.to_toml()).digest == spec.digest
    model = zoo.build(spec)
    zoo.save(model, tmp_path / "model.safetensors")
    loaded = zoo.load(tmp_path / "model.safetensors")
    assert loaded.spec.digest == spec.digest
    assert torch.equal(loaded.eval()(IDS), model.eval()(IDS))


def test_what_is_stated_for_a_branch_that_is_not_there_is_not_in_the_spec() -> None:
    """Positions that only attention uses are `none` where there is none; and a spec that says so
    is the same spec."""
    rule = {"at": [1], "self_attn": "none", "residual_scale": 0.5}
    spec, said = (
        zoo.read_spec(FULL | {"position": "rotary", "decoder": {"layers": [rule | more]}})
        for more in ({}, {"position": "none"})
    )
    assert spec.digest == said.digest
    (group,) = spec.to_dict()["decoder"]["layers"]
    assert group["position"] == {"kind": "none"}
    assert group["block"]["self_attn"] == {"kind": "none"}
    assert group["block"]["ffn"]["residual_scale"] == 0.5


def test_where_the_values_of_such_a_layer_come_from(tmp_path: Path) -> None:
    from zoo.showing.show import resolved_text

    file = tmp_path / "a.toml"
    file.write_text(
        "\n".join(f"{key} = {json.dumps(value)}" for key, value in FULL.items())
        + '\nposition = "rotary"\n'
        + 'self_attn = { per_layer = ["none", "multi_head", "none", "none"] }'
    )
    text = resolved_text(zoo.read_spec(file))
    assert '[decoder.position]\nkind = "none" # default\n' in text
    assert f'[decoder.layers.position]\nkind = "rotary" # {file}:9\n' in text


def test_a_drawing_leaves_the_branch_out() -> None:
    """Two layers of one branch, and one without, which is a box."""
    text = SMALL.replace("n_layers = 4", "n_layers = 3")
    drawing = drawn(
        f"{text}\n[decoder]\nself_attn = {{ per_layer = ['none', 'multi_head', 'none'] }}\n"
        "ffn = { per_layer = ['mlp', 'none', 'none'] }\n"
    )
    assert [t for t in drawing.texts if t.endswith("×")] == ["1 ×", "1 ×", "1 ×"]
    assert [t for t in drawing.texts if t in ("mlp", "multi_head")] == ["mlp", "multi_head"]
    assert "none" not in drawing.texts


def test_in_a_block_that_does_not_leave_it_out_the_branch_adds_nothing(project: Path) -> None:
    """As in the one that `zoo plugin new` makes; the tensors have the same names and values."""
    assert run(["init", "."]) == 0
    assert run(["plugin", "new", "block", "mine"]) == 0
    fields = FULL | {
        "position": "rotary",
        "self_attn": {"per_layer": ["none", "multi_head", "none", "multi_head"]},
        "ffn": {"per_layer": ["mlp", "none", "none", "mlp"]},
    }
    shipped = zoo.build(fields, dtype=torch.float64).eval()
    own = zoo.build(fields | {"block": "mine"}, dtype=torch.float64).eval()
    assert shipped.state_dict().keys() == own.state_dict().keys()
    torch.testing.assert_close(own(IDS), shipped(IDS), rtol=0, atol=1e-12)
    _, maps = own(IDS, return_attention=True)
    assert len(maps.decoder) == 2


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('ffn = "none"', "unknown key `d_ff`"),
        ('ffn = { kind = "none", norms = ["pre"] }', "unknown key `norms`"),
        ('attention = "none"\nposition = "rotary"', "changes nothing in layers without self-att"),
        (
            'attention = "none"\n[decoder.block]\nself_position = "t5_buckets"',
            "`t5_buckets` positions need a self-attention that states its n_heads",
        ),
        (
            'attention = "none"\n[decoder.block]\nself_position = "sinusoidal"',
            "a layer without self-attention has no use for positions of its own",
        ),
    ],
)
def test_what_is_said_of_a_branch_that_is_not_there_is_refused(
    lines: str, message: str, project: Path, refused: Refused
) -> None:
    text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in FULL.items())
    (project / "a.toml").write_text(f"{text}\n{lines}\n")
    assert message in refused("validate", "a.toml")
