"""Which layers of a stack use the same weights, and which weights are alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import AfterValidator, Field, ValidationInfo

from zoo.component import contradiction
from zoo.layout import Layout, Tensor
from zoo.slots import Sublayer
from zoo.wording import counted

if TYPE_CHECKING:
    from zoo.slots import Block, Position

Number = Annotated[int, Field(ge=0)]


def _checked(value: bool | tuple[int, ...], info: ValidationInfo) -> bool | tuple[int, ...]:
    """Replace a list that means the same as `true` or `false` by that, so that equal models have
    equal digests."""
    n_layers = info.data.get("n_layers")
    if isinstance(value, bool) or n_layers is None:  # it has a problem of its own
        return value
    if len(value) != n_layers:
        given, needed = counted(len(value), "number"), counted(n_layers, "layer")
        raise ValueError(f"has {given} for {needed}; each needs one")
    used = set(value)
    if max(used) >= len(used):
        missing = next(number for number in range(n_layers) if number not in used)
        raise ValueError(
            f"names the weights {max(used)} and never {missing}: they are numbered from 0, "
            "without gaps"
        )
    if value == tuple(range(n_layers)):
        return False
    return True if used == {0} else value


SharedLayers = Annotated[bool | tuple[Number, ...], AfterValidator(_checked)]
"""Whether all layers use the same weights, or the number of the weights that each layer uses. It
needs a field `n_layers` that is declared before it."""


SharedParts = Annotated[
    tuple[str, ...],
    Field(min_length=1),
    AfterValidator(lambda names: tuple(sorted(set(names)))),
]
"""The names of parts of a layer, in an order that says nothing."""


class Alike(NamedTuple):
    """Layers with one common description; or the sets of weights of such layers, of which there are
    fewer where layers share them.

    Args:
        at: the numbers of these layers or weights, from 0.
        block: the description of each of them.
        position: their position scheme.
    """

    at: Sequence[int]
    block: Block
    position: Position


def weights_of_layers(shared: bool | tuple[int, ...], n_layers: int) -> Sequence[int]:
    """The number of the weights that each layer uses."""
    if isinstance(shared, tuple):
        return shared
    return [0] * n_layers if shared else range(n_layers)


def alike_weights(layers: Sequence[Alike], shared: bool | tuple[int, ...]) -> list[Alike]:
    """Group the weights as their layers are grouped: with `shared = (0, 1, 0)`, the group of the
    layers 0 to 2 becomes the group of the weights 0 and 1."""
    if not isinstance(shared, tuple):
        return [layers[0]._replace(at=range(1))] if shared else list(layers)
    left = set(shared)
    found: list[Alike] = []
    for group in layers:
        numbers = sorted(left.intersection(shared[layer] for layer in group.at))
        left.difference_update(numbers)
        if numbers:
            found.append(group._replace(at=numbers))
    return found


def ties_of_parts(
    layers: Sequence[Alike], weights: Sequence[int], parts: Sequence[str]
) -> dict[str, str]:
    """The tensors of each layer that are those of the first one with the same weights, by their
    names in the list of layers, if layers share the weights of these `parts` alone; `weights` holds
    the number of the weights of each layer. Adapters are each layer's own.

    Raises:
        PydanticCustomError: layers with the same weights lack a part, or have tensors of other
            shapes there; or no layers have the same weights.
    """
    found: dict[str, str] = {}
    of_layers = {n: _shared_tensors(group.block, parts) for group in layers for n in group.at}
    firsts: dict[int, int] = {}
    for layer, number in enumerate(weights):
        first = firsts.setdefault(number, layer)
        if first == layer:
            continue
        for part, names in of_layers[layer].items():
            if not names and not of_layers[first][part]:
                raise contradiction(
                    f"layers {first} and {layer} share the weights of `{part}`, and have none "
                    "there: name parts of these layers in `share_parts`",
                    "share_parts",
                    "share_layers",
                )
            if names != of_layers[first][part]:
                raise contradiction(
                    f"layers {first} and {layer} share the weights of `{part}`, whose tensors are "
                    "not the same in both: change `share_layers`, or what is stated for single "
                    "layers",
                    "share_layers",
                    "layers",
                )
            found |= {f"{layer}.{part}.{name}": f"{first}.{part}.{name}" for name in names}
    return found


def _shared_tensors(block: Block, parts: Sequence[str]) -> dict[str, dict[str, Tensor]]:
    """The tensors of these parts of a layer, but for their adapters."""
    layout = block.layout()
    found: dict[str, dict[str, Tensor]] = {}
    for name in parts:
        part = layout.parts.get(name)
        if not isinstance(part, Layout):
            found[name] = {}
            continue
        branch = part.component
        own = branch.adapters if isinstance(branch, Sublayer) else ()
        found[name] = {n: t for n, t in part.tensors() if n.partition(".")[0] not in own}
    return found


def check_sharing(layers: Sequence[Alike], weights: Sequence[int]) -> None:
    """Raise a contradiction if layers with the same weights, which are one module, differ;
    `weights` holds the number of the weights of each layer."""
    users: dict[int, tuple[int, Alike]] = {}
    for group in layers:
        for layer in group.at:
            other, like = users.setdefault(weights[layer], (layer, group))
            if (like.block, like.position) != (group.block, group.position):
                raise contradiction(
                    f"layers {min(layer, other)} and {max(layer, other)} share their weights "
                    "and cannot differ: change `share_layers`, or what is stated for single layers",
                    "share_layers",
                    "layers",
                )
