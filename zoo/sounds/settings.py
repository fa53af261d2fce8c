"""How sounds become waveforms, as the publisher of a model has set it up.

The settings are those of the feature extractor of `transformers` for waveforms, in the
`preprocessor_config.json` of a model's folder, or under `feature_extractor` in its
`processor_config.json`. A setting that is not known here is refused: ignored, it would give the
model other samples than those of its training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zoo.errors import InputError, Problem, WeightsError, in_order
from zoo.processor_files import read_processor_file
from zoo.sounds.files import Sound
from zoo.value_errors import value_message
from zoo.wording import did_you_mean, dotted

INERT = frozenset(
    {"padding_value", "padding_side", "return_attention_mask", "processor_class", "tokenizer_class"}
)
"""Settings that change nothing of a single sound."""
EPS = 1e-7
"""What is added to the variance of a sound."""


class SoundSettings(BaseModel):
    """How a waveform is made of a sound, with the defaults of `transformers`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    feature_extractor_type: Literal["Wav2Vec2FeatureExtractor"] = "Wav2Vec2FeatureExtractor"
    feature_size: Literal[1] = 1
    sampling_rate: Annotated[int, Field(gt=0)] = 16000
    """How many samples there are in a second."""
    do_normalize: bool = True
    """Whether each waveform is shifted and scaled to the mean 0 and the variance 1."""

    def waveform(self, sound: Sound) -> torch.Tensor:
        """The waveform of a sound, (samples, 1). Raises InputError if it has another rate."""
        if sound.rate != self.sampling_rate:
            raise InputError(
                Problem(
                    f"the sound has {sound.rate:,} samples a second, and the model hears "
                    f"{self.sampling_rate:,}",
                    help=f"convert it: `ffmpeg -i IN -ar {self.sampling_rate} OUT.wav`",
                )
            )
        x = sound.samples
        if self.do_normalize:
            x = (x - x.mean()) / (x.var(correction=0) + EPS).sqrt()
        return x[:, None]


def read_sound_settings(folder: Path) -> SoundSettings:
    """Read how sounds become waveforms for the model in a folder. As in `transformers`, the
    `feature_extractor` of a `processor_config.json` counts before a `preprocessor_config.json`, and
    null means what is not written.

    Raises:
        WeightsError: there is no such file; it cannot be read; or a setting is not known or has a
            wrong value. All problems are reported.
    """
    file = read_processor_file(
        folder,
        "feature_extractor",
        what="how sounds become waveforms",
        example='{"sampling_rate": 16000, "do_normalize": true}',
    )
    given = file.settings.items()
    try:
        return SoundSettings.model_validate(
            {key: value for key, value in given if value is not None and key not in INERT}
        )
    except ValidationError as error:
        problems = []
        for details in error.errors():
            keys = tuple(str(key) for key in details["loc"])
            message, hint = value_message(details), None
            if details["type"] == "extra_forbidden":
                message = "is a setting of sounds that is not supported"
                hint = did_you_mean(keys[0], SoundSettings.model_fields)
            place = file.place(*keys)
            problems.append(Problem(f"`{dotted(keys)}` {message}", place, hint))
        raise WeightsError(in_order(problems)) from None
