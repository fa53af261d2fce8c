"""Shapes with positions, and their SVG text.

y grows upwards, as a Transformer is drawn; in the SVG text it grows downwards. Each shape states
its own colours: a style sheet in the SVG would affect the page around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape
from math import fsum
from typing import Self

INK, GREY, LINE = "#1f2328", "#59636e", "#4b535d"
FILLS: Mapping[str, tuple[str, str]] = {
    "embedding": ("#fbe3e4", "#c97b80"),
    "position": ("#efe3f7", "#9a78b8"),
    "attention": ("#ffe7c7", "#cf9440"),
    "ffn": ("#d6edf8", "#5b9bbd"),
    "norm": ("#f5f6cb", "#a9ab4c"),
    "head": ("#e0e3f4", "#7f88bd"),
    "block": ("#f4f5f7", "#b9c0c8"),
    "other": ("#ececec", "#999999"),
}
"""Fill and outline by role, pale so that black text stands out."""
TIE_COLOURS = ("#c2410c", "#1d4ed8", "#15803d", "#a21caf", "#0e7490", "#854d0e")
FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"

Point = tuple[float, float]


@dataclass(frozen=True)
class _Placed:
    """A shape with a single position."""

    x: float
    y: float

    def moved(self, dx: float, dy: float) -> Self:
        return replace(self, x=self.x + dx, y=self.y + dy)


@dataclass(frozen=True)
class Rect(_Placed):
    """A rectangle by its lower left corner."""

    width: float
    height: float
    fill: str
    outline: str
    radius: float = 6
    dashed: bool = False

    def svg(self, top: float) -> str:
        dash = ' stroke-dasharray="5 4"' if self.dashed else ""
        return (
            f'<rect x="{_n(self.x)}" y="{_n(top - self.y - self.height)}" '
            f'width="{_n(self.width)}" height="{_n(self.height)}" rx="{_n(self.radius)}" '
            f'fill="{self.fill}" stroke="{self.outline}"{dash}/>'
        )


@dataclass(frozen=True)
class Text(_Placed):
    """One line of text; `y` is its baseline, and `x` its start, middle or end, as `anchor` says."""

    text: str
    size: float = 11
    bold: bool = False
    colour: str = INK
    anchor: str = "middle"

    def svg(self, top: float) -> str:
        weight = ' font-weight="bold"' if self.bold else ""
        return (
            f'<text x="{_n(self.x)}" y="{_n(top - self.y)}" font-size="{_n(self.size)}"{weight} '
            f'fill="{self.colour}" text-anchor="{self.anchor}">{_safe(self.text)}</text>'
        )


@dataclass(frozen=True)
class Line:
    """A line through points, with or without an arrowhead at the end; `role` is its meaning."""

    points: tuple[Point, ...]
    role: str
    arrow: bool = True

    def moved(self, dx: float, dy: float) -> Line:
        return replace(self, points=tuple((x + dx, y + dy) for x, y in self.points))

    def svg(self, top: float) -> str:
        *points, (x, y) = self.points
        head = ""
        if self.arrow:
            before = points[-1]
            dx, dy = _sign(x - before[0]), _sign(y - before[1])
            corners = [(x, y)]
            corners += [(x - 7 * dx + s * 3.5 * dy, y - 7 * dy + s * 3.5 * dx) for s in (1, -1)]
            shown = " ".join(f"{_n(a)},{_n(top - b)}" for a, b in corners)
            head = f'<polygon points="{shown}" fill="{LINE}"/>'
            x, y = x - 6 * dx, y - 6 * dy
        path = " ".join(
            f"{'L' if i else 'M'}{_n(a)} {_n(top - b)}"
            for i, (a, b) in enumerate([*points, (x, y)])
        )
        stroke = f'fill="none" stroke="{LINE}" stroke-width="1.3" stroke-linejoin="round"'
        return f'<path data-line="{self.role}" d="{path}" {stroke}/>{head}'


@dataclass(frozen=True)
class Plus(_Placed):
    """The sign of a sum: a circle with a plus."""

    radius: float = 9

    def svg(self, top: float) -> str:
        x, y, r = self.x, top - self.y, self.radius
        cross = f"M{_n(x - r)} {_n(y)} H{_n(x + r)} M{_n(x)} {_n(y - r)} V{_n(y + r)}"
        return (
            f'<circle data-sum="" cx="{_n(x)}" cy="{_n(y)}" r="{_n(r)}" fill="#ffffff" '
            f'stroke="{LINE}" stroke-width="1.3"/>'
            f'<path d="{cross}" stroke="{LINE}" stroke-width="1.3"/>'
        )


@dataclass(frozen=True)
class Dot(_Placed):
    """The mark of tied parts; parts with marks of the same colour are tied."""

    number: int

    def svg(self, top: float) -> str:
        colour = TIE_COLOURS[self.number % len(TIE_COLOURS)]
        place = f'cx="{_n(self.x)}" cy="{_n(top - self.y)}" r="4.5"'
        return f'<circle data-tie="{self.number + 1}" {place} fill="{colour}"/>'


@dataclass(frozen=True)
class Group:
    """The shapes of one component, with its path and its tooltip."""

    shapes: tuple[Shape, ...]
    path: str
    role: str
    hint: str

    def moved(self, dx: float, dy: float) -> Group:
        return replace(self, shapes=tuple(shape.moved(dx, dy) for shape in self.shapes))

    def svg(self, top: float) -> str:
        inside = "".join(shape.svg(top) for shape in self.shapes)
        title = f"<title>{_safe(self.hint)}</title>" if self.hint else ""
        return f'<g data-path="{_safe(self.path)}" data-role="{self.role}">{title}{inside}</g>'


Shape = Rect | Text | Line | Plus | Dot | Group


def svg_text(shapes: Iterable[Shape], *, left: float, top: float, size: Point, title: str) -> str:
    """Return the SVG text of shapes. `left` and `top` are the upper left corner of the page, `size`
    is its width and height."""
    width, height = _n(size[0]), _n(size[1])
    inside = "\n".join(shape.moved(-left, 0).svg(top) for shape in shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" font-family="{FONT}">\n'
        f"<title>{_safe(title)}</title>\n"
        f'<rect data-page="" width="{width}" height="{height}" fill="#ffffff"/>\n'
        f"{inside}\n</svg>\n"
    )


_NARROW = frozenset("ijl.,:;'|!()[]{}ftr I-")
_WIDE = frozenset("mwMWOQ@%+×—")


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return an upper estimate of the width of a text, since viewers have different fonts."""
    widths = (
        0.4 if c in _NARROW else 0.9 if c in _WIDE else 1.0 if ord(c) > 0x2E7F else 0.64
        for c in text
    )
    # Not `sum`, whose rounding changed in Python 3.12: drawings must not depend on the version.
    return fsum(widths) * size * (1.07 if bold else 1.0)


def _n(value: float) -> str:
    """Format a coordinate to a tenth of a pixel, the same on all platforms."""
    return f"{round(value, 1) + 0:g}" if abs(value) < 100_000 else f"{value:.0f}"


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _safe(text: str) -> str:
    """Escape a text for XML and replace control characters, which XML does not allow."""
    kept = (c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return escape("".join(kept))
