"""The operations of a forward pass, `zoo show --flops`, against closed forms."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from processors import taken_for
from small_specs import TINY_IMAGE_TEXT, TINY_SOUND_TEXT
from torch.utils.flop_counter import FlopCounterMode
from trials import Refused

import zoo
from zoo.cli import run
from zoo.machine.prepacking import WIDTH as BAG
from zoo.reports.flops import flops_text, human_flops

T = 24
D, HEADS, KV_HEADS, WIDTH, D_FF, V = 64, 4, 2, 16, 96, 50

DECODER = {
    "format": 1,
    "name": "small",
    "builder": "decoder",
    "vocab": V,
    "n_layers": 3,
    "d_model": D,
    "n_heads": HEADS,
    "n_kv_heads": KV_HEADS,
    "d_ff": D_FF,
    "position": "rotary",
    "ffn": "glu",
}
PAIR: dict[str, Any] = {
    "format": 1,
    "name": "pair",
    "builder": "encoder_decoder",
    "source_vocab": V,
    "target_vocab": V,
    "n_layers": 2,
    "d_model": D,
    "n_heads": HEADS,
    "d_ff": D_FF,
}
ATTENTION = 2 * T * D * (2 * HEADS + 2 * KV_HEADS) * WIDTH + 2 * 2 * T * T * HEADS * WIDTH
"""q and o, k and v; the scores, and the weighted sums of values."""
GLU = 2 * T * 3 * D * D_FF
HEAD = 2 * T * D * V


def counted(**changes: Any) -> dict[str, Any]:
    return zoo.flops(zoo.read_spec(DECODER | changes), T)


def test_a_decoder_costs_what_its_products_do() -> None:
    found = counted()
    assert found["forward"] == 3 * (ATTENTION + GLU) + HEAD
    assert found["per_token"] == round(found["forward"] / T)
    decoder, head = found["parts"]
    assert (decoder["name"], head["name"], head["flops"]) == ("decoder", "head", HEAD)
    (layers,) = decoder["parts"]
    assert layers["layers"] == 3
    assert {part["name"]: part["flops"] for part in layers["parts"]} == {
        "self_attn": 3 * ATTENTION,
        "ffn": 3 * GLU,
    }


def test_a_cross_attention_reads_the_source() -> None:
    attention = 2 * T * 4 * D * D + 2 * 2 * T * T * D
    ffn = 2 * T * 2 * D * D_FF
    found = zoo.flops(zoo.read_spec(PAIR), T)
    assert found["forward"] == 2 * (attention + ffn) + 2 * (2 * attention + ffn) + HEAD


def test_experts_that_are_not_chosen_cost_nothing() -> None:
    moe = {"kind": "moe", "n_experts": 8, "top_k": 2, "expert": "glu"}
    router = 2 * T * D * 8
    assert counted(ffn=moe)["forward"] == 3 * (ATTENTION + router + 2 * GLU) + HEAD


def test_threads_count_one_after_the_other() -> None:
    """As in a sweep over sizes."""
    specs = [zoo.read_spec(DECODER | {"d_ff": width}) for width in (32, 64, 96, 128)] * 4
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda spec: zoo.flops(spec, T), specs))
    assert found == [zoo.flops(spec, T) for spec in specs]


def test_a_layer_costs_as_often_as_it_runs() -> None:
    found = counted(decoder={"share_layers": [0, 0, 0]})
    assert found["forward"] == counted()["forward"]
    assert found["parts"][0]["parts"][0]["layers"] == 1


@pytest.mark.parametrize("intel", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("moe", [False, True])
def test_torchs_own_counter_sees_the_same_in_a_model_that_runs(
    moe: bool, packed: bool, intel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Including the products that oneDNN computes, or MKL packed, which torch does not count."""
    taken_for(monkeypatch, intel=intel)
    ffn = {"kind": "moe", "n_experts": 4, "top_k": 2, "expert": "glu"} if moe else "glu"
    model = zoo.build(DECODER | {"d_model": 256, "vocab": 300, "d_ff": 512, "ffn": ffn}).eval()
    if packed:
        zoo.arrange_weights(model, rows=T)
    assert as_torch_counts(model, T) == zoo.flops(model.spec, T)["forward"]


def test_torchs_own_counter_sees_bags(monkeypatch: pytest.MonkeyPatch) -> None:
    """These compute the products of a single row; here no bag is padded or adds a bias."""
    monkeypatch.setattr("zoo.linear.LARGE", 1)
    taken_for(monkeypatch, intel=False)
    sizes = {"d_model": 4 * BAG, "vocab": 6 * BAG, "d_ff": 8 * BAG}
    plain = {
        "attention": {"kind": "multi_head", "bias": False},
        "ffn": {"kind": "glu", "bias": False},
    }
    model = zoo.build(DECODER | sizes | plain).eval()
    zoo.arrange_weights(model, rows=1)
    assert as_torch_counts(model, 1) == zoo.flops(model.spec, 1)["forward"]


def test_torchs_own_counter_knows_other_bags() -> None:
    """A plain sum has no multiplications."""
    bags, counter = torch.nn.EmbeddingBag(7, 5, mode="sum"), FlopCounterMode(display=False)
    with torch.inference_mode(), counter:
        bags(torch.tensor([[1, 2, 3]]))
    assert counter.get_total_flops() == 0


def as_torch_counts(model: zoo.Transformer, length: int) -> int:
    counter = FlopCounterMode(display=False)
    with torch.inference_mode(), zoo.attention_backend("math"), counter:
        model(torch.zeros(1, length, dtype=torch.long))
    return counter.get_total_flops()


SIDE, PATCH, CHANNELS, CLASSES = 12, 3, 2, 7
IMAGES = {
    "format": 1,
    "name": "images",
    "builder": "encoder",
    "n_layers": 3,
    "d_model": D,
    "n_heads": HEADS,
    "d_ff": D_FF,
    "encoder": {
        "embedding": {
            "kind": "patches",
            "image_size": SIDE,
            "patch_size": PATCH,
            "channels": CHANNELS,
            "n_registers": 2,
        },
        "position": {"kind": "learned", "max_length": 17},
    },
    "head": {"kind": "classifier", "n_classes": CLASSES, "dense": "none"},
}
N_PATCHES = (SIDE // PATCH) ** 2
N_VECTORS = 1 + 2 + N_PATCHES
"""The class token, two registers, the patches."""
EYES = 2 * N_PATCHES * CHANNELS * PATCH**2 * D + 3 * (
    2 * N_VECTORS * (4 * D * D + 2 * D * D_FF) + 2 * 2 * N_VECTORS**2 * D
)


@pytest.mark.parametrize("n_images", [1, 3])
def test_a_model_of_images_is_counted_by_its_images(n_images: int) -> None:
    found = zoo.flops(IMAGES, n_images)
    one = EYES + 2 * D * CLASSES
    assert (found["images"], found["length"]) == (n_images, None)
    assert (found["forward"], found["per_image"]) == (n_images * one, one)
    assert found["per_token"] is None
    encoder, head = found["parts"]
    assert [part["name"] for part in encoder["parts"]] == ["embed", "layers"]
    assert head["flops"] == n_images * 2 * D * CLASSES

    model = zoo.build(IMAGES).eval()
    counter = FlopCounterMode(display=False)
    with torch.inference_mode(), zoo.attention_backend("math"), counter:
        model(torch.rand(n_images, CHANNELS, SIDE, SIDE))
    assert counter.get_total_flops() == found["forward"]


def test_a_model_that_describes_images_reads_one() -> None:
    captions = {key: value for key, value in IMAGES.items() if key != "head"}
    captions |= {"builder": "encoder_decoder", "target_vocab": V, "name": "captions"}
    found = zoo.flops(captions, T)
    layer = 2 * T * (8 * D * D + 2 * D * D_FF) - 2 * T * 2 * D * D + 2 * N_VECTORS * 2 * D * D
    scores = 2 * 2 * T * (T + N_VECTORS) * D
    assert found["forward"] == EYES + 3 * (layer + scores) + HEAD
    assert (found["images"], found["length"]) == (1, T)
    assert found["per_token"] is found["per_image"] is None


@pytest.mark.parametrize(
    ("medium", "spec"), [("image", TINY_IMAGE_TEXT), ("sound", TINY_SOUND_TEXT)]
)
def test_a_text_is_counted_without_what_may_stand_in_it(medium: str, spec: dict[str, Any]) -> None:
    found = zoo.flops(spec, 16)
    decoder = {**spec, **spec["decoder"], "builder": "decoder"}
    for key in (medium, f"{medium}_id", "decoder"):
        del decoder[key]
    decoder.pop("projector", None)
    alone = zoo.flops(decoder, 16)
    assert (found[f"{medium}s"], found["per_token"]) == (0, alone["per_token"])
    assert found["forward"] == alone["forward"]
    head = f"{medium}-text  16 tokens"
    assert flops_text(found).splitlines()[0] == f"{head}, without {medium}s"
    assert flops_text(alone).splitlines()[0] == head


def test_a_learned_query_is_a_token_that_attends() -> None:
    head = {"kind": "attention_pooling", "n_heads": HEADS, "d_ff": D_FF}
    found = counted(builder="encoder", head=head)
    projected = 2 * 2 * D * D + 2 * T * 2 * D * D  # the query's and the output's; keys' and values'
    assert found["parts"][1]["flops"] == projected + 2 * 2 * T * D + 2 * 2 * D * D_FF


def test_a_call_with_something_else_is_refused() -> None:
    spec = {key: value for key, value in IMAGES.items() if key not in ("head", "encoder")}
    spec |= {"builder": "encoder_decoder", "target_vocab": V, "name": "describing"}
    spec |= {"position": "none", "embedding": IMAGES["encoder"]["embedding"]}
    told = "describing is called with `target` too, which its builder does not state"
    with pytest.raises(zoo.InputError, match=told):
        zoo.flops(spec, T)


def test_the_command_for_images(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "vit-base", "--flops", "2"]) == 0
    shown = capsys.readouterr().out.splitlines()
    tokens, d = 197, 768
    one = 2 * 196 * d * d + 12 * (24 * tokens * d * d + 4 * tokens**2 * d) + 2 * d * 1000
    assert shown[:3] == [
        "vit-base  2 images",
        f"  forward    {2 * one / 1e9:.1f} GFLOP",
        f"  per image  {one / 1e9:.1f} GFLOP",
    ]


@pytest.mark.parametrize("size", [0, -1, 2.0, True])
def test_a_size_is_a_number(size: Any) -> None:
    with pytest.raises(zoo.InputError, match="`size` is an integer of at least 1, not"):
        zoo.flops(DECODER, size)


def test_the_command(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "gpt2", "--flops", "1024"]) == 0
    shown = capsys.readouterr().out
    d, length, layers = 768, 1024, 12
    attention = 2 * length * 4 * d * d + 4 * length * length * d
    head = 2 * length * d * 50257
    total = layers * (attention + 2 * length * 8 * d * d) + head
    assert f"forward    {total / 1e9:.1f} GFLOP\n" in shown
    assert f"per token  {total / length / 1e6:.1f} MFLOP\n" in shown
    last = f"└─ head {head / 1e9:.1f} GFLOP {head / total:.0%}"
    assert shown.splitlines()[-1].split() == last.split()
    assert run(["show", "gpt2", "--flops", "1024", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["forward"] == total


FIGURES = {
    0: "0 FLOP",
    999: "999 FLOP",
    1000: "1.0 kFLOP",
    999_960: "1.0 MFLOP",
    10**19: "10000.0 PFLOP",
}


@pytest.mark.parametrize(("n", "told"), FIGURES.items())
def test_figures_for_people(n: int, told: str) -> None:
    assert human_flops(n) == told


def test_what_cannot_be_counted_is_told(project: Path, refused: Refused) -> None:
    assert "gpt2 has 1,024 positions" in refused("show", "gpt2", "--flops", "1025")
    (project / "blocks.toml").write_text(
        'format = 1\nname = "blocks"\nbuilder = "encoder"\nn_layers = 1\nd_model = 8\nn_heads = 2\n'
        'd_ff = 8\nembedding = "vectors"\nhead = "none"\n'
    )
    assert "blocks is called with neither ids nor images" in refused(
        "show", "blocks.toml", "--flops", "4"
    )


@pytest.mark.parametrize("lengths", [(7, 9), (9, 7)])
def test_the_shorter_of_two_sides_is_the_longest_that_can_be_counted(
    lengths: tuple[int, int],
) -> None:
    sides = zip(("encoder", "decoder"), lengths, strict=True)
    spec = PAIR | {side: {"position": {"kind": "learned", "max_length": n}} for side, n in sides}
    assert zoo.flops(spec, 7)["length"] == 7
    with pytest.raises(zoo.InputError, match="pair has 7 positions, which are fewer than 8"):
        zoo.flops(spec, 8)


def test_a_component_that_needs_values_is_named_with_its_line(
    project: Path, refused: Refused
) -> None:
    assert run(["init"]) == 0
    assert run(["plugin", "new", "ffn", "reads_values"]) == 0
    plugin = project / "plugins" / "reads_values.py"
    line = "output: torch.Tensor = self.down_proj(self.up_proj(x).relu())"
    text = plugin.read_text()
    assert line in text
    plugin.write_text(text.replace(line, f"x = x * float(x.max())\n            {line}"))
    (project / "values.toml").write_text(
        'format = 1\nname = "values"\nbuilder = "decoder"\nvocab = 9\nn_layers = 1\nd_model = 8\n'
        'n_heads = 2\nd_ff = 8\nffn = "reads_values"\n'
    )
    told = refused("show", "values.toml", "--flops", "4")
    assert "a call on the meta device, which has no values, failed: " in told
    assert "reads_values.py:" in told
    assert "x = x * float(x.max())" in told


@pytest.mark.parametrize(
    "embedding",
    [
        "vectors",
        {"kind": "conv_frontend", "n_features": 4},
        {"kind": "patches", "image_size": 4, "patch_size": 2},
    ],
    ids=str,
)
def test_a_model_of_vectors_reads_no_ids_whatever_its_vocabulary(embedding: Any) -> None:
    """As when a spec inherits its vocabulary from another by `extends`, or has it for its head."""
    spec = DECODER | {"embedding": embedding}
    assert zoo.read_spec(DECODER).model.reading is not None
    assert zoo.read_spec(spec).model.reading is None
    assert zoo.read_spec(spec).model.generation is None
    assert zoo.read_spec(spec).model.task is None
