"""Checkpoints of integers with scales and zero points for groups of inputs: `awq` and `gptq`."""

from __future__ import annotations

from collections.abc import Mapping

from zoo.errors import WeightsError
from zoo.families.checkpoint import Stored
from zoo.families.quantized.stated import Group, Stated, beside, that_end, two_sizes
from zoo.families.quantized.tensor import Quantized


def awq(stored: Mapping[str, Stored], stated: Stated) -> dict[str, Group]:
    """Numbers of 4 bits with scales and zero points for groups, as AutoAWQ writes them: matrices
    (in, out), eight columns in a word."""
    settings = stated.settings
    version = str(settings.get("version", "gemm")).lower()
    if settings.get("bits", settings.get("w_bit")) != 4 or version != "gemm":
        raise stated.refused("are quantized by `awq` in another form")
    found: dict[str, Group] = {}
    for name in that_end(stored, ".qweight"):
        base = name.removesuffix("qweight")
        zeros, scales = (beside(f"{base}{n}", name, stored) for n in _OF_GROUPS)
        rows, width = two_sizes(name, stored)
        block = (_group_size(stated, "group_size", "q_group_size") or max(1, rows), 1)
        tensor = Quantized(
            stated.dtype,
            (8 * width, rows),
            "awq4",
            stored[name],
            scales,
            block,
            zeros,
            transposed=True,
        )
        found[f"{base}weight"] = Group(tensor, (name, *(f"{base}{n}" for n in _OF_GROUPS)))
    return found


def gptq(stored: Mapping[str, Stored], stated: Stated) -> dict[str, Group]:
    """Numbers of 4 or 8 bits with scales and zero points for groups of inputs, in order or by
    `g_idx`, as AutoGPTQ and GPTQModel write them: matrices (in, out), whose words hold rows."""
    bits, version = stated.settings.get("bits"), stated.settings.get("checkpoint_format", "gptq")
    if type(bits) is not int or bits not in _LOWER or version not in ("gptq", "gptq_v2"):
        raise stated.refused("are quantized by `gptq` in another form")
    found: dict[str, Group] = {}
    for name in that_end(stored, ".qweight"):
        base = name.removesuffix("qweight")
        zeros, scales = (beside(f"{base}{n}", name, stored) for n in _OF_GROUPS)
        height, columns = two_sizes(name, stored)
        rows = height * 32 // bits
        names = [name, *(f"{base}{n}" for n in (*_OF_GROUPS, "g_idx") if f"{base}{n}" in stored)]
        tensor = Quantized(
            stated.dtype,
            (columns, rows),
            "gptq4" if bits == 4 else "gptq8",
            stored[name],
            scales,
            (_group_size(stated, "group_size") or max(1, rows), 1),
            zeros,
            transposed=True,
            groups=stored.get(f"{base}g_idx"),
            zeros_above=_LOWER[bits] if version == "gptq" else 0,
        )
        found[f"{base}weight"] = Group(tensor, tuple(names))
    return found


_OF_GROUPS = ("qzeros", "scales")

_LOWER = {4: 0x11111111, 8: 0x01010101}
"""By how much the first form of GPTQ stores each word of zero points lower, by their bits: each of
them by one, as a subtraction of the whole word, which borrows from the next if one is 0."""


def _group_size(stated: Stated, *keys: str) -> int | None:
    """The number of inputs with one scale; None for all.

    Raises:
        WeightsError: it is not stated, or no size.
    """
    key = next((key for key in keys if key in stated.settings), keys[0])
    size = stated.settings.get(key)
    if size == -1:
        return None
    if type(size) is not int or size < 1:
        message = f"`{key}` must be the number of inputs with one scale, or -1, not {size!r}"
        raise WeightsError(message, stated.place(key))
    return size
