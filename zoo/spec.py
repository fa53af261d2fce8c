"""A validated spec: the frozen description of one Transformer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from zoo.layout import Layout, Tensor
from zoo.registering.plugin_errors import plugin_code
from zoo.slots import Builder
from zoo.wording import quoted

if TYPE_CHECKING:
    from zoo.resolving.node import Node
    from zoo.showing.data import Summary

FORMAT = 1


@dataclass(frozen=True)
class ModelSpec:
    """The resolved spec of a model: its `name`, and as `model` the tree of its components, with
    every default filled in, so that `spec.model.decoder.block.self_attn.n_heads` is a number. It
    cannot be changed. `print(spec)` shows what `zoo show` prints.

    `origin` is the resolved tree that it was made from, which knows where each value was written.
    It is ignored when specs are compared.
    """

    name: str
    model: Builder
    origin: Node | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """The resolved spec as plain data, as it is hashed and stored."""
        with plugin_code(f"the values of {self.name}"):
            builder = self.model.dump()
        return {"format": FORMAT, "name": self.name, "builder": builder.pop("kind"), **builder}

    @cached_property
    def canonical_json(self) -> bytes:
        """The resolved spec as canonical JSON (RFC 8785)."""
        import rfc8785

        data = self.to_dict()
        with plugin_code(f"the values of {self.name}"):  # a default may be no number, or huge
            return rfc8785.dumps(data)

    @cached_property
    def digest(self) -> str:
        """`sha256:` and the SHA-256 of the canonical JSON: equal for equal models of one name."""
        return f"sha256:{hashlib.sha256(self.canonical_json).hexdigest()}"

    def to_toml(self) -> str:
        """The full form as TOML text, which reads back as an equal spec."""
        from zoo.showing.full_form import to_toml

        return to_toml(self.to_dict())

    def __repr__(self) -> str:
        """One line: all values of GPT-2 would be some 5,000 characters."""
        return f"<ModelSpec {self.name}: {self.model.kind}; print() shows its parts>"

    def __str__(self) -> str:
        """The text of `zoo show`: the parts, their kinds and parameters, and the sizes."""
        from zoo.showing.show import summary_text

        return summary_text(self.summary())

    def summary(self) -> Summary:
        """The sizes and parts of the model: what `zoo show --json` prints, as plain data."""
        from zoo.showing.show import summary_data

        return summary_data(self)

    def _repr_html_(self) -> str:
        """The HTML for notebooks: a drawing of the architecture, and its sizes."""
        from zoo.drawing import to_html

        return to_html(self)

    @cached_property
    def layout(self) -> Layout:
        """The tensors of the model, as a tree named like its modules.

        Raises:
            PluginError: a component's `layout` failed, or did not return a layout.
        """
        with plugin_code(f"the layout of {self.name}"):
            return self.model.layout()

    @cached_property
    def ties(self) -> Mapping[str, str]:
        """The tied tensors: maps each further name of a tensor to the name under which it is
        stored, which is the lexicographically first.

        Raises:
            PluginError: the builder's `ties` failed, names a tensor that does not exist, or ties
                two of different shapes.
        """
        with plugin_code(f"the ties of {self.name}"):
            pairs = dict(self.layout.ties_inside()) | dict(self.model.ties())
            for alias, target in pairs.items():
                shapes = self._shape(alias), self._shape(target)
                if shapes[0] != shapes[1]:
                    raise TypeError(
                        f"{quoted(alias)} and {quoted(target)} cannot be one: they are "
                        f"{shapes[0]} and {shapes[1]}"
                    )
        groups: dict[str, set[str]] = {}
        for alias, target in pairs.items():
            group = groups.get(alias, {alias}) | groups.get(target, {target})
            groups.update(dict.fromkeys(group, group))
        return {name: min(group) for name, group in sorted(groups.items()) if name != min(group)}

    @cached_property
    def aliases(self) -> Mapping[str, tuple[str, ...]]:
        """The further names of each tied tensor, sorted, by the name under which it is stored."""
        found: dict[str, tuple[str, ...]] = {}
        for alias, first in self.ties.items():
            found[first] = (*found.get(first, ()), alias)
        return found

    def _shape(self, name: str) -> tuple[int, ...]:
        try:
            return self.layout.find(name).shape
        except KeyError:
            raise TypeError(f"there is no tensor {quoted(name)}") from None

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """The stored tensors by name; tied tensors are there once, under their first name."""
        return {name: tensor for name, tensor in self.layout.tensors() if name not in self.ties}

    @cached_property
    def n_parameters(self) -> int:
        """The number of trainable elements, tied ones counted once; nothing is built."""
        shared = {name: self.layout.find(name).size for name in self.ties}
        return self.layout.n_parameters - sum(shared.values())

    @property
    def n_active(self) -> int:
        """The number of trainable elements used for one token: all except those of experts that are
        not chosen. Embedding tables count as a whole, as in the papers."""
        shared = sum(self.layout.find(name).idle for name in self.ties)
        return self.n_parameters - (self.layout.n_idle - shared)
