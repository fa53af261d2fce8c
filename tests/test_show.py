"""What `zoo show` prints about the parts of a model and its cache. That it prints every field of
every component is tested in test_fields.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from zoo.cache import Cache
from zoo.drawing import to_svg
from zoo.registry import Registry, read_layers, shipped_registry
from zoo.showing.alike import in_one
from zoo.showing.children import not_yet_shown
from zoo.showing.show import summary_data, summary_text

PAGE = Path(__file__).parent.parent / "docs/inspect.md"
N_LAYERS, N_HEADS, HEAD_DIM = 4, 4, 8


def spec(registry: Registry | None = None, **values: Any) -> zoo.ModelSpec:
    sizes = {"n_layers": N_LAYERS, "d_model": N_HEADS * HEAD_DIM, "n_heads": N_HEADS, "d_ff": 48}
    data = {"format": 1, "name": "tiny", "builder": "decoder", "vocab": 23, **sizes, **values}
    return zoo.read_spec(data, registry=registry)


def told(found: zoo.ModelSpec) -> dict[str, str]:
    """Return the text in the tree for each part, by path."""
    return {path: row["label"] for path, row in rows(found).items()}


def rows(found: zoo.ModelSpec) -> dict[str, dict[str, Any]]:
    data = json.loads(json.dumps(summary_data(found)))
    return dict(_rows(data["parts"], ""))


def _rows(parts: list[dict[str, Any]], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for row in parts:
        yield f"{prefix}{row['name']}", row
        yield from _rows(row["parts"], f"{prefix}{row['name']}.")


# --- parts --------------------------------------------------------------------------------------


def test_each_norm_is_named() -> None:
    found = told(
        spec(
            norm="layer_norm",
            norm_placement="sandwich",
            decoder={
                "self_attn": {"qk_norm": "scale_norm"},
                "block": {"norm": {"kind": "rms_norm", "eps": 1e-5}},
            },
        )
    )
    layer = "decoder.layers"
    for place in ("self_attn", "ffn"):
        assert found[f"{layer}.{place}.pre_norm"] == "rms_norm, eps 1e-05"
        assert found[f"{layer}.{place}.post_norm"] == "rms_norm, eps 1e-05"
    assert found[f"{layer}.self_attn.q_norm"] == found[f"{layer}.self_attn.k_norm"] == "scale_norm"
    assert found["decoder.norm"] == "layer_norm"


def test_norms_without_weights_are_there_too() -> None:
    bare = {"kind": "rms_norm", "weight": False}
    found = told(spec(norm=bare, decoder={"self_attn": {"qk_norm": bare}}))
    paths = ("layers.self_attn.pre_norm", "layers.self_attn.qk_norm", "layers.ffn.pre_norm", "norm")
    assert [found[f"decoder.{path}"] for path in paths] == ["rms_norm, weight false"] * 4


@pytest.mark.parametrize("weight", [True, False])
def test_norms_are_told_where_they_run_with_and_without_weights(weight: bool) -> None:
    norm = {"kind": "rms_norm", "weight": weight}
    latent = {"kind": "latent", "kv_lora_rank": 8, "q_lora_rank": 8, "v_head_dim": 8}
    attention = {**latent, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "latent_norm": norm}
    head = {"kind": "mlm", "norm": norm}
    embedding = {"kind": "tokens", "norm": norm}
    paths = list(
        rows(
            spec(builder="encoder", norm=norm, head=head, embedding=embedding, self_attn=attention)
        )
    )
    around = [
        ("encoder.embed.tokens", "encoder.embed.norm"),
        ("encoder.layers", "encoder.norm"),
        ("encoder.layers.self_attn.q_a_norm", "encoder.layers.self_attn.q_b_proj"),
        ("encoder.layers.self_attn.kv_a_norm", "encoder.layers.self_attn.kv_b_proj"),
        ("head.norm", "head.out"),
    ]
    assert [paths.index(before) < paths.index(after) for before, after in around] == [True] * 5


@pytest.mark.parametrize(
    ("position", "path", "text"),
    [
        ({"kind": "rotary", "base": 5e5}, "position", "rotary, base 500000.0"),
        ("alibi", "position", "alibi"),
        ({"kind": "t5_buckets", "n_buckets": 8}, "rel_bias", "t5_buckets, n_buckets 8"),
        ({"kind": "learned", "max_length": 9}, "embed.positions", "learned, max_length 9"),
        ("sinusoidal", "embed.positions", "sinusoidal, 5000 x 32, computed"),
    ],
)
def test_positions_are_named_where_they_are(position: Any, path: str, text: str) -> None:
    found = told(spec(position=position))
    assert found[f"decoder.{path}"] == text
    assert [one for one in found.values() if one.split(",")[0] == text.split(",")[0]] == [text]


def test_no_positions_are_no_part() -> None:
    assert "decoder.position" not in told(spec(position="none"))


def test_layers_that_a_rule_names_say_what_differs() -> None:
    found = told(
        spec(
            position="rotary",
            decoder={
                "layers": [
                    {"at": [1], "position": {"kind": "rotary", "base": 1e6}},
                    {"at": [2], "position": "none", "self_attn": {"window": 16}},
                    {"at": [3], "ffn": "glu"},
                ]
            },
        )
    )
    assert found["decoder.position"] == "rotary"
    own = {path: text for path, text in found.items() if path.endswith(".position")}
    assert own == {
        "decoder.position": "rotary",
        "decoder.layers 1.position": "rotary, base 1000000.0",
        "decoder.layers 2.position": "none",
    }
    attention = [found[f"decoder.layers {n}.self_attn"] for n in range(N_LAYERS)]
    assert [", window 16" in text for text in attention] == [False, False, True, False]
    assert found["decoder.layers 3.ffn"].startswith("glu, silu")


def test_many_layers_that_differ_only_in_numbers_are_one_part_of_the_tree() -> None:
    """The data have each of them."""
    widths = [48, 96, 8, 1024, 64, 72]
    windows = {"per_layer": [5, "none", 6, "none", 7, "none"]}
    found = spec(
        n_layers=6,
        bias=False,
        ffn="glu",
        d_ff={"per_layer": widths},
        attention={"window": windows},
    )
    lines = [line.strip("│├└─ ") for line in summary_text(summary_data(found)).splitlines()]
    layers = [" ".join(line.split()) for line in lines if line.startswith(("layers", "ffn"))]
    # 32 x 32 for each of q, k, v and o, three maps of 32 x d_ff, two norms with weight and bias.
    least, most = (4 * 32 * 32 + 3 * 32 * width + 4 * 32 for width in (8, 64))
    assert layers[0] == f"layers 0,2,4 x 3 {least:,} … {most:,} each residual"
    assert layers[1].endswith(
        f"{3 * 32 * 8 + 64:,} … {3 * 32 * 64 + 64:,} glu, silu, d_ff 8 … 64, bias false"
    )
    assert layers[2].startswith("layers 1,3,5 x 3")
    assert layers[3].endswith("d_ff 72 … 1024, bias false")
    assert len(layers) == 4
    assert sum("window 5 … 7" in line for line in lines) == 1
    told_of_each = [text for path, text in told(found).items() if path.endswith(".ffn")]
    assert [int(text.split("d_ff ")[1].split(",")[0]) for text in told_of_each] == widths


def test_layers_with_other_parts_are_apart() -> None:
    """Of five sets of layers, one has positions of its own, and one has a norm elsewhere."""
    rules = [{"at": [1], "position": "alibi"}, {"at": [3], "self_attn": {"norms": ["post"]}}]
    found = spec(
        n_layers=5,
        position="rotary",
        norm="rms_norm",
        d_ff={"per_layer": [8, 16, 24, 32, 40]},
        decoder={"layers": rules},
    )
    lines = [line.strip("│├└─ ") for line in summary_text(summary_data(found)).splitlines()]
    layers = [line.split("  ")[0] for line in lines if line.startswith("layers")]
    assert layers == ["layers 0,2,4 x 3", "layers 1 x 1", "layers 3 x 1"]
    norms = [line.split()[0] for line in lines if line.startswith(("pre_", "post_"))]
    assert norms == [*["pre_norm"] * 4, "post_norm", "pre_norm"]


def test_a_few_layers_are_told_one_by_one() -> None:
    found = spec(d_ff={"per_layer": [8, 16, 24, 32]})
    text = summary_text(summary_data(found))
    assert [f"layers {n} x 1" in text for n in range(4)] == [True] * 4
    assert "…" not in text


@pytest.mark.parametrize(
    ("a", "b", "one"),
    [
        ("d_ff 8, bias false", "d_ff 64, bias false", "d_ff 8 … 64, bias false"),
        ("d_ff 8 … 64", "d_ff 9", "d_ff 8 … 64"),
        ("d_ff 8 … 64", "d_ff 128", "d_ff 8 … 128"),
        ("eps 1e-05", "eps 0.001", "eps 1e-05 … 0.001"),
        ("at -1, base 10000.0", "at 1, base 10000.0", "at -1 … 1, base 10000.0"),
        ("1,024", "998", "998 … 1,024"),
        ("1.5k parameters", "2M parameters", "1.5k … 2M parameters"),
        ("999k parameters", "2M parameters", "999k … 2M parameters"),
        ("window 3", "window none", None),
        ("rotary_llama3", "rotary_llama4", None),
        ("conv1d, 2 layers", "conv2d, 2 layers", None),
        ("layers.0.ffn", "layers.1.ffn", None),
        ("relu", "gelu", None),
        ("relu", "relu", "relu"),
    ],
)
def test_texts_that_differ_only_in_numbers(a: str, b: str, one: str | None) -> None:
    assert in_one(a, b) == one
    assert in_one(b, a) == one


def test_what_rules_replace_in_all_layers_is_not_told() -> None:
    rule = {"at": list(range(N_LAYERS)), "position": "alibi"}
    found = told(spec(position="rotary", decoder={"layers": [rule]}))
    assert found["decoder.layers.position"] == "alibi"
    assert "rotary" not in found.values()


def test_what_a_rule_replaces_in_the_first_layer_alone_is_told() -> None:
    rule = {"at": [0], "position": "alibi"}
    found = told(spec(position="rotary", decoder={"layers": [rule]}))
    assert found["decoder.position"] == "rotary"
    assert found["decoder.layers 0.position"] == "alibi"


def test_what_rules_leave_as_it_is_in_all_layers_is_told_once() -> None:
    rules = [{"every": 2, "d_ff": 8}, {"every": 2, "start": 0, "self_attn": {"window": 4}}]
    found = told(spec(position="rotary", decoder={"layers": rules}))
    assert {path: text for path, text in found.items() if "rotary" in text} == {
        "decoder.position": "rotary"
    }


def test_layers_without_tensors_are_told_once() -> None:
    rule = {"at": list(range(12)), "dropout": 0.0}
    empty = {"self_attn": "none", "ffn": "none", "decoder": {"layers": [rule]}}
    found = told(zoo.read_spec({"extends": "gpt2", "name": "bare", **empty, "dropout": 0.0}))
    assert "decoder.layers" in found
    assert "decoder.block" not in found


def test_json_has_kinds_and_values() -> None:
    found = rows(spec(decoder={"self_attn": {"softcap": 50.0, "n_kv_heads": 2}}))
    row = found["decoder.layers.self_attn"]
    assert row["kind"] == "multi_head"
    assert row["values"] == {"n_heads": N_HEADS, "n_kv_heads": 2, "softcap": 50.0}
    assert row["label"] == "multi_head, 4 over 2 heads of 8, softcap 50.0"
    assert found["decoder.layers.self_attn.q_proj"]["kind"] is None


@pytest.mark.parametrize(
    ("builder", "values", "text"),
    [
        ("decoder", {}, "causal, d_model 32"),
        ("encoder", {}, "d_model 32"),
        ("decoder", {"causal": False}, "d_model 32, causal false"),
        ("encoder", {"causal": True}, "causal, d_model 32"),
    ],
)
def test_a_stack_says_whether_it_is_causal(builder: str, values: dict[str, Any], text: str) -> None:
    assert told(spec(builder=builder, **{builder: values}))[builder] == text


@pytest.mark.parametrize(
    ("values", "text", "left"),
    [
        ({"n_heads": 64, "v_head_dim": 64}, "64 heads of 128", ["v_head_dim"]),
        ({"n_heads": 64, "v_head_dim": 64}, "64 heads of 64", []),
        ({"q_rank": 512, "kv_rank": 512}, "8 heads, kv_rank 512", ["q_rank"]),
        ({"bias": True}, "True", ["bias"]),
        ({"causal": True}, "causal", []),
        ({"causal": False}, "causal", ["causal"]),
        ({"scale": 5.0}, "15.0 or 5", ["scale"]),
        ({"activation": "gelu"}, "gelu_tanh", ["activation"]),
    ],
)
def test_a_word_of_a_label_tells_one_value(
    values: dict[str, Any], text: str, left: list[str]
) -> None:
    assert list(not_yet_shown(values, text)) == left


def test_an_option_of_another_is_told_by_its_name() -> None:
    """Its value may be equal to one of the label: `8 heads of 8`."""
    heads = {"q_temperature": "log", "q_temperature_shift": HEAD_DIM}
    found = told(spec(self_attn=heads))
    (line,) = (text for name, text in found.items() if name.endswith("self_attn"))
    assert line.endswith(f"heads of {HEAD_DIM}, q_temperature log, q_temperature_shift {HEAD_DIM}")


def test_lines_are_broken_between_values() -> None:
    factors = [1.0] * 4
    long = {"kind": "rotary_longrope", "factor": 2.0, "original_length": 64}
    found = spec(position={**long, "short_factors": factors, "long_factors": factors, "base": 2.5})
    lines = summary_text(summary_data(found)).splitlines()
    first = next(n for n, line in enumerate(lines) if "rotary_longrope" in line)
    assert max(map(len, lines)) <= 100
    column = lines[first].index("rotary")
    assert lines[first + 1][:column].split() == ["│", "│"]
    assert lines[first].endswith(",")
    assert (
        " ".join(line[column:] for line in lines[first : first + 3])
        == told(found)["decoder.position"]
    )


def test_the_page_prints_what_is_shown() -> None:
    found = zoo.read_spec("mistral-7b")
    assert summary_text(summary_data(found)) in PAGE.read_text()


PLUGINS = """
from zoo.component import PositiveFloat, Shared, Size
from zoo.layout import Layout, vector
from zoo.slots import FeedForward, Norm, Position


class Shift(Norm):
    by: PositiveFloat = 1.0

    def layout(self):
        return Layout({"weight": vector(self.width)})


class Spiral(Position):
    turns: Size
    style: str = "tight"


class Spread(FeedForward):
    d_ff: Shared[Size]
    inner: Size = 3

    def layout(self):
        return Layout({"weight": vector(self.d_ff)})


class Spreading(Spread):
    def layout(self):
        return Layout({"weight": vector(self.d_ff)}, f"spreading, d_ff {self.d_ff}")
"""


def test_sizes_in_python_are_plain_data_that_make_a_table() -> None:
    """A sweep: parameters and bytes of the cache in closed form."""
    for d_model in (8, 16):
        for n_kv_heads in (1, 2):
            fields = {"d_model": d_model, "n_heads": 2, "n_kv_heads": n_kv_heads, "n_layers": 3}
            more = {"builder": "decoder", "vocab": 11, "d_ff": 4, "bias": False, "norm": "rms_norm"}
            spec = zoo.read_spec({"format": 1, "name": "one", **fields, **more})
            found = spec.summary()
            kv = n_kv_heads * d_model // 2
            layer = 2 * d_model * (d_model + kv) + 2 * d_model * 4 + 2 * d_model
            unique = 3 * layer + 2 * 11 * d_model + d_model
            assert found["parameters"] == {"unique": unique, "active": unique, "shared": 0}
            assert found["kv_cache_bytes_per_token"] == {
                "float32": 4 * 3 * 2 * kv,
                "bfloat16": 2 * 3 * 2 * kv,
            }
            assert json.loads(json.dumps(found))["parameters"] == found["parameters"]


def test_components_of_ones_own_are_told_without_a_word_of_theirs(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(PLUGINS)
    path = tmp_path / "registry.toml"
    slots = {"norm": "Shift", "position": "Spiral", "ffn": "Spread"}
    entries = [f'[{slot}]\n{name.lower()} = "own.py:{name}"\n' for slot, name in slots.items()]
    path.write_text("format = 1\n" + "".join(entries))
    registry = read_layers([shipped_registry(), path])
    norm = {"kind": "shift", "by": 2.0}
    found = told(spec(registry, norm=norm, ffn="spread", position={"kind": "spiral", "turns": 7}))
    assert found["decoder.norm"] == "shift, by 2.0"
    assert found["decoder.layers.self_attn.pre_norm"] == "shift, by 2.0"
    assert found["decoder.position"] == "spiral, turns 7"
    assert found["decoder.layers.ffn"] == "spread, d_ff 48"


def test_a_kind_that_is_made_of_another_does_not_name_that() -> None:
    found = told(spec(ffn={"kind": "normed_moe", "n_experts": 4, "top_k": 2}))
    assert found["decoder.layers.ffn"] == "normed_moe, 2 of 4 experts, glu silu, d_ff 48"


def test_the_kind_is_taken_off_a_label_as_a_word(tmp_path: Path) -> None:
    """A registry may choose any kind, also a part of a word in the component's own label."""
    (tmp_path / "own.py").write_text(PLUGINS)
    path = tmp_path / "registry.toml"
    path.write_text(
        'format = 1\n[ffn]\nspread = "own.py:Spreading"\nspreading = "own.py:Spreading"\n'
    )
    registry = read_layers([shipped_registry(), path])
    short, whole = (spec(registry, ffn=kind) for kind in ("spread", "spreading"))
    assert told(short)["decoder.layers.ffn"] == "spread, spreading, d_ff 48"
    assert told(whole)["decoder.layers.ffn"] == "spreading, d_ff 48"
    assert "spreading, d_ff 48" in to_svg(short)


# --- the cache ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "up_to"),
    [({"window": 3}, 3), ({"window": 3, "window_sides": "both"}, 4), ({"chunk": 4}, 4)],
)
def test_the_cache_grows_no_further_than_told(limit: dict[str, Any], up_to: int) -> None:
    """Half of the layers are limited. The memory of the cache is measured."""
    rule = {"at": [0, 2], "self_attn": limit}
    found = spec(position="rotary", decoder={"layers": [rule]})
    each = N_HEADS * 2 * HEAD_DIM * 4
    data = summary_data(found)
    assert data["kv_cache_bytes_per_token"]["float32"] == N_LAYERS * each
    (part,) = data["kv_cache_of_last_tokens"]
    assert part["bytes_per_token"] == {"float32": 2 * each, "bfloat16": each}
    model = zoo.build(found).eval()
    one = torch.ones(1, 1, dtype=torch.long)

    def kept(n_tokens: int) -> int:
        cache = Cache(n_tokens)
        with torch.no_grad():
            for _ in range(n_tokens):
                model.decode(one, cache=cache)
        return cache.n_bytes

    assert part["tokens"] == up_to
    assert kept(up_to) == up_to * N_LAYERS * each
    # There is room for twice as many tokens, so that they are seldom moved.
    assert kept(5 * up_to) == 5 * up_to * 2 * each + 2 * up_to * 2 * each


@pytest.mark.parametrize(
    ("attention", "end"),
    [({}, ""), ({"window": 4096}, ", only up to 4,096 tokens")],
)
def test_the_cache_in_words(attention: dict[str, Any], end: str) -> None:
    found = spec(decoder={"self_attn": attention})
    text = summary_text(summary_data(found))
    assert f"  kv cache    1.0 kB float32, 512 B bfloat16 per token{end}\n  options" in text


def test_the_cache_in_words_where_layers_differ() -> None:
    rules = [{"at": [0, 1], "self_attn": {"window": 8}}, {"at": [2], "self_attn": {"chunk": 4}}]
    found = spec(decoder={"layers": rules})
    text = [line.strip() for line in summary_text(summary_data(found)).splitlines()]
    first = next(n for n, line in enumerate(text) if line.startswith("kv cache"))
    assert text[first : first + 3] == [
        "kv cache    1.0 kB float32, 512 B bfloat16 per token",
        "256 B float32, 128 B bfloat16 of it only up to 4 tokens",
        "512 B float32, 256 B bfloat16 of it only up to 8 tokens",
    ]


def test_an_encoder_keeps_nothing() -> None:
    found = spec(builder="encoder", encoder={"self_attn": {"window": 8, "window_sides": "both"}})
    assert summary_data(found)["kv_cache_of_last_tokens"] == []


def test_a_head_that_gathers_by_attention_keeps_nothing() -> None:
    found = spec(builder="encoder", head="attention_pooling")
    assert found.summary()["kv_cache_bytes_per_source_token"] == {"float32": 0, "bfloat16": 0}


@pytest.mark.parametrize("sharing", [True, [0, 1, 0, 0]])
def test_layers_with_the_same_weights_keep_a_cache_each(sharing: Any) -> None:
    shared, alone = spec(decoder={"share_layers": sharing}), spec()
    assert shared.layout.n_parameters < alone.layout.n_parameters
    assert shared.layout.cache_per_token == alone.layout.cache_per_token
