"""The content of the drawing of a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from drawings import SMALL, SVG, Drawing, check_geometry, drawn, of_example, within
from small_specs import EXAMPLES, TINY_IMAGE_TEXT, TINY_SOUND_TEXT

import zoo
from zoo.drawing import to_svg
from zoo.drawing.components import short_number
from zoo.slots import SLOTS

PLACEMENTS = {
    "pre": ["norm", "f", "sum"],
    "post": ["f", "add & norm"],
    "sandwich": ["norm", "f", "norm", "sum"],
    "post_branch": ["f", "norm", "sum"],
}


def _components(data: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every component of a resolved spec with its place, from the plain data."""
    for key, value in data.items():
        inside = f"{path}.{key}" if path else key
        tables = value if isinstance(value, list) else [value]
        for index, table in enumerate(tables):
            if isinstance(table, Mapping):
                where = f"{inside}.{index}" if isinstance(value, list) else inside
                yield where, table
                yield from _components(table, where)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_component_in_use_is_shown_with_its_kind(path: Path) -> None:
    spec, drawing = of_example(path)
    parts = {part.attrib["data-path"]: part for part in drawing.parts}
    tables = dict(_components(spec.to_dict()))
    for where, table in tables.items():
        kind, owner, name = table.get("kind"), *where.rpartition(".")[::2]
        around = tables.get(owner, {})
        unused = name == "norm" and (around.get("norms") == [] or around.get("final_norm") is False)
        inside_rule = re.search(r"layers\.\d+\.position$", where)
        if kind in (None, "none") or unused or (inside_rule and where not in parts):
            continue
        if name == "init":
            assert any(f"init {kind}" in text for text in drawing.texts)
        else:
            shown = ["".join(t.itertext()) for t in parts[where].iter(f"{SVG}text")]
            assert any(re.search(rf"\b{kind}\b", text) for text in shown), where
    assert spec.name in drawing.texts
    assert any(short_number(spec.n_parameters) in text for text in drawing.texts)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_layer_is_counted_once(path: Path) -> None:
    spec, drawing = of_example(path)
    times = sum(int(t.removesuffix(" ×")) for t in drawing.texts if re.fullmatch(r"\d+ ×", t))
    stacks = [t for _, t in _components(spec.to_dict()) if "block" in t and "n_layers" in t]
    assert times == sum(stack["n_layers"] for stack in stacks)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_branch_has_its_way_past_it(path: Path) -> None:
    spec, drawing = of_example(path)
    tables = dict(_components(spec.to_dict()))
    expected = 0
    for frame in (rect for rect in drawing.rects if rect.role == "block"):
        block = tables[frame.path]
        branches = sum(isinstance(v, Mapping) and "norms" in v for v in block.values())
        expected += 1 if block.get("arrangement") == "parallel" else branches
    assert len(drawing.lines("residual")) == expected > 0


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_norms_stand_where_the_placement_has_them(placement: str) -> None:
    drawing = drawn(f'{SMALL}\nnorm_placement = "{placement}"')
    (frame,) = (rect for rect in drawing.rects if rect.role == "block")
    assert drawing.order(frame) == PLACEMENTS[placement] * 2


@pytest.mark.parametrize(
    ("norms", "order"),
    [
        ("[]", ["f", "sum"]),
        ('["pre", "out"]', ["norm", "f", "add & norm"]),
        ('["pre", "post", "out"]', ["norm", "f", "norm", "add & norm"]),
    ],
)
def test_norms_stated_for_one_sublayer(norms: str, order: list[str]) -> None:
    drawing = drawn(f"{SMALL}\nself_attn = {{ norms = {norms} }}\nffn = {{ norms = [] }}")
    (frame,) = (rect for rect in drawing.rects if rect.role == "block")
    assert drawing.order(frame) == [*order, "f", "sum"]


def test_parallel_branches_stand_side_by_side_over_one_norm_and_below_one_sum() -> None:
    drawing = drawn(f'{SMALL}\nnorm_placement = "parallel"\nffn = {{ norms = [] }}')
    (attention,) = drawing.boxes("decoder.block.self_attn")
    (ffn,) = drawing.boxes("decoder.block.ffn")
    (norm,) = drawing.boxes("decoder.block.self_attn.norm")
    (total,) = (c for c in drawing.sums() if within(c, drawing.frame()))
    assert attention.right < ffn.left
    assert norm.top >= max(attention.bottom, ffn.bottom)
    assert total.bottom <= min(attention.top, ffn.top)
    assert len(drawing.lines("residual")) == 1


def test_each_residual_path_starts_below_its_branch_and_ends_at_its_sum() -> None:
    drawing = drawn(SMALL)
    sums = [c for c in drawing.sums() if within(c, drawing.frame())]
    names = ("self_attn", "ffn")
    boxes = [drawing.boxes(f"decoder.block.{name}")[0] for name in names]
    for line, total, box in zip(
        sorted(drawing.lines("residual"), key=lambda line: -line[0][1]),
        sorted(sums, key=lambda rect: -rect.top),
        boxes,
        strict=True,
    ):
        assert line[0][1] > box.bottom
        assert all(x > box.right for x, _ in line[1:3])
        assert total.top < line[-1][1] < total.bottom
        assert line[-1][0] >= total.right
        assert total.bottom < box.top


def test_positions_are_added_after_the_embedding_or_work_in_self_attention() -> None:
    added = drawn(f'{SMALL}\nposition = "sinusoidal"')
    (position,) = added.boxes("decoder.position")
    (embedding,) = added.boxes("decoder.embedding")
    outside = [c for c in added.sums() if not within(c, added.frame())]
    assert len(outside) == 1
    assert outside[0].bottom <= embedding.top
    assert position.right < outside[0].left

    inside = drawn(f'{SMALL}\nposition = "rotary"')
    (position,) = inside.boxes("decoder.position")
    (attention,) = inside.boxes("decoder.block.self_attn")
    assert within(position, inside.frame())
    (line,) = inside.lines("position")
    assert line[0][0] == position.right
    assert attention.top < line[0][1] < attention.bottom
    assert not [c for c in inside.sums() if not within(c, inside.frame())]


def test_positions_of_given_vectors_are_drawn_once() -> None:
    vectors = SMALL.replace('"decoder"', '"encoder"').replace("vocab = 100", "").strip()
    learned = (
        'embedding = "vectors"\nposition = { kind = "learned", max_length = 9 }\nhead = "none"'
    )
    drawing = drawn(f"{vectors}\n{learned}")
    assert {part.attrib["data-role"] for part in drawing.parts} <= {*SLOTS, "cycle"}
    assert sum("288 parameters" in text for text in drawing.texts) == 1


@pytest.mark.parametrize(
    ("embedding", "after_sum"),
    [("{ kind = 'tokens', norm = 'layer_norm' }", True), ("'normed_tokens'", False)],
)
def test_the_norm_of_an_embedding_stands_after_or_before_the_sum(
    embedding: str, after_sum: bool
) -> None:
    drawing = drawn(f"{SMALL}\nposition = 'sinusoidal'\nembedding = {embedding}")
    (norm,) = drawing.boxes("decoder.embedding.norm")
    (box,) = drawing.boxes("decoder.embedding")
    (total,) = (c for c in drawing.sums() if not within(c, drawing.frame()))
    assert (norm.bottom <= total.top) == after_sum
    assert within(norm, box) == (not after_sum)


@pytest.mark.parametrize(("final", "boxes"), [("true", 1), ("false", 0)])
def test_a_final_norm_without_weights_is_drawn_when_it_is_there(final: str, boxes: int) -> None:
    norm = 'norm = { kind = "rms_norm", weight = false }'
    drawing = drawn(f"{SMALL}\n{norm}\n[decoder]\nfinal_norm = {final}")
    assert len(drawing.boxes("decoder.norm")) == boxes


def test_what_goes_in_is_named_below_each_stack() -> None:
    assert drawn(SMALL).texts.count("ids") == 1
    assert Drawing(to_svg(zoo.read_spec("vaswani-base"))).texts.count("ids") == 2
    texts = Drawing(to_svg(zoo.read_spec("reference-2"))).texts
    assert (texts.count("ids"), texts.count("vectors")) == (0, 2)  # the input, and the kind
    texts = Drawing(to_svg(zoo.read_spec("vit-base"))).texts
    assert (texts.count("ids"), texts.count("images")) == (0, 1)
    encoder = SMALL.replace('"decoder"', '"encoder"').replace("vocab = 100", "head = 'none'")
    for embedding, inputs in (
        ("'waveform_stem'", "sounds"),
        ("{ kind = 'projected_vectors', n_features = 8 }", "spectrograms"),
    ):
        assert drawn(f"{encoder}\nembedding = {embedding}").texts.count(inputs) == 1


def test_layers_say_whether_they_are_causal() -> None:
    assert drawn(SMALL).texts.count("causal") == 1
    assert drawn(SMALL.replace("decoder", "encoder")).texts.count("causal") == 0
    assert Drawing(to_svg(zoo.read_spec("vaswani-base"))).texts.count("causal") == 1


def test_memory_goes_from_the_top_of_the_encoder_to_each_cross_attention() -> None:
    drawing = Drawing(to_svg(zoo.read_spec("vaswani-base")))
    (line,) = drawing.lines("memory")
    encoder = drawing.boxes("encoder.block.ffn.norm")[-1]
    (cross,) = drawing.boxes("decoder.block.cross_attn")
    assert line[0][1] <= encoder.top
    assert encoder.left < line[0][0] < encoder.right
    assert cross.top < line[-1][1] < cross.bottom
    assert line[-1][0] <= cross.left
    assert encoder.right < cross.left


def test_memory_from_outside_comes_in_from_below() -> None:
    drawing = Drawing(to_svg(zoo.read_spec("reference-2")))
    (line,) = drawing.lines("memory")
    (cross,) = drawing.boxes("decoder.block.cross_attn")
    assert line[0][1] > drawing.boxes("decoder.embedding")[0].top
    assert cross.top < line[-1][1] < cross.bottom
    assert "memory" in drawing.texts


@pytest.mark.parametrize(
    ("spec", "entry"), [(TINY_IMAGE_TEXT, "images"), (TINY_SOUND_TEXT, "spectrograms")]
)
def test_what_stands_in_a_text_goes_from_its_map_to_the_embedding_of_tokens(
    spec: dict[str, Any], entry: str
) -> None:
    text = to_svg(zoo.read_spec(spec))
    check_geometry(text)
    drawing = Drawing(text)
    (line,) = drawing.lines("vectors")
    (projector,) = drawing.boxes("projector")
    (tokens,) = drawing.boxes("decoder.embedding")
    assert line[0][1] <= projector.top
    assert projector.left < line[0][0] < projector.right < tokens.left
    assert tokens.top < line[-1][1] < tokens.bottom
    assert line[-1][0] <= tokens.left
    assert drawing.texts.count("output") == 1  # that of the decoder
    assert drawing.texts.count(entry) == 1
    assert drawing.lines("states") == []


def test_states_of_inner_layers_go_through_their_map_to_inner_layers() -> None:
    deep = {
        **TINY_IMAGE_TEXT,
        "builder": "deepstack_image_text_decoder",
        "deep_layers": [0],
        "image": {"d_model": 12, "embedding": {"kind": "patch_vectors", "patch_size": 2}},
    }
    text = to_svg(zoo.read_spec(deep))
    check_geometry(text)
    drawing = Drawing(text)
    encoder, decoder = (rect for rect in drawing.rects if rect.role == "block")
    (deep_map,) = drawing.boxes("deep_projector")
    into, out = drawing.lines("states")
    assert any("of layers 0" in shown for shown in drawing.texts)
    assert (encoder.path, decoder.path) == ("image.block", "decoder.block")
    assert into[0][0] == encoder.right < deep_map.left
    assert deep_map.right == pytest.approx(out[0][0], abs=0.11)  # each is rounded to a tenth
    assert out[-1][0] <= decoder.left
    assert decoder.top < out[-1][1] < decoder.bottom
    assert len(drawing.lines("vectors")) == drawing.texts.count("output") == 1


def test_tied_parts_have_the_same_mark() -> None:
    tied = Drawing(to_svg(zoo.read_spec("vaswani-base")))
    assert tied.ties() == {"1": {"encoder.embedding", "decoder.embedding", "head"}}
    assert any("decoder.embed.tokens.weight" in text for text in tied.texts)
    assert Drawing(to_svg(zoo.read_spec("reference-0"))).ties() == {}


def test_the_hint_tells_the_place_and_the_values_that_are_no_defaults() -> None:
    drawing = drawn(f'{SMALL}\nffn = {{ kind = "mlp", activation = "silu", bias = true }}')
    (part,) = (p for p in drawing.parts if p.attrib["data-path"] == "decoder.block.ffn")
    hint = part.findtext(f"{SVG}title") or ""
    assert hint.split("\n") == [
        "decoder.block.ffn",
        'kind = "mlp"',
        'activation = "silu"',
        "d_ff = 64",
    ]
