"""What `zoo show` prints as JSON, and `ModelSpec.summary` returns: plain data, with its types."""

from __future__ import annotations

from typing import Any, TypedDict


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
