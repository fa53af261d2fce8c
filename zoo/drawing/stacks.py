"""Make the figure of a spec: its stacks, and the components of their layers.

No kind is treated by name. A stack is a component that holds a block; its parts follow from its
fields, from the slots that they fill, and from its layout.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from zoo.component import LayerRules, Part
from zoo.drawing.components import box_of, kind_of, layout_names, short_number
from zoo.drawing.figure import OUTSIDE, Box, Branch, Column, Figure, runs_of
from zoo.drawing.layers import is_embedded, layers_of
from zoo.drawing.ties import ties_of
from zoo.layout import LayerList, Layout, Tensor
from zoo.showing.children import Child, children, is_absent
from zoo.slots import Block, Embedding, Init, Position

if TYPE_CHECKING:
    from zoo.spec import ModelSpec


def figure_of(spec: ModelSpec) -> Figure:
    """Return the content of the drawing of a model."""
    root = Child("builder", Part(), spec.model, "")
    stacks = _stacks(root)
    columns = {stack.path: _column(stack, stacks) for stack in stacks}
    if not stacks:
        columns[""] = Column(path="", name=root.name, entry="")
    facts = [spec.model.kind, f"{short_number(spec.n_parameters)} parameters"]
    inside = list(children(spec.model, ""))
    names = layout_names(inside, spec.layout)
    for child in inside:
        if isinstance(child.component, Init):
            facts.append(f"init {kind_of(child.component)}")
        elif root not in stacks and not _stacks(child) and not is_absent(child.component):
            joins = _joined_by(child, columns)
            paths = [path for path in columns if path != joins]
            below = _source_of(child, paths) or next(reversed(columns))
            part, box = spec.layout.parts.get(names.get(child.name, "")), box_of(child)
            if of_layers := isinstance(part, LayerList):  # which tells of which layers
                box = replace(box, told=part.groups[0][1].label)
            columns[below] = _with(columns[below], box, joins, beside=of_layers)
    if not stacks and not columns[""].after:
        columns[""] = _with(columns[""], box_of(root))
    joined = {column.joins for column in columns.values()}
    sources_first = sorted(
        columns.values(), key=lambda column: column.memory is not None or column.path in joined
    )
    return Figure(spec.name, " · ".join(facts), tuple(sources_first), ties_of(spec))


def _with(column: Column, box: Box, joins: str | None = None, *, beside: bool = False) -> Column:
    """A column with a box on it, or beside its layers if the box maps states of some to `joins`."""
    joins = joins or column.joins
    if beside and joins:
        return replace(column, joins=joins, beside=(*column.beside, box))
    return replace(column, joins=joins, after=(*column.after, box))


def _stacks(child: Child) -> list[Child]:
    """Return the stacks inside a component, or the component itself if it is one."""
    inside = list(children(child.component, child.path))
    if any(isinstance(c.component, Block) for c in inside):
        return [child]
    return [stack for c in inside for stack in _stacks(c)]


def _source_of(child: Child, paths: Sequence[str]) -> str | None:
    """Return the path of the other stack that a dimension of a component comes from, if any."""
    heads = [source.split(".")[0] for source in child.mark.given.values() if "." in source]
    return next((head for head in heads if head in paths and head != child.path), None)


def _joined_by(child: Child, paths: Collection[str]) -> str | None:
    """Return the path of the stack in which `d_out` of a component is a width, if there is one."""
    head, _, width = child.mark.given.get("d_out", "").partition(".")
    return head if width and head in paths else None


def _column(stack: Child, stacks: Sequence[Child]) -> Column:
    inside = [c for c in children(stack.component, stack.path) if not is_absent(c.component)]
    layout = stack.component.layout()
    names = layout_names(inside, layout)
    embedding = next((c for c in inside if isinstance(c.component, Embedding)), None)
    before = _sum_norms(embedding) if embedding else []
    without = tuple(c.name for c in before)
    layers, notes = layers_of(stack, inside, layout)
    drawn = (Embedding, Position, Block, Init)
    after = {
        names.get(c.name, c.name): box_of(c)
        for c in inside
        if not isinstance(c.component, drawn)
        and not isinstance(c.mark, LayerRules)
        and (c.name in names or not c.component.layout().parts)
    } | _unnamed(stack, layout, names)
    order = [*layout.parts, *after]
    column = Column(
        path=stack.path,
        name=stack.name,
        entry=_entry(embedding),
        embedding=box_of(embedding, without=without) if embedding else None,
        added=tuple(box_of(c) for c in inside if is_embedded(c)),
        before=tuple(box_of(c) for c in before),
        layers=layers,
        note=", ".join(filter(None, [layout.label, *notes])),
        after=tuple(after[name] for name in sorted(after, key=order.index)),
    )
    if any(
        isinstance(s, Branch) and s.reads_memory for r in runs_of(column) for s in r.layer.all_steps
    ):
        return replace(column, memory=_source_of(stack, [s.path for s in stacks]) or OUTSIDE)
    return column


def _entry(embedding: Child | None) -> str:
    component = embedding.component if embedding else None
    if isinstance(component, Embedding):
        if component.image_shape or component.patch_shape:
            return "images"
        if component.shortest_sound:
            return "sounds"
        if component.spectrogram_shape:
            return "spectrograms"
    tensors = embedding.component.layout().tensors() if embedding else ()
    return "ids" if any(tensor.role == "embedding" for _, tensor in tensors) else "vectors"


def _sum_norms(embedding: Child) -> list[Child]:
    """Return the norm inside an embedding that comes after positions are added, if there is one."""
    name = getattr(embedding.component, "sum_norm", None)
    inside = children(embedding.component, embedding.path)
    return [c for c in inside if c.name == name and not is_absent(c.component)]


def _unnamed(stack: Child, layout: Layout, names: dict[str, str]) -> dict[str, Box]:
    """Return boxes for the tensors of a stack that belong to no component inside it, by name."""
    boxes: dict[str, Box] = {}
    for name, part in layout.parts.items():
        if isinstance(part, Tensor) or (isinstance(part, Layout) and name not in names.values()):
            count = part.size if isinstance(part, Tensor) else part.n_parameters
            detail = f"{short_number(count)} parameters"
            boxes[name] = Box(f"{stack.path}.{name}".strip("."), "other", name, name=detail)
    return boxes
