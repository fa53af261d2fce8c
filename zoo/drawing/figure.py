"""What a drawing shows of a model, before anything has a place on paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """One component.

    Args:
        path: its place in the resolved spec, such as `encoder.block.self_attn`.
        role: the slot that it fills, which gives the colour; "other" when it fills none.
        title: its kind.
        details: lines below the title.
        hint: what a viewer shows when it is pointed at: every value of the component.
        inner: components inside it that have no place of their own in a drawing.
    """

    path: str
    role: str
    title: str
    details: tuple[str, ...] = ()
    hint: str = ""
    inner: tuple[Box, ...] = ()


@dataclass(frozen=True)
class Branch:
    """A sublayer with its norms, and the sum with what went past it."""

    body: Box
    pre: Box | None = None
    post: Box | None = None
    out: Box | None = None
    positions: tuple[Box, ...] = ()
    """The schemes that work inside this attention."""
    reads_memory: bool = False


@dataclass(frozen=True)
class Layer:
    """A layer: branches one after the other, or side by side; a `Box` is what is no branch."""

    path: str
    title: str
    steps: tuple[Branch | Box, ...]
    parallel: bool = False


@dataclass(frozen=True)
class Run:
    """Equal layers in a row. `numbers` says which, when the stack has others too."""

    layer: Layer
    times: int
    numbers: str = ""


@dataclass(frozen=True)
class Cycle:
    """Runs that follow each other again and again."""

    runs: tuple[Run, ...]
    times: int


OUTSIDE = "memory"


@dataclass(frozen=True)
class Column:
    """A stack, from its input up.

    Args:
        path: its place in the resolved spec.
        name: what the model calls it.
        entry: what it is fed with: `ids` or `vectors`.
        embedding: what makes vectors of that.
        added: position schemes that are added to them.
        before: boxes between that sum and the first layer.
        layers: the layers, equal ones folded.
        note: what is to be said of all layers.
        after: boxes over the last layer: final norm, head.
        memory: the path of the column that its cross-attention reads, `OUTSIDE` for what the caller
            gives, None without cross-attention.
    """

    path: str
    name: str
    entry: str
    embedding: Box | None
    added: tuple[Box, ...]
    before: tuple[Box, ...]
    layers: tuple[Run | Cycle, ...]
    note: str
    after: tuple[Box, ...]
    memory: str | None


@dataclass(frozen=True)
class Tie:
    """Tensors that several parts have in common: what they are called, and the boxes' paths."""

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
    """The runs of a column from the bottom up, those in a cycle once."""
    for part in column.layers:
        yield from part.runs if isinstance(part, Cycle) else (part,)
