"""What `zoo show`, its `--flops` and `zoo diff` print as JSON and the functions of Python return:
plain data, with its types."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class Parameters(TypedDict):
    """Numbers of parameters: `unique` without repetitions, of these the `active` ones that one
    token uses, and `shared`, which is how many more there would be if none were shared."""

    unique: int
    active: int
    shared: int


class RecentTokens(TypedDict):
    """The part of the key-value cache that is kept only for the last `tokens`."""

    tokens: int
    bytes_per_token: dict[str, int]


class SeveralTokens(TypedDict):
    """What the key-value cache keeps once for every `tokens`."""

    tokens: int
    bytes: dict[str, int]


class Part(TypedDict):
    """A part of a model, or layers that are alike, with the parts inside it. `layers` are the
    numbers of the layers, None for another part; `runs` is how often they run in total."""

    name: str
    layers: list[int] | None
    runs: int
    kind: str | None
    label: str
    values: dict[str, Any]
    parameters_each: int
    parts: list[Part]


class Summary(TypedDict):
    """The sizes and the parts of a model. Bytes are by dtype: `float32`, `bfloat16`; those of
    the state of generation, which does not grow with the length, are of float32."""

    name: str
    builder: str
    values: dict[str, Any]
    spec_digest: str
    parameters: Parameters
    bytes: dict[str, int]
    kv_cache_bytes_per_token: dict[str, int]
    kv_cache_of_last_tokens: list[RecentTokens]
    kv_cache_of_several_tokens: list[SeveralTokens]
    kv_cache_bytes_per_source_token: dict[str, int]
    state_bytes_per_sequence: int
    tied: dict[str, str]
    parts: list[Part]


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
