"""A model that is run is opened once, and what is beside its weights is read between the check of
it and the reading of the weights."""

from __future__ import annotations

import json
import os
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from trials import Refused

import zoo
from zoo.cli import run

TINY = {"format": 1, "builder": "encoder", "n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}
MODELS: dict[str, dict[str, Any]] = {
    "text": {**TINY, "name": "text", "builder": "decoder", "vocab": 11},
    "image": {
        **TINY,
        "name": "image",
        "embedding": {"kind": "patches", "image_size": 12, "patch_size": 4},
        "position": {"kind": "learned", "max_length": 10},
        "head": {"kind": "classifier", "n_classes": 2},
    },
    "sound": {
        **TINY,
        "name": "sound",
        "embedding": {"kind": "waveform", "d_conv": 8, "position_groups": 2},
        "head": {"kind": "classifier", "n_classes": 2, "pooling": "mean"},
    },
}
BESIDE = {
    "text": {"generation_config.json": {"eos_token_id": 3}},
    "image": {
        "preprocessor_config.json": {
            "image_processor_type": "ViTImageProcessor",
            "size": {"height": 12, "width": 12},
        }
    },
    "sound": {
        "preprocessor_config.json": {
            "feature_extractor_type": "Wav2Vec2FeatureExtractor",
            "sampling_rate": 16000,
        }
    },
}
INPUTS = {"text": "5 9", "image": "a.png", "sound": "a.wav"}
LOADERS: dict[str, Callable[..., object]] = {
    "text": zoo.TextModel.load,
    "image": zoo.ImageModel.load,
    "sound": zoo.SoundModel.load,
}
OPENED: list[str] = []
"""The names of the files that this process has opened."""


def note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | os.PathLike):
        OPENED.append(Path(arguments[0]).name)


sys.addaudithook(note)


@pytest.fixture(params=MODELS)
def kind(request: pytest.FixtureRequest, project: Path) -> str:
    """What a model takes, which is saved in a folder of this name; its input is in the files."""
    kind: str = request.param
    zoo.save(zoo.build(MODELS[kind]), kind)
    for name, values in BESIDE[kind].items():
        Path(kind, name).write_text(json.dumps(values))
    Image.new("RGB", (12, 12), (9, 99, 199)).save("a.png")
    with wave.open("a.wav", "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(np.arange(4000, dtype="<i2").tobytes())
    return kind


def damage(kind: str, file: str = "model.safetensors") -> None:
    """Change the last byte of a file of the model."""
    path = Path(kind, file)
    path.chmod(0o644)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_the_weights_are_opened_once(kind: str) -> None:
    OPENED.clear()
    assert run(["run", kind, INPUTS[kind]]) == 0
    assert OPENED.count("model.safetensors") == 1
    OPENED.clear()
    LOADERS[kind](kind)
    assert OPENED.count("model.safetensors") == 1


def test_what_is_beside_the_weights_is_read_before_them(kind: str, refused: Refused) -> None:
    damage(kind)
    assert "are not those that were saved" in refused("run", kind, INPUTS[kind])
    (name,) = BESIDE[kind]
    Path(kind, name).write_text("{")
    told = refused("run", kind, INPUTS[kind])
    assert told.startswith(f"{kind}/{name}:")
    with pytest.raises(zoo.WeightsError, match=name):
        LOADERS[kind](kind)


def test_what_is_beside_the_weights_of_a_bundle_is_checked_before_it_is_read(
    kind: str, refused: Refused
) -> None:
    assert run(["bundle", "make", kind, "bundled", "--license", "mit"]) == 0
    (name,) = BESIDE[kind]
    damage("bundled", name)  # whose last byte is a bracket, so that it is no JSON either
    told = refused("run", "bundled", INPUTS[kind])
    assert told.startswith(
        f"bundled/{name}: error: its bytes differ from those recorded in zoo.lock"
    )


def test_a_device_that_there_is_not_is_told_before_a_file_is_read(kind: str) -> None:
    OPENED.clear()
    with pytest.raises(zoo.ZooError, match="device"):
        LOADERS[kind](kind, device="gpu")
    assert not {*OPENED} & {"model.safetensors", *BESIDE[kind]}
