"""Values that depend on another value are refused where they have no effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import zoo
from zoo.document import from_weights
from zoo.reading import spec_of
from zoo_components.ffn import Mlp

Data = dict[str, Any]
SIZES: Data = {"format": 1, "name": "m", "n_layers": 4, "d_model": 8, "n_heads": 2, "d_ff": 12}
DECODER: Data = {**SIZES, "builder": "decoder", "vocab": 11, "head": "none"}
BOTH: Data = {**SIZES, "builder": "encoder_decoder", "source_vocab": 11, "target_vocab": 11}
RMS: Data = {"kind": "rms_norm"}


def multi_head(**fields: Any) -> Data:
    return {"attention": {"kind": "multi_head", **fields}}


def mlp(**fields: Any) -> Data:
    return {"ffn": {"kind": "mlp", **fields}}


def moe(**router: Any) -> Data:
    return {"ffn": {"kind": "moe", "n_experts": 4, "top_k": 2, "router": router}}


@pytest.mark.parametrize(
    ("fields", "on", "message"),
    [
        (multi_head(q_temperature_scale=0.2), multi_head(q_temperature="log"), "attention.q_temp"),
        (multi_head(q_temperature_floor=9.0), multi_head(q_temperature="power"), "attention.q_tem"),
        (multi_head(q_temperature_shift=1), multi_head(q_temperature="log"), "attention.q_temp"),
        (multi_head(window_sides="both"), multi_head(window=3), '`window = "none"`'),
        (multi_head(output_gate_scope="head"), multi_head(output_gate="sigmoid"), '"none"'),
        (multi_head(output_gate_bias="head"), multi_head(output_gate="softplus"), '"none"'),
        (multi_head(qk_norm_scope="full"), multi_head(qk_norm=RMS), '`qk_norm = "none"`'),
        (
            multi_head(qk_norm_site="after_rotation"),
            {"position": "rotary"} | multi_head(qk_norm="rms_norm"),
            '"none"',
        ),
        (
            multi_head(qk_norm="rms_norm", qk_norm_site="after_rotation"),
            {"position": "rotary"},
            "`qk_norm_site` is about rotary positions, and no layer that states it has them",
        ),
        (multi_head(rotate_values=True), {"position": "rotary"}, "no layer that states it has"),
        (
            {"position": {"kind": "sinusoidal", "zero_padding": True}},
            {"pad_id": 0, "decoder": {"count_positions": "unpadded"}},
            '`count_positions = "all"`',
        ),
        (mlp(norms=[], norm=RMS), mlp(norms=["pre"]), "`norm` of .* beside `norms = \\[\\]`"),
        (
            {"decoder": {"final_norm": False, "norm": RMS, "block": {"norm": "layer_norm"}}},
            {"decoder": {"final_norm": True}},
            "`norm` of `decoder` goes with `final_norm = true`",
        ),
        (
            {"decoder": {"final_norm": False, "norm": {"eps": 0.1}, "block": {"norm": {"eps": 1}}}},
            {"decoder": {"final_norm": True}},
            "`norm` of `decoder` goes with `final_norm = true`",
        ),
        (moe(n_groups=2), moe(top_groups=1), "ffn.router.n_groups: .* smaller `top_groups`"),
        (moe(n_groups=2, top_groups=2), moe(top_groups=1), "ffn.router.n_groups: "),
        (moe(group_score="max"), moe(n_groups=2, top_groups=1), "ffn.router.group_score: "),
    ],
)
def test_a_value_that_changes_nothing_is_refused(fields: Data, on: Data, message: str) -> None:
    with pytest.raises(zoo.SpecError, match=message):
        zoo.read_spec(DECODER | fields)
    zoo.read_spec(merged(DECODER | fields, on))


def merged(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {key: merged(old.get(key), value) for key, value in new.items()}


def test_saved_weights_may_state_a_value_that_changes_nothing() -> None:
    """They may be of an earlier version, and their spec cannot be changed."""
    spec = zoo.read_spec(DECODER).to_dict()
    spec["decoder"]["block"]["self_attn"]["window_sides"] = "both"
    with pytest.raises(zoo.SpecError, match="`window_sides`"):
        zoo.read_spec(spec)
    assert spec_of(from_weights(spec, "weights", {}), zoo.load_registry()).name == "m"


def test_where_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(
        'format = 1\nname = "m"\nbuilder = "decoder"\nvocab = 5\nn_layers = 1\nd_model = 4\n'
        'n_heads = 1\nd_ff = 4\n[attention]\nkind = "multi_head"\nwindow_sides = "both"\n'
    )
    with pytest.raises(zoo.SpecError) as error:
        zoo.read_spec(path)
    assert [(p.place.line, p.place.column) for p in error.value.problems] == [(11, 16)]


@pytest.mark.parametrize(
    "fields",
    [
        # A rule switches off a feature of the stack in some layers.
        {
            **multi_head(window=3, window_sides="both"),
            "decoder": {"layers": [{"every": 2, "self_attn": {"window": "none"}}]},
        },
        {
            **mlp(activation="prelu", slope=0.5),
            "decoder": {"layers": [{"last": 1, "ffn": {"activation": "relu"}}]},
        },
        {
            **multi_head(rotate_values=True),
            "position": "rotary",
            "decoder": {"layers": [{"every": 2, "position": "none"}]},
        },
        # A shared value has an effect in some sublayers.
        {"norm": {"kind": "rms_norm", "eps": 0.1}, **mlp(norms=[])},
        {"norm": "rms_norm", "decoder": {"final_norm": False}},
    ],
)
def test_what_counts_somewhere_flows_past_the_rest(fields: Data) -> None:
    spec = zoo.read_spec(DECODER | fields)
    assert zoo.read_spec(spec.to_toml()) == spec  # the full form states no value without effect
    assert zoo.read_spec(spec.to_dict()).digest == spec.digest


def test_one_of_two_stacks_is_enough() -> None:
    position = {"kind": "sinusoidal", "zero_padding": True}
    counted = {"pad_id": 0, "decoder": {"count_positions": "unpadded"}}
    spec = zoo.read_spec({**BOTH, "position": position, **counted})
    assert "zero_padding" not in spec.to_dict()["encoder"]["position"]
    assert spec.to_dict()["decoder"]["position"]["zero_padding"] is True
    assert zoo.read_spec(spec.to_toml()) == spec


def test_cross_attention_inherits_what_only_self_attention_has() -> None:
    rotary = {**BOTH, "position": "rotary"}
    zoo.read_spec({**rotary, **multi_head(rotate_values=True)})
    own = {"decoder": {"cross_attn": {"kind": "multi_head", "rotate_values": True}}}
    with pytest.raises(zoo.SpecError, match="cross-attention sees another"):
        zoo.read_spec({**rotary, **own})


def test_what_a_rule_states_itself_has_to_count() -> None:
    rule = {"first": 1, "self_attn": {"window": "none", "window_sides": "both"}}
    with pytest.raises(zoo.SpecError, match=r"layers\.0.*window_sides"):
        zoo.read_spec({**DECODER, **multi_head(window=3), "decoder": {"layers": [rule]}})


def test_a_spec_cannot_take_values_out_of_the_one_that_it_extends(tmp_path: Path) -> None:
    (tmp_path / "outer.toml").write_text(
        'format = 1\nname = "outer"\nbuilder = "decoder"\nvocab = 5\nn_layers = 1\nd_model = 4\n'
        'n_heads = 1\nd_ff = 4\n[attention]\nkind = "multi_head"\nwindow = 3\n'
        'window_sides = "both"\n'
    )
    inner = tmp_path / "inner.toml"
    text = 'format = 1\nname = "inner"\nextends = "outer"\n[attention]\nwindow = "none"\n'
    inner.write_text(text)
    assert "window_sides" not in zoo.read_spec(inner).to_dict()["decoder"]["block"]["self_attn"]
    inner.write_text(text + 'window_sides = "past"\n')
    with pytest.raises(zoo.SpecError, match=r"inner\.toml:6:16: .*changes nothing"):
        zoo.read_spec(inner)


PLUGIN = """
from typing import Annotated
from zoo.component import Slot
from zoo.only_with import UNSTATED, OnlyWith
from zoo.slots import FeedForward, Norm

class Mine(FeedForward):
    scaled: bool = False
    inner: Annotated[
        Norm | None,
        Slot("norm", default="rms_norm", inherit=False, width="d_model"),
        OnlyWith("scaled", True),
    ] = UNSTATED
"""


def test_a_kind_that_nobody_states_may_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    (tmp_path / "registry.toml").write_text('format = 1\n[ffn]\nmine = "mine.py:Mine"\n')
    registry = zoo.load_registry(tmp_path / "registry.toml")
    sizes = {key: value for key, value in DECODER.items() if key != "d_ff"}
    read = zoo.read_spec({**sizes, "ffn": "mine"}, registry=registry)
    assert "inner" not in read.to_dict()["decoder"]["block"]["ffn"]
    with pytest.raises(zoo.SpecError, match=r"`inner` of .* goes with `scaled = true`"):
        zoo.read_spec({**sizes, "ffn": {"kind": "mine", "inner": "rms_norm"}}, registry=registry)


def test_in_python_a_part_is_a_component_or_none() -> None:
    sizes: Data = {"kind": "mlp", "d_model": 8, "d_ff": 12}
    assert Mlp(**sizes, norms=(), norm=None).norm is None
    with pytest.raises(ValidationError, match="a component, not a table, is expected here"):
        Mlp(**sizes, norm=RMS)


def test_what_has_no_effect_does_not_change_the_digest() -> None:
    """A stack without a final norm; the norm of its layers is stated outside or inside."""
    around, inside = ({"norm": RMS}, {"block": {"norm": RMS}})
    specs = [
        zoo.read_spec({**DECODER, "decoder": {"final_norm": False, **n}}) for n in (around, inside)
    ]
    assert specs[0].digest == specs[1].digest


IMAGES: Data = {
    "format": 1,
    "name": "images",
    "builder": "encoder",
    "n_layers": 1,
    "d_model": 4,
    "n_heads": 1,
    "d_ff": 4,
    "embedding": {"kind": "patches", "image_size": 4, "patch_size": 2},
    "position": "none",
    "head": {"kind": "classifier", "n_classes": 3},
}
VECTORS: Data = IMAGES | {"builder": "decoder", "embedding": "vectors", "head": "none"}
CAPTIONS: Data = {
    **{key: value for key, value in IMAGES.items() if key not in ("embedding", "head")},
    "builder": "encoder_decoder",
    "target_vocab": 5,
    "encoder": {"embedding": IMAGES["embedding"]},
}


@pytest.mark.parametrize(
    ("fields", "key", "told"),
    [
        (IMAGES, "vocab", "the embedding `patches` and the head `classifier` read no vocabulary"),
        (IMAGES | {"head": "none"}, "vocab", "the embedding `patches` reads no vocabulary"),
        (
            IMAGES | {"head": "attention_pooling"},
            "vocab",
            "the embedding `patches` and the head `attention_pooling` read no vocabulary",
        ),
        (
            IMAGES | {"head": "joint_embedding"},
            "vocab",
            "the embedding `patches` and the head `joint_embedding` read no vocabulary",
        ),
        (VECTORS, "vocab", "the embedding `vectors` reads no vocabulary"),
        (CAPTIONS, "source_vocab", "the embedding `patches` reads no vocabulary"),
    ],
)
def test_a_vocabulary_that_nothing_reads_is_refused(fields: Data, key: str, told: str) -> None:
    with pytest.raises(zoo.SpecError) as error:
        zoo.read_spec(fields | {key: 5})
    (problem,) = error.value.problems
    assert problem.message == f"`{key}` changes nothing: {told}"
    stored = zoo.read_spec(fields).to_dict() | {key: 5}  # by a zoo that accepted it
    found = spec_of(from_weights(stored, "weights", {}), zoo.load_registry())
    assert found.digest == zoo.read_spec(fields).digest


def test_a_head_may_read_the_vocabulary_of_a_model_of_images() -> None:
    spec = zoo.read_spec(IMAGES | {"vocab": 5, "head": "linear"})
    assert spec.tensors["head.out.weight"].shape == (5, 4)


def test_an_inherited_vocabulary_that_nothing_reads_is_left_out(tmp_path: Path) -> None:
    """A spec cannot remove it from the one that it extends, whose own embedding reads it."""
    (tmp_path / "text.toml").write_text(
        'format = 1\nname = "text"\nbuilder = "encoder"\nvocab = 5\nn_layers = 1\nd_model = 4\n'
        'n_heads = 1\nd_ff = 4\nposition = "none"\n'
    )
    (tmp_path / "images.toml").write_text(
        'extends = "text"\nname = "images"\nhead = { kind = "classifier", n_classes = 3 }\n'
        'embedding = { kind = "patches", image_size = 4, patch_size = 2 }\n'
    )
    spec = zoo.read_spec(tmp_path / "images.toml")
    assert spec == zoo.read_spec(IMAGES)
    assert zoo.read_spec(spec.to_toml()) == spec
