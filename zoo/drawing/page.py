"""Draw the columns of a figure side by side, the connections between them, title and legend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zoo.drawing.canvas import GREY, Dot, Line, Point, Shape, Text, svg_text, text_width
from zoo.drawing.columns import EDGE, DrawnColumn, draw_column
from zoo.drawing.components import cut
from zoo.drawing.figure import OUTSIDE, Figure, Tie

MARGIN = 22.0
BETWEEN = 34.0  # between two columns
CHANNEL = 22.0  # from the path of a memory to the column that reads it
TITLE, SUBTITLE, SMALL = 17.0, 12.0, 11.0


def draw(figure: Figure) -> str:
    """Draw a figure as SVG text."""
    ties: dict[str, tuple[int, ...]] = {}
    for number, tie in enumerate(figure.ties):
        for path in tie.paths:
            ties[path] = (*ties.get(path, ()), number)
    read = {column.memory for column in figure.columns}
    joined = {column.joins for column in figure.columns}
    columns = [
        draw_column(
            column,
            ties,
            gives_output=column.path not in read and column.joins is None,
            is_joined=column.path in joined,
        )
        for column in figure.columns
    ]
    middles, width = _places(columns)
    shapes = [
        shape.moved(x, 0)
        for column, x in zip(columns, middles, strict=True)
        for shape in column.shapes
    ]
    between = [*_memories(columns, middles), *_joins(columns, middles)]
    shapes += between
    over = [y for line in between if isinstance(line, Line) for _, y in line.points]
    height = max([column.top + 24 for column in columns] + [y + 20 for y in over])
    shapes.append(Text(0, height + 22, figure.title, TITLE, bold=True, anchor="start"))
    shapes.append(Text(0, height, figure.subtitle, SUBTITLE, colour=GREY, anchor="start"))
    legend = list(_legend(figure.ties))
    widths = [
        width,
        text_width(figure.title, TITLE, bold=True),
        text_width(figure.subtitle, SUBTITLE),
        *(16 + text_width(shape.text, SMALL) for shape in legend if isinstance(shape, Text)),
    ]
    bottom = -MARGIN - 17 * len(figure.ties)
    top = height + 22 + TITLE + MARGIN / 2
    return svg_text(
        [*shapes, *legend],
        left=-MARGIN,
        top=top,
        size=(max(widths) + 2 * MARGIN, top - bottom),
        title=figure.title,
    )


def _places(columns: Sequence[DrawnColumn]) -> tuple[list[float], float]:
    """Return the middle of each column, and the total width."""
    middles: list[float] = []
    end = -BETWEEN
    for column in columns:
        end += BETWEEN
        if column.entries or _joining(column, columns):
            end += CHANNEL
        if column.column.memory == OUTSIDE:
            end += text_width(OUTSIDE, SMALL) / 2
        middles.append(end - column.left)
        end = middles[-1] + column.right
    return middles, end


def _memories(columns: Sequence[DrawnColumn], middles: Sequence[float]) -> Iterator[Shape]:
    """Yield the lines from each memory to the cross-attentions that read it."""
    paths = [column.column.path for column in columns]
    for index, (column, middle) in enumerate(zip(columns, middles, strict=True)):
        if not column.entries:
            continue
        channel = middle + column.left - CHANNEL
        if column.column.memory in paths:
            start, top = _over(columns, middles, paths.index(column.column.memory), index)
        else:
            top = 30.0
            start = []
            yield Text(channel, 17, OUTSIDE, SMALL, colour=GREY)
        for x, y in column.entries:
            points = (*start, (channel, top), (channel, y), (middle + x, y))
            yield Line(points, "memory")


def _joins(columns: Sequence[DrawnColumn], middles: Sequence[float]) -> Iterator[Shape]:
    """Yield the lines from each column to the vectors and the layers of the one that it joins."""
    for index, (column, middle) in enumerate(zip(columns, middles, strict=True)):
        channel = middle + column.left - CHANNEL
        for source in _joining(column, columns):
            start, top = _over(columns, middles, source, index)
            x, y = middle + column.embedded[0], column.embedded[1]
            yield Line((*start, (channel, top), (channel, y), (x, y)), "vectors")
            for right, height in columns[source].beside:
                frame, x = column.layers, channel - CHANNEL / 2
                y = min(max(height, frame.bottom + EDGE), frame.top - EDGE)
                out, into = (middles[source] + right, height), (middle + frame.left, y)
                yield Line((out, (x, height), (x, y), into), "states")


def _joining(column: DrawnColumn, columns: Sequence[DrawnColumn]) -> list[int]:
    """Return the indices of the columns that join this one."""
    return [i for i, one in enumerate(columns) if one.column.joins == column.column.path]


def _over(
    columns: Sequence[DrawnColumn], middles: Sequence[float], source: int, target: int
) -> tuple[list[Point], float]:
    """Return the beginning of a line from the end of one column over those before another, and the
    height at which it goes on."""
    between = columns[min(source, target) + 1 : max(source, target)]
    top = max([columns[source].top, *(other.top for other in between)]) + 18
    return [(middles[source], columns[source].end), (middles[source], top)], top


def _legend(ties: Sequence[Tie]) -> Iterator[Shape]:
    for number, tie in enumerate(ties):
        y = -24.0 - 17 * number
        yield Dot(5, y + 4, number)
        yield Text(16, y, cut(f"shared: {tie.label}", 70), SMALL, colour=GREY, anchor="start")
