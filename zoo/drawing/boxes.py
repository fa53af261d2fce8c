"""Draw the box of a component: its text, the boxes inside it, and the marks of its ties."""

from __future__ import annotations

from collections.abc import Mapping

from zoo.drawing.canvas import FILLS, GREY, INK, Dot, Group, Rect, Shape, Text, text_width
from zoo.drawing.components import cut
from zoo.drawing.figure import Box

TITLE, DETAIL = 13.0, 11.0
TITLE_LINE, DETAIL_LINE, INNER_LINE = 17.0, 14.0, 17.0
PADDING = 7.0

Ties = Mapping[str, tuple[int, ...]]
"""Maps the path of a component to the numbers of its ties."""


def box_width(box: Box, ties: Ties) -> float:
    """Return the width that a box needs for its text."""
    marks = 12 * len(ties.get(box.path, ()))
    lines = [
        text_width(box.title, TITLE, bold=True) + 2 * marks,
        *(text_width(line, DETAIL) for line, _ in _lines(box)),
        *(text_width(inner.title, DETAIL) + 14 for inner in box.inner),
    ]
    return max(lines) + 2 * PADDING + 6


def box_height(box: Box) -> float:
    """Return the height that a box needs for its text."""
    text = TITLE_LINE + DETAIL_LINE * len(_lines(box))
    return 2 * PADDING + text - 2 + (INNER_LINE + 3) * len(box.inner)


def _lines(box: Box) -> list[tuple[str, str]]:
    """Return the lines below the title, and the colour of each."""
    told = [(line, INK) for line in _wrapped(box.told)]
    return [*told, (box.name, GREY)] if box.name else told


def _wrapped(text: str) -> list[str]:
    """Wrap a text into lines, broken after commas."""
    lines: list[str] = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        if lines and len(lines[-1]) + 2 + len(piece) <= 30:
            lines[-1] += f", {piece}"
        else:
            lines.append(cut(piece))
    return lines


def draw_box(box: Box, x: float, y: float, width: float, height: float, ties: Ties) -> Group:
    """Draw a box with its lower left corner at (x, y)."""
    fill, outline = FILLS.get(box.role, FILLS["other"])
    shapes: list[Shape] = [Rect(x, y, width, height, fill, outline)]
    spare = height - box_height(box)
    line = y + height - spare / 2 - PADDING - 11
    shapes.append(Text(x + width / 2, line, box.title, TITLE, bold=True))
    line -= TITLE_LINE - DETAIL_LINE
    for text, colour in _lines(box):
        line -= DETAIL_LINE
        shapes.append(Text(x + width / 2, line, text, DETAIL, colour=colour))
    for inner in box.inner:
        line -= INNER_LINE + 3
        shapes.append(_draw_inner(inner, x + PADDING, line - 4, width - 2 * PADDING, ties))
    shapes += dots(box.path, x + width - 9, y + height - 9, ties)
    return Group(tuple(shapes), box.path, box.role, box.tooltip)


def _draw_inner(box: Box, x: float, y: float, width: float, ties: Ties) -> Group:
    fill, outline = FILLS.get(box.role, FILLS["other"])
    shapes: list[Shape] = [
        Rect(x, y, width, INNER_LINE, fill, outline, radius=4),
        Text(x + width / 2, y + 5, box.title, DETAIL),
        *dots(box.path, x + width - 8, y + INNER_LINE / 2, ties),
    ]
    return Group(tuple(shapes), box.path, box.role, box.tooltip)


def dots(path: str, x: float, y: float, ties: Ties) -> list[Shape]:
    """Return the marks of the ties of a component, the first at `x`, the others to the left."""
    return [Dot(x - 12 * i, y, number) for i, number in enumerate(ties.get(path, ()))]
