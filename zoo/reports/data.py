"""What `zoo show --flops` and `zoo diff` print as JSON, and the functions of Python return: plain
data, with its types."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class FlopsPart(TypedDict):
    """The operations of a part, or of `layers` layers together."""

    name: str
    layers: int | None
    flops: int
    parts: list[FlopsPart]


class Flops(TypedDict):
    """The operations of one forward pass: of `images` images and a sequence of `length` tokens,
    each None if the model takes none; 0 images, or 0 `sounds`, of a model in whose texts some may
    stand.
    `per_token` and `per_image`, rounded, are those of what takes nothing else."""

    name: str
    images: int | None
    sounds: int | None
    length: int | None
    forward: int
    per_token: int | None
    per_image: int | None
    parts: list[FlopsPart]


class Written(TypedDict):
    """A value of a spec, and the file and line where it was written or `default`, if known."""

    value: Any
    origin: str | None


class ValueChange(TypedDict):
    """A value of the full form that differs, by its path; None where a spec does not have it."""

    path: str
    a: Written | None
    b: Written | None


class TensorRecord(TypedDict):
    """A tensor. Its dtype and SHA-256 are there if both models have weights."""

    name: NotRequired[str]
    shape: list[int]
    dtype: NotRequired[str]
    sha256: NotRequired[str]


class TensorChange(TypedDict):
    """A tensor that both models have, and that differs."""

    name: str
    a: TensorRecord
    b: TensorRecord


class Tensors(TypedDict):
    """Which tensors differ, in what was compared: `shape`, or also `dtype` and `sha256`. `equal` is
    the number of those that do not."""

    compared: list[str]
    added: list[TensorRecord]
    removed: list[TensorRecord]
    changed: list[TensorChange]
    equal: int


class Diff(TypedDict):
    """The differences of two models; `equal` if there are none."""

    a: str
    b: str
    equal: bool
    spec: list[ValueChange]
    tensors: Tensors
