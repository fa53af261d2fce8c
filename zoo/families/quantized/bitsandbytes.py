"""Checkpoints that the library bitsandbytes writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Annotated, Literal

from pydantic import BaseModel, Field, FiniteFloat, PositiveInt, ValidationError

from zoo.errors import Place, WeightsError
from zoo.families.checkpoint import Stored
from zoo.families.quantized.stated import (
    FLOATS,
    Group,
    Stated,
    beside,
    read_now,
    that_end,
    two_sizes,
)
from zoo.families.quantized.tensor import Quantized

_STATES = (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4")
"""How the names of descriptions of 4 bits end."""

_LARGEST_STATE = 4096
"""The most bytes of a description that is read; they have some hundred."""


class _State(BaseModel):
    """The description of a tensor of 4 bits, which is a tensor of the bytes of JSON.

    The `nested` ones are of the scales, if these are of 8 bits.
    """

    blocksize: PositiveInt
    dtype: Literal["float32", "float16", "bfloat16"]
    shape: Annotated[list[PositiveInt], Field(min_length=1)]
    nested_blocksize: PositiveInt | None = None
    nested_dtype: Literal["float32"] = "float32"
    nested_offset: FiniteFloat = 0.0


def bitsandbytes(stored: Mapping[str, Stored], stated: Stated) -> dict[str, Group]:
    """Integers of 8 bits with a scale for each row (LLM.int8: arXiv:2208.07339), and codes of 4
    bits, NF4 or FP4, with scales for blocks, which may be codes of 8 bits themselves (QLoRA:
    arXiv:2305.14314, section 3)."""
    found = {
        f"{name.removesuffix('SCB')}weight": _of_8_bits(name, stored, stated)
        for name in that_end(stored, ".SCB")
    }
    for end in _STATES:
        for name in that_end(stored, end):
            found[name.removesuffix(end)] = _of_4_bits(name, name.removesuffix(end), stored)
    return found


def _of_8_bits(name: str, stored: Mapping[str, Stored], stated: Stated) -> Group:
    base, order = (f"{name.removesuffix('SCB')}{part}" for part in ("weight", "weight_format"))
    values = beside(base, name, stored)
    _, columns = two_sizes(base, stored)
    names = [base, name]
    if order in stored:  # older versions also wrote orders for certain GPUs
        names.append(order)
        if stored[order].n_bytes != 1 or read_now(stored[order]).item() != 0:
            how = f"are quantized by `bitsandbytes`, with `{base}` in an order for certain GPUs"
            raise stated.refused(how)
    tensor = Quantized(
        stated.dtype,
        values.shape,
        "int8",
        values,
        stored[name],
        (1, max(1, columns)),
        times=1 / 127,
    )
    return Group(tensor, tuple(names))


def _of_4_bits(name: str, base: str, stored: Mapping[str, Stored]) -> Group:
    values, scales, table = (
        beside(f"{base}{part}", name, stored) for part in ("", ".absmax", ".quant_map")
    )
    state = _state(name, stored[name])
    names = [name, base, f"{base}.absmax", f"{base}.quant_map"]
    of_blocks: Stored | Quantized = scales
    if state.nested_blocksize is not None:
        nested = [f"{base}.nested_absmax", f"{base}.nested_quant_map"]
        of_scales, table_of_scales = (beside(part, name, stored) for part in nested)
        names += nested
        of_blocks = Quantized(
            "F32",
            (-(-prod(state.shape) // state.blocksize),),
            "codes8",
            scales,
            of_scales,
            (1, state.nested_blocksize),
            flat=True,
            table=table_of_scales,
            above=state.nested_offset,
        )
    tensor = Quantized(
        FLOATS[state.dtype],
        tuple(state.shape),
        "codes4",
        replace(values, dtype="U8", shape=(values.n_bytes,)),  # whatever the bytes are stored as
        of_blocks,
        (1, state.blocksize),
        flat=True,
        table=table,
    )
    return Group(tensor, tuple(names))


def _state(name: str, stored: Stored) -> _State:
    """Read a description. Raises `WeightsError` if it is none."""
    place = Place(str(stored.path))
    if stored.dtype != "U8" or stored.n_bytes > _LARGEST_STATE:
        message = f"`{name}` is {stored.dtype} {list(stored.shape)}, and no description of numbers"
        raise WeightsError(message, place)
    try:
        return _State.model_validate_json(bytes(read_now(stored).tolist()), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = "".join(f", `{part}`" for part in first["loc"])
        message = f"`{name}` does not describe numbers of 4 bits{at}: {first['msg']}"
        raise WeightsError(message, place) from None
