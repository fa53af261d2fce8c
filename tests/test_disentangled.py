"""Disentangled attention, one query and one key at a time, and against transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from random_values import randomize
from torch import Tensor
from transformers import DebertaConfig, DebertaV2Config
from transformers.models.deberta import modeling_deberta
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

import zoo
from zoo_components.disentangled import Disentangled
from zoo_components.modules.relative import DisentangledPositions
from zoo_components.norm import NoNorm
from zoo_components.relative import DisentangledPosition

D_MODEL, HEADS, HEAD, LENGTH, SPAN = 8, 2, 3, 6, 4
TERMS = ("content_to_position", "position_to_content")


def described(**fields: Any) -> Disentangled:
    norm = NoNorm(kind="none", width=D_MODEL)
    common = {"d_model": D_MODEL, "n_heads": HEADS, "head_dim": HEAD, "norm": norm}
    return Disentangled(kind="disentangled", **common | fields)


def distances(**fields: Any) -> DisentangledPositions:
    norm = NoNorm(kind="none", width=fields.get("d_model", D_MODEL))
    fields = {"d_model": D_MODEL, "max_distance": SPAN, "norm": norm} | fields
    module = DisentangledPosition(kind="disentangled", **fields).build()
    assert isinstance(module, DisentangledPositions)
    return module


def stated(a: Disentangled, w: dict[str, Tensor], table: Tensor, x: Tensor, seen: Tensor) -> Tensor:
    """Attention for one sequence, (length, d_model), as in section 3.1 of the paper."""

    def projected(name: str, vector: Tensor) -> Tensor:
        y = w[f"{name}.weight"] @ vector
        y = y + w[f"{name}.bias"] if f"{name}.bias" in w else y
        return y.view(HEADS, HEAD)

    shared = a.position_projections == "shared"
    key_of, query_of = ("k_proj", "q_proj") if shared else ("pos_k_proj", "pos_q_proj")
    outputs = []
    for i in range(len(x)):
        q, heads = projected("q_proj", x[i]), []
        for head in range(HEADS):
            scores = []
            for j in range(len(x)):
                row = min(2 * SPAN - 1, max(0, i - j + SPAN))
                k = projected("k_proj", x[j])[head]
                score = q[head] @ k
                if TERMS[0] in a.terms:
                    score = score + q[head] @ projected(key_of, table[row])[head]
                if TERMS[1] in a.terms:
                    score = score + k @ projected(query_of, table[row])[head]
                scores.append(score * a.scale if seen[i, j] else torch.tensor(-math.inf))
            weights = torch.stack([s.to(x.dtype) for s in scores]).softmax(0)
            values = torch.stack([projected("v_proj", y)[head] for y in x])
            heads.append(weights @ values)
        out = w["o_proj.weight"] @ torch.cat(heads)
        outputs.append(out + w["o_proj.bias"] if "o_proj.bias" in w else out)
    return torch.stack(outputs)


CASES: dict[str, dict[str, Any]] = {
    "both": {},
    "content to position": {"terms": TERMS[:1]},
    "position to content": {"terms": TERMS[1:]},
    "shared": {"position_projections": "shared"},
    "no position key bias": {"position_key_bias": False, "bias": ("q", "v", "o")},
    "scale": {"scale": 0.9},
    "no biases": {"bias": False},
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_statement(name: str, causal: bool) -> None:
    description = described(**CASES[name])
    module = randomize(description.build().double(), 0.5)
    scheme = randomize(distances().double(), 0.5, seed=1)
    layout = {name: tensor.shape for name, tensor in description.layout().tensors()}
    assert layout == {name: tuple(t.shape) for name, t in module.state_dict().items()}
    x = torch.randn(2, LENGTH, D_MODEL, dtype=torch.float64, requires_grad=True)
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    seen = seen & torch.tensor([True] * (LENGTH - 1) + [False])
    mask = torch.tensor([True] * (LENGTH - 1) + [False]).expand(2, 1, 1, -1)
    output, weights = module(x, mask=mask, causal=causal, scheme=scheme, return_weights=True)
    again, none = module(
        x, mask=mask, causal=causal, scheme=scheme, positions=torch.arange(LENGTH) + 5
    )
    assert none is None
    assert weights.shape == (2, HEADS, LENGTH, LENGTH)
    tensors = dict(module.named_parameters())
    expected = torch.stack(
        [stated(description, tensors, scheme.weight, sequence, seen) for sequence in x]
    )
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(again, expected, rtol=0, atol=1e-12)
    leaves = [x, scheme.weight, *module.parameters()]
    cotangent = torch.randn_like(output)
    found, wanted = (
        torch.autograd.grad(
            (y * cotangent).sum(), leaves, allow_unused=True, materialize_grads=True
        )
        for y in (output, expected)
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-11)


def test_a_bias_is_added_to_the_scores() -> None:
    """exp(score + bias) is exp(score) exp(bias), which the weights show."""
    module = randomize(described().build().double(), 0.5)
    scheme = randomize(distances().double(), 0.5, seed=1)
    x = torch.randn(2, LENGTH, D_MODEL, dtype=torch.float64)
    bias = torch.randn(HEADS, LENGTH, LENGTH, dtype=torch.float64)
    _, plain = module(x, scheme=scheme, return_weights=True)
    _, found = module(x, scheme=scheme, bias=bias, return_weights=True)
    expected = plain * bias.exp()
    torch.testing.assert_close(found, expected / expected.sum(-1, keepdim=True))


def test_default_scale() -> None:
    assert described().scale == pytest.approx((3 * HEAD) ** -0.5)
    assert described(terms=TERMS[:1]).scale == pytest.approx((2 * HEAD) ** -0.5)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("buckets", [-1, 4])
def test_deberta_v2(buckets: int, shared: bool) -> None:
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "max_position_embeddings": 9}
    config = DebertaV2Config(
        **sizes,
        relative_attention=True,
        position_buckets=buckets,
        share_att_key=shared,
        pos_att_type=["c2p", "p2c"],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    theirs = randomize(DisentangledSelfAttention(config), 0.5).double().eval()
    projections = "shared" if shared else "own"
    ours = described(d_model=12, n_heads=3, head_dim=4, position_projections=projections)
    module = ours.build().double()
    names = {"q_proj": "query_proj", "k_proj": "key_proj", "v_proj": "value_proj"}
    names |= {"pos_k_proj": "pos_key_proj", "pos_q_proj": "pos_query_proj"}
    weights = theirs.state_dict()
    renamed = {
        name: weights[f"{names[name.split('.')[0]]}.{name.split('.')[1]}"]
        for name in module.state_dict()
        if not name.startswith("o_proj")
    }
    assert len(renamed) == len(weights)
    unit = {"o_proj.weight": torch.eye(12).double(), "o_proj.bias": torch.zeros(12).double()}
    module.load_state_dict(renamed | unit)
    n_buckets = {} if buckets < 0 else {"n_buckets": buckets}
    scheme = randomize(distances(d_model=12, max_distance=9, **n_buckets).double(), 0.5)
    x = torch.randn(2, 20, 12, dtype=torch.float64)
    mask = torch.ones(2, 1, 20, 20, dtype=torch.bool)
    mask[0, :, :, 15:] = False
    expected, _ = theirs(x, mask, rel_embeddings=scheme.weight)
    torch.testing.assert_close(module(x, mask=mask, scheme=scheme)[0], expected, rtol=0, atol=1e-6)


def test_deberta_v1() -> None:
    """Keys without bias, in the content and in the position terms; one fused projection."""
    config = DebertaConfig(
        hidden_size=12,
        num_attention_heads=3,
        max_position_embeddings=9,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    theirs = randomize(modeling_deberta.DisentangledSelfAttention(config), 0.5).double().eval()
    fields = {"bias": ("q", "v"), "position_key_bias": False}
    module = described(d_model=12, n_heads=3, head_dim=4, **fields).build().double()
    q, k, v = theirs.in_proj.weight.detach().view(3, 3, 4, 12).unbind(1)
    module.load_state_dict(
        {
            "q_proj.weight": q.reshape(12, 12),
            "k_proj.weight": k.reshape(12, 12),
            "v_proj.weight": v.reshape(12, 12),
            "q_proj.bias": theirs.q_bias,
            "v_proj.bias": theirs.v_bias,
            "pos_k_proj.weight": theirs.pos_proj.weight,
            "pos_q_proj.weight": theirs.pos_q_proj.weight,
            "pos_q_proj.bias": theirs.pos_q_proj.bias,
            "o_proj.weight": torch.eye(12),
        }
    )
    scheme = randomize(distances(d_model=12, max_distance=9).double(), 0.5)
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    distance = (torch.arange(7)[:, None] - torch.arange(7))[None]
    all_seen = torch.ones(2, 1, 7, 7, dtype=torch.bool)
    expected, _ = theirs(x, all_seen, relative_pos=distance, rel_embeddings=scheme.weight)
    torch.testing.assert_close(module(x, scheme=scheme)[0], expected, rtol=0, atol=1e-6)


def spec(**fields: Any) -> dict[str, Any]:
    common = {"format": 1, "name": "m", "builder": "encoder", "vocab": 11, "n_layers": 2}
    common |= {"d_model": 16, "n_heads": 2, "d_ff": 4, "attention": "disentangled"}
    return {**common, "position": "disentangled", **fields}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position": "rotary"}, "reads the table `rel_embed`, which no position scheme"),
        ({"position": "t5_buckets"}, "reads the table `rel_embed`"),
        ({"attention": "multi_head"}, "a table `rel_embed` for an attention that reads it, and"),
        (
            {
                "attention": "multi_head",
                "position": "none",
                "encoder": {"relative": "disentangled"},
            },
            "encoder.relative: error: `disentangled` positions are a table",
        ),
        (
            {"block": {"self_position": "disentangled"}},
            "read from the stack: state them as `position` or `relative`",
        ),
        ({"n_heads": 3}, "d_model = 16 is not divisible by n_heads = 3"),
        (
            {"attention": {"kind": "disentangled", "terms": ["content_to_position"] * 2}},
            "names one term twice",
        ),
        (
            {
                "attention": {
                    "kind": "disentangled",
                    "position_projections": "shared",
                    "position_key_bias": True,
                }
            },
            "goes with `position_projections",
        ),
        (
            {"builder": "decoder", "memory_width": 8},
            "choose another kind for `cross_attn`",
        ),
    ],
)
def test_contradictions(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(zoo.SpecError, match=message):
        zoo.read_spec(spec(**fields))


def test_a_second_scheme_may_hold_the_table() -> None:
    read = zoo.read_spec(spec(position="sinusoidal", encoder={"relative": "disentangled"}))
    assert read.tensors["encoder.rel_embed.weight"].shape == (1024, 16)


def test_one_layer_may_be_the_only_one_that_reads_the_table() -> None:
    rules = {"layers": [{"first": 1, "self_attn": "disentangled"}]}
    read = zoo.read_spec(spec(attention="multi_head", encoder=rules))
    assert "encoder.rel_embed.weight" in read.tensors
