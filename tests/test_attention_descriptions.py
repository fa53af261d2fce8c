"""The descriptions of attention: tensors, sizes, and invalid combinations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from references.attention_cases import (
    HEAD,
    counting,
    described,
    described_differential,
    described_latent,
    layer_norm,
    rms,
)

import zoo
from zoo.errors import SpecError
from zoo_components.norm import BatchNorm, NoNorm, ScaleNorm

NONE = NoNorm(kind="none", width=HEAD)
NORMS = st.sampled_from([NONE, rms(), layer_norm(), ScaleNorm(kind="scale_norm", width=HEAD)])


def tensors(description: Any) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Return the names and shapes as built, and as described."""
    with torch.device("meta"):
        module = description.build()
    built = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    return built, {name: tensor.shape for name, tensor in description.layout().tensors()}


@settings(max_examples=150)
@given(
    st.fixed_dictionaries(
        {
            "n_kv_heads": st.sampled_from([1, 2, 4]),
            "v_head_dim": st.sampled_from([HEAD, 7]),
            "bias": st.lists(st.sampled_from("qkvo"), unique=True).map(tuple),
            "qk_norm": NORMS,
            "qk_norm_scope": st.sampled_from(["head", "full", "per_head"]),
            "v_norm": st.sampled_from([NONE]),
            "sub_norm": NORMS,
            "sinks": st.booleans(),
            "output_gate": st.sampled_from(["none", "sigmoid"]),
            "output_gate_scope": st.sampled_from(["element", "head"]),
            "output_gate_bias": st.sampled_from(["none", "projection", "head"]),
            "key_width": st.sampled_from([None, 5]),
        }
    ),
    st.booleans(),
    st.booleans(),
)
def test_multi_head_is_as_described(
    fields: dict[str, Any], projected: bool, keys_as_values: bool
) -> None:
    if not projected:
        fields |= {"output_projection": False, "d_out": 4 * fields["v_head_dim"]}
    if keys_as_values:
        fields |= {"values": "keys", "v_head_dim": HEAD}
        fields |= {} if projected else {"d_out": 4 * HEAD}
    built, layout = tensors(described(**counting(fields)))
    assert built == layout


@pytest.mark.parametrize("rank", ["none", 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("norm", [NONE, layer_norm()])
@pytest.mark.parametrize("key_width", [None, 9])
def test_latent_is_as_described(rank: Any, bias: bool, norm: Any, key_width: int | None) -> None:
    norm = norm.model_copy(update={"width": 5})
    built, layout = tensors(
        described_latent(q_lora_rank=rank, bias=bias, latent_norm=norm, key_width=key_width)
    )
    assert built == layout


@pytest.mark.parametrize("bias", [(), ("q", "k", "v", "o")])
@pytest.mark.parametrize("norm", [NONE, layer_norm(), rms()])
@pytest.mark.parametrize("key_width", [None, 9])
@pytest.mark.parametrize("n_kv_heads", [2, 4])
def test_differential_is_as_described(
    bias: tuple[str, ...], norm: Any, key_width: int | None, n_kv_heads: int
) -> None:
    norm = norm.model_copy(update={"width": 2 * HEAD})
    built, layout = tensors(
        described_differential(
            bias=bias, head_norm=norm, key_width=key_width, n_kv_heads=n_kv_heads
        )
    )
    assert built == layout


def test_names_and_starts() -> None:
    """The canonical names, and the tensors that are not random."""
    layout = described(
        qk_norm=layer_norm(),
        qk_norm_scope="per_head",
        v_norm=rms(),
        sub_norm=rms(),
        sinks=True,
        output_gate="sigmoid",
        output_gate_bias="head",
    ).layout()
    found = {name: (tensor.role, tensor.value) for name, tensor in layout.tensors()}
    assert found.keys() == {
        *(f"{p}_proj.{w}" for p in "qkvo" for w in ("weight", "bias")),
        *(f"{p}_norm.{w}" for p in "qk" for w in ("weight", "bias")),
        "v_norm.weight",
        "sub_norm.weight",
        "sinks",
        "gate_proj.weight",
        "gate_bias",
    }
    assert found["sinks"] == ("constant", 0.0)
    assert found["gate_bias"][0] == found["k_norm.bias"][0] == "bias"
    assert found["q_norm.weight"] == found["sub_norm.weight"] == ("constant", 1.0)
    assert found["o_proj.weight"][0] == "residual"


def test_a_norm_of_all_heads_starts_by_its_own_width() -> None:
    """ScaleNorm starts at the root of the width: 16 for 4 heads of 4 together."""
    norm = ScaleNorm(kind="scale_norm", width=HEAD)
    layout = described(qk_norm=norm, qk_norm_scope="full", sub_norm=norm).layout()
    starts = {name: tensor.value for name, tensor in layout.tensors() if "norm" in name}
    assert starts == {
        "q_norm.weight": 4.0,
        "k_norm.weight": 8**0.5,
        "sub_norm.weight": 4.0,
    }


def test_cache() -> None:
    assert described().layout().cache == 2 * (HEAD + HEAD)
    assert described(v_head_dim=7).layout().cache == 2 * (HEAD + 7)
    assert described(key_width=3).layout().memory_cache == 2 * (HEAD + HEAD)


@pytest.mark.parametrize(
    "fields",
    [
        {"window": 3, "chunk": 2},
        {"window": 3, "key_width": 5},
        {"chunk": 3, "key_width": 5},
        {"masked_rows": "uniform", "sinks": True},
        {"values": "keys", "v_head_dim": 5},
        {"rotate_values": True, "v_head_dim": 3},
        {"qk_norm_scope": "per_head", "qk_norm": BatchNorm(kind="batch_norm", width=HEAD)},
        {"n_kv_heads": 3},
        {"output_projection": False, "d_out": 15},
    ],
    ids=", ".join,
)
def test_contradiction(fields: dict[str, Any]) -> None:
    """The error points at the first key."""
    with pytest.raises(ValidationError) as caught:
        described(**fields)
    (error,) = caught.value.errors()
    assert error["type"] == "contradiction"
    assert error["ctx"]["keys"][0] == next(iter(fields))


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "window": [0, True, "all", 2.0],
        "chunk": [-1, False, ""],
        "softcap": [0.0, float("inf"), "nan", True],
        "clip": [-1.0, None],
        "q_temperature": ["linear"],
        "q_temperature_floor": [0.0],
        "q_temperature_shift": [-1],
        "v_scale": [0.0],
        "output_gate": ["tanh"],
        "qk_norm_scope": ["row"],
    }.items(),
)
def test_value_out_of_range(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValidationError) as caught:
            described(**{name: value})
        assert caught.value.errors()[0]["loc"][0] == name


SPEC = """\
format = 1
name = "small"
builder = "decoder"
vocab = 11
n_layers = 4
d_model = 8
n_heads = 2
d_ff = 16
"""
MESSAGES = {
    "[attention]\nwindow = 3\nchunk = 2": (10, "`window` or a `chunk`, not both"),
    '[attention]\nsoftcap = "off"': (10, '`softcap` must be a number or "none"'),
    '[attention]\nsinks = true\nmasked_rows = "uniform"': (11, "attends to its sink"),
    '[attention]\nqk_norm = "batch_norm"\nqk_norm_scope = "per_head"': (11, "`batch_norm` keeps"),
    '[attention]\nvalues = "keys"\nv_head_dim = 3': (10, "head_dim = 4 wide, not 3"),
}


@pytest.mark.parametrize(("text", "expected"), MESSAGES.items())
def test_message(text: str, expected: tuple[int, str]) -> None:
    line, message = expected
    with pytest.raises(SpecError) as caught:
        zoo.read_spec(SPEC + text)
    assert len(caught.value.problems) == 1
    assert f":{line}:" in str(caught.value)
    assert message in str(caught.value)


def test_cross_attention_has_no_window() -> None:
    text = SPEC.replace('"decoder"', '"encoder_decoder"').replace(
        "vocab = 11", "source_vocab = 11\ntarget_vocab = 11"
    )
    with pytest.raises(SpecError, match="state it under `self_attn`"):
        zoo.read_spec(text + '[attention]\nwindow = 3\nwindow_sides = "past"')
    zoo.build(text + "[decoder.block.self_attn]\nwindow = 3", device="meta")


PATTERNS = {
    "window": (
        "[attention]\nwindow = 2\nsoftcap = 3.0\nsinks = true\n"
        '[[decoder.layers]]\nevery = 2\nself_attn.window = "none"\nself_attn.softcap = "none"'
    ),
    "chunk and temperature": (
        '[attention]\nchunk = 2\nqk_norm = "rms_norm"\nqk_norm_site = "after_rotation"\n'
        "[[decoder.layers]]\nevery = 4\n"
        'self_attn = { chunk = "none", qk_norm = "none", q_temperature = "log" }'
    ),
    "latent": (
        '[attention]\nkind = "latent"\nq_lora_rank = 6\nkv_lora_rank = 4\nqk_nope_head_dim = 4\n'
        "qk_rope_head_dim = 2\nv_head_dim = 4\n"
        '[[decoder.layers]]\nfirst = 1\nself_attn.q_lora_rank = "none"'
    ),
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_in_a_model(pattern: str) -> None:
    """Rules switch features off in single layers; the full form is equivalent; the model runs."""
    spec = zoo.read_spec(SPEC + 'position = "rotary"\n' + pattern)
    assert zoo.read_spec(spec.to_toml()).digest == spec.digest
    model = zoo.build(spec)
    ids = torch.arange(10).reshape(2, 5)
    logits, maps = model(ids, return_attention=True)
    torch.testing.assert_close(model(ids), logits)
    assert len(maps) > 0
    logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_nothing_breaks_the_graph() -> None:
    """`torch.compile` compiles the whole module as one graph, including the norms of each head."""
    module = described(qk_norm=rms(), qk_norm_scope="per_head", window=2, output_gate="sigmoid")
    built = module.build()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 5, 6)
    compiled = torch.compile(built, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, causal=True)[0], built(x, causal=True)[0])
