"""Parse the zoo's SVG drawings with an XML parser, and check the positions in them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

import zoo
from zoo.drawing import to_svg
from zoo.spec import ModelSpec

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
SVG = "{http://www.w3.org/2000/svg}"


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
        """The boxes of a component, without the frames of layers."""
        return [rect for rect in self.rects if rect.path == path and rect.role != "block"]

    def lines(self, role: str | None = None) -> list[list[tuple[float, float]]]:
        """The corners of each line of a role."""
        paths = [p for p in self.root.iter(f"{SVG}path") if "data-line" in p.attrib]
        return [
            [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", p.attrib["d"])]
            for p in paths
            if role in (None, p.attrib["data-line"])
        ]

    def sums(self) -> list[Rect]:
        """The circles with a plus."""
        found = [c for c in self.root.iter(f"{SVG}circle") if "data-sum" in c.attrib]
        return [_circle(c) for c in found]

    def ties(self) -> dict[str, set[str]]:
        """The components that are marked with each tie."""
        marked: dict[str, set[str]] = {}
        for part in self.parts:
            for circle in part.findall(f"{SVG}circle"):
                marked.setdefault(circle.attrib["data-tie"], set()).add(part.attrib["data-path"])
        return marked

    def frame(self) -> Rect:
        """The first frame of layers."""
        return next(rect for rect in self.rects if rect.role == "block")

    def order(self, frame: Rect) -> list[str]:
        """The shapes on the middle line of a frame, from the bottom up: norm, f or sum."""
        inside = [r for r in self.rects if within(r, frame) and r.role not in ("block", "position")]
        alone = [r for r in inside if not any(within(r, o) for o in inside if o is not r)]
        shown = [(r.bottom, self._name(r)) for r in alone]
        shown += [(r.bottom, "sum") for r in self.sums() if within(r, frame)]
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


def within(inner: Rect, outer: Rect) -> bool:
    """Whether a rectangle is inside another."""
    return (
        outer.left <= inner.left
        and outer.top <= inner.top
        and inner.right <= outer.right
        and inner.bottom <= outer.bottom
    )


def apart(a: Rect, b: Rect) -> bool:
    return a.right <= b.left or b.right <= a.left or a.bottom <= b.top or b.bottom <= a.top


def drawn(text: str) -> Drawing:
    """Draw the spec in a text."""
    return Drawing(to_svg(zoo.read_spec(text)))


@cache
def of_example(path: Path) -> tuple[ModelSpec, Drawing]:
    """The spec of a file, which several tests look at, and its drawing."""
    spec = zoo.read_spec(path)
    return spec, Drawing(to_svg(spec))


def check_geometry(text: str) -> None:
    """Check that boxes are apart or nested, that no line runs through a box, that texts fit their
    boxes, and that everything is on the page."""
    drawing = Drawing(text)
    page = _page(drawing)
    for a, b in combinations(drawing.rects, 2):
        assert apart(a, b) or within(a, b) or within(b, a), (a, b)
    for a, b in combinations(drawing.sums(), 2):
        assert apart(a, b), (a, b)
    solid = [rect for rect in drawing.rects if rect.role not in ("block", "cycle")]
    for line in drawing.lines():
        for start, end in pairwise(line):
            assert start[0] == end[0] or start[1] == end[1], line
            for rect in solid:
                assert not _runs_through(start, end, rect), (line, rect)
    for rect in [*drawing.rects, *drawing.sums()]:
        assert within(rect, page), rect
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
