"""Components of plugins are drawn without support from the zoo."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from drawings import Drawing, check_geometry, drawn

import zoo
from zoo.drawing import to_svg

PARTS = '''
from typing import Annotated

from zoo.component import Component, Given, Part, Shared, Size, Slot
from zoo.layout import LayerList, Layout, linear, vector
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


class Deep(Builder):
    """Two lists of layers, the second run through five times."""

    d_model: Size
    prelude: Annotated[Block, Slot("block")]
    core: Annotated[Block, Slot("block")]

    def layout(self):
        first = LayerList(((range(2), self.prelude.layout()),))
        return Layout({"prelude": first, "deep": LayerList(((range(1), self.core.layout()),), 5)})


class Mixed(Builder):
    """One list of layers of two kinds, in turn."""

    d_model: Size
    spare: Annotated[Norm, Slot("norm", width="d_model")]
    narrow: Annotated[Block, Slot("block")]
    wide: Annotated[Block, Slot("block")]

    def layout(self):
        groups = (([0, 2, 4], self.narrow.layout()), ([1, 3, 5], self.wide.layout()))
        return Layout({"layers": LayerList(groups)})


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
        return Layout(parts, "nested, with, so, many, commas, that, the, label, is, wrapped")
'''
REGISTRY = """
format = 1
[builder]
two = "parts.py:Two"
direct = "parts.py:Direct"
bare = "parts.py:Bare"
nothing = "parts.py:Nothing"
deep = "parts.py:Deep"
mixed = "parts.py:Mixed"
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
        image = { position = "rotary", norm_placement = "sandwich" }
        decoder = { n_layers = 9, position = "rotary", norm_placement = "sandwich", layers = [
            { at = [1, 4, 5], ffn = "nested" } ] }
    """,
    "direct": 'd_model = 8\nd_ff = 32\nn_heads = 2\nblock = "odd"\none = "nested"',
    "bare": 'd_model = 8\nd_ff = 32\nfirst = "nested"',
    "nothing": "",
    "deep": "d_model = 8\nd_ff = 32\nn_heads = 2",
    "mixed": "d_model = 8\nd_ff = 32\nn_heads = 2\nwide = { d_ff = 16 }",
}


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with components that are not part of the zoo."""
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "registry.toml").write_text(REGISTRY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("builder", FOREIGN)
@pytest.mark.usefixtures("foreign")
def test_any_component_isdrawn(builder: str) -> None:
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
        "deep": ["2 ×", "5 ×", "same weights"],
        "mixed": ["d_ff 32", "1 ×", "layers 0, 2, 4", "d_ff 16", "layers 1, 3, 5", "3 ×"],
    }[builder]
    assert [name for name in expected if name not in shown] == []


@pytest.mark.parametrize(("builder", "blocks"), [("deep", 2), ("mixed", 2), ("direct", 1)])
@pytest.mark.usefixtures("foreign")
def test_each_kind_of_layer_is_drawn_once(builder: str, blocks: int) -> None:
    head = f'format = 1\nname = "any"\nbuilder = "{builder}"\n'
    frames = [rect for rect in drawn(head + FOREIGN[builder]).rects if rect.role == "block"]
    assert len(frames) == len({frame.path for frame in frames}) == blocks


@pytest.mark.usefixtures("foreign")
def test_what_is_not_in_the_layout_is_not_drawn() -> None:
    drawing = drawn(f'format = 1\nname = "any"\nbuilder = "mixed"\n{FOREIGN["mixed"]}')
    assert drawing.boxes("narrow.ffn")
    assert not drawing.boxes("spare")


@pytest.mark.usefixtures("foreign")
def test_a_block_with_nothing_inside_is_a_box() -> None:
    head = 'format = 1\nname = "any"\nbuilder = "direct"\nd_model = 8\nblock = "empty"'
    drawing = drawn(head)
    assert len(drawing.boxes("block")) == 0
    assert [rect.path for rect in drawing.rects].count("block") == 2
    assert "1 ×" in drawing.texts


@pytest.mark.usefixtures("foreign")
def test_memory_passes_above_the_stacks_between() -> None:
    head = 'format = 1\nname = "any"\nbuilder = "two"\n'
    drawing = drawn(head + FOREIGN["two"])
    lines = drawing.lines("memory")
    cross = [r for r in drawing.rects if r.path.endswith("cross_attn")]
    assert len(lines) == len(cross) == 2
    between = [r for r in drawing.rects if r.path.startswith("image")]
    for line in lines:
        across = max(pairwise(line), key=lambda segment: segment[1][0] - segment[0][0])
        assert across[0][1] < min(rect.top for rect in between)
