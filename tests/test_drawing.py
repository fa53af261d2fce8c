"""The drawing of a model: what it shows, where it stands, and that it is always the same."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zoo
from zoo.cli import run
from zoo.drawing import to_svg
from zoo.drawing.components import cut, short_number
from zoo.drawing.figure import Box, Branch, Column, Cycle, Figure, Layer, Run, Tie
from zoo.drawing.folding import MAX_FRAMES, fold
from zoo.drawing.page import draw

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").rglob("*.toml"))
SVG = "{http://www.w3.org/2000/svg}"

PLACEMENTS = {
    "pre": ["norm", "f", "sum"],
    "post": ["f", "add & norm"],
    "sandwich": ["norm", "f", "norm", "sum"],
    "post_branch": ["f", "norm", "sum"],
}
SMALL = """
format = 1
name = "small"
builder = "decoder"
vocab = 100
n_layers = 4
d_model = 32
n_heads = 4
d_ff = 64
"""


class Rect(NamedTuple):
    """A rectangle of an SVG, its y downwards, with the path and role of its component."""

    left: float
    top: float
    right: float
    bottom: float
    path: str
    role: str


class Drawing:
    """An SVG, read by an XML parser."""

    def __init__(self, text: str) -> None:
        self.root = ET.fromstring(text)
        self.parts = [g for g in self.root.iter(f"{SVG}g") if "data-path" in g.attrib]
        self.rects = [
            _rect(g.find(f"{SVG}rect"), g.attrib["data-path"], g.attrib["data-role"])
            for g in self.parts
        ]
        self.texts = ["".join(text.itertext()) for text in self.root.iter(f"{SVG}text")]

    def boxes(self, path: str) -> list[Rect]:
        return [rect for rect in self.rects if rect.path == path and rect.role != "block"]

    def lines(self, role: str | None = None) -> list[list[tuple[float, float]]]:
        paths = [p for p in self.root.iter(f"{SVG}path") if "data-line" in p.attrib]
        return [
            [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", p.attrib["d"])]
            for p in paths
            if role in (None, p.attrib["data-line"])
        ]

    def sums(self) -> list[Rect]:
        found = [c for c in self.root.iter(f"{SVG}circle") if "data-sum" in c.attrib]
        return [_circle(c) for c in found]

    def ties(self) -> dict[str, set[str]]:
        """The components that are marked with each tie."""
        marked: dict[str, set[str]] = {}
        for part in self.parts:
            for circle in part.findall(f"{SVG}circle"):
                marked.setdefault(circle.attrib["data-tie"], set()).add(part.attrib["data-path"])
        return marked

    def order(self, frame: Rect) -> list[str]:
        """What stands on the middle line of a frame, from the bottom up: norm, f or sum."""
        inside = [r for r in self.rects if _within(r, frame) and r.role not in ("block", "position")]
        alone = [r for r in inside if not any(_within(r, o) for o in inside if o is not r)]
        shown = [(r.bottom, self._name(r)) for r in alone]
        shown += [(r.bottom, "sum") for r in self.sums() if _within(r, frame)]
        return [name for _, name in sorted(shown, reverse=True)]

    def _name(self, rect: Rect) -> str:
        part = self.parts[self.rects.index(rect)]
        title = part.findtext(f"{SVG}text") or ""
        return "f" if rect.role != "norm" else "add & norm" if title.startswith("add &") else "norm"


def _rect(element: ET.Element | None, path: str, role: str) -> Rect:
    assert element is not None, path
    x, y, width, height = (float(element.attrib[k]) for k in ("x", "y", "width", "height"))
    return Rect(x, y, x + width, y + height, path, role)


def _circle(element: ET.Element) -> Rect:
    x, y, r = (float(element.attrib[key]) for key in ("cx", "cy", "r"))
    return Rect(x - r, y - r, x + r, y + r, "", "sum")


def _within(inner: Rect, outer: Rect) -> bool:
    return (
        outer.left <= inner.left
        and outer.top <= inner.top
        and inner.right <= outer.right
        and inner.bottom <= outer.bottom
    )


def _apart(a: Rect, b: Rect) -> bool:
    return a.right <= b.left or b.right <= a.left or a.bottom <= b.top or b.bottom <= a.top


def _drawn(text: str) -> Drawing:
    return Drawing(to_svg(zoo.read_spec(text)))


def _components(data: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every component of a resolved spec with its place, from the plain data."""
    for key, value in data.items():
        inside = f"{path}.{key}" if path else key
        tables = value if isinstance(value, list) else [value]
        for index, table in enumerate(tables):
            if isinstance(table, Mapping):
                where = f"{inside}.{index}" if isinstance(value, list) else inside
                yield where, table
                yield from _components(table, where)


# --- what it shows ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_component_in_use_is_shown_with_its_kind(path: Path) -> None:
    spec = zoo.read_spec(path)
    drawing = Drawing(to_svg(spec))
    parts = {part.attrib["data-path"]: part for part in drawing.parts}
    tables = dict(_components(spec.to_dict()))
    for where, table in tables.items():
        kind, owner, name = table.get("kind"), *where.rpartition(".")[::2]
        around = tables.get(owner, {})
        unused = name == "norm" and (
            around.get("norms") == [] or around.get("final_norm") is False
        )
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
    spec = zoo.read_spec(path)
    drawing = Drawing(to_svg(spec))
    times = sum(int(t.removesuffix(" ×")) for t in drawing.texts if re.fullmatch(r"\d+ ×", t))
    stacks = [t for _, t in _components(spec.to_dict()) if "n_layers" in t]
    assert times == sum(stack["n_layers"] for stack in stacks)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_branch_has_its_way_past_it(path: Path) -> None:
    drawing = Drawing(to_svg(zoo.read_spec(path)))
    tables = dict(_components(zoo.read_spec(path).to_dict()))
    expected = 0
    for frame in (rect for rect in drawing.rects if rect.role == "block"):
        block = tables[frame.path]
        branches = sum(isinstance(v, Mapping) and "norms" in v for v in block.values())
        expected += 1 if block.get("arrangement") == "parallel" else branches
    assert len(drawing.lines("residual")) == expected > 0


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_norms_stand_where_the_placement_has_them(placement: str) -> None:
    drawing = _drawn(f'{SMALL}\nnorm_placement = "{placement}"')
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
    drawing = _drawn(f"{SMALL}\nself_attn = {{ norms = {norms} }}\nffn = {{ norms = [] }}")
    (frame,) = (rect for rect in drawing.rects if rect.role == "block")
    assert drawing.order(frame) == [*order, "f", "sum"]


def test_parallel_branches_stand_side_by_side_over_one_norm_and_below_one_sum() -> None:
    drawing = _drawn(f'{SMALL}\nnorm_placement = "parallel"\nffn = {{ norms = [] }}')
    (attention,) = drawing.boxes("decoder.block.self_attn")
    (ffn,) = drawing.boxes("decoder.block.ffn")
    (norm,) = drawing.boxes("decoder.block.self_attn.norm")
    (total,) = (c for c in drawing.sums() if _within(c, _frame(drawing)))
    assert attention.right < ffn.left
    assert norm.top >= max(attention.bottom, ffn.bottom)
    assert total.bottom <= min(attention.top, ffn.top)
    assert len(drawing.lines("residual")) == 1


def _frame(drawing: Drawing) -> Rect:
    return next(rect for rect in drawing.rects if rect.role == "block")


def test_each_residual_path_starts_below_its_branch_and_ends_at_its_sum() -> None:
    drawing = _drawn(SMALL)
    sums = [c for c in drawing.sums() if _within(c, _frame(drawing))]
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
    added = _drawn(f'{SMALL}\nposition = "sinusoidal"')
    (position,) = added.boxes("decoder.position")
    (embedding,) = added.boxes("decoder.embedding")
    outside = [c for c in added.sums() if not _within(c, _frame(added))]
    assert len(outside) == 1
    assert outside[0].bottom <= embedding.top
    assert position.right < outside[0].left

    inside = _drawn(f'{SMALL}\nposition = "rotary"')
    (position,) = inside.boxes("decoder.position")
    (attention,) = inside.boxes("decoder.block.self_attn")
    assert _within(position, _frame(inside))
    (line,) = inside.lines("position")
    assert line[0][0] == position.right
    assert attention.top < line[0][1] < attention.bottom
    assert not [c for c in inside.sums() if not _within(c, _frame(inside))]


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


def test_tied_parts_have_the_same_mark() -> None:
    tied = Drawing(to_svg(zoo.read_spec("vaswani-base")))
    assert tied.ties() == {"1": {"encoder.embedding", "decoder.embedding", "head"}}
    assert any("decoder.embed.tokens.weight" in text for text in tied.texts)
    assert Drawing(to_svg(zoo.read_spec("reference-0"))).ties() == {}


def test_the_hint_tells_the_place_and_the_values_that_are_no_defaults() -> None:
    drawing = _drawn(f'{SMALL}\nffn = {{ kind = "mlp", activation = "silu", bias = true }}')
    (part,) = (p for p in drawing.parts if p.attrib["data-path"] == "decoder.block.ffn")
    hint = part.findtext(f"{SVG}title") or ""
    assert hint.split("\n") == [
        "decoder.block.ffn",
        'kind = "mlp"',
        'activation = "silu"',
        "d_ff = 64",
    ]


# --- layers that differ -------------------------------------------------------------------------


def test_a_repeated_pattern_is_folded_to_a_cycle() -> None:
    drawing = _drawn(
        SMALL.replace("n_layers = 4", "n_layers = 14")
        + 'position = { kind = "rotary", base = 500.0 }\n'
        + "[[decoder.layers]]\nevery = 6\nposition = { base = 1e4 }\n"
    )
    assert [t for t in drawing.texts if t.endswith("×")] == ["5 ×", "1 ×", "2 ×", "2 ×"]
    frames = [rect for rect in drawing.rects if rect.role == "block"]
    (cycle,) = (rect for rect in drawing.rects if rect.role == "cycle")
    assert [_within(frame, cycle) for frame in frames] == [True, True, False]
    bases = [text for text in drawing.texts if text.startswith("base")]
    assert bases == ["base 500.0", "base 10000.0", "base 500.0"]
    assert "layers 12-13" in drawing.texts


def test_one_exception_has_a_frame_of_its_own() -> None:
    drawing = _drawn(f"{SMALL}\n[[decoder.layers]]\nfirst = 1\nffn = 'glu'\n")
    frames = [rect.path for rect in drawing.rects if rect.role == "block"]
    assert frames == ["decoder.layers.0.block", "decoder.block"]
    assert [t for t in drawing.texts if t.endswith("×")] == ["1 ×", "3 ×"]
    assert {"layer 0", "layers 1-3"} <= set(drawing.texts)


def test_layers_that_share_their_weights_say_so() -> None:
    drawing = _drawn(f"{SMALL}\ndecoder = {{ share_layers = true }}")
    assert [t for t in drawing.texts if t.endswith("×")] == ["4 ×"]
    assert "same weights" in " ".join(drawing.texts)


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
    # With too many frames each kind is drawn once, and only the numbers tell the order.
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


# --- where it stands ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_nothing_overlaps(path: Path) -> None:
    check_geometry(to_svg(zoo.read_spec(path)))


@pytest.mark.parametrize("placement", [*PLACEMENTS, "parallel"])
@pytest.mark.parametrize("position", ["sinusoidal", "rotary", "t5_buckets", "none"])
def test_nothing_overlaps_in_any_arrangement(placement: str, position: str) -> None:
    stack = f'norm_placement = "{placement}"\nposition = "{position}"\n'
    check_geometry(to_svg(zoo.read_spec(f"{SMALL}\n{stack}")))


def check_geometry(text: str) -> None:
    """Boxes are apart or one inside the other, no line runs through a box, text fits its box, and
    everything is on the page."""
    drawing = Drawing(text)
    page = _page(drawing)
    for a, b in combinations(drawing.rects, 2):
        assert _apart(a, b) or _within(a, b) or _within(b, a), (a, b)
    for a, b in combinations(drawing.sums(), 2):
        assert _apart(a, b), (a, b)
    solid = [rect for rect in drawing.rects if rect.role not in ("block", "cycle")]
    for line in drawing.lines():
        for start, end in pairwise(line):
            assert start[0] == end[0] or start[1] == end[1], line
            for rect in solid:
                assert not _runs_through(start, end, rect), (line, rect)
    for rect in [*drawing.rects, *drawing.sums()]:
        assert _within(rect, page), rect
    for part, rect in zip(drawing.parts, drawing.rects, strict=True):
        for label in part.findall(f"{SVG}text"):
            _check_label(label, rect)


def _page(drawing: Drawing) -> Rect:
    width, height = (float(drawing.root.attrib[key]) for key in ("width", "height"))
    return Rect(0, 0, width, height, "", "page")


def _runs_through(start: tuple[float, float], end: tuple[float, float], rect: Rect) -> bool:
    left, right = sorted((start[0], end[0]))
    top, bottom = sorted((start[1], end[1]))
    inner = 0.6  # coordinates are rounded to a tenth
    return (
        left < rect.right - inner
        and right > rect.left + inner
        and top < rect.bottom - inner
        and bottom > rect.top + inner
    )


def _check_label(label: ET.Element, rect: Rect) -> None:
    # 0.6 em is more than the mean width of Latin letters in any common sans-serif.
    width = 0.56 * float(label.attrib["font-size"]) * len("".join(label.itertext()))
    x, y = float(label.attrib["x"]), float(label.attrib["y"])
    left = {"middle": x - width / 2, "start": x, "end": x - width}[label.attrib["text-anchor"]]
    assert left >= rect.left, label.text
    assert left + width <= rect.right, label.text
    assert rect.top + 6 <= y <= rect.bottom, label.text


# --- any component ------------------------------------------------------------------------------

PARTS = '''
from typing import Annotated

from zoo.component import Component, Given, Part, Shared, Size, Slot
from zoo.layout import Layout, linear, vector
from zoo.slots import Attention, Block, Builder, FeedForward, Head, Norm
from zoo_components.stack import DecoderStack, EncoderStack


class Two(Builder):
    """Two encoders, one of which a decoder reads."""

    vocab: Size
    text: Annotated[EncoderStack, Part(vocab="vocab")]
    image: Annotated[EncoderStack, Part(vocab="vocab")]
    decoder: Annotated[DecoderStack, Part(vocab="vocab", memory_width="text.d_model")]
    head: Annotated[Head, Slot("head", vocab="vocab", d_model="decoder.d_model")]

    def layout(self):
        parts = {n: getattr(self, n).layout() for n in ("text", "image", "decoder", "head")}
        return Layout(parts)


class Direct(Builder):
    """A block without a stack around it, and tensors of its own."""

    d_model: Size
    block: Annotated[Block, Slot("block")]
    norm: Annotated[Norm, Slot("norm", width="d_model")]

    def layout(self):
        parts = {"block": self.block.layout(), "norm": self.norm.layout()}
        return Layout({**parts, "scale": vector(5)})


class Bare(Builder):
    """No block at all."""

    d_model: Size
    first: Annotated[FeedForward, Slot("ffn")]

    def layout(self):
        return Layout({"first": self.first.layout()})


class Nothing(Builder):
    """Nothing inside."""

    def layout(self):
        return Layout({"w": vector(7)})


class Odd(Block):
    """Names that no other block has, and a norm between."""

    mixer: Annotated[Attention, Slot("attention")]
    between: Annotated[Norm, Slot("norm", width="d_model")]
    one: Annotated[FeedForward, Slot("ffn")]
    two: Annotated[FeedForward, Slot("ffn")]

    def layout(self):
        names = ("mixer", "between", "one", "two")
        return Layout({name: getattr(self, name).layout() for name in names})


class Empty(Block):
    """Nothing inside."""


class Gate(Component):
    """A part that is no plugin."""

    d_model: Given[int]

    def layout(self):
        return Layout(linear(self.d_model, 3).parts, "gate <&> \\x07 \\ud800 'quoted' " + "x" * 900)


class Nested(FeedForward):
    """A sublayer with others inside."""

    inner: Annotated[FeedForward, Slot("ffn", default="mlp", inherit=False)]
    gate: Annotated[Gate, Part()]

    def layout(self):
        parts = {"inner": self.inner.layout(), "gate": self.gate.layout()}
        return Layout(parts, "nested, with, so, many, commas, that, the, label, has, to, be, wrapped")
'''
REGISTRY = """
format = 1
[builder]
two = "parts.py:Two"
direct = "parts.py:Direct"
bare = "parts.py:Bare"
nothing = "parts.py:Nothing"
[block]
odd = "parts.py:Odd"
empty = "parts.py:Empty"
[ffn]
nested = "parts.py:Nested"
"""
FOREIGN = {
    "two": """
        vocab = 100
        n_layers = 3
        d_model = 32
        n_heads = 4
        d_ff = 64
        image = { position = "rotary", norm_placement = "parallel" }
        decoder = { n_layers = 9, position = "rotary", norm_placement = "sandwich", layers = [
            { at = [1, 4, 5], ffn = "nested" } ] }
    """,
    "direct": 'd_model = 8\nd_ff = 32\nn_heads = 2\nblock = "odd"\none = "nested"',
    "bare": 'd_model = 8\nd_ff = 32\nfirst = "nested"',
    "nothing": "",
}


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with components that the zoo has never seen."""
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "registry.toml").write_text(REGISTRY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("builder", FOREIGN)
@pytest.mark.usefixtures("foreign")
def test_any_component_is_drawn(builder: str) -> None:
    head = f'format = 1\nname = "any"\nbuilder = "{builder}"\n'
    text = to_svg(zoo.read_spec(head + FOREIGN[builder]))
    check_geometry(text)
    drawing = Drawing(text)
    shown = " ".join(drawing.texts)
    expected = {
        "two": ["text", "image", "decoder", "head", "nested", "gate <&>", "6 ×", "3 ×"],
        "direct": ["odd", "mixer", "one", "two", "nested", "inner: mlp", "scale", "vectors"],
        "bare": ["first", "nested", "gate <&>"],
        "nothing": ["nothing", "7 parameters"],
    }[builder]
    assert [name for name in expected if name not in shown] == []


@pytest.mark.usefixtures("foreign")
def test_a_block_with_nothing_inside_is_a_box() -> None:
    head = 'format = 1\nname = "any"\nbuilder = "direct"\nd_model = 8\nblock = "empty"'
    drawing = _drawn(head)
    assert len(drawing.boxes("block")) == 0
    assert [rect.path for rect in drawing.rects].count("block") == 2
    assert "1 ×" in drawing.texts


@pytest.mark.usefixtures("foreign")
def test_memory_passes_above_the_stacks_between() -> None:
    head = 'format = 1\nname = "any"\nbuilder = "two"\n'
    drawing = _drawn(head + FOREIGN["two"])
    lines = drawing.lines("memory")
    cross = [r for r in drawing.rects if r.path.endswith("cross_attn")]
    assert len(lines) == len(cross) == 2
    between = [r for r in drawing.rects if r.path.startswith("image")]
    for line in lines:
        across = max(pairwise(line), key=lambda segment: segment[1][0] - segment[0][0])
        assert across[0][1] < min(rect.top for rect in between)


# --- the same bytes -----------------------------------------------------------------------------


def _figure() -> Figure:
    norm = Box("s.block.f.norm", "norm", "a_norm")
    branch = Branch(
        Box("s.block.f", "attention", "kind", ("detail", "f, 1.00M parameters"), "a hint"),
        pre=norm,
        positions=(Box("s.position", "position", "scheme", ("position",)),),
    )
    post = Branch(Box("s.block.g", "attention", "other", ("g",)), out=norm, reads_memory=True)
    runs = (Run(Layer("s.block", "block", (branch, post)), 3, "0-2"),)
    side = Run(Layer("s.block", "block", (Branch(norm, post=norm), post), parallel=True), 1, "3")
    column = Column(
        path="s",
        name="s",
        entry="ids",
        embedding=Box("s.embedding", "embedding", "tokens", ("10 tokens", "embedding")),
        added=(Box("s.added", "position", "added"),),
        before=(norm,),
        layers=(Cycle((*runs, side), 2),),
        note="a note",
        after=(Box("head", "head", "linear", ("head",)),),
        memory="memory",
    )
    return Figure("a figure", "below", (column,), (Tie("w", ("s.embedding", "head")),))


def test_the_same_figure_makes_the_same_bytes_everywhere() -> None:
    text = draw(_figure())
    check_geometry(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == "GOLDEN"


@pytest.mark.parametrize("name", ["vaswani-base", "reference-3"])
def test_the_full_form_makes_the_same_picture(name: str) -> None:
    spec = zoo.read_spec(name)
    assert to_svg(zoo.read_spec(spec.to_toml())) == to_svg(spec)


def test_pictures_do_not_depend_on_the_process_and_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, zoo, zoo.drawing\n"
        "sys.stdout.write(zoo.drawing.to_svg(zoo.read_spec('vaswani-base')))\n"
        "sys.exit('torch' in sys.modules)"
    )
    made = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert made[0] == made[1] == to_svg(zoo.read_spec("vaswani-base")).encode()


def test_the_pictures_in_the_docs_are_what_is_drawn() -> None:
    images = sorted((ROOT / "docs" / "images").glob("*.svg"))
    assert images
    for image in images:
        again = f"draw it again: zoo show {image.stem} --svg docs/images/{image.name}"
        assert image.read_text() == to_svg(zoo.read_spec(image.stem)), again


# --- commands and notebooks ---------------------------------------------------------------------


def test_show_writes_the_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gpt2.svg"
    assert run(["show", "gpt2", "--svg", str(file)]) == 0
    assert file.read_text() == to_svg(zoo.read_spec("gpt2"))
    assert capsys.readouterr().out == ""


def test_a_picture_that_cannot_be_written_is_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(["show", "gpt2", "--svg", str(tmp_path / "file" / "x.svg")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_notebook_shows_the_picture_and_the_sizes() -> None:
    spec = zoo.read_spec(SMALL)
    shown = spec._repr_html_()
    assert to_svg(spec) in shown
    assert f"{spec.n_parameters:,}" in shown
    ET.fromstring(shown)
    model = zoo.build(spec, device="meta")
    assert model._repr_html_() == shown


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (10_000, "10.0k"),
        (18_944_000, "18.9M"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (405_853_388_800, "406B"),
        (671_026_419_200_000, "671.0T"),
    ],
)
def test_numbers_are_short(count: int, text: str) -> None:
    assert short_number(count) == text


@given(st.text(max_size=200))
def test_texts_are_cut(text: str) -> None:
    assert len(cut(text)) <= 44
    assert text.startswith(cut(text).removesuffix("…"))
