"""Count the floating-point operations of a forward pass: `zoo show --flops`.

The model is built and run on torch's meta device, which has shapes but no values, under torch's own
counter. The count is therefore that of the actual computation, whatever plugins a spec names, and
takes a second for a model of any size.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from zoo.backends import attention_backend
from zoo.building import build_on_meta
from zoo.errors import InputError, Problem
from zoo.registering.plugin_errors import plugin_code
from zoo.spec import ModelSpec
from zoo.wording import counted


def flops_data(spec: ModelSpec, length: int) -> dict[str, Any]:
    """Count the operations of one forward pass over one sequence, without a cache.

    Only matrix products are counted, with a multiplication and an addition as two operations: those
    of weights with tokens and those of attention, including masked scores. Element-wise operations
    are not counted.

    Args:
        spec: the spec of a model that reads ids.
        length: number of tokens of the sequence; for an encoder-decoder, of the source and of the
            target.

    Returns:
        `name`, `length`, `forward`, `per_token` (rounded), and `parts`: each with its name, the
        number of layers that it stands for, and the operations of all of these together.

    Raises:
        InputError: the model is called with vectors, or has fewer positions than `length`.
        PluginError: the spec cannot be built with the available plugins, or its model cannot be
            called without values.
    """
    model = build_on_meta(spec, torch.float32).eval()
    inputs = _inputs(spec, length)
    counter = FlopCounterMode(display=False)
    told = "a call on the meta device, which has no values,"
    with torch.inference_mode(), attention_backend("math"), counter, plugin_code(told):
        model(*inputs)
    total = counter.get_total_flops()
    return {
        "name": spec.name,
        "length": length,
        "forward": total,
        "per_token": round(total / length),
        "parts": _parts(counter.get_flop_counts()),
    }


def _inputs(spec: ModelSpec, length: int) -> list[torch.Tensor]:
    """Return the inputs of the model: ids, or those of a source and of a target."""
    read = spec.model.called_with
    if not read:
        hint = (
            "its builder states no `generation` or `reading` of ids; "
            "torch.utils.flop_counter.FlopCounterMode counts what a call of your own takes"
        )
        raise InputError(Problem(f"{spec.name} is not called with ids alone", help=hint))
    longest = min((one.longest for one in read if one.longest is not None), default=length)
    if length > longest:
        raise InputError(f"{spec.name} has {longest:,} positions, which are fewer than {length:,}")
    return [torch.zeros(1, length, dtype=torch.long, device="meta") for _ in read]


def _parts(counts: Mapping[str, Mapping[Any, int]]) -> list[dict[str, Any]]:
    """Return the counts as a tree of the parts of the model: two levels, and a third within layers.
    The layers of a list are summed, and parts without operations are left out."""
    flops: Counter[tuple[str, ...]] = Counter()
    layers: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for name, by_operator in counts.items():
        path: list[str] = []
        for word in name.split(".")[1:]:
            if word.isdecimal():
                layers[tuple(path)].add(word)
            else:
                path.append(word)
        flops[tuple(path)] += sum(by_operator.values())

    def below(parent: tuple[str, ...]) -> list[dict[str, Any]]:
        deepest = 3 if parent in layers else 2
        paths = [path for path in flops if path[:-1] == parent and 0 < len(path) <= deepest]
        if len(paths) == 1 and flops[paths[0]] == flops[parent] and paths[0] not in layers:
            return []  # would repeat the count of its parent
        return [
            {
                "name": path[-1],
                "layers": len(layers[path]) if path in layers else None,
                "flops": flops[path],
                "parts": below(path),
            }
            for path in paths
        ]

    return below(())


def flops_text(data: Mapping[str, Any]) -> str:
    """Format the counts as text: totals, then the tree with the share of each part."""
    lines = [
        f"{data['name']}  {counted(data['length'], 'token')}",
        f"  forward    {human_flops(data['forward'])}",
        f"  per token  {human_flops(data['per_token'])}",
        "",
    ]
    rows = list(_rows(data["parts"], ""))
    width = max((len(name) for name, _ in rows), default=0)
    for name, flops in rows:
        lines.append(f"{name:<{width}}  {human_flops(flops):>12}  {flops / data['forward']:>4.0%}")
    return "\n".join(lines)


def _rows(parts: Sequence[Mapping[str, Any]], indent: str) -> Iterator[tuple[str, int]]:
    for part in parts:
        last = part is parts[-1]
        title = part["name"] if part["layers"] is None else f"{part['name']} x {part['layers']}"
        yield f"{indent}{'└─ ' if last else '├─ '}{title}", part["flops"]
        yield from _rows(part["parts"], indent + ("   " if last else "│  "))


def human_flops(n: int) -> str:
    """Format a count as in `12.3 GFLOP`, in powers of a thousand."""
    value, unit = float(n), "FLOP"
    for larger in ("kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"):
        if value < 999.95:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if unit != "FLOP" else f"{n} FLOP"
