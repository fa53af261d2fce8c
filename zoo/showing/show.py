"""The output of `zoo show`, as data and as text. Does not import torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from zoo.byte_counts import human_bytes
from zoo.component import Component
from zoo.layout import Tensor
from zoo.showing.alike import MOST_LAYERS, folded, in_one
from zoo.showing.children import children, distinctive_values
from zoo.showing.data import Part, Summary
from zoo.showing.parts import Row, ranges, rows_of, values_text
from zoo.slots import Attention
from zoo.wording import counted

if TYPE_CHECKING:
    from zoo.spec import ModelSpec

BYTES = {"float32": 4, "bfloat16": 2}
WIDTH, NARROWEST = 100, 40
"""The width of the lines of the tree, and the least width for the description of a part."""


def summary_data(spec: ModelSpec) -> Summary:
    """Return the sizes of a model: parameters, bytes, the cache of generation, and the tree of
    parts."""
    shared = spec.layout.n_parameters - spec.n_parameters
    layout = spec.layout
    return {
        "name": spec.name,
        "builder": spec.model.kind,
        "values": distinctive_values(spec.model),
        "spec_digest": spec.digest,
        "parameters": {"unique": spec.n_parameters, "active": spec.n_active, "shared": shared},
        "bytes": _bytes(spec.n_parameters),
        "kv_cache_bytes_per_token": _bytes(layout.cache_per_token),
        "kv_cache_of_last_tokens": [
            {"tokens": tokens, "bytes_per_token": _bytes(elements)}
            for tokens, elements in sorted(layout.cache_per_recent_token.items())
        ],
        "kv_cache_of_several_tokens": [
            {"tokens": tokens, "bytes": _bytes(elements)}
            for tokens, elements in sorted(layout.cache_per_tokens.items())
        ],
        "kv_cache_bytes_per_source_token": _bytes(layout.cache_per_memory_token),
        "state_bytes_per_sequence": layout.state_per_sequence * BYTES["float32"],
        "tied": dict(spec.ties),
        "parts": _tree_data(rows_of(layout)),
    }


def _bytes(elements: int) -> dict[str, int]:
    return {dtype: elements * size for dtype, size in BYTES.items()}


def _tree_data(rows: Sequence[Row]) -> list[Part]:
    return [
        {
            "name": row.name,
            "layers": None if row.layers is None else list(row.layers),
            "runs": row.runs,
            "kind": row.kind,
            "label": row.told,
            "values": row.values,
            "parameters_each": row.layout.n_parameters,
            "parts": _tree_data(row.inner),
        }
        for row in rows
    ]


def summary_text(data: Summary) -> str:
    """Format the summary as text: the sizes, then the tree."""
    sizes = data["parameters"]
    lines = [
        f"{data['name']}  ({data['builder']})",
        f"  spec        {data['spec_digest']}",
        f"  parameters  {sizes['unique']:,}"
        + (f", and {sizes['shared']:,} more that are shared" if sizes["shared"] else ""),
    ]
    if sizes["active"] != sizes["unique"]:
        lines.append(f"  active      {sizes['active']:,} for each token")
    lines.append(f"  size        {_by_dtype(data['bytes'])}")
    lines += _cache_lines(data)
    if values := values_text(data["values"]):
        lines.append(f"  options     {values}")
    return "\n".join([*lines, "", *_tree_lines(data)])


def _cache_lines(data: Summary) -> Iterator[str]:
    per_token = data["kv_cache_bytes_per_token"]
    per_source_token = data["kv_cache_bytes_per_source_token"]
    recent = [(part["bytes_per_token"], part["tokens"]) for part in data["kv_cache_of_last_tokens"]]
    if any(per_token.values()):
        line = f"  kv cache    {_by_dtype(per_token)} per token"
        if len(recent) == 1 and recent[0][0] == per_token:
            yield f"{line}, only up to {counted(recent[0][1], 'token')}"
        else:
            yield line
            for part, n_tokens in recent:
                up_to = counted(n_tokens, "token")
                yield f"              {_by_dtype(part)} of it only up to {up_to}"
    for several in data["kv_cache_of_several_tokens"]:
        of_tokens = counted(several["tokens"], "token")
        yield f"              {_by_dtype(several['bytes'])} for every {of_tokens}"
    if any(per_source_token.values()):
        yield f"              {_by_dtype(per_source_token)} per source token"
    if state := data["state_bytes_per_sequence"]:
        yield f"  state       {human_bytes(state)} float32 per sequence, whatever its length"


def _tree_lines(data: Summary) -> Iterator[str]:
    """Yield a line for each part: name, parameters, description. A long description continues on
    the lines below."""
    ties: dict[str, str] = {}
    for alias, target in data["tied"].items():
        owner, _, name = alias.rpartition(".")
        ties[owner] = target.removesuffix(f".{name}")
    lines = list(_lines_of(_parts_of(data["parts"], ties, ""), ""))
    names = max((len(line.name) for line in lines), default=0)
    sizes = max((len(line.size) for line in lines), default=0)
    for line in lines:
        before = f"{line.name:<{names}}  {line.size:>{sizes}}  "
        first, *more = _wrapped(line.told, max(WIDTH - len(before), NARROWEST)) or [""]
        yield f"{before}{first}".rstrip()
        yield from (f"{line.below:<{len(before)}}{piece}" for piece in more)


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap a text into lines, broken after commas, but not inside lists."""
    pieces = re.split(r", (?![^\[]*\])", text)
    whole = ", ".join(piece.replace(" ", "\N{NO-BREAK SPACE}") for piece in pieces)
    lines = wrap(whole, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


class _Line(NamedTuple):
    """A part as text; `below` replaces the name on continuation lines."""

    name: str
    size: str
    told: str
    below: str


class _Part(NamedTuple):
    """A part with its size and description as text. `layers` are the numbers of the layers that it
    stands for, which run `runs` times in total."""

    name: str
    layers: Sequence[int] | None
    runs: int
    size: str
    told: str
    inner: Sequence[_Part]

    @property
    def title(self) -> str:
        """The name, with the number of layers."""
        if self.layers is None:
            return self.name
        numbers = f"{self.name} x {len(self.layers)}"
        return numbers + (f", run {self.runs} times" if self.runs != len(self.layers) else "")


def _parts_of(parts: Sequence[Part], ties: Mapping[str, str], prefix: str) -> list[_Part]:
    found = []
    for part in parts:
        path, count = f"{prefix}{part['name']}", part["parameters_each"]
        found.append(
            _Part(
                part["name"],
                part["layers"],
                part["runs"],
                f"{count:,}" if count else "",
                f"= {ties[path]}" if path in ties else part["label"],
                _parts_of(part["parts"], ties, f"{path}."),
            )
        )
    return _folded(found)


def _folded(parts: list[_Part]) -> list[_Part]:
    """Return the parts; of many sets of layers, those that differ only in numbers are one part, in
    the place of the first of them."""
    if sum(part.layers is not None for part in parts) <= MOST_LAYERS:
        return parts
    return folded(parts, lambda a, b: _as_one(a, b) if a.layers and b.layers else None)[0]


def _as_one(a: _Part, b: _Part) -> _Part | None:
    """Return two parts that differ only in numbers as one; None if they differ in more."""
    size, told = in_one(a.size, b.size), in_one(a.told, b.told)
    if size is None or told is None or len(a.inner) != len(b.inner):
        return None
    name, layers = a.name, a.layers
    if a.layers and b.layers:
        layers = sorted([*a.layers, *b.layers])
        name = f"{name.partition(' ')[0]} {ranges(layers)}"
    elif a.name != b.name:
        return None
    inner = [_as_one(*both) for both in zip(a.inner, b.inner, strict=True)]
    told_once = [one for one in inner if one is not None]
    if len(told_once) < len(inner):
        return None
    return _Part(name, layers, a.runs + b.runs, size, told, told_once)


def _lines_of(parts: Sequence[_Part], indent: str) -> Iterator[_Line]:
    for part in parts:
        last = part is parts[-1]
        deeper = indent + ("   " if last else "│  ")
        yield _Line(
            f"{indent}{'└─ ' if last else '├─ '}{part.title}",
            part.size + ("     " if part.layers is None else " each"),
            part.told,
            deeper + ("│" if part.inner else ""),
        )
        yield from _lines_of(part.inner, deeper)


def _by_dtype(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{human_bytes(size)} {dtype}" for dtype, size in sizes.items())


def tensors_data(spec: ModelSpec) -> list[dict[str, Any]]:
    """Return all stored tensors: name, shape, kind and dtype, and the names tied to it."""
    return [
        {
            "name": name,
            "shape": list(tensor.shape),
            "kind": _kind(tensor),
            "also": list(spec.aliases.get(name, ())),
        }
        for name, tensor in spec.tensors.items()
    ]


def _kind(tensor: Tensor) -> str:
    return f"{'buffer' if tensor.buffer else 'parameter'} {tensor.dtype}"


def tensors_text(tensors: list[dict[str, Any]]) -> str:
    """Format one line per tensor: shape, name, and the names tied to it."""
    shapes = [" x ".join(map(str, tensor["shape"])) or "scalar" for tensor in tensors]
    width = max((len(shape) for shape in shapes), default=0)
    return "\n".join(
        f"{shape:>{width}}  {tensor['name']}"
        + (f"  = {', '.join(tensor['also'])}" if tensor["also"] else "")
        for shape, tensor in zip(shapes, tensors, strict=True)
    )


def resolved_text(spec: ModelSpec) -> str:
    """Format the full form as TOML, each value with the file and line that it comes from."""
    from zoo.showing.full_form import to_toml

    return to_toml(spec.to_dict(), spec.origin).rstrip("\n")


def backends_data(spec: ModelSpec) -> list[dict[str, Any]]:
    """Return the implementation that the attention backend `auto` selects for each attention of a
    spec, and why."""
    from zoo.backends import automatic

    rows: list[dict[str, Any]] = []
    for path, attention in _attentions(spec.model, ()):
        takes, why = automatic(attention.against_fused)
        rows.append(
            {"attention": ".".join(path), "kind": attention.kind, "takes": takes, "why": why}
        )
    return rows


def _attentions(
    component: Component, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Attention]]:
    """Yield every attention inside, with its path, which has layer numbers for layer rules."""
    if isinstance(component, Attention) and not component.absent:
        yield path, component
    for child in children(component):
        at = getattr(child.component, "at", None)
        name = child.name if at is None else f"{child.name} {ranges(at)}"
        yield from _attentions(child.component, (*path, name))


def backends_text(data: Sequence[Mapping[str, Any]]) -> str:
    """Format the selected implementations as text."""
    lines = [
        f"{row['attention']}  ({row['kind']})\n  auto takes {row['takes']}: {row['why']}"
        for row in data
    ]
    note = (
        "When weights are asked for, auto takes math. A choice: "
        "`with zoo.attention_backend(NAME):`, which also tells what was taken."
    )
    return "\n".join([*lines, note]) if lines else "no attention"
