"""How sounds become waveforms or spectrograms, as the publisher of a model has set it up.

The settings are those of two feature extractors of `transformers`, in the
`preprocessor_config.json` of a model's folder, or under `feature_extractor` in its
`processor_config.json`. A setting that is not known here is refused: ignored, it would give the
model other numbers than those of its training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zoo.errors import InputError, Problem, WeightsError, in_order
from zoo.processor_files import read_processor_file
from zoo.sounds.files import Sound
from zoo.sounds.filter_bank import RATE, WINDOW, log_mel
from zoo.value_errors import value_message
from zoo.wording import did_you_mean, dotted

INERT = frozenset(
    {"padding_value", "padding_side", "return_attention_mask", "processor_class", "tokenizer_class"}
)
"""Settings that change nothing of a single sound."""
EPS = 1e-7
"""What is added to the variance of a sound."""


class SoundSettings(BaseModel, ABC):
    """What a model is given of a sound, with the defaults of `transformers`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    feature_size: Literal[1] = 1
    sampling_rate: Annotated[int, Field(gt=0)] = RATE
    """How many samples there are in a second."""
    do_normalize: bool = True
    """Whether the numbers are shifted and scaled."""

    def prepared(self, sound: Sound) -> torch.Tensor:
        """What the model is given of a sound, (length, width). Raises InputError if it has another
        rate, or is too short."""
        if sound.rate != self.sampling_rate:
            raise InputError(
                Problem(
                    f"the sound has {sound.rate:,} samples a second, and the model hears "
                    f"{self.sampling_rate:,}",
                    help=f"convert it: `ffmpeg -i IN -ar {self.sampling_rate} OUT.wav`",
                )
            )
        return self._of_samples(sound.samples)

    @abstractmethod
    def _of_samples(self, samples: torch.Tensor) -> torch.Tensor:
        """The same of samples, (n,)."""


class WaveformSettings(SoundSettings):
    """How a waveform is made of a sound: with `do_normalize`, with the mean 0 and the variance
    1."""

    feature_extractor_type: Literal["Wav2Vec2FeatureExtractor"] = "Wav2Vec2FeatureExtractor"

    def _of_samples(self, samples: torch.Tensor) -> torch.Tensor:
        if self.do_normalize:
            samples = (samples - samples.mean()) / (samples.var(correction=0) + EPS).sqrt()
        return samples[:, None]


class SpectrogramSettings(SoundSettings):
    """How a spectrogram is made of a sound: a log-mel filter bank, of which the end is cut off or
    zeros are added, and which is less the `mean` and over twice the `std` with `do_normalize`."""

    feature_extractor_type: Literal["ASTFeatureExtractor"] = "ASTFeatureExtractor"
    sampling_rate: Literal[16000] = RATE
    num_mel_bins: Annotated[int, Field(gt=0)] = 128
    """The number of bands."""
    max_length: Annotated[int, Field(gt=0)] = 1024
    """The number of frames."""
    mean: float = -4.2677393
    std: Annotated[float, Field(gt=0)] = 4.5689974

    def _of_samples(self, samples: torch.Tensor) -> torch.Tensor:
        check_length(samples, WINDOW)
        found = log_mel(samples, self.num_mel_bins)[: self.max_length]
        found = F.pad(found, (0, 0, 0, self.max_length - len(found)))
        return (found - self.mean) / (self.std * 2) if self.do_normalize else found


def check_length(samples: torch.Tensor, shortest: int) -> None:
    """Raise InputError if a sound has fewer samples than this."""
    if len(samples) < shortest:
        raise InputError(
            f"the sound has {len(samples):,} samples, and the model takes {shortest:,} or more"
        )


def read_sound_settings(folder: Path, spectrogram_shape: tuple[int, int] | None) -> SoundSettings:
    """Read what the model in a folder is given of a sound. As in `transformers`, the
    `feature_extractor` of a `processor_config.json` counts before a `preprocessor_config.json`, and
    null means what is not written.

    Args:
        folder: the model's.
        spectrogram_shape: the (frames, bands) of what it takes; None if it takes waveforms.

    Raises:
        WeightsError: there is no such file; it cannot be read; a setting is not known or has a
            wrong value, of which all problems are reported; or they make spectrograms of another
            shape.
    """
    kind = WaveformSettings if spectrogram_shape is None else SpectrogramSettings
    what = "waveforms" if spectrogram_shape is None else "spectrograms"
    file = read_processor_file(
        folder,
        "feature_extractor",
        what=f"how sounds become {what}",
        example='{"sampling_rate": 16000, "do_normalize": true}',
    )
    given = file.settings.items()
    try:
        settings = kind.model_validate(
            {key: value for key, value in given if value is not None and key not in INERT}
        )
    except ValidationError as error:
        problems = []
        for details in error.errors():
            keys = tuple(str(key) for key in details["loc"])
            message, hint = value_message(details), None
            if details["type"] == "extra_forbidden":
                message = "is a setting of sounds that is not supported"
                hint = did_you_mean(keys[0], kind.model_fields)
            place = file.place(*keys)
            problems.append(Problem(f"`{dotted(keys)}` {message}", place, hint))
        raise WeightsError(in_order(problems)) from None
    if isinstance(settings, SpectrogramSettings):
        made = (settings.max_length, settings.num_mel_bins)
        if made != spectrogram_shape:
            raise WeightsError(
                Problem(
                    f"these settings make spectrograms of the shape {made}, and the model takes "
                    f"{spectrogram_shape}",
                    file.place(),
                    "state the frames as `max_length` and the bands as `num_mel_bins`",
                )
            )
    return settings
