"""The tensors of a component, described without torch: names, shapes, and initialisation.

A `Layout` is a tree with the same names as the `nn.Module` that the component builds. Parameter
counts, sizes, the list of tensors and the initial distributions are computed from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from zoo.component import Component

Role = Literal["weight", "residual", "embedding", "bias", "constant", "cycle"]
_ROLES: tuple[Role, ...] = get_args(Role)
MAPS: tuple[Role, ...] = ("weight", "residual")
"""The roles of the matrices of maps, other than tables."""
_OF_MAPS: tuple[Role, ...] = (*MAPS, "embedding")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One stored tensor.

    `role` is used by init plugins: `weight` (a matrix), `residual` (a matrix whose output
    is added to the residual stream), `embedding`, `bias`, `constant` (starts at `value`) or `cycle`
    (its elements start at 0, 1, ..., value - 1, 0, 1, ... in C order).
    `fan_in` and `fan_out` count the inputs and outputs that one weight connects; the bias of a map
    has those of its weight, the bias of a norm none. `idle` is the number of elements that are not
    used for one token: those of the experts that are not chosen.
    """

    shape: tuple[int, ...]
    role: Role = "weight"
    value: float = 0.0
    fan_in: int = 0
    fan_out: int = 0
    buffer: bool = False
    dtype: Literal["float", "int64"] = "float"
    idle: int = 0

    def __post_init__(self) -> None:
        sizes: object = self.shape
        if not isinstance(sizes, tuple) or not all(isinstance(n, int) and n >= 0 for n in sizes):
            raise TypeError(f"a shape is a tuple of sizes, not {sizes!r}")
        if self.role not in _ROLES:
            raise TypeError(f"a role is one of {', '.join(_ROLES)}, not {self.role!r}")
        if not self.fan_in * self.fan_out and self.role in _OF_MAPS and self.size:
            raise TypeError(f"a {self.role} states `fan_in` and `fan_out`, which inits go by")
        if not 0 <= self.idle <= self.size:
            raise TypeError(f"`idle` of {self.size} elements cannot be {self.idle!r}")

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Placed(Tensor):
    """A tensor at its place in a model, as an init sees it.

    `name` is its full name, such as `decoder.layers.3.ffn.up_proj.weight`; of tied tensors, that
    under which they are stored. `layer` is the number of its layer, from 0, and `n_layers` how many
    layers its stack runs, those that share weights counted each time; both are None outside the
    layers.
    """

    name: str = ""
    layer: int | None = None
    n_layers: int | None = None

    @classmethod
    def at(
        cls, name: str, tensor: Tensor, layer: int | None = None, n_layers: int | None = None
    ) -> Placed:
        """A tensor of a layout with its full name, and its layer."""
        own = {field.name: getattr(tensor, field.name) for field in fields(Tensor)}
        return cls(**own, name=name, layer=layer, n_layers=n_layers)


class Cut(NamedTuple):
    """How the tensors of a module can be divided among processes, each of which computes with its
    part (tensor parallelism: Shoeybi et al. 2019, arXiv:1909.08053).

    Args:
        axes: the axis along which each tensor is cut, by name; other tensors stay whole.
        units: the number of heads or hidden units along it, of which all processes get equally
            many; None if parts of any size are possible.
        inputs: the dimension of the module's input that is divided among the processes; None if
            each gets the whole input.
        outputs: likewise for its output.
        by_itself: whether the module takes its parts itself (`zoo.sharding.parts`). Otherwise it is
            called with a DTensor, which torch's own operators know how to compute with.
    """

    axes: Mapping[str, int]
    units: int | None = None
    inputs: int | None = None
    outputs: int | None = None
    by_itself: bool = False


def column_wise(units: int) -> Cut:
    """The cut of a linear map whose output is divided by heads or hidden units."""
    return Cut({"weight": 0, "bias": 0}, units, outputs=-1)


def row_wise(units: int) -> Cut:
    """The cut of a linear map whose input is divided by heads or hidden units."""
    return Cut({"weight": 1}, units, inputs=-1)


BY_VOCABULARY = Cut({"weight": 0, "bias": 0})
"""The cut of a token table, or of a linear map to the vocabulary: by tokens."""


def _described(value: object) -> str:
    """Format a value for a message, shortened."""
    text = repr(value)
    return text if len(text) < 60 else f"a {type(value).__name__}"


class _Counted(ABC):
    """The counts of a layout, in closed form: no list of tensors is made."""

    @abstractmethod
    def _total(self, own: Callable[[Layout], int]) -> int:
        """The sum over all layouts, of which `own` counts what each holds itself."""

    @abstractmethod
    def _kept_by(self, own: Callable[[Layout], Mapping[int, int]]) -> Counter[int]:
        """The sums, key by key, of what generation keeps in all layouts; `own` maps each layout to
        what it keeps itself."""

    def _kept(self, own: Callable[[Layout], int]) -> int:
        """The sum of what generation keeps in all layouts; `own` as for `_kept_by`."""
        return self._kept_by(lambda layout: {0: own(layout)})[0]

    def _total_of(self, count: Callable[[Tensor], int]) -> int:
        """The sum of the counts of all tensors."""
        return self._total(lambda layout: sum(map(count, layout.own_tensors())))

    @cached_property
    def n_computed(self) -> int:
        """Elements of tables that are computed and not stored."""
        return self._total(lambda layout: layout.computed)

    @cached_property
    def n_parameters(self) -> int:
        """Trainable elements."""
        return self._total_of(lambda tensor: 0 if tensor.buffer else tensor.size)

    @cached_property
    def n_idle(self) -> int:
        """Elements that are not used for one token: those of experts that are not chosen."""
        return self._total_of(lambda tensor: tensor.idle)

    @cached_property
    def n_elements(self) -> int:
        """Floating-point elements that are stored: parameters and buffers."""
        return self._total_of(lambda tensor: tensor.size if tensor.dtype == "float" else 0)

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing: no stored tensors, and no tables that are computed."""
        return not self.n_tensors and not self.n_computed

    @cached_property
    def n_tensors(self) -> int:
        """Stored tensors."""
        return self._total_of(lambda _: 1)

    @cached_property
    def cache_per_token(self) -> int:
        """Elements that a key-value cache keeps for each token of the sequence itself."""
        return self._kept(lambda layout: layout.cache if layout.cache_every == 1 else 0)

    @cached_property
    def cache_per_recent_token(self) -> Mapping[int, int]:
        """The part of `cache_per_token` that is kept of the last tokens only, by their number."""
        return self._kept_by(
            lambda layout: {layout.cache_window: layout.cache} if layout.cache_window else {}
        )

    @cached_property
    def cache_per_tokens(self) -> Mapping[int, int]:
        """Elements that are kept once for several tokens, by the number of these."""
        return self._kept_by(
            lambda layout: {layout.cache_every: layout.cache} if layout.cache_every > 1 else {}
        )

    @cached_property
    def cache_per_memory_token(self) -> int:
        """Elements that a key-value cache keeps for each token of the attended memory."""
        return self._kept(lambda layout: layout.memory_cache)

    @cached_property
    def state_per_sequence(self) -> int:
        """Elements of the states of fixed size that a cache keeps for each sequence."""
        return self._kept(lambda layout: layout.state)


@dataclass(frozen=True)
class Layout(_Counted):
    """Named tensors and named sub-layouts.

    Args:
        parts: tensors and layouts, by the attribute names of the module that is built.
        label: the text of `zoo show` after the kind; values of the component that are not in it are
            added.
        cache: elements that generation keeps per token of the sequence itself (k and v).
        memory_cache: elements that generation keeps per token of the attended memory.
        cache_window: the number of last tokens for which `cache` is kept; None for all tokens.
        cache_every: the number of tokens for which `cache` is kept once, such as of a summary of
            them (`zoo.cache.AttentionCache.put_summaries`).
        state: elements that generation keeps per sequence, whatever its length
            (`zoo.cache.AttentionCache.keep_state`).
        generates: whether generation extends this part; an encoder keeps no cache, nor does a
            stack that recomputes all tokens.
        computed: elements of tables that are computed when the model is built and not stored.
        cut: how the tensors directly inside can be cut; None if every process has all of them.
        component: the description whose `layout` returned it; set automatically.
    """

    parts: Mapping[str, Tensor | Layout | LayerList] = field(
        default_factory=dict[str, "Tensor | Layout | LayerList"]
    )
    label: str = ""
    cache: int = 0
    memory_cache: int = 0
    cache_window: int | None = None
    cache_every: int = 1
    state: int = 0
    generates: bool = True
    computed: int = 0
    cut: Cut | None = None
    component: Component | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, part in self.parts.items():
            if not isinstance(part, Tensor | Layout | LayerList):
                raise TypeError(
                    f"the part `{name}` is {_described(part)}, not a Tensor or a Layout"
                )

    def own_tensors(self) -> Iterator[Tensor]:
        """The tensors directly inside."""
        return (part for part in self.parts.values() if isinstance(part, Tensor))

    def _containers(self) -> Iterator[Layout | LayerList]:
        return (part for part in self.parts.values() if not isinstance(part, Tensor))

    def _total(self, own: Callable[[Layout], int]) -> int:
        return own(self) + sum(part._total(own) for part in self._containers())

    def _kept_by(self, own: Callable[[Layout], Mapping[int, int]]) -> Counter[int]:
        if not self.generates:
            return Counter()
        found = Counter(own(self))
        for part in self._containers():
            found.update(part._kept_by(own))
        return +found

    def with_parts(self, **parts: Tensor | Layout | LayerList) -> Layout:
        """The layout with further parts, or with others in the place of its own."""
        return replace(self, parts={**self.parts, **parts})

    def find(self, name: str) -> Tensor:
        """The tensor with this name. Raises `KeyError` if there is none."""
        first, _, rest = name.partition(".")
        part = self.parts[first]
        if not isinstance(part, Tensor):
            return part.find(rest)
        if rest:
            raise KeyError(name)
        return part

    def tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """Every stored tensor with its full name, in the order of the modules."""
        for name, part in self.parts.items():
            if isinstance(part, Tensor):
                yield f"{prefix}{name}", part
            else:
                yield from part.tensors(f"{prefix}{name}.")

    def placed(self, prefix: str = "") -> Iterator[Placed]:
        """Every stored tensor with its place, in the order of the modules. Its layer is that of the
        outermost list of layers."""
        for name, part in self.parts.items():
            if isinstance(part, Tensor):
                yield Placed.at(f"{prefix}{name}", part)
            else:
                yield from part.placed(f"{prefix}{name}.")

    def layers(self, prefix: str = "") -> dict[str, Layout]:
        """Every layer of a list of layers, by its full name, except those inside another layer."""
        found: dict[str, Layout] = {}
        for name, part in self.parts.items():
            if isinstance(part, LayerList):
                found |= {f"{prefix}{name}.{number}": layer for number, layer in part.numbered()}
            elif isinstance(part, Layout):
                found |= part.layers(f"{prefix}{name}.")
        return found

    def ties_inside(self, prefix: str = "") -> Iterator[tuple[str, str]]:
        """Every tensor inside that is another one, and the other one, by their full names."""
        for name, part in self.parts.items():
            if not isinstance(part, Tensor):
                yield from part.ties_inside(f"{prefix}{name}.")

    def cuts(self, prefix: str = "") -> Iterator[tuple[str, Cut]]:
        """Every module inside that can be cut, by its full name, in the order of the modules."""
        for name, part in self.parts.items():
            if isinstance(part, Tensor):
                continue
            if isinstance(part, Layout) and part.cut is not None:
                yield f"{prefix}{name}", part.cut
            yield from part.cuts(f"{prefix}{name}.")


@dataclass(frozen=True)
class LayerList(_Counted):
    """A list of layers; equal layers are described once.

    Args:
        groups: the layout of each group of equal layers, with their numbers in the list.
        passes: how often the list is run, each time with a cache of its own.
        order: the numbers of the layers in the order that they run, each time with a cache of its
            own; empty if each runs once, in the order of the list.
        ties: the tensors of a layer that are those of another one, by their names in the list, such
            as `3.ffn.up_proj.weight`; each maps to the name of the other one.
    """

    groups: tuple[tuple[Sequence[int], Layout], ...]
    passes: int = 1
    order: tuple[int, ...] = ()
    ties: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        for _, layer in self.groups:
            if not isinstance(layer, Layout):
                raise TypeError(f"a group of layers has {_described(layer)}, not a Layout")

    def runs(self, at: Sequence[int]) -> int:
        """How often the layers with these numbers run in total."""
        once = sum(self._runs[number] for number in at) if self.order else len(at)
        return self.passes * once

    @cached_property
    def _runs(self) -> Counter[int]:
        return Counter(self.order)

    def _total(self, own: Callable[[Layout], int]) -> int:
        return sum(len(at) * layer._total(own) for at, layer in self.groups)

    def _kept_by(self, own: Callable[[Layout], Mapping[int, int]]) -> Counter[int]:
        found: Counter[int] = Counter()
        for at, layer in self.groups:
            for key, elements in layer._kept_by(own).items():
                found[key] += self.runs(at) * elements
        return found

    def find(self, name: str) -> Tensor:
        """The tensor with this name, which starts with a layer's number. Raises `KeyError`."""
        number, _, rest = name.partition(".")
        for at, layer in self.groups:
            if number.isdecimal() and int(number) in at:
                return layer.find(rest)
        raise KeyError(name)

    def tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """Every stored tensor with its full name, layer by layer."""
        for number, layer in self.numbered():
            yield from layer.tensors(f"{prefix}{number}.")

    def placed(self, prefix: str = "") -> Iterator[Placed]:
        """Every stored tensor with its place, layer by layer."""
        numbered = self.numbered()
        n_layers = self.runs([number for number, _ in numbered])
        for number, layer in numbered:
            for name, tensor in layer.tensors(f"{prefix}{number}."):
                yield Placed.at(name, tensor, number, n_layers)

    def ties_inside(self, prefix: str = "") -> Iterator[tuple[str, str]]:
        """Every tensor inside that is another one, and the other one, by their full names."""
        for alias, target in self.ties.items():
            yield f"{prefix}{alias}", f"{prefix}{target}"
        for at, layer in self.groups:
            if inside := list(layer.ties_inside()):
                for number, (alias, target) in product(at, inside):
                    yield f"{prefix}{number}.{alias}", f"{prefix}{number}.{target}"

    def cuts(self, prefix: str = "") -> Iterator[tuple[str, Cut]]:
        """Every module inside that can be cut, by its full name, layer by layer."""
        for number, layer in self.numbered():
            yield from layer.cuts(f"{prefix}{number}.")

    def numbered(self) -> list[tuple[int, Layout]]:
        """Each layer with its number, in their order."""
        numbered = [(number, layer) for at, layer in self.groups for number in at]
        return sorted(numbered, key=lambda item: item[0])


def linear(
    n_in: int, n_out: int, *, bias: bool = True, residual: bool = False, cut: Cut | None = None
) -> Layout:
    """The layout of `nn.Linear(n_in, n_out, bias)`: weight (n_out, n_in) and bias (n_out,)."""
    role: Role = "residual" if residual else "weight"
    weight = Tensor((n_out, n_in), role, fan_in=n_in, fan_out=n_out)
    if not bias:
        return Layout({"weight": weight}, cut=cut)
    offsets = Tensor((n_out,), "bias", fan_in=n_in, fan_out=n_out)
    return Layout({"weight": weight, "bias": offsets}, cut=cut)


def embedding(n_rows: int, width: int, *, cut: Cut | None = None) -> Layout:
    """The layout of `nn.Embedding(n_rows, width)`: weight (n_rows, width)."""
    weight = Tensor((n_rows, width), "embedding", fan_in=n_rows, fan_out=width)
    return Layout({"weight": weight}, cut=cut)


def vector(size: int, role: Role = "constant", *, value: float = 0.0) -> Tensor:
    """A vector of `size` elements; a `constant` starts at `value`."""
    return Tensor((size,), role, value)
