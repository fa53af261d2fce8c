"""The JSON header of a safetensors file, checked entry by entry, so that errors can say in plain
words what is wrong with it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard, cast

from zoo.json_files import NotStrictError, strict_json
from zoo.wording import quoted

LINE = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,500}")
"""A short text of one line, without control characters: a version, the name of a plugin."""

_MAX_DIMENSIONS = 64
_MAX_SIZE = (1 << 63) - 1


class HeaderEntry(NamedTuple):
    """A tensor in the header: its dtype as safetensors names it, its shape, and the offsets of its
    bytes, counted from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_entries(text: bytes) -> tuple[object, dict[str, HeaderEntry]]:
    """Read the header of a safetensors file.

    Returns:
        The metadata as they stand, None if there are none; and the tensors by name.

    Raises:
        ValueError: it is not JSON, or an entry is no tensor; the error says what is wrong.
    """
    data = json_object(text, "its header")
    metadata = data.pop("__metadata__", None)
    return metadata, {name: _entry(name, value) for name, value in data.items()}


def _entry(name: str, value: object) -> HeaderEntry:
    entry = as_object(value, f"the header's entry {quoted(name)}")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str):
        raise ValueError(f"the `dtype` of {quoted(name)} is missing or no string")
    if not is_shape(shape):
        raise ValueError(
            f"the `shape` of {quoted(name)} is missing or no list of integers of a tensor"
        )
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"the `data_offsets` of {quoted(name)} are missing or no start and end")
    return HeaderEntry(dtype, tuple(shape), *offsets)


def json_object(text: bytes | str, what: str) -> dict[str, Any]:
    """Parse a JSON object. Raises `ValueError`, which says what is wrong with `what`."""
    try:
        value = strict_json(text if isinstance(text, str) else text.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{what} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{what} is not JSON: {error.msg} (character {error.pos:,})") from None
    except NotStrictError as error:
        raise ValueError(f"{what} is not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply") from None
    except ValueError:  # Python converts integers up to some thousand digits
        raise ValueError(f"{what} holds a number that is too long") from None
    return as_object(value, what)


def as_object(value: object, what: str) -> dict[str, Any]:
    """Return `value` if it is a JSON object. Raises `ValueError`, which calls it `what`."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no object")
    return cast("dict[str, Any]", value)


def is_shape(value: object) -> TypeGuard[Sequence[int]]:
    """Whether `value` is a list of integers from 0 on that can be the shape of a tensor in torch:
    at most 64, and, zeros aside, with a product below 2**63."""
    if not _are_sizes(value) or len(value) > _MAX_DIMENSIONS:
        return False
    product = 1
    for size in value:
        product *= max(size, 1)
        if product > _MAX_SIZE:  # at once, since a hostile product would be endless
            return False
    return True


def _are_sizes(value: object) -> TypeGuard[Sequence[int]]:
    return isinstance(value, list) and all(
        type(size) is int and 0 <= size <= _MAX_SIZE for size in value
    )
