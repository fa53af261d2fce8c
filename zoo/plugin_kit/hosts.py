"""The smallest spec around one component, to check a plugin through the whole pipeline.

A host is a builder whose model consists only of the component under test; it supplies the
dimensions that a stack would supply. A builder under test needs no host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from zoo.component import GIVEN, Component, Part, Size, Slot, fields_of
from zoo.document import Document, from_data
from zoo.errors import SpecError, ZooError
from zoo.layout import LayerList, Layout, Tensor, embedding, linear, vector
from zoo.plugin_kit.parts import PARTS
from zoo.plugin_kit.sizes import SIZES
from zoo.registering.registry_file import Entry
from zoo.registry import Registry
from zoo.resolve import resolve
from zoo.slots import (
    Attention,
    Block,
    Builder,
    Embedding,
    FeedForward,
    Head,
    Norm,
    NormPlacement,
    Plugin,
    Position,
)
from zoo.spec import FORMAT, ModelSpec
from zoo.validate import validate

if TYPE_CHECKING:
    from zoo.transformer import Transformer

OTHER_SIZE = 4
"""The size of a field whose name is not in `SIZES`."""
HEAD_DIM = SIZES["d_model"] // SIZES["n_heads"]
MEMORY_WIDTH = 12
GRID = 1, 2, 3
EMBEDDED_WIDTH = 10
"""The width of the vectors that positions are added to; as in ALBERT, not that of the stack."""


class Host(Builder):
    """A model of one component. It has the dimensions that the slot of the component is given, and
    no others, which the parents of the slot may not have either."""

    d_model: Size = SIZES["d_model"]
    if TYPE_CHECKING:  # each host declares it, after the dimensions that are bound to it
        part: Annotated[Plugin, Part()]

    def layout(self) -> Layout:
        return Layout({"part": self.part.layout()})

    def build(self) -> Transformer:
        from zoo.plugin_kit.driver import Hosted

        return Hosted(self.part.build())


class BlockHost(Host):
    norm_placement: NormPlacement = "pre"
    memory_width: Size | None = None
    grid: tuple[int, int, int] = GRID
    layer_input_width: Size = SIZES["d_model"] // 2
    vocab: Size = SIZES["vocab"]
    part: Annotated[Block, Slot("block", inherit=False, memory_width="memory_width")]


class AttentionHost(Host):
    memory_width: Size | None = None
    part: Annotated[Attention, Slot("attention", inherit=False, key_width="memory_width")]


class FeedForwardHost(Host):
    vocab: Size = SIZES["vocab"]
    part: Annotated[FeedForward, Slot("ffn", inherit=False)]


class NormHost(Host):
    part: Annotated[Norm, Slot("norm", inherit=False, width="d_model")]


class PositionHost(Host):
    n_heads: Size = SIZES["n_heads"]
    head_dim: Size = HEAD_DIM
    embedded_width: Size = EMBEDDED_WIDTH
    grid: tuple[int, int, int] = GRID
    part: Annotated[Position, Slot("position", inherit=False, width="embedded_width")]


class EmbeddingHost(Host):
    vocab: Size = SIZES["vocab"]
    n_layers: Size = SIZES["n_layers"]
    part: Annotated[Embedding, Slot("embedding", inherit=False)]

    def build(self) -> Transformer:
        from zoo.plugin_kit.driver import Hosted, Ramp

        return Hosted(self.part.build(Ramp()))


class HeadHost(Host):
    vocab: Size = SIZES["vocab"]
    part: Annotated[Head, Slot("head", inherit=False)]


class ReadingHost(AttentionHost):
    """A model of an attention that reads the tables of a position scheme, and that scheme."""

    n_heads: Size = SIZES["n_heads"]
    head_dim: Size = HEAD_DIM
    grid: tuple[int, int, int] = GRID
    scheme: Annotated[Position, Slot("position", inherit=False)]

    def layout(self) -> Layout:
        return Layout({"part": self.part.layout(), "scheme": self.scheme.layout()})

    def build(self) -> Transformer:
        from zoo.plugin_kit.driver import Hosted

        return Hosted(self.part.build(), self.scheme.build())


class InitHost(Builder):
    """A model of bare tensors of each role, outside of layers and in them, from a kernel with three
    dimensions to a number with none, which the init under test initializes."""

    def layout(self) -> Layout:
        layer = Layout({"up": linear(16, 32), "down": linear(32, 16, residual=True)})
        return Layout(
            {
                "tokens": embedding(11, 16),
                **layer.parts,
                "layers": LayerList(((range(2), layer),)),
                "query": Tensor((16,), fan_in=16, fan_out=1),
                "gain": Tensor((), fan_in=1, fan_out=1),
                "kernel": Layout({"weight": Tensor((8, 16, 3), fan_in=48, fan_out=24)}),
                "norm": Layout({"weight": vector(16, value=1.0), "bias": vector(16, "bias")}),
            }
        )

    def build(self) -> Transformer:
        from zoo.plugin_kit.driver import Bare

        return Bare({name: tensor.shape for name, tensor in self.layout().tensors()})


HOSTS: Mapping[str, type[Builder]] = {
    "block": BlockHost,
    "attention": AttentionHost,
    "ffn": FeedForwardHost,
    "norm": NormHost,
    "position": PositionHost,
    "embedding": EmbeddingHost,
    "head": HeadHost,
    "init": InitHost,
    "reading": ReadingHost,
}
"""The hosts by the slot of the component inside."""


def with_hosts(registry: Registry) -> Registry:
    """Return the registry with the hosts as additional builders, and the parts of
    `zoo.plugin_kit.parts` as additional kinds of their slots."""
    source = Document(__name__, {})

    def entry(slot: str, kind: str, cls: type[Plugin]) -> Entry:
        return Entry(slot, kind, f"{cls.__module__}:{cls.__name__}", source, Path())

    hosts = {_host(slot): entry("builder", _host(slot), cls) for slot, cls in HOSTS.items()}
    more: dict[str, dict[str, Entry]] = {"builder": hosts}
    for kind, parts in PARTS.items():
        for slot, cls in parts.items():
            more.setdefault(slot, {})[kind] = entry(slot, kind, cls)
    plugins = registry.plugins | {
        slot: registry.plugins[slot] | kinds for slot, kinds in more.items()
    }
    return replace(registry, plugins=plugins, _loaded={})


def _host(slot: str) -> str:
    return f"check_{slot}"


def host_data(
    slot: str, kind: str, values: Mapping[str, Any], registry: Registry, *, memory: bool = False
) -> dict[str, Any]:
    """Return the spec, as data, of a model around one component with these values. With `memory`,
    it attends to a memory, which the hosts of attention and blocks can supply."""
    own = {"kind": kind, **values}
    data: dict[str, Any] = {"format": FORMAT, "name": f"check-{slot}-{kind}"}
    if slot == "builder":
        return {**data, "builder": kind, **values}
    if slot == "init":
        return {**data, "builder": _host(slot), "init": own}
    if memory:
        return {**data, "builder": _host(slot), "memory_width": MEMORY_WIDTH, "part": own}
    if other := _partner(slot, kind, registry):
        parts = (
            {"part": own, "scheme": other}
            if slot == "attention"
            else {"part": other, "scheme": own}
        )
        return {**data, "builder": _host("reading"), **parts}
    return {**data, "builder": _host(slot), "part": own}


def _partner(slot: str, kind: str, registry: Registry) -> dict[str, Any] | None:
    """Return the scheme whose tables an attention reads, or an attention that reads those of a
    scheme which does nothing by itself; None if there is none."""
    partners = {"attention": "position", "position": "attention"}
    if slot not in partners:
        return None
    cls: Any = registry.plugin(slot, kind)
    if slot == "position" and (cls.rotates or cls.adds_bias):
        return None
    for name in registry.plugins[partners[slot]]:
        with contextlib.suppress(ZooError):  # skip plugins that cannot be loaded
            other: Any = registry.plugin(partners[slot], name)
            attention, scheme = (cls, other) if slot == "attention" else (other, cls)
            if attention.reads is not None and attention.reads == scheme.site:
                return {"kind": name, **other.example}
    return None


def complete(data: Mapping[str, Any], registry: Registry) -> ModelSpec:
    """Return the spec of this data, with small values for missing required fields and for the
    vocabularies that something reads, and without dropout.

    Raises:
        ZooError: a value cannot be guessed, or the guess is invalid.
    """
    found: dict[str, Any] = dict(data)
    resolved = resolve(from_data(found, "<check>"), registry)
    if resolved.findings:
        raise resolved.findings.error()
    optional: list[tuple[str | int, ...]] = []
    for node in resolved.root.walk():
        marks = fields_of(node.cls)
        for name in marks.keys() - node.values.keys() - {"kind"}:
            required = node.cls.model_fields[name].is_required()
            if name.endswith("vocab") and not required and marks[name] is not GIVEN:
                optional.append((*node.path, name))
            elif (value := _guess(node.cls, name)) is not None:
                put(found, (*node.path, name), value)
    refused: SpecError | None = None
    # One that nothing reads, as in a model of images, is refused.
    for number in range(len(optional), -1, -1):
        for vocabularies in combinations(optional, number):
            tried = deepcopy(found)
            for path in vocabularies:
                put(tried, path, SIZES["vocab"])
            try:
                return validate(resolve(from_data(tried, "<check>"), registry))
            except SpecError as error:
                refused = refused or error
    assert refused is not None  # at least one was tried
    raise refused


def _guess(cls: type[Component], name: str) -> Any:
    """Return a small value for a field, or None if it needs none or none can be guessed."""
    field, mark = cls.model_fields[name], fields_of(cls)[name]
    if mark is GIVEN or isinstance(mark, Part):
        return None
    if "dropout" in name and field.default:
        return 0.0
    if not field.is_required():
        return None
    if name.endswith("vocab"):
        return SIZES["vocab"]
    kind: Any = field.annotation
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    return {int: SIZES.get(name, OTHER_SIZE), float: 0.5, bool: False, str: "x"}.get(kind)


def put(data: dict[str, Any], path: tuple[str | int, ...], value: Any) -> None:
    """Set the value at a path, creating the tables along it; `"mlp"` becomes `{ kind = "mlp" }`."""
    table: Any = data
    for key in path[:-1]:
        inner = table.get(key, {})
        table[key] = dict(inner) if isinstance(inner, Mapping) else {"kind": inner}
        table = table[key]
    table[path[-1]] = value
