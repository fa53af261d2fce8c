"""Count the floating-point operations of a forward pass: `zoo show --flops`.

The model is built and run on torch's meta device, which has shapes but no values, under torch's own
counter. The count is therefore that of the actual computation, whatever plugins a spec names, and
takes a second for a model of any size.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from threading import Lock
from typing import Any, Literal

import torch
from torch.utils.flop_counter import FlopCounterMode

from zoo.arguments import check_count
from zoo.backends import attention_backend
from zoo.building import Spec, build_on_meta
from zoo.errors import InputError
from zoo.reading import read_spec
from zoo.registering.plugin_errors import plugin_code
from zoo.registry import Registry
from zoo.reports.data import Flops, FlopsPart
from zoo.spec import ModelSpec
from zoo.transformer import Transformer
from zoo.wording import counted

BY_HAND = "torch.utils.flop_counter.FlopCounterMode counts what a call of your own takes"

_counting = Lock()
"""Held while a model is counted: the attention backend, and the hooks by which torch's counter
finds the parts, are global to the process."""


def flops(spec: Spec, size: int, *, registry: Registry | None = None) -> Flops:
    """Count the operations of one forward pass, without a cache: what `zoo show --flops --json`
    prints, as plain data.

    Only matrix products are counted, with a multiplication and an addition as two operations: those
    of weights with tokens or patches and those of attention, including masked scores. Element-wise
    operations are not counted. A model in whose texts images or sounds may stand is counted with
    a text without any.

    Args:
        spec: what `zoo.build` takes; a model that is called with ids, with images, or with an image
            and ids.
        size: number of tokens of one sequence; for an encoder-decoder, of the source and of the
            target. For a model that is called with images alone, their number.
        registry: looks up names; by default the registries around the working directory.

    Returns:
        The operations of all (`forward`), `per_token` and `per_image`, None where there are none of
        them, and those of each of the `parts`, as a tree.

    Raises:
        InputError: the model is called with anything else, such as vectors, or has fewer positions
            than `size`, or this is no number of at least 1.
        SpecError: the spec is wrong.
        PluginError: the spec cannot be built with the available plugins, or its model cannot be
            called without values.
    """
    size = check_count("size", size)
    spec = spec if isinstance(spec, ModelSpec) else read_spec(spec, registry=registry)
    read = spec.model.called_with
    counter = count_forward(spec, batch=1 if read else size, length=size)
    total = counter.get_total_flops()
    n_images = (1 if read else size) if spec.model.images else None
    inserted = inserted_in(spec)
    if inserted == "images":
        n_images = 0
    n_tokens = size if read else None
    return {
        "name": spec.name,
        "images": n_images,
        "sounds": 0 if inserted == "sounds" else None,
        "length": n_tokens,
        "forward": total,
        "per_token": round(total / n_tokens) if n_tokens and not n_images else None,
        "per_image": round(total / n_images) if n_images and not n_tokens else None,
        "parts": _parts(counter.get_flop_counts()),
    }


def inserted_in(spec: ModelSpec) -> Literal["images", "sounds"] | None:
    """What may stand in the texts of a model."""
    how = spec.model.generation
    if how is None:
        return None
    if how.inserted_images is not None:
        return "images"
    return None if how.inserted_sounds is None else "sounds"


def count_forward(
    spec: ModelSpec, *, batch: int, length: int, by_hand: str = BY_HAND
) -> FlopCounterMode:
    """Return torch's counter after a forward pass of `batch` sequences of `length` tokens, or of so
    many images, or of both.

    Raises:
        InputError: as `flops`, with `by_hand` as the help for a model that is called with anything
            else.
        PluginError: as `flops`.
    """
    images, ids = _inputs_of(spec, batch, length, by_hand)
    # A parameter that could have gradients enters a module in the head `attention_pooling`: torch's
    # counter would look there for a graph, which inference does not record.
    model = build_on_meta(spec, torch.float32).eval().requires_grad_(False)
    _check_called_with(model, len(images) + len(ids), by_hand)
    counter = FlopCounterMode(display=False)
    told = "a call on the meta device, which has no values,"
    with _counting, torch.inference_mode(), attention_backend("math"), counter, plugin_code(told):
        model(*images, *ids)
    return counter


def check_called(spec: ModelSpec, by_hand: str) -> None:
    """Raise `InputError` if the model is called with neither ids nor images."""
    if not spec.model.images and not spec.model.called_with:
        hint = f"its builder states no `generation` or `reading` of ids, and no `images`; {by_hand}"
        raise InputError(f"{spec.name} is called with neither ids nor images", help=hint)


def _inputs_of(
    spec: ModelSpec, batch: int, length: int, by_hand: str
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the inputs of the model on the meta device: the images, and the ids."""
    check_called(spec, by_hand)
    shapes, read = spec.model.images, spec.model.called_with
    images = [torch.zeros(batch, *shape, device="meta") for shape in shapes.values()]
    longest = min((one.longest for one in read if one.longest is not None), default=length)
    if length > longest:
        raise InputError(f"{spec.name} has {longest:,} positions, which are fewer than {length:,}")
    return images, [torch.zeros(batch, length, dtype=torch.long, device="meta") for _ in read]


def _check_called_with(model: Transformer, n_inputs: int, by_hand: str) -> None:
    """Raise `InputError` if a call needs more than so many inputs of images and ids."""
    needed = [
        name
        for name, one in signature(model.forward).parameters.items()
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    if others := needed[n_inputs:]:
        name = model.spec.name
        told = f"{name} is called with `{others[0]}` too, which its builder does not state"
        raise InputError(told, help=by_hand)


def _parts(counts: Mapping[str, Mapping[Any, int]]) -> list[FlopsPart]:
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
    called = set(flops)
    for inner in called:
        if inner and inner[:-1] not in called:  # a part of a module that was not called itself then
            flops[inner[:-1]] += flops[inner]

    def below(parent: tuple[str, ...]) -> list[FlopsPart]:
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


def flops_text(data: Flops) -> str:
    """Format the counts as text: totals, then the tree with the share of each part."""
    sizes = (data["images"], "image"), (data["length"], "token")
    told = ", ".join(counted(number, what) for number, what in sizes if number)
    told += ", without images" if data["images"] == 0 else ""
    told += ", without sounds" if data["sounds"] == 0 else ""
    lines = [f"{data['name']}  {told}", f"  forward    {human_flops(data['forward'])}"]
    each = ("token", data["per_token"]), ("image", data["per_image"])
    lines += [f"  per {what}  {human_flops(n)}" for what, n in each if n is not None]
    lines.append("")
    rows = list(_rows(data["parts"], ""))
    width = max((len(name) for name, _ in rows), default=0)
    for name, flops in rows:
        lines.append(f"{name:<{width}}  {human_flops(flops):>12}  {flops / data['forward']:>4.0%}")
    return "\n".join(lines)


def _rows(parts: Sequence[FlopsPart], indent: str) -> Iterator[tuple[str, int]]:
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
