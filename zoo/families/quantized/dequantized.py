"""Putting tensors of floats in the place of the quantized ones of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from zoo.errors import Problem, WeightsError
from zoo.families.checkpoint import Stored
from zoo.families.quantized.bitsandbytes import bitsandbytes
from zoo.families.quantized.checking import problem_of
from zoo.families.quantized.compressed import compressed
from zoo.families.quantized.float_blocks import fp8, mxfp4
from zoo.families.quantized.groups import awq, gptq
from zoo.families.quantized.stated import KEY, Group, Stated
from zoo.families.quantized.tensor import Quantized
from zoo.json_files import JsonFile
from zoo.wording import quoted


def dequantized(
    stored: Mapping[str, Stored], file: JsonFile
) -> tuple[dict[str, Stored | Quantized], str | None]:
    """Put tensors of floats in the place of quantized ones.

    Args:
        stored: all tensors of the checkpoint.
        file: its config.json.

    Returns:
        The tensors by name, and how the quantized ones were quantized; None if none were.

    Raises:
        WeightsError: they are quantized in a way that is not read, or scales and numbers do not fit
            together.
    """
    if file.data.get(KEY) is None:
        return dict(stored), None
    stated = Stated.of(file, METHODS)
    method, told = _method(stated)
    found = method.find(stored, stated)
    used = {part for group in found.values() for part in group.names}
    left = {name: tensor for name, tensor in stored.items() if name not in used}
    kept = {name: t for name, t in left.items() if not name.endswith(method.unused)}
    problems = [
        problem
        for name, group in found.items()
        if (problem := problem_of(name, group.tensor)) is not None
    ]
    problems += [
        Problem(f"the tensor `{name}` is there beside its quantized numbers", stated.place())
        for name in sorted(found.keys() & kept.keys())
    ]
    if problems:
        raise WeightsError(problems)
    tensors: dict[str, Stored | Quantized] = {**kept}
    tensors.update((name, group.tensor) for name, group in found.items())
    return tensors, told if found else None


class Method(NamedTuple):
    """A way to quantize. `find` finds the quantized tensors among all; names that end with one of
    `unused` are of tensors for quantized activations, which floats have no use for. `layouts` are
    the values of `format` that are read, where there is one."""

    find: Callable[[Mapping[str, Stored], Stated], dict[str, Group]]
    unused: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()


METHODS: Mapping[str, Method] = {
    "bitsandbytes": Method(bitsandbytes),
    "fp8": Method(
        fp8,
        unused=(
            *("activation_scale", "input_scale", "output_scale"),
            *(".k_scale", ".v_scale", ".kv_scale"),
        ),
    ),
    "mxfp4": Method(mxfp4),
    "gptq": Method(gptq),
    "awq": Method(awq),
    "compressed-tensors": Method(
        compressed,
        unused=(
            *(f".{part}_scale" for part in ("input", "output", "k", "v", "q")),
            *(f".{part}_zero_point" for part in ("input", "output", "k", "v", "q")),
        ),
        layouts=("float-quantized", "int-quantized", "naive-quantized", "pack-quantized"),
    ),
}
"""The ways to quantize that are read, by `quant_method`."""


def _method(stated: Stated) -> tuple[Method, str]:
    """The method that is stated, and what to tell of it. Raises `WeightsError` if it is not
    read."""
    method = METHODS.get(stated.method or "")
    if method is None:
        raise stated.refused(
            f"are quantized by `{stated.method}`" if stated.method else "are quantized"
        )
    layout = stated.settings.get("format")
    if not method.layouts:
        return method, str(stated.method)
    if layout not in method.layouts:
        raise stated.refused(f"are quantized by `{stated.method}` in the form {quoted(layout)}")
    return method, f"{stated.method}, {layout}"
