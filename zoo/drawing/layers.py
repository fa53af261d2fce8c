"""The layers of a stack for a drawing: their kinds, their order and their components."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from zoo.component import LayerRules
from zoo.drawing.components import (
    Keys,
    box_of,
    kind_of,
    layout_names,
    short_number,
    varied,
)
from zoo.drawing.figure import Box, Branch, Cycle, Layer, Run
from zoo.drawing.folding import alike, fold
from zoo.layout import LayerList, Layout, Tensor
from zoo.showing.children import Child, beside_kind, children, is_absent
from zoo.showing.parts import ranges
from zoo.slots import Attention, Block, Position, Sublayer

MAX_SHARED = 4
"""Of more sets of layers with the same weights, only the first are listed."""


class _Kind(NamedTuple):
    """Layers of the same kind: their block, the position schemes inside their attention, and their
    numbers if they come from a layer rule."""

    block: Child
    schemes: Sequence[Child]
    at: tuple[int, ...] = ()


class _Sequence(NamedTuple):
    """Layers in the order that they run: the index of the kind of each and, if some share weights,
    the number of the weights of each, or the tensors that are those of another layer."""

    kinds: list[int]
    weights: Sequence[int] = ()
    ties: Mapping[str, str] = {}


def layers_of(
    stack: Child, inside: Sequence[Child], layout: Layout
) -> tuple[tuple[Run | Cycle, ...], list[str]]:
    """Return the layers of a stack, folded, and the remarks on all of them. `inside` are the
    components of the stack that are not absent."""
    schemes = [c for c in inside if isinstance(c.component, Position) and not is_embedded(c)]
    kinds = [_Kind(c, schemes) for c in inside if isinstance(c.component, Block)]
    n_plain = len(kinds)
    kinds += [kind for c in inside if isinstance(c.mark, LayerRules) for kind in _rule(c, schemes)]
    parts: list[Run | Cycle] = []
    notes: list[str] = []
    for kinds_in_order, weights, ties in _sequences(stack, inside, kinds, n_plain, layout):
        used = sorted(set(kinds_in_order))
        keys = varied([[kinds[i].block, *kinds[i].schemes] for i in used])
        drawn, places = alike([_layer(kinds[i], keys) for i in used])
        parts += fold([places[used.index(i)] for i in kinds_in_order], drawn)
        if weights:
            notes.append(_sharing("weights", weights))
        if ties:
            notes.append(_sharing_parts(ties, len(kinds_in_order)))
    return tuple(parts), notes


def _sharing_parts(ties: Mapping[str, str], n_layers: int) -> str:
    """Describe which layers share the weights of some of their parts, from the ties of a
    `LayerList`."""
    weights, parts = list(range(n_layers)), set[str]()
    for alias, target in ties.items():
        (layer, part, *_), first = alias.split("."), target.partition(".")[0]
        weights[int(layer)] = int(first)
        parts.add(part)
    return _sharing(" and ".join(sorted(parts)), weights)


def _sharing(what: str, weights: Sequence[int]) -> str:
    """Describe which layers share these weights, by the number of the weights of each layer."""
    layers: dict[int, list[int]] = {}
    for layer, number in enumerate(weights):
        layers.setdefault(number, []).append(layer)
    if len(layers) == 1:
        return f"all with the same {what}"
    shared = [ranges(numbers) for numbers in layers.values() if len(numbers) > 1]
    shown = shared[:MAX_SHARED] + ["..."] * (len(shared) > MAX_SHARED)
    return f"same {what} in layers {'; '.join(shown)}"


def is_embedded(child: Child) -> bool:
    """Return whether a component is a position scheme that is added to the embeddings."""
    return isinstance(child.component, Position) and child.component.embedded


def _rule(rule: Child, schemes: Sequence[Child]) -> Iterator[_Kind]:
    """Yield the kinds of layers of a layer rule, which take what it leaves open from the stack."""
    own = list(children(rule.component, rule.path))
    names = {c.name for c in own}
    near = [c for c in own if isinstance(c.component, Position) and not is_absent(c.component)]
    near = [c for c in near if not is_embedded(c)]
    around = [scheme for scheme in schemes if scheme.name not in names]
    at: tuple[int, ...] = getattr(rule.component, "at", ())
    for child in own:
        if isinstance(child.component, Block):
            yield _Kind(child, [*near, *around], at)


def _sequences(
    stack: Child,
    inside: Sequence[Child],
    kinds: Sequence[_Kind],
    n_plain: int,
    layout: Layout,
) -> Iterator[_Sequence]:
    """Yield the layer lists of a stack, from its layout. Layer rules apply to the first."""
    names = layout_names(list(inside), layout)
    lists = {name: part for name, part in layout.parts.items() if isinstance(part, LayerList)}
    special = {number: i for i, kind in enumerate(kinds) for number in kind.at}
    seen: set[str] = set()
    for i in range(n_plain):
        unclaimed = (n for n in lists if n not in seen and n not in names.values())
        name = names.get(kinds[i].block.name) or next(unclaimed, "")
        if name in seen:
            continue
        if name in lists:
            plain = [k for k in range(n_plain) if names.get(kinds[k].block.name, name) == name]
            numbered = _numbered(lists[name], kinds, plain)
            order = [*(lists[name].order or sorted(numbered))] * lists[name].passes
            ruled = {} if seen else special
            in_order = [ruled.get(layer, numbered[number]) for layer, number in enumerate(order)]
            weights = order if len(order) > len(numbered) else ()
            yield _Sequence(in_order, weights, lists[name].ties)
            seen.add(name)
        else:
            rules = (c.mark for c in inside if isinstance(c.mark, LayerRules))
            counts = (getattr(stack.component, rule.count) for rule in rules)
            yield _Sequence([special.get(n, i) for n in range(next(counts, 1))])


def _numbered(layers: LayerList, kinds: Sequence[_Kind], plain: Sequence[int]) -> dict[int, int]:
    """Map each layer of a list to its kind among those without a rule: the first whose block has
    the same tensors, or otherwise the first."""
    numbered: dict[int, int] = {}
    for at, layer in layers.groups:
        same = (i for i in plain if kinds[i].block.component.layout().parts == layer.parts)
        kind = next(same, plain[0])
        numbered |= dict.fromkeys(at, kind)
    return numbered


def _layer(kind: _Kind, keys: Keys) -> Layer:
    block = kind.block
    assert isinstance(block.component, Block)  # `layers_of`
    attention = block.component.self_attention
    inside = {
        c.name: _branch(c, c.component, kind.schemes, keys, attention)
        if isinstance(c.component, Sublayer)
        else box_of(c, keys=keys)
        for c in _in_order(block)
    }
    steps = _with_guide(block.path, block.component, inside)
    placement = getattr(block.component, "norm_placement", None)
    arrangement = getattr(block.component, "arrangement", placement)
    name = kind_of(block.component)
    return Layer(
        block.path,
        name,
        steps or (box_of(block, keys=keys),),
        arrangement == "parallel",
        beside_kind(block.component.layout().label, name) if steps else "",
    )


def _in_order(block: Child) -> list[Child]:
    """Return the components of a block in the order of its layout; one without tensors follows the
    field before it. One whose tensors are inside of another part is not drawn for itself."""
    inside = [c for c in children(block.component, block.path) if not is_absent(c.component)]
    layout = block.component.layout()
    names, order = layout_names(inside, layout), list(layout.parts)
    inside = [c for c in inside if c.name in names or c.component.layout().is_empty]
    places = {"": -1}
    for child in inside:
        before = next(reversed(places.values()))
        places[child.name] = order.index(names[child.name]) if child.name in names else before
    return sorted(inside, key=lambda child: places[child.name])


def _with_guide(
    path: str, block: Block, inside: Mapping[str, Branch | Box]
) -> tuple[Branch | Box, ...]:
    """Return the steps of a block, of which those in `Block.guiding` are the guide of the first
    other one."""
    steps = [step for name, step in inside.items() if name not in block.guiding]
    if not block.guiding:
        return tuple(steps)
    parts = block.layout().parts
    guide: list[Branch | Box] = []
    if block.takes_embedded:
        guide.append(Box(path, "other", "states and embeddings", "side by side"))
    for name in block.guiding:
        part = parts[name]
        count = short_number(part.size if isinstance(part, Tensor) else part.n_parameters)
        box = Box(f"{path}.{name}", "other", name, name=f"{count} parameters")
        guide.append(inside.get(name) or box)
    guided, *others = steps
    assert isinstance(guided, Branch)  # what `Block.guiding` asks for
    return (replace(guided, guide=tuple(guide)), *others)


def _branch(
    child: Child,
    sublayer: Sublayer,
    schemes: Sequence[Child],
    keys: Keys,
    positioned: Attention | None,
) -> Branch:
    """Return the branch of a sublayer. Position schemes work inside the attention `positioned`, or
    inside each that attends to the sequence itself if it is None."""
    inside = children(sublayer, child.path)
    norm = next((c for c in inside if c.component is sublayer.norm), None)
    box = None
    if norm and not is_absent(norm.component):
        box = replace(box_of(norm, keys=keys), name="")  # it stands between other boxes
    sites = sublayer.norms if box else ()
    attention = isinstance(sublayer, Attention)
    memory = isinstance(sublayer, Attention) and sublayer.key_width is not None
    takes_positions = attention and not memory and positioned in (None, sublayer)
    return Branch(
        body=box_of(child, without=(norm.name,) if norm else (), keys=keys),
        pre=box if "pre" in sites else None,
        post=box if "post" in sites else None,
        out=box if "out" in sites else None,
        positions=tuple(box_of(c, keys=keys) for c in schemes if takes_positions),
        reads_memory=memory,
    )
