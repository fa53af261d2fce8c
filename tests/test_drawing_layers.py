"""Layers in a drawing: equal ones folded, a repeated pattern once, exceptions apart."""

from __future__ import annotations

import re

import pytest
from drawings import SMALL, SVG, drawn, within
from hypothesis import given
from hypothesis import strategies as st

import zoo
from zoo.drawing.figure import Cycle, Layer, Run
from zoo.drawing.folding import MAX_FRAMES, fold


def test_a_repeated_pattern_is_folded_to_a_cycle() -> None:
    drawing = drawn(
        SMALL.replace("n_layers = 4", "n_layers = 14")
        + 'position = { kind = "rotary", base = 500.0 }\n'
        + "[[decoder.layers]]\nevery = 6\nposition = { base = 1e4 }\n"
    )
    assert [t for t in drawing.texts if t.endswith("×")] == ["5 ×", "1 ×", "2 ×", "2 ×"]
    frames = [rect for rect in drawing.rects if rect.role == "block"]
    (cycle,) = (rect for rect in drawing.rects if rect.role == "cycle")
    assert [within(frame, cycle) for frame in frames] == [True, True, False]
    bases = [text for text in drawing.texts if text.startswith("base")]
    assert bases == ["base 500.0", "base 10000.0", "base 500.0"]
    assert "layers 12-13" in drawing.texts


def test_layers_tell_what_their_block_says_of_itself() -> None:
    text = f"{SMALL}\nblock = {{ kind = 'hyper_connected', n_streams = 3 }}"
    assert "3 streams" in drawn(text).texts
    assert "hyper_connected, 3 streams" in str(zoo.read_spec(text))


def test_norms_inside_of_what_stands_between_streams_are_no_steps() -> None:
    """And what makes one state of the streams comes before the final norm."""
    text = f"{SMALL}\nblock = {{ kind = 'alternating_updates', laurel_rank = 2 }}"
    drawing = drawn(text)
    for name in ("router_norm", "laurel_norm"):
        assert not drawing.boxes(f"decoder.block.{name}")
    merge, norm = (drawing.boxes(f"decoder.{name}")[0] for name in ("merge", "norm"))
    assert norm.top < merge.top


def test_branches_are_drawn_in_the_order_in_which_they_run() -> None:
    text = SMALL.replace('"decoder"', '"encoder"') + "block = 'conformer'"
    boxes = {
        name: drawn(text).boxes(f"encoder.block.{name}")[0]
        for name in ("first_ffn", "self_attn", "conv", "ffn", "norm")
    }
    assert list(boxes) == sorted(boxes, key=lambda name: -boxes[name].top)


def test_what_guides_a_mixer_is_added_to_what_it_reads() -> None:
    """Its parts have no residual paths of their own, and positions stand at the attention alone."""
    text = f"{SMALL}\nposition = 'rotary'\nblock = {{ kind = 'guided_mixer', mixer = 'mamba2' }}"
    drawing = drawn(text)
    names = ("self_attn", "ffn", "out_proj", "mixer")
    boxes = [drawing.boxes(f"decoder.block.{name}")[0] for name in names]
    added, result = sorted(drawing.sums(), key=lambda rect: -rect.top)
    upwards = [*boxes[:3], added, boxes[3], result]
    assert upwards == sorted(upwards, key=lambda rect: -rect.top)
    ways = sorted(drawing.lines("residual"), key=lambda line: -line[-1][1])
    ends = [line[-1][1] for line in ways]
    assert all(t.top < y < t.bottom for t, y in zip((added, result), ends, strict=True))
    assert ways[0][0] == ways[1][0]
    assert ways[0][1][0] < ways[1][1][0]
    (positions,) = drawing.boxes("decoder.position")
    assert boxes[0].top < positions.bottom
    assert positions.top < boxes[0].bottom


def test_one_exception_has_a_frame_of_its_own() -> None:
    drawing = drawn(f"{SMALL}\n[[decoder.layers]]\nfirst = 1\nffn = 'glu'\n")
    frames = [rect.path for rect in drawing.rects if rect.role == "block"]
    assert frames == ["decoder.layers.0.block", "decoder.block"]
    assert [t for t in drawing.texts if t.endswith("×")] == ["1 ×", "3 ×"]
    assert {"layer 0", "layers 1-3"} <= set(drawing.texts)


def test_rules_for_all_layers_leave_none_of_the_plain_kind() -> None:
    drawing = drawn(f"{SMALL}\n[[decoder.layers]]\nfirst = 4\ndropout = 0.5\n")
    assert [r.path for r in drawing.rects if r.role == "block"] == ["decoder.layers.0.block"]
    assert [t for t in drawing.texts if t.endswith("×")] == ["4 ×"]
    assert not [text for text in drawing.texts if "dropout" in text]


def test_of_many_kinds_those_that_differ_only_in_numbers_have_one_frame() -> None:
    widths = "8, 16, 24, 32, 40, 48"
    text = SMALL.replace("n_layers = 4", "n_layers = 6").replace("d_ff = 64", "")
    windows = "5, 'none', 6, 'none', 7, 'none'"
    drawing = drawn(
        f"{text}\n[decoder]\nffn = {{ d_ff = {{ per_layer = [{widths}] }} }}\n"
        f"self_attn = {{ window = {{ per_layer = [{windows}] }} }}\n"
    )
    assert [t for t in drawing.texts if t.endswith("×")] == ["1 ×", "1 ×", "3 ×"]
    assert {"layers 0, 2, 4", "layers 1, 3, 5"} <= set(drawing.texts)
    said = " ".join(drawing.texts)
    assert "d_ff 8 … 40" in said
    assert "d_ff 16 … 48" in said
    assert "window 5 … 7" in said
    tips = [title.text for title in drawing.root.iter(f"{SVG}title")]
    assert any("d_ff = 8 … 40" in tip for tip in tips if tip)


def test_kinds_with_other_boxes_have_frames_of_their_own() -> None:
    text = SMALL.replace("n_layers = 4", "n_layers = 5").replace("d_ff = 64", "")
    drawing = drawn(
        f"{text}position = 'rotary'\n"
        "[decoder]\nffn = { d_ff = { per_layer = [8, 16, 24, 32, 40] } }\n"
        "[[decoder.layers]]\nat = [1]\nposition = 'none'\n"
    )
    assert [t for t in drawing.texts if t.endswith("×")] == ["1 ×", "1 ×", "3 ×"]


def test_a_few_kinds_have_frames_of_their_own() -> None:
    text = SMALL.replace("d_ff = 64", "")
    drawing = drawn(f"{text}\n[decoder]\nffn = {{ d_ff = {{ per_layer = [8, 16, 24, 32] }} }}\n")
    assert [t for t in drawing.texts if t.endswith("×")] == ["1 ×"] * 4


def test_what_an_absent_value_is_does_not_tell_layers_apart() -> None:
    """`window_sides` has a meaning only with a window."""
    drawing = drawn(f"{SMALL}\n[[decoder.layers]]\nevery = 2\nself_attn = {{ window = 16 }}\n")
    told = " ".join(drawing.texts)
    assert "window 16" in told
    assert "window none" in told
    assert "window_sides" not in told
    assert "null" not in told


def test_positions_that_are_added_stand_at_the_embedding_alone() -> None:
    drawing = drawn(f"{SMALL}\n[[decoder.layers]]\nfirst = 1\nffn = 'glu'\n")
    assert len(drawing.boxes("decoder.position")) == 1
    assert not drawing.boxes("decoder.layers.0.position")


def test_layers_that_share_their_weights_say_so() -> None:
    drawing = drawn(f"{SMALL}\ndecoder = {{ share_layers = true }}")
    assert [t for t in drawing.texts if t.endswith("×")] == ["4 ×"]
    assert "same weights" in " ".join(drawing.texts)


def test_layers_that_share_their_weights_in_sets_say_which() -> None:
    drawing = drawn(f"{SMALL}\ndecoder = {{ share_layers = [0, 1, 0, 0] }}")
    assert [t for t in drawing.texts if t.endswith("×")] == ["4 ×"]
    assert "same weights in layers 0,2-3" in " ".join(drawing.texts)


@pytest.mark.parametrize("n_sets", [4, 5])
def test_of_many_sets_of_shared_weights_the_first_are_told(n_sets: int) -> None:
    numbers = [n // 2 for n in range(2 * n_sets)] + [n_sets]  # the last layer shares nothing
    spec = SMALL.replace("n_layers = 4", f"n_layers = {len(numbers)}")
    told = " ".join(drawn(f"{spec}\ndecoder = {{ share_layers = {numbers} }}").texts)
    (sets,) = re.findall(r"same weights in layers ([-0-9;. ]+[-0-9.])", told)
    assert sets == ("0-1; 2-3; 4-5; 6-7" if n_sets == 4 else "0-1; 2-3; 4-5; 6-7; ...")


def test_rules_and_shared_weights_in_one_stack() -> None:
    rule = "[[decoder.layers]]\nlast = 2\nd_ff = 9\n"
    drawing = drawn(f"{SMALL}\n[decoder]\nshare_layers = [0, 0, 1, 1]\n{rule}")
    assert [t for t in drawing.texts if t.endswith("×")] == ["2 ×", "2 ×"]
    assert "same weights in layers 0-1; 2-3" in " ".join(drawing.texts)


def _unfolded(parts: tuple[Run | Cycle, ...]) -> list[str]:
    layers: list[str] = []
    for part in parts:
        if isinstance(part, Cycle):
            layers += _unfolded(part.runs) * part.times
        else:
            layers += [part.layer.path] * part.times
    return layers


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_folded_layers_unfold_to_the_same_layers(kinds: list[int]) -> None:
    layers = [Layer(str(kind), "", ()) for kind in range(3)]
    parts = fold(kinds, layers)
    frames = sum(len(part.runs) if isinstance(part, Cycle) else 1 for part in parts)
    assert frames <= MAX_FRAMES
    unfolded = _unfolded(parts)
    in_order = [str(kind) for kind in kinds]
    # With too many frames, each kind is drawn once, and only the numbers show the order.
    assert unfolded in (in_order, sorted(in_order))


@given(
    st.lists(st.sampled_from("abc"), min_size=2, max_size=3, unique=True),
    st.lists(st.integers(1, 4), min_size=3, max_size=3),
    st.integers(2, 10),
)
def test_what_repeats_is_one_cycle(pattern: list[str], lengths: list[int], times: int) -> None:
    once = [kind for kind, length in zip(pattern, lengths, strict=False) for _ in range(length)]
    parts = fold(["abc".index(kind) for kind in once * times], [Layer(k, "", ()) for k in "abc"])
    assert len(parts) == 1
    assert isinstance(parts[0], Cycle)
    assert parts[0].times == times
    assert _unfolded(parts) == once * times
