"""The content of a drawing, before its parts have positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """One component.

    Args:
        path: its path in the resolved spec, such as `encoder.block.self_attn`.
        role: the slot that it fills, which determines the colour; "other" if it fills none.
        title: its kind.
        told: its description, below the title.
        name: its name in the model, and the number of its parameters.
        hint: the values of the component, for the tooltip.
        inner: components inside it that have no box of their own in the drawing.
    """

    path: str
    role: str
    title: str
    told: str = ""
    name: str = ""
    hint: str = ""
    inner: tuple[Box, ...] = ()

    @property
    def tooltip(self) -> str:
        """The path, and the values below it."""
        return "\n".join(filter(None, [self.path, self.hint]))


@dataclass(frozen=True)
class Branch:
    """A sublayer with its norms, and the sum with its residual path. What `guide` makes of the
    input, in steps without residual paths, is added to the input of the sublayer before."""

    body: Box
    pre: Box | None = None
    post: Box | None = None
    out: Box | None = None
    positions: tuple[Box, ...] = ()
    """The position schemes that are applied inside this attention."""
    reads_memory: bool = False
    guide: tuple[Branch | Box, ...] = ()


@dataclass(frozen=True)
class Layer:
    """A layer: branches in sequence or in parallel, or boxes of other steps; `told`, its label."""

    path: str
    title: str
    steps: tuple[Branch | Box, ...]
    parallel: bool = False
    told: str = ""

    @property
    def all_steps(self) -> Iterator[Branch | Box]:
        """The steps, those of guides too."""
        for step in self.steps:
            if isinstance(step, Branch):
                yield from step.guide
            yield step


@dataclass(frozen=True)
class Run:
    """Consecutive equal layers. `numbers` says which, if the stack also has others."""

    layer: Layer
    times: int
    numbers: str = ""


@dataclass(frozen=True)
class Cycle:
    """A repeated sequence of runs."""

    runs: tuple[Run, ...]
    times: int


OUTSIDE = "memory"


@dataclass(frozen=True)
class Column:
    """A stack, from its input upwards.

    Args:
        path: its path in the resolved spec.
        name: its name in the model.
        entry: its input: `ids` or `vectors`.
        embedding: the embedding of the input, if any.
        added: position schemes that are added to the embeddings.
        before: boxes between that sum and the first layer.
        layers: the layers, equal ones folded.
        note: a remark on all layers.
        after: boxes over the last layer: final norm, head.
        memory: the path of the column that its cross-attention reads; `OUTSIDE` if the caller
            passes the memory; None without cross-attention.
        joins: the path of the column among whose embedded vectors its output stands, as images do
            in a text; None if it stands among none.
        beside: boxes that map states between its layers to those of the column that it joins.
    """

    path: str
    name: str
    entry: str
    embedding: Box | None = None
    added: tuple[Box, ...] = ()
    before: tuple[Box, ...] = ()
    layers: tuple[Run | Cycle, ...] = ()
    note: str = ""
    after: tuple[Box, ...] = ()
    memory: str | None = None
    joins: str | None = None
    beside: tuple[Box, ...] = ()


@dataclass(frozen=True)
class Tie:
    """Tensors that several parts share: their label, and the paths of the boxes."""

    label: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Figure:
    """A whole model."""

    title: str
    subtitle: str
    columns: tuple[Column, ...]
    ties: tuple[Tie, ...]


def runs_of(column: Column) -> Iterator[Run]:
    """Yield the runs of a column from the bottom up, those in a cycle once."""
    for part in column.layers:
        yield from part.runs if isinstance(part, Cycle) else (part,)
