"""A spec in, the figure of its model out: which stacks there are, what their layers are made of.

Nothing here knows a kind by name. A stack is a component that holds a block; what it is made of
shows in its fields, in the slots that they fill, and in its layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from zoo.component import LayerRules, Part
from zoo.drawing.components import (
    Child,
    Keys,
    box_of,
    children,
    is_absent,
    kind_of,
    layout_names,
    short_number,
    varied,
)
from zoo.drawing.figure import (
    OUTSIDE,
    Box,
    Branch,
    Column,
    Cycle,
    Figure,
    Layer,
    Run,
    runs_of,
)
from zoo.drawing.folding import fold
from zoo.drawing.ties import ties_of
from zoo.layout import LayerList, Layout, Tensor
from zoo.slots import Attention, Block, Embedding, Init, Norm, Position, Sublayer
from zoo.spec import ModelSpec


def figure_of(spec: ModelSpec) -> Figure:
    """What a drawing of a model shows."""
    root = Child("builder", Part(), spec.model, "")
    stacks = _stacks(root)
    columns = {stack.path: _column(stack, stacks) for stack in stacks}
    if not stacks:
        columns[""] = Column("", root.name, "", None, (), (), (), "", (), None)
    facts = [spec.model.kind, f"{short_number(spec.n_parameters)} parameters"]
    for child in children(spec.model, ""):
        if isinstance(child.component, Init):
            facts.append(f"init {kind_of(child.component)}")
        elif root not in stacks and not _stacks(child) and not is_absent(child.component):
            below = _source_of(child, list(columns)) or next(reversed(columns))
            columns[below] = _with(columns[below], box_of(child))
    if not stacks and not columns[""].after:
        columns[""] = _with(columns[""], box_of(root))
    sources_first = sorted(columns.values(), key=lambda column: column.memory is not None)
    return Figure(spec.name, " · ".join(facts), tuple(sources_first), ties_of(spec))


def _with(column: Column, box: Box) -> Column:
    return replace(column, after=(*column.after, box))


def _stacks(child: Child) -> list[Child]:
    """The stacks inside a component, or the component if it is one."""
    inside = list(children(child.component, child.path))
    if any(isinstance(c.component, Block) for c in inside):
        return [child]
    return [stack for c in inside for stack in _stacks(c)]


def _source_of(child: Child, paths: Sequence[str]) -> str | None:
    """The stack that a dimension of a component comes from."""
    heads = [source.split(".")[0] for source in child.mark.given.values() if "." in source]
    return next((head for head in heads if head in paths and head != child.path), None)


def _column(stack: Child, stacks: Sequence[Child]) -> Column:
    inside = [c for c in children(stack.component, stack.path) if not is_absent(c.component)]
    layout = stack.component.layout()
    names = layout_names(inside, layout)
    embedding = next((c for c in inside if isinstance(c.component, Embedding)), None)
    before = _norms_inside(embedding) if embedding else ()
    norms = tuple(name for name, _ in before)
    layers, note = _layers(stack, inside, layout)
    drawn = (Embedding, Position, Block, Init)
    after = [
        box_of(c)
        for c in inside
        if not isinstance(c.component, drawn)
        and not isinstance(c.mark, LayerRules)
        and (c.name in names or not _left_out(stack, c))
    ]
    column = Column(
        path=stack.path,
        name=stack.name,
        entry=_entry(embedding),
        embedding=box_of(embedding, without=norms) if embedding else None,
        added=tuple(box_of(c) for c in inside if _is_embedded(c)),
        before=tuple(box for _, box in before),
        layers=layers,
        note=note,
        after=(*after, *_unnamed(stack, layout, names)),
        memory=None,
    )
    if any(
        isinstance(s, Branch) and s.reads_memory for r in runs_of(column) for s in r.layer.steps
    ):
        return replace(column, memory=_source_of(stack, [s.path for s in stacks]) or OUTSIDE)
    return column


def _entry(embedding: Child | None) -> str:
    tensors = embedding.component.layout().tensors() if embedding else ()
    return "ids" if any(tensor.role == "embedding" for _, tensor in tensors) else "vectors"


def _is_embedded(child: Child) -> bool:
    return isinstance(child.component, Position) and child.component.embedded


def _norms_inside(embedding: Child) -> tuple[tuple[str, Box], ...]:
    return tuple(
        (c.name, box_of(c))
        for c in children(embedding.component, embedding.path)
        if isinstance(c.component, Norm) and not is_absent(c.component)
    )


def _left_out(stack: Child, child: Child) -> bool:
    """Whether a stack does not use a component that has no tensors to show: a final norm."""
    without_tensors = not child.component.layout().parts
    return not without_tensors or not getattr(stack.component, f"final_{child.name}", True)


def _unnamed(stack: Child, layout: Layout, names: dict[str, str]) -> list[Box]:
    """Boxes for tensors of a stack that belong to no component inside it."""
    boxes: list[Box] = []
    for name, part in layout.parts.items():
        if isinstance(part, Tensor) or (isinstance(part, Layout) and name not in names.values()):
            count = part.size if isinstance(part, Tensor) else part.n_parameters
            detail = f"{short_number(count)} parameters"
            boxes.append(Box(f"{stack.path}.{name}".strip("."), "other", name, (detail,)))
    return boxes


# --- layers -------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """Layers that are alike: their block, the position schemes that work inside their attention,
    and their numbers, which are those that are left where no rule speaks of them."""

    block: Child
    schemes: Sequence[Child]
    at: tuple[int, ...] = ()


def _layers(
    stack: Child, inside: Sequence[Child], layout: Layout
) -> tuple[tuple[Run | Cycle, ...], str]:
    """The layers of a stack, folded, and what is to be said of all of them."""
    schemes = [c for c in inside if isinstance(c.component, Position) and not _is_embedded(c)]
    kinds = [_Kind(c, schemes) for c in inside if isinstance(c.component, Block)]
    listed = next((part for part in layout.parts.values() if isinstance(part, LayerList)), None)
    n_layers = sum(len(at) for at, _ in listed.groups) if listed else 1
    for rule in (c for c in inside if isinstance(c.mark, LayerRules)):
        own = list(children(rule.component, rule.path))
        names = {c.name for c in own}
        around = [scheme for scheme in schemes if scheme.name not in names]
        near = [c for c in own if isinstance(c.component, Position) and not is_absent(c.component)]
        blocks = [c for c in own if isinstance(c.component, Block)]
        at: tuple[int, ...] = getattr(rule.component, "at", ())
        kinds += [_Kind(block, [*near, *around], at) for block in blocks]
        if listed is None and isinstance(rule.mark, LayerRules):
            n_layers = getattr(stack.component, rule.mark.count)
    special = {number: i for i, kind in enumerate(kinds) for number in kind.at}
    sequence = [special.get(number, 0) for number in range(n_layers)]
    keys = varied([[kind.block, *kind.schemes] for kind in kinds])
    folded = fold(sequence, [_layer(kind, keys) for kind in kinds])
    if listed is None or listed.passes == 1:
        return folded, ""
    if len(folded) == 1 and isinstance(folded[0], Run):
        times = folded[0].times * listed.passes
        return (replace(folded[0], times=times),), "all with the same weights"
    return folded, f"run through {listed.passes} times, with the same weights"


def _layer(kind: _Kind, keys: Keys) -> Layer:
    block = kind.block
    steps = tuple(
        _branch(c, c.component, kind.schemes, keys)
        if isinstance(c.component, Sublayer)
        else box_of(c, keys=keys)
        for c in children(block.component, block.path)
        if not is_absent(c.component)
    )
    placement = getattr(block.component, "norm_placement", None)
    arrangement = getattr(block.component, "arrangement", placement)
    return Layer(
        block.path,
        kind_of(block.component),
        steps or (box_of(block, keys=keys),),
        arrangement == "parallel",
    )


def _branch(child: Child, sublayer: Sublayer, schemes: Sequence[Child], keys: Keys) -> Branch:
    norm = next(c for c in children(sublayer, child.path) if c.component is sublayer.norm)
    sites = () if is_absent(norm.component) else sublayer.norms
    box = box_of(norm, keys=keys)
    box = replace(box, details=box.details[:-1])
    attention = isinstance(sublayer, Attention)
    memory = isinstance(sublayer, Attention) and sublayer.key_width is not None
    return Branch(
        body=box_of(child, without=(norm.name,), keys=keys),
        pre=box if "pre" in sites else None,
        post=box if "post" in sites else None,
        out=box if "out" in sites else None,
        positions=tuple(box_of(c, keys=keys) for c in schemes if attention and not memory),
        reads_memory=memory,
    )
