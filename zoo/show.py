"""What `zoo show` prints, as data and as text. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from zoo.byte_counts import human_bytes
from zoo.component import Component, fields_of
from zoo.layout import LayerList, Layout, Tensor
from zoo.slots import Attention
from zoo.spec import ModelSpec

BYTES = {"float32": 4, "bfloat16": 2}


def summary_data(spec: ModelSpec) -> dict[str, Any]:
    """Sizes of a model: parameters, stored bytes, key-value cache, and the tree of its parts."""
    shared = spec.layout.n_parameters - spec.n_parameters
    layout = spec.layout
    return {
        "name": spec.name,
        "builder": spec.model.kind,
        "digest": spec.digest,
        "parameters": {"unique": spec.n_parameters, "active": spec.n_active, "shared": shared},
        "bytes": {dtype: spec.n_parameters * size for dtype, size in BYTES.items()},
        "kv_cache_bytes_per_token": {
            dtype: layout.cache_per_token * size for dtype, size in BYTES.items()
        },
        "kv_cache_bytes_per_source_token": {
            dtype: layout.cache_per_memory_token * size for dtype, size in BYTES.items()
        },
        "tied": dict(spec.ties),
        "parts": _tree_data(layout),
    }


def _tree_data(layout: Layout) -> list[dict[str, Any]]:
    return [
        {
            "name": row.name,
            "layers": None if row.layers is None else list(row.layers),
            "runs": row.runs,
            "label": row.layout.label,
            "parameters_each": row.layout.n_parameters,
            "parts": _tree_data(row.layout),
        }
        for row in _parts(layout)
    ]


class _Part(NamedTuple):
    """One row of the tree; `layers` are the numbers of the layers that it stands for, and `runs`
    how often these run, all together."""

    name: str
    layout: Layout
    layers: Sequence[int] | None = None
    runs: int = 1

    @property
    def title(self) -> str:
        """The name, with how many layers, and which when there are several kinds."""
        if self.layers is None:
            return self.name
        again = f", run {self.runs} times" if self.runs != len(self.layers) else ""
        return f"{self.name} x {len(self.layers)}{again}"


def _parts(layout: Layout) -> Iterator[_Part]:
    for name, part in layout.parts.items():
        if isinstance(part, Layout) and part.size:
            yield _Part(name, part)
        elif isinstance(part, LayerList):
            several = len(part.groups) > 1
            for at, layer in part.groups:
                shown = f"{name} {ranges(at)}" if several else name
                yield _Part(shown, layer, at, part.runs(at))


def ranges(numbers: Sequence[int]) -> str:
    """0-4,6-10 for a sorted list of numbers; cut when it is long."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    shown = ["-".join(map(str, run)) for run in runs[:4]]
    return ",".join(shown) + (",..." if len(runs) > 4 else "")


def summary_text(spec: ModelSpec, data: Mapping[str, Any]) -> str:
    """The summary for people: a head of sizes, then the tree."""
    sizes = data["parameters"]
    lines = [
        f"{spec.name}  ({spec.model.kind})",
        f"  spec        {data['digest']}",
        f"  parameters  {sizes['unique']:,}"
        + (f", and {sizes['shared']:,} more that are shared" if sizes["shared"] else ""),
    ]
    if sizes["active"] != sizes["unique"]:
        lines.append(f"  active      {sizes['active']:,} for each token")
    lines.append(f"  size        {_by_dtype(data['bytes'])}")
    if any(data["kv_cache_bytes_per_token"].values()):
        lines.append(f"  kv cache    {_by_dtype(data['kv_cache_bytes_per_token'])} per token")
    if any(data["kv_cache_bytes_per_source_token"].values()):
        per_source = _by_dtype(data["kv_cache_bytes_per_source_token"])
        lines.append(f"              {per_source} per source token")
    lines.append("")
    rows = list(_rows(spec.layout, spec.ties, "", ""))
    name_width = max((len(name) for name, _, _ in rows), default=0)
    label_width = max((len(label) for _, label, _ in rows), default=0)
    lines += [
        f"{name:<{name_width}}  {label:<{label_width}}  {size:>15}".rstrip()
        for name, label, size in rows
    ]
    return "\n".join(lines)


def _rows(
    layout: Layout, ties: Mapping[str, str], prefix: str, indent: str
) -> Iterator[tuple[str, str, str]]:
    rows = list(_parts(layout))
    for row in rows:
        last = row is rows[-1]
        full = f"{prefix}{row.name}."
        tied = [ties[f"{full}{leaf}"] for leaf in row.layout.parts if f"{full}{leaf}" in ties]
        size = f"{row.layout.n_parameters:,}" + (" each" if row.layers is not None else "")
        label = f"= {tied[0].removesuffix('.weight')}" if tied else row.layout.label
        yield f"{indent}{'└─ ' if last else '├─ '}{row.title}", label, size
        yield from _rows(row.layout, ties, full, indent + ("   " if last else "│  "))


def _by_dtype(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{human_bytes(size)} {dtype}" for dtype, size in sizes.items())


def tensors_data(spec: ModelSpec) -> list[dict[str, Any]]:
    """Every stored tensor: name, shape, dtype kind, and the other names it goes by."""
    aliases: dict[str, list[str]] = {}
    for alias, target in spec.ties.items():
        aliases.setdefault(target, []).append(alias)
    return [
        {
            "name": name,
            "shape": list(tensor.shape),
            "kind": _kind(tensor),
            "also": aliases.get(name, []),
        }
        for name, tensor in spec.tensors.items()
    ]


def _kind(tensor: Tensor) -> str:
    return f"{'buffer' if tensor.buffer else 'parameter'} {tensor.dtype}"


def tensors_text(tensors: list[dict[str, Any]]) -> str:
    """One line a tensor: shape, name, and what is tied to it."""
    shapes = [" x ".join(map(str, tensor["shape"])) or "scalar" for tensor in tensors]
    width = max((len(shape) for shape in shapes), default=0)
    return "\n".join(
        f"{shape:>{width}}  {tensor['name']}"
        + (f"  = {', '.join(tensor['also'])}" if tensor["also"] else "")
        for shape, tensor in zip(shapes, tensors, strict=True)
    )


def resolved_text(spec: ModelSpec) -> str:
    """The full form as TOML, each value with the file and line it came from."""
    from zoo.full_form import to_toml

    return to_toml(spec, origins=True).rstrip("\n")


def backends_data(spec: ModelSpec) -> list[dict[str, Any]]:
    """What the attention backend `auto` takes for each attention of the spec, and why."""
    return [
        {
            "attention": ".".join(path),
            "kind": attention.kind,
            "takes": "fused" if attention.against_fused is None else "math",
            "why": attention.against_fused or "nothing speaks against it",
        }
        for path, attention in _attentions(spec.model, ())
    ]


def _attentions(
    component: Component, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Attention]]:
    """Every attention inside, with its path; those of single layers with their numbers."""
    if isinstance(component, Attention):
        yield path, component
    for name in fields_of(type(component)):
        value = getattr(component, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Component):
                at = getattr(part, "at", None)
                yield from _attentions(
                    part, (*path, name if at is None else f"{name} {ranges(at)}")
                )


def backends_text(data: Sequence[Mapping[str, Any]]) -> str:
    """The same for people."""
    lines = [
        f"{row['attention']}  ({row['kind']})\n  auto takes {row['takes']}: {row['why']}"
        for row in data
    ]
    note = (
        "When weights are asked for, auto takes math. A choice: "
        "`with zoo.attention_backend(NAME):`, which also tells what was taken."
    )
    return "\n".join([*lines, note]) if lines else "no attention"
