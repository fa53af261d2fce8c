"""What tensors a component has, told without torch: names, shapes, and how each is initialised.

A `Layout` is a tree with the same names as the `nn.Module` that the component builds. From it come
the parameter count, the sizes, the list of tensors and the initial distributions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Literal

Role = Literal["weight", "residual", "embedding", "bias", "constant"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One stored tensor.

    `role` is what an init plugin goes by: `weight` (a matrix), `residual` (a matrix whose output
    is added to the residual stream), `embedding`, `bias`, or `constant` (starts at `value`).
    `fan_in` and `fan_out` count the inputs and outputs that one weight connects.
    """

    shape: tuple[int, ...]
    role: Role = "weight"
    value: float = 0.0
    fan_in: int = 0
    fan_out: int = 0
    buffer: bool = False
    dtype: Literal["float", "int64"] = "float"

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Named tensors and named sub-layouts.

    Args:
        parts: what is inside, by the attribute names of the module that is built.
        label: what `zoo show` writes beside the name.
        repeat: when set, the module is a list of that many equal elements, named 0, 1, ...
        cache: elements that generation keeps per token of the sequence itself (k and v).
        memory_cache: elements that generation keeps per token of the attended memory.
        generates: whether generation extends what is inside; an encoder keeps no cache.
    """

    parts: Mapping[str, Tensor | Layout] = field(default_factory=dict[str, "Tensor | Layout"])
    label: str = ""
    repeat: int | None = None
    cache: int = 0
    memory_cache: int = 0
    generates: bool = True

    @cached_property
    def n_parameters(self) -> int:
        """Trainable elements, in closed form: no list of tensors is made."""
        return self._total("n_parameters", lambda tensor: 0 if tensor.buffer else tensor.size)

    @cached_property
    def n_elements(self) -> int:
        """Floating-point elements that are stored: parameters and buffers."""
        return self._total(
            "n_elements", lambda tensor: tensor.size if tensor.dtype == "float" else 0
        )

    @cached_property
    def n_tensors(self) -> int:
        """Stored tensors."""
        return self._total("n_tensors", lambda _: 1)

    @cached_property
    def cache_per_token(self) -> int:
        """Elements that a key-value cache keeps for each token of the sequence itself."""
        return self.generates * (self.cache + self._sum_of_parts("cache_per_token"))

    @cached_property
    def cache_per_memory_token(self) -> int:
        """Elements that a key-value cache keeps for each token of the attended memory."""
        return self.generates * (self.memory_cache + self._sum_of_parts("cache_per_memory_token"))

    def _total(self, name: str, count: Callable[[Tensor], int]) -> int:
        own = sum(count(part) for part in self.parts.values() if isinstance(part, Tensor))
        return own * (self.repeat or 1) + self._sum_of_parts(name)

    def _sum_of_parts(self, name: str) -> int:
        layouts = (part for part in self.parts.values() if isinstance(part, Layout))
        return (1 if self.repeat is None else self.repeat) * sum(
            getattr(part, name) for part in layouts
        )

    def find(self, name: str) -> Tensor:
        """The tensor of that name. Raises `KeyError` when there is none."""
        first, _, rest = name.partition(".")
        if self.repeat is not None and first.isdecimal() and int(first) < self.repeat:
            first, _, rest = rest.partition(".")
        part = self.parts[first]
        if isinstance(part, Tensor):
            return part
        return part.find(rest)

    def tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """Every stored tensor with its full name, in the order of the modules."""
        prefixes = [prefix] if self.repeat is None else [f"{prefix}{i}." for i in range(self.repeat)]
        for start in prefixes:
            for name, part in self.parts.items():
                if isinstance(part, Layout):
                    yield from part.tensors(f"{start}{name}.")
                else:
                    yield f"{start}{name}", part


def linear(n_in: int, n_out: int, *, bias: bool = True, residual: bool = False) -> Layout:
    """The layout of `nn.Linear(n_in, n_out, bias)`: weight (n_out, n_in) and bias (n_out,)."""
    role: Role = "residual" if residual else "weight"
    weight = Tensor((n_out, n_in), role, fan_in=n_in, fan_out=n_out)
    return Layout({"weight": weight, "bias": vector(n_out, "bias")} if bias else {"weight": weight})


def embedding(n_rows: int, width: int) -> Layout:
    """The layout of `nn.Embedding(n_rows, width)`: weight (n_rows, width)."""
    return Layout({"weight": Tensor((n_rows, width), "embedding", fan_in=n_rows, fan_out=width)})


def vector(size: int, role: Role = "constant", *, value: float = 0.0) -> Tensor:
    """A vector of `size` elements; a `constant` starts at `value`."""
    return Tensor((size,), role, value)
