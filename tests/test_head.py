"""The outputs of a model for each position and the descriptions of its heads, against a reference
and transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from references.heads import D_MODEL, N_CLASSES, VOCAB, built, linear, same, states
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLMPredictionHead

import zoo
from zoo_components.head import Ctc, LinearHead, MlmHead, NoHead
from zoo_components.norm import LayerNorm, NoNorm

LINEAR: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": True},
    "input scale": {"input_scale": 0.3, "bias": True},
    "t5": {"input_scale": "inverse_sqrt_d_model"},
    "logits bias": {"logits_bias": True, "bias": True, "scale": 3.0},
    "scale": {"scale": 0.1},
    "softcap": {"softcap": 1.5, "scale": 2.0},
    "log_softmax": {"output": "log_softmax", "softcap": 2.0},
    "softmax": {"output": "softmax", "logits_bias": True},
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear(name: str) -> None:
    description = LinearHead(kind="linear", d_model=D_MODEL, vocab=VOCAB, **LINEAR[name])
    module, x = built(description), states(2, 5)
    w = module.state_dict(keep_vars=True)
    factor = {"inverse_sqrt_d_model": 1 / math.sqrt(D_MODEL)}.get(
        description.input_scale, description.input_scale
    )
    y = linear(w, "out", x * factor)
    if description.logits_bias:
        y = y + w["logits_bias"]
    y = y * description.scale
    if description.softcap != "none":
        y = description.softcap * torch.tanh(y / description.softcap)
    if description.output != "logits":
        y = y.exp() / y.exp().sum(-1, keepdim=True)
    expected = y.log() if description.output == "log_softmax" else y
    same(module(x), expected, module, x)


def test_the_logits_bias_is_not_trained() -> None:
    head = LinearHead(kind="linear", d_model=D_MODEL, vocab=VOCAB, logits_bias=True)
    assert head.layout().n_parameters == D_MODEL * VOCAB
    assert head.layout().n_elements == D_MODEL * VOCAB + VOCAB
    assert [name for name, _ in head.build().named_parameters()] == ["out.weight"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"d_hidden": 4, "activation": "gelu_tanh"},
        {"d_wide": 9, "d_hidden": 4, "dense_bias": False, "bias": False, "activation": "silu"},
        {"activation": "prelu", "slope": 0.1},
        {"logits_bias": True, "scale": 0.5, "input_scale": 2.0, "softcap": 3.0},
    ],
)
@pytest.mark.parametrize("normed", [True, False])
def test_mlm(fields: dict[str, Any], normed: bool) -> None:
    width = fields.get("d_hidden", D_MODEL)
    norm: Any = LayerNorm(kind="layer_norm", width=width, eps=1e-3)
    norm = norm if normed else NoNorm(kind="none", width=width)
    description = MlmHead(kind="mlm", d_model=D_MODEL, vocab=VOCAB, norm=norm, **fields)
    module, x = built(description), states(2, 5)
    w = module.state_dict(keep_vars=True)
    activation = {
        "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
        "gelu_tanh": lambda x: (
            x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        ),
        "silu": lambda x: x / (1 + torch.exp(-x)),
        "prelu": lambda x: torch.where(x > 0, x, w["activation.weight"] * x),
    }[description.activation]
    y = activation(linear(w, "dense", x))
    if "d_wide" in fields:
        y = activation(linear(w, "dense2", y))
    if normed:
        centred = y - y.mean(-1, keepdim=True)
        y = centred / (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt()
        y = y * w["norm.weight"] + w["norm.bias"]
    y = linear(w, "out", y * fields.get("input_scale", 1.0)) + w.get("logits_bias", 0.0)
    y = y * fields.get("scale", 1.0)
    same(module(x), 3 * torch.tanh(y / 3) if "softcap" in fields else y, module, x)


def test_mlm_of_bert() -> None:
    config = BertConfig(hidden_size=D_MODEL, vocab_size=VOCAB, num_attention_heads=2)
    theirs = BertLMPredictionHead(config).double()
    norm = LayerNorm(kind="layer_norm", width=D_MODEL, eps=1e-12)
    ours = built(MlmHead(kind="mlm", d_model=D_MODEL, vocab=VOCAB, norm=norm))
    names = {"transform.dense": "dense", "transform.LayerNorm": "norm", "decoder": "out"}
    tensors = ours.state_dict()
    renamed = {
        f"{theirs}.{p}": tensors[f"{own}.{p}"]
        for theirs, own in names.items()
        for p in ("weight", "bias")
    }
    theirs.load_state_dict(renamed | {"bias": tensors["out.bias"]})
    x = states(2, 5)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_ctc(bias: bool) -> None:
    description = Ctc(kind="ctc", d_model=D_MODEL, vocab=VOCAB, bias=bias)
    module, x = built(description), states(2, 5)
    same(module(x), linear(module.state_dict(keep_vars=True), "out", x), module, x)


def test_none() -> None:
    x = states(2, 5)
    assert NoHead(kind="none", d_model=D_MODEL).build()(x) is x


# --- in a model -----------------------------------------------------------------------------------


def spec(builder: str = "encoder", **fields: Any) -> dict[str, Any]:
    common = {"format": 1, "name": "m", "builder": builder, "n_layers": 1, "d_model": 8}
    vocab = {"source_vocab": VOCAB, "target_vocab": VOCAB}
    vocab = vocab if builder == "encoder_decoder" else {"vocab": VOCAB}
    return {**common, **vocab, "n_heads": 2, "d_ff": 4, **fields}


@pytest.mark.parametrize("builder", ["encoder", "decoder", "encoder_decoder"])
def test_a_model_tells_its_head_what_is_padding(builder: str) -> None:
    """By the mask of the call, and by `pad_id`."""
    head = {"kind": "classifier", "n_classes": N_CLASSES, "pooling": "mean"}
    model = zoo.build(spec(builder, head=head, pad_id=0)).eval()
    ids = torch.tensor([[3, 4, 5, 6], [3, 4, 0, 0]])
    sources = (ids, ids) if builder == "encoder_decoder" else (ids,)
    last = "source" if builder == "encoder" else "target"
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]).bool()
    output = model(*sources, **{f"{last}_mask": mask})
    assert output.shape == (2, N_CLASSES)
    shorter = [ids[:1, :3], ids[1:, :2]]
    for number, part in enumerate(shorter):
        memory = (ids[number : number + 1],) if builder == "encoder_decoder" else ()
        torch.testing.assert_close(model(*memory, part)[0], output[number])


def test_bert_pretraining() -> None:
    """Three heads on one encoder, under the names that BERT's checkpoints are mapped to."""
    model = zoo.build(
        spec(head={"kind": "mlm", "tied": True}, pooler="pooler", encoder={}, nsp=True)
    )
    names = set(model.spec.tensors)
    assert {"pooler.weight", "pooler.bias", "nsp.weight", "nsp.bias"} <= names
    assert {"head.dense.weight", "head.norm.weight", "head.out.bias"} <= names
    assert "head.out.weight" not in names
    ids = torch.randint(VOCAB, (2, 5))
    states = model.encode(ids)
    assert torch.equal(model.head(states), model(ids))
    first = torch.tanh(states[:, 0] @ model.pooler.weight.T + model.pooler.bias)
    torch.testing.assert_close(model.pooler(states), first)
    scores = first @ model.nsp.weight.T + model.nsp.bias
    torch.testing.assert_close(model.nsp(model.pooler(states)), scores)
    assert scores.shape == (2, 2)
    assert zoo.read_spec(model.spec.to_toml()) == model.spec


def test_tied_three_ways() -> None:
    data = spec("encoder_decoder", share_embeddings=True, head={"kind": "linear", "tied": True})
    model = zoo.build(data)
    table = model.decoder.embed.tokens.weight
    assert model.encoder.embed.tokens.weight is table
    assert model.head.out.weight is table
    names = {"encoder.embed.tokens.weight", "head.out.weight"}
    assert dict(model.spec.ties) == dict.fromkeys(names, "decoder.embed.tokens.weight")
    assert sum("embed.tokens" in name or "head" in name for name in model.spec.tensors) == 1
    assert model.spec.n_parameters == sum(p.numel() for p in model.parameters())
    ids = torch.randint(VOCAB, (2, 4))
    model(ids, ids).sum().backward()
    alone = zoo.build(spec("encoder_decoder"))
    with torch.no_grad():
        for name, tensor in alone.named_parameters():
            tensor.copy_(model.get_parameter(name))
    alone(ids, ids).sum().backward()
    parts = [alone.get_parameter(n).grad for n in (*names, "decoder.embed.tokens.weight")]
    torch.testing.assert_close(table.grad, sum(parts))


@pytest.mark.parametrize(
    ("builder", "fields", "message"),
    [
        (
            "encoder",
            {
                "embedding": {"kind": "tokens", "d_embed": 4},
                "head": {"kind": "linear", "tied": True},
            },
            r"cannot be one: they are \(11, 8\) and \(11, 4\)",
        ),
        (
            "encoder",
            {
                "embedding": {"kind": "tokens", "d_embed": 4},
                "head": {"kind": "mlm", "tied": True},
            },
            r"they are \(11, 8\) and \(11, 4\); `d_hidden = 4` in `head` makes them alike",
        ),
        (
            "decoder",
            {"embedding": "vectors", "head": {"kind": "linear", "tied": True}},
            "there is no `decoder.embed.tokens.weight`",
        ),
        (
            "encoder_decoder",
            {"share_embeddings": True, "target_vocab": 12},
            "one token table cannot serve source_vocab = 11 and target_vocab = 12",
        ),
        (
            "encoder_decoder",
            {"share_embeddings": True, "encoder": {"d_model": 16}},
            r"cannot be one: they are \(11, 16\) and \(11, 8\)",
        ),
        ("encoder", {"head": {"kind": "ctc", "blank": 11}}, "blank = 11 is beyond the vocabulary"),
        ("encoder", {"nsp": True}, 'state `pooler = "pooler"`'),
        (
            "encoder",
            {"head": {"kind": "sentence", "activation": "tanh"}},
            "`activation` is that of a dense layer: state `d_out`",
        ),
        (
            "encoder",
            {"head": {"kind": "classifier", "n_classes": 3, "labels": ["a", "b"]}},
            "there are 2 labels for n_classes = 3",
        ),
        (
            "encoder",
            {"head": {"kind": "classifier", "n_classes": 2, "labels": ["a", "a"]}},
            "two labels are the same",
        ),
    ],
)
def test_contradictions(builder: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(zoo.SpecError, match=message):
        zoo.read_spec(spec(builder, **fields))


def test_a_tied_head_of_a_factorised_table() -> None:
    data = spec(
        embedding={"kind": "tokens", "d_embed": 4},
        head={"kind": "mlm", "tied": True, "d_hidden": 4},
    )
    model = zoo.build(data)
    assert model.head.out.weight is model.encoder.embed.tokens.weight


@pytest.mark.parametrize("kind", ["linear", "mlm", "ctc"])
def test_a_vocabulary_is_needed(kind: str) -> None:
    data = spec(head=kind, embedding="vectors")
    del data["vocab"]
    with pytest.raises(zoo.SpecError, match="the key `vocab` is missing: `head` needs it"):
        zoo.read_spec(data)
