"""The models that the families are held against, as the files in cases/ state them.

A table is one model: its `class` in transformers and what its `config` says beyond the sizes of
sizes.toml. A table under `variants` is a further model, which differs in what it states. The string
"none" stands for None.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).parent / "cases"

Kind = Literal[
    "encoder",
    "decoder",
    "encoder_decoder",
    "dual_encoder",
    "image_text_decoder",
    "sound_text_decoder",
]
KINDS: dict[str, Kind] = {
    "encoders": "encoder",
    "images": "encoder",
    "sounds": "encoder",
    "decoders": "decoder",
    "mixtures": "decoder",
    "pairs": "encoder_decoder",
    "duals": "dual_encoder",
    "images_in_texts": "image_text_decoder",
    "sounds_in_texts": "sound_text_decoder",
}
"""What the models of each file are."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model.

    Args:
        name: the model type, and for a variant a dot and its name.
        kind: what it is made of.
        model_class: the name of its class in transformers.
        config: what its config states beyond the sizes.
        published: what its config.json states otherwise than transformers writes it today, such as
            older spellings; None for what it lacks.
        renamed: parts of the names of its tensors, with what they are in the checkpoint instead.
        shrunk: parts of the names of weights, with what their random values are multiplied with:
            where scores are not scaled, as in T5, the queries of a trained model are smaller.
        numbers: parts of the names of tables of integers, which start at 0, and below what their
            random values are.
        attention: the implementation in transformers that is the truth.
        untied: whether the head gets weights of its own although the config says that it is tied,
            as in some published checkpoints.
        rereads: whether its decoder reads the source too, which ends with the last token: that of
            a classifier of texts in transformers.
        left: whether it is also given texts with padding on the left.
        features: of a model that listens, the shape of the features of one input in transformers:
            (frames, features), or the reverse if `channels_first`.
        channels_first: which of the two.
        frames_per_state: how many of these frames become one state.
        sound: of a model that hears waveforms, the number of samples of one.
        samples_per_state: if its states have the mask of every so many samples in transformers, and
            not that of what its convolutions make of the sound, how many these are.
        image: of a model that sees, the shape of an image, (channels, height, width).
        image_states: of a model in whose texts images stand, the number of states of one.
        image_sizes: of a model in whose texts images of any size stand, the (height, width) of the
            image of each text.
        image_rows: whether each row of the states of such an image ends with another token.
        tiled_sizes: of a model in whose texts images with tiles stand, the (height, width) of the
            image of each text.
        tiled_states: the numbers of states of these images.
        sound_frames: of a model in whose texts sounds stand, the number of frames of the sound of
            each text.
        sound_window: the number of frames of a window of these.
        sound_states: the numbers of states of these sounds.
        bidirectional: what attends to later tokens too, in such a model, which transformers tells
            by types of tokens: each image, or what a text begins with.
        images_of_texts: whether it takes the images of each text apart, (texts, images of each,
            channels, height, width).
        memory: of a decoder that attends to one, its shape, (length, width).
    """

    name: str
    kind: Kind
    model_class: str
    config: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    shrunk: Mapping[str, float] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    attention: str = "eager"
    untied: bool = False
    rereads: bool = False
    left: bool = True
    features: tuple[int, int] | None = None
    channels_first: bool = False
    frames_per_state: int = 1
    sound: int | None = None
    samples_per_state: int | None = None
    image: tuple[int, int, int] | None = None
    image_states: int | None = None
    image_sizes: tuple[tuple[int, int], ...] | None = None
    image_rows: bool = False
    tiled_sizes: tuple[tuple[int, int], ...] | None = None
    tiled_states: tuple[int, ...] | None = None
    sound_frames: tuple[int, ...] | None = None
    sound_window: int | None = None
    sound_states: tuple[int, ...] | None = None
    bidirectional: Literal["image", "prompt"] | None = None
    images_of_texts: bool = False
    memory: tuple[int, int] | None = None

    @property
    def model_type(self) -> str:
        """The `model_type` that its config.json says."""
        return self.name.partition(".")[0]


@cache
def all_cases() -> dict[str, Case]:
    """Every case by its name."""
    found = [
        case
        for stem, kind in KINDS.items()
        for name, table in read(stem).items()
        for case in cases_of(name, kind, table)
    ]
    return {case.name: case for case in found}


def cases_of(name: str, kind: Kind, table: Mapping[str, Any]) -> Iterator[Case]:
    """The model of a table, and its variants."""
    variants = table.get("variants", {})
    stated = {key: value for key, value in table.items() if key != "variants"}
    yield make_case(name, kind, stated)
    for variant, changes in variants.items():
        config = stated.get("config", {}) | changes.get("config", {})
        yield make_case(f"{name}.{variant}", kind, stated | changes | {"config": config})


def make_case(name: str, kind: Kind, table: Mapping[str, Any]) -> Case:
    fields = dict(table)
    return Case(name=name, kind=kind, model_class=fields.pop("class"), **fields)


@cache
def sizes() -> dict[str, Any]:
    """The sizes that every config states, as far as it has such a field."""
    return read("sizes")


def read(stem: str) -> dict[str, Any]:
    return without_none(tomllib.loads((FOLDER / f"{stem}.toml").read_text()))


def without_none(value: Any) -> Any:
    """The value, with None for each "none"."""
    if isinstance(value, dict):
        return {key: without_none(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_none(inner) for inner in value]
    return None if value == "none" else value
