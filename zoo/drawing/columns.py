"""Draw a stack as a column: boxes above each other, residual paths beside them, layers in frames.

The middle of a column is at x = 0 and its lower end at y = 0; `zoo.drawing.page` moves it to its
position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from textwrap import wrap
from typing import NamedTuple

from zoo.drawing.boxes import Ties, box_height, box_width, dots, draw_box
from zoo.drawing.canvas import FILLS, GREY, Group, Line, Plus, Point, Rect, Shape, Text, text_width
from zoo.drawing.components import cut
from zoo.drawing.figure import Box, Branch, Column, Cycle, Layer, Run, runs_of

GAP = 16.0  # between two boxes, with room for an arrow
PILL = 18.0  # from a position scheme to its attention
LANE = 16.0  # from the boxes to the residual path beside them
EDGE = 12.0  # from the content of a frame to the frame
CAPTION = 17.0  # the line of text at the top of a frame
SUM = 9.0  # the radius of a sum
BIG, SMALL = 18.0, 10.5


class Frame(NamedTuple):
    """The edges of the frame of a run of layers."""

    left: float = 0.0
    right: float = 0.0
    bottom: float = 0.0
    top: float = 0.0


@dataclass
class DrawnColumn:
    """The shapes of a column, its extent to both sides and upwards, the points where its output
    and what is beside its layers leave, and those where memory and vectors of another column enter.
    States of another's layers enter the first frame, `layers`, from the left."""

    column: Column
    shapes: list[Shape]
    left: float
    right: float
    top: float
    end: float = 0.0
    beside: list[Point] = field(default_factory=list[Point])
    entries: list[Point] = field(default_factory=list[Point])
    embedded: Point = (0.0, 0.0)
    layers: Frame = field(default_factory=Frame)


def draw_column(column: Column, ties: Ties, *, gives_output: bool, is_joined: bool) -> DrawnColumn:
    """Draw a stack; `gives_output` is false if its states only go to another stack, and `is_joined`
    true if those of another stand among its vectors."""
    drawing = _Drawing(column, ties, is_joined=is_joined)
    drawing.draw(gives_output=gives_output)
    return drawing.result


class _Drawing:
    """A column that is drawn upwards. The next arrow begins at `start`; the next shape may be
    placed from `floor` on."""

    def __init__(self, column: Column, ties: Ties, *, is_joined: bool = False) -> None:
        self.column = column
        self.ties = ties
        self.enters_left = bool(column.memory) or is_joined
        self.shapes: list[Shape] = []
        self.width = max([150.0, *(box_width(box, ties) for box in _boxes_of(column))])
        half = self.width / 2
        pills = [
            box_width(box, ties) + PILL
            for run in runs_of(column)
            for step in run.layer.all_steps
            if isinstance(step, Branch)
            for box in step.positions
        ]
        self.pill_reach = max(pills, default=0.0)
        self.result = DrawnColumn(column, self.shapes, -half, half, 0.0)
        self.start = self.floor = 0.0
        self.frames: list[Frame] = []

    def draw(self, *, gives_output: bool) -> None:
        column = self.column
        self.shapes.append(Text(0, 0, column.name, 13, bold=True))
        if column.entry:
            self.shapes.append(Text(0, 17, column.entry, 11, colour=GREY))
        self.start = self.floor = 30.0
        if column.embedding:
            self.place(column.embedding)
            middle = self.start - box_height(column.embedding) / 2
            self.result.embedded = (-self.width / 2, middle)
        if column.added:
            self.add_positions(column.added)
        for box in column.before:
            self.place(box)
        for part in column.layers:
            if isinstance(part, Cycle):
                self.draw_cycle(part)
            else:
                self.draw_run(part)
        self.draw_beside()
        for box in column.after:
            self.place(box)
        if gives_output:
            end = self.floor + 24
            self.line("flow", (0, self.start), (0, end))
            self.shapes.append(Text(0, end + 7, "output", 11, colour=GREY))
            self.start = end + 18
        self.result.end, self.result.top = self.start, max(self.start, self.floor)

    # --- lines and boxes ------------------------------------------------------------------------

    def line(self, role: str, *points: Point, arrow: bool = True) -> None:
        self.shapes.append(Line(points, role, arrow))

    def reach(self, left: float, right: float) -> None:
        """Extend the column to both sides."""
        self.result.left = min(self.result.left, left)
        self.result.right = max(self.result.right, right)

    def place(self, box: Box, *, gap: float = GAP, height: float | None = None) -> None:
        """Draw a box above the current top, with an arrow into it."""
        bottom = self.floor + gap
        height = box_height(box) if height is None else height
        self.line("flow", (0, self.start), (0, bottom))
        self.shapes.append(draw_box(box, -self.width / 2, bottom, self.width, height, self.ties))
        self.start = self.floor = bottom + height

    def add_positions(self, added: tuple[Box, ...]) -> None:
        """Draw the sum of the embeddings and the added schemes, the first of which enters from the
        left, others from the right."""
        heights = [box_height(box) for box in added]
        y = self.floor + max(GAP + SUM, max(heights) / 2 + 6)
        self.line("flow", (0, self.start), (0, y - SUM))
        self.shapes.append(Plus(0, y))
        reach = {-1: SUM + 22, 1: SUM + 22}
        for index, (box, height) in enumerate(zip(added, heights, strict=True)):
            side = 1 if index else -1
            width = box_width(box, self.ties)
            near = reach[side]
            x = near if side > 0 else -near - width
            self.shapes.append(draw_box(box, x, y - height / 2, width, height, self.ties))
            self.line("position", (side * near, y), (side * SUM, y))
            reach[side] = near + width + 22
        self.reach(-reach[-1] + 22, reach[1] - 22 if len(added) > 1 else 0)
        self.start, self.floor = y + SUM, y + max(SUM, max(heights) / 2)

    # --- layers ---------------------------------------------------------------------------------

    def draw_cycle(self, cycle: Cycle) -> None:
        frame_at = len(self.shapes)
        bottom = self.floor + GAP / 2
        self.floor = bottom + 4
        before = self.result.left, self.result.right
        self.result.left = self.result.right = 0.0
        for run in cycle.runs:
            self.draw_run(run)
        top = self.floor + EDGE
        left, right = self.result.left - 8, self.result.right + 8
        frame = Rect(left, bottom, right - left, top - bottom, "none", "#8c959f", 10, dashed=True)
        self.shapes.insert(frame_at, Group((frame,), "", "cycle", f"{cycle.times} times"))
        self.times(cycle.times, [], left, right, (bottom + top) / 2)
        self.reach(*before)
        self.reach(left, right)
        self.floor = top

    def draw_run(self, run: Run) -> None:
        layer = run.layer
        frame_at = len(self.shapes)
        bottom = self.floor + GAP / 2
        self.floor = bottom
        left, right = self.parallel(layer) if layer.parallel else self.sequence(layer)
        top = self.floor + CAPTION + 4
        left, right = left - EDGE, max(right, left + 60) + EDGE
        title = cut(layer.title, int((-left - 16) / text_width("n", SMALL)))  # short of the middle
        frame: list[Shape] = [
            Rect(left, bottom, right - left, top - bottom, *FILLS["block"], 10),
            Text(left + 9, top - 14, title, SMALL, colour=GREY, anchor="start"),
            *dots(layer.path, right - 10, top - 10, self.ties),
        ]
        hint = f"{layer.path}\n{run.times} times"
        self.shapes.insert(frame_at, Group(tuple(frame), layer.path, "block", hint))
        which = f"layer{'' if run.numbers.isdecimal() else 's'} {run.numbers}".replace(",", ", ")
        stated = [which if run.numbers else "", layer.told, self.column.note]
        notes = [line for text in stated for line in wrap(text, 16)]
        self.times(run.times, notes, left, right, (bottom + top) / 2)
        self.reach(left, right)
        self.floor = top
        self.frames.append(Frame(left, right, bottom, top))

    def draw_beside(self) -> None:
        """Draw the boxes beside the layers, on the right of the last frame."""
        if not self.frames:
            return
        self.result.layers, last = self.frames[0], self.frames[-1]
        x = self.result.right + PILL
        for index, box in enumerate(self.column.beside, 1):
            y = last.bottom + (last.top - last.bottom) * index / (len(self.column.beside) + 1)
            width, height = box_width(box, self.ties), box_height(box)
            self.line("states", (last.right, y), (x, y))
            self.shapes.append(draw_box(box, x, y - height / 2, width, height, self.ties))
            self.result.beside.append((x + width, y))
            self.reach(0, x + width)

    def times(
        self, times: int, notes: Sequence[str], left: float, right: float, middle: float
    ) -> None:
        """Write the number of repetitions of a frame beside it: on the left, or on the right if
        something enters from the left."""
        big = f"{times} ×"
        width = max([text_width(big, BIG, bold=True), *(text_width(n, SMALL) for n in notes)])
        side = 1 if self.enters_left else -1
        x = right + 8 if side > 0 else left - 8
        anchor = "start" if side > 0 else "end"
        y = middle + 6 * len(notes) - 5
        self.shapes.append(Text(x, y, big, BIG, bold=True, anchor=anchor))
        for index, note in enumerate(notes):
            line = y - 15 - 13 * index
            self.shapes.append(Text(x, line, note, SMALL, colour=GREY, anchor=anchor))
        self.reach(x - width if side < 0 else 0, x + width if side > 0 else 0)

    def sequence(self, layer: Layer) -> Point:
        """Draw branches above each other; return their extent to both sides."""
        half = self.width / 2
        right = half + LANE
        for step in layer.steps:
            if isinstance(step, Box):
                self.place(step, gap=GAP + 4)
                continue
            tee, lane = self.floor + 9, half + LANE
            gap = GAP + 6
            if step.guide:
                for part in step.guide:
                    self.step(part, gap)
                    gap = GAP
                self.merge(None, tee, lane)
                lane += LANE
            self.step(step, gap)
            self.merge(step.out, tee, lane)
            right = max(right, lane)
        return -half - self.pill_reach, right

    def step(self, step: Branch | Box, gap: float) -> None:
        """Draw a box, or a sublayer with the norms before and after it."""
        if isinstance(step, Box):
            self.place(step, gap=gap)
            return
        if step.pre:
            self.place(step.pre, gap=gap)
            gap = GAP
        self.body(step, gap)
        if step.post:
            self.place(step.post)

    def body(self, branch: Branch, gap: float) -> None:
        """Draw the sublayer, and its inputs from the left."""
        height = max(box_height(branch.body), _pills_height(branch))
        self.place(branch.body, gap=gap, height=height)
        x, middle = -self.width / 2, self.start - height / 2
        if branch.reads_memory:
            self.result.entries.append((x, middle))
        y = middle + _pills_height(branch) / 2
        for box in branch.positions:
            width, height = box_width(box, self.ties), box_height(box)
            y -= height
            self.shapes.append(draw_box(box, x - PILL - width, y, width, height, self.ties))
            self.line("position", (x - PILL, y + height / 2), (x, y + height / 2))
            y -= 6

    def merge(self, out: Box | None, tee: float, lane: float) -> None:
        """Draw the sum of a branch and its residual path, or the sum and its norm in one box."""
        if out is None:
            y, edge = self.floor + GAP + SUM, SUM
            self.line("flow", (0, self.start), (0, y - SUM))
            self.shapes.append(Plus(0, y))
            self.start = self.floor = y + SUM
        else:
            self.place(_add_and_norm(out))
            y, edge = self.start - box_height(out) / 2, self.width / 2
        self.line("residual", (0, tee), (lane, tee), (lane, y), (edge, y))

    def parallel(self, layer: Layer) -> Point:
        """Draw branches side by side, from one input to one sum; return their extent."""
        branches = [Branch(step) if isinstance(step, Box) else step for step in layer.steps]
        # Only the first has inputs on its left side.
        branches.sort(key=lambda branch: (not branch.reads_memory, not branch.positions))
        branches[1:] = [_with_positions_inside(branch) for branch in branches[1:]]
        tee = self.floor + 9
        gap = GAP + 6
        shared = branches[0].pre if not any(branch.pre for branch in branches[1:]) else None
        if shared:
            self.place(shared, gap=gap)
            gap = GAP
        split = self.floor + gap - 6
        step = self.width + 14
        middles = [(i - (len(branches) - 1) / 2) * step for i in range(len(branches))]
        self.line("flow", (0, self.start), (0, split), arrow=False)
        tops: list[float] = []
        for branch, x in zip(branches, middles, strict=True):
            side = _Drawing(self.column, self.ties)
            side.width, side.start, side.floor = self.width, split, split
            side.step(replace(branch, pre=None) if shared else branch, GAP)
            if x:
                self.line("flow", (0, split), (x, split), arrow=False)
            self.shapes += [shape.moved(x, 0) for shape in side.shapes]
            self.result.entries += [(x + a, b) for a, b in side.result.entries]
            tops.append(side.start)
        join = max(tops) + 10
        for x, top in zip(middles, tops, strict=True):
            self.line("flow", (x, top), (x, join), (0, join), arrow=False)
        self.start = self.floor = join
        right = middles[-1] + self.width / 2 + LANE
        self.merge(next((b.out for b in branches if b.out), None), tee, right)
        room = self.pill_reach if branches[0].positions else 0.0
        return middles[0] - self.width / 2 - room, right


def _with_positions_inside(branch: Branch) -> Branch:
    """Move the position schemes of a branch into its box, where there is no room beside it."""
    body = replace(branch.body, inner=(*branch.body.inner, *branch.positions))
    return replace(branch, body=body, positions=())


def _add_and_norm(out: Box) -> Box:
    return replace(out, title=f"add & {out.title}")


def _pills_height(branch: Branch) -> float:
    heights = [box_height(box) + 6 for box in branch.positions]
    return sum(heights) - 6 if heights else 0.0


def _boxes_of(column: Column) -> list[Box]:
    """Return the boxes that are drawn above each other in a column."""
    found = [*column.before, *column.after, *([column.embedding] if column.embedding else [])]
    for run in runs_of(column):
        for step in run.layer.all_steps:
            if isinstance(step, Box):
                found.append(step)
            else:
                out = _add_and_norm(step.out) if step.out else None
                found += [box for box in (step.body, step.pre, step.post, out) if box]
    return found
