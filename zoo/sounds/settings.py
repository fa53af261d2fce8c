"""How sounds become waveforms or spectrograms, as the publisher of a model has set it up.

The settings are those of six feature extractors of `transformers`, in the
`preprocessor_config.json` of a model's folder, or under `feature_extractor` in its
`processor_config.json`. A setting that is not known here is refused: ignored, it would give the
model other numbers than those of its training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from zoo.errors import InputError, Place, Problem, WeightsError, in_order
from zoo.processor_files import ProcessorFile, read_processor_file
from zoo.sounds.files import Sound
from zoo.sounds.filter_bank import HOP, RATE, WINDOW, log_mel
from zoo.sounds.slaney import normalized_log_mel, slaney_log_mel
from zoo.wording import counted, quoted

TYPE = "feature_extractor_type"
"""The key that names the feature extractor."""
INERT = frozenset(
    {"padding_value", "padding_side", "return_attention_mask", "processor_class", "tokenizer_class"}
)
"""Settings that change nothing of a single sound."""
EPS = 1e-7
"""What is added to the variance of a sound, or of a band."""
LEAST_STD = 1e-5
"""The least standard deviation by which Speech2Text divides a band."""


class SoundSettings(BaseModel, ABC):
    """What a model is given of a sound, with the defaults of `transformers`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    inert: ClassVar[frozenset[str]] = INERT
    """Settings that change nothing."""
    nullable: ClassVar[frozenset[str]] = frozenset()
    """Settings for which null is a value; of others it means what is not written."""

    sampling_rate: Annotated[int, Field(gt=0)] = RATE
    """How many samples there are in a second."""

    @property
    def longest(self) -> int | None:
        """The most samples that the model hears at once, so that a longer sound is given to it in
        windows; None if any sound is given to it as a whole."""
        return None

    def prepared(self, sound: Sound) -> torch.Tensor:
        """What the model is given of a sound, (length, width). Raises InputError if it has another
        rate, or is too short."""
        self.check_rate(sound)
        return self._of_samples(sound.samples)

    def check_rate(self, sound: Sound) -> None:
        """Raise InputError if a sound has another rate than the model hears."""
        if sound.rate != self.sampling_rate:
            raise InputError(
                f"the sound has {sound.rate:,} samples a second, and the model hears "
                f"{self.sampling_rate:,}",
                help=f"convert it: `ffmpeg -i IN -ar {self.sampling_rate} OUT.wav`",
            )

    @abstractmethod
    def _of_samples(self, samples: torch.Tensor) -> torch.Tensor:
        """The same of samples, (n,)."""


class WaveformSettings(SoundSettings):
    """How a waveform is made of a sound: with `do_normalize`, with the mean 0 and the variance
    1."""

    feature_extractor_type: Literal["Wav2Vec2FeatureExtractor"] = "Wav2Vec2FeatureExtractor"
    feature_size: Literal[1] = 1
    do_normalize: bool = True
    """Whether the numbers are shifted and scaled."""

    def _of_samples(self, samples: torch.Tensor) -> torch.Tensor:
        if self.do_normalize:
            samples = (samples - samples.mean()) / (samples.var(correction=0) + EPS).sqrt()
        return samples[:, None]


class SpectrogramSettings(SoundSettings):
    """How a spectrogram is made of a sound."""

    inert: ClassVar[frozenset[str]] = INERT | {TYPE}  # it has chosen the class
    shaped_by: ClassVar[str]
    """What to do about another shape than the model's, for messages."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int | None, int]:
        """The (frames, bands) of the spectrograms, without a number of frames if these are as many
        as the sound has."""

    def problem_of_shape(self, taken: tuple[int | None, int], place: Place) -> Problem | None:
        """What is wrong with the shape for a model that takes (frames, bands); None if nothing is.
        `place` is that of the settings."""
        frames, bands = taken
        wanted = (self.shape[0] and (frames or self.shape[0]), bands)
        if self.shape == wanted:
            return None
        made, told = (f"({n or 'frames'}, {width})" for n, width in (self.shape, wanted))
        message = f"these settings make spectrograms of the shape {made}, and the model takes"
        return Problem(f"{message} {told}", place, self.shaped_by)


class AstSettings(SpectrogramSettings):
    """How a spectrogram is made of a sound: a log-mel filter bank, of which the end is cut off or
    zeros are added, and which is less the `mean` and over twice the `std` with `do_normalize`."""

    shaped_by: ClassVar[str] = "state the frames as `max_length` and the bands as `num_mel_bins`"

    feature_size: Literal[1] = 1
    sampling_rate: Literal[16000] = RATE
    do_normalize: bool = True
    """Whether the numbers are shifted and scaled."""
    num_mel_bins: Annotated[int, Field(gt=0)] = 128
    """The number of bands."""
    max_length: Annotated[int, Field(gt=0)] = 1024
    """The number of frames."""
    mean: float = -4.2677393
    std: Annotated[float, Field(gt=0)] = 4.5689974

    @property
    def shape(self) -> tuple[int, int]:
        return self.max_length, self.num_mel_bins

    def _of_samples(self, samples: torch.Tensor) -> torch.Tensor:
        check_length(samples, WINDOW)
        found = log_mel(samples, self.num_mel_bins)[: self.max_length]
        found = F.pad(found, (0, 0, 0, self.max_length - len(found)))
        return (found - self.mean) / (self.std * 2) if self.do_normalize else found


class FilterBankSettings(SpectrogramSettings):
    """How a spectrogram is made of a sound, of as many frames as it has: a log-mel filter bank of
    samples in the range of 16 bits, with Kaldi's own window, as Kaldi does it by default."""

    inert: ClassVar[frozenset[str]] = INERT | {TYPE, "feature_size"}  # of padding
    shaped_by: ClassVar[str] = "state the bands as `num_mel_bins`"
    fewest_frames: ClassVar[int] = 1

    sampling_rate: Literal[16000] = RATE
    num_mel_bins: Annotated[int, Field(gt=0)] = 80
    """The number of bands."""

    @property
    def shape(self) -> tuple[None, int]:
        return None, self.num_mel_bins

    def _of_samples(self, samples: torch.Tensor) -> torch.Tensor:
        check_length(samples, WINDOW + (self.fewest_frames - 1) * HOP)
        bands = log_mel(samples.double() * 2**15, self.num_mel_bins, window="povey").double()
        return self._scaled(bands).float()

    @abstractmethod
    def _scaled(self, bands: torch.Tensor) -> torch.Tensor:
        """The spectrogram of the logarithms (frames, bands), in float64."""


class Speech2TextSettings(FilterBankSettings):
    """The same for Speech2Text, where each band has the mean 0 and the variance 1."""

    do_ceptral_normalize: bool = True  # as `transformers` writes it
    """Whether the next two count."""
    normalize_means: bool = True
    """Whether the mean of each band is subtracted."""
    normalize_vars: bool = True
    """Whether each band is divided by its standard deviation."""
    dither: Annotated[float, Field(ge=0, le=0)] = 0.0

    def _scaled(self, bands: torch.Tensor) -> torch.Tensor:
        if not self.do_ceptral_normalize:
            return bands
        # A band of silence does not vary; fairseq divides by no less, and `transformers` by 0.
        std = bands.std(0, correction=0).clamp(min=LEAST_STD)
        if self.normalize_means:
            bands = bands - bands.mean(0)
        return bands / std if self.normalize_vars else bands


class SeamlessSettings(FilterBankSettings):
    """The same for SeamlessM4T and w2v-BERT 2.0, where each band has the mean 0 and the variance 1,
    and two frames after each other are one vector. A last frame alone is left out."""

    shaped_by: ClassVar[str] = "state half of the width as `num_mel_bins`"
    fewest_frames: ClassVar[int] = 2

    stride: Literal[2] = 2
    """How many frames become a vector."""

    @property
    def shape(self) -> tuple[None, int]:
        return None, self.stride * self.num_mel_bins

    def _scaled(self, bands: torch.Tensor) -> torch.Tensor:
        bands = (bands - bands.mean(0)) / (bands.var(0) + EPS).sqrt()
        whole = len(bands) - len(bands) % self.stride
        return bands[:whole].reshape(-1, self.stride * self.num_mel_bins)


class SlaneySettings(SpectrogramSettings):
    """How a spectrogram is made of a sound, after which zeros are added up to `chunk_length`
    seconds: with Slaney's filters, and in the range of `zoo.sounds.slaney`."""

    inert: ClassVar[frozenset[str]] = INERT - {"padding_value", "padding_side"} | {
        TYPE,
        *("mel_filters", "n_samples", "nb_max_frames"),  # are computed from others
        "do_normalize",  # is read by no one
    }
    shaped_by: ClassVar[str] = (
        "state the bands as `feature_size`; there are `chunk_length * sampling_rate / hop_length` "
        "frames"
    )

    sampling_rate: Annotated[int, Field(ge=16000)] = RATE  # the highest band ends at half of it
    feature_size: Annotated[int, Field(gt=0)] = 80
    """The number of bands."""
    n_fft: Annotated[int, Field(gt=1, le=16000)] = 400
    """The samples of a frame."""
    hop_length: Annotated[int, Field(gt=0)] = 160
    """The samples between two."""
    chunk_length: Annotated[int, Field(gt=0)] = 30
    """How many seconds the model hears at once."""
    padding_value: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    """What follows a shorter sound."""
    padding_side: Literal["right"] = "right"
    dither: Annotated[float, Field(ge=0, le=0)] = 0.0

    @property
    def longest(self) -> int:
        return self.chunk_length * self.sampling_rate

    @property
    def shape(self) -> tuple[int, int]:
        return self.longest // self.hop_length, self.feature_size

    def whole(self, sound: Sound) -> torch.Tensor:
        """The spectrogram of a sound of any length, and after it of as much silence as the model
        hears at once, (frames, bands). Raises InputError as `prepared`."""
        self.check_rate(sound)
        return self._padded(sound.samples, self.longest)

    def windows(self, sound: Sound, *, whole: bool) -> torch.Tensor:
        """The spectrogram of a sound of any length in windows of what the model hears at once, the
        last of which silence fills up, (n, frames, bands): that of the `whole`, or that of the
        samples of each window alone. Raises InputError as `prepared`."""
        self.check_rate(sound)
        samples = sound.samples
        if whole:
            found = self._padded(samples, -len(samples) % self.longest)
            n_windows = -(-len(samples) // self.longest)
            return found[: n_windows * self.shape[0]].view(n_windows, *self.shape)
        return torch.stack([self._of_samples(one) for one in torch.split(samples, self.longest)])

    def n_frames(self, n_samples: int) -> int:
        """The number of frames of `windows` that are those of the sound itself, of so many
        samples."""
        n_full, left = divmod(n_samples, self.longest)
        frames = self.shape[0]
        return n_full * frames + min(-(-left // self.hop_length), frames)

    def _of_samples(self, samples: torch.Tensor) -> torch.Tensor:
        return self._padded(samples, self.longest - len(samples))

    def _padded(self, samples: torch.Tensor, n_after: int) -> torch.Tensor:
        samples = F.pad(samples, (0, n_after), value=self.padding_value)
        return slaney_log_mel(
            samples,
            n_bands=self.feature_size,
            rate=self.sampling_rate,
            n_fft=self.n_fft,
            hop=self.hop_length,
        )


class NormalizedSettings(SpectrogramSettings):
    """How a spectrogram of any length is made of a sound: with Slaney's filters, and each band
    shifted and scaled to the mean 0 and the variance 1."""

    nullable: ClassVar[frozenset[str]] = frozenset({"preemphasis"})
    shaped_by: ClassVar[str] = "state the bands as `feature_size`"

    sampling_rate: Literal[16000] = RATE  # the highest band ends at half of it
    feature_size: Annotated[int, Field(gt=0)] = 80
    """The number of bands."""
    n_fft: Annotated[int, Field(gt=1, le=16000)] = 512
    """The samples of a Fourier transform."""
    win_length: Annotated[int, Field(gt=1, validate_default=True)] = 400
    """The samples of a frame."""
    hop_length: Annotated[int, Field(gt=0)] = 160
    """The samples between two."""
    preemphasis: Annotated[float, Field(allow_inf_nan=False)] | None = 0.97
    """The share of the sample before that is subtracted from each; null for none."""

    @field_validator("win_length")
    @classmethod
    def _check(cls, win_length: int, info: ValidationInfo) -> int:
        n_fft = info.data.get("n_fft", win_length)  # absent if it is wrong itself
        if win_length > n_fft:
            raise ValueError(f"is {win_length}, which is more than `n_fft`, {n_fft}")
        return win_length

    @property
    def shape(self) -> tuple[None, int]:
        return None, self.feature_size

    def _of_samples(self, samples: torch.Tensor) -> torch.Tensor:
        check_length(samples, 2 * self.hop_length)  # of one frame there is no variance
        return normalized_log_mel(
            samples,
            n_bands=self.feature_size,
            rate=self.sampling_rate,
            n_fft=self.n_fft,
            window=self.win_length,
            hop=self.hop_length,
            preemphasis=self.preemphasis or 0.0,
        )


SPECTROGRAMS: Mapping[str, type[SpectrogramSettings]] = {
    "ASTFeatureExtractor": AstSettings,
    "SeamlessM4TFeatureExtractor": SeamlessSettings,
    "Speech2TextFeatureExtractor": Speech2TextSettings,
    "WhisperFeatureExtractor": SlaneySettings,
    "ParakeetFeatureExtractor": NormalizedSettings,
}
"""The settings of spectrograms, by their `feature_extractor_type`."""


def check_length(samples: torch.Tensor, shortest: int) -> None:
    """Raise InputError if a sound has fewer samples than this."""
    if len(samples) < shortest:
        raise InputError(
            f"the sound has {counted(len(samples), 'sample')}, and the model takes {shortest:,} or "
            "more"
        )


def read_sound_settings(
    folder: Path, spectrogram_shape: tuple[int | None, int] | None
) -> SoundSettings:
    """Read what the model in a folder is given of a sound. As in `transformers`, the
    `feature_extractor` of a `processor_config.json` counts before a `preprocessor_config.json`, and
    null means what is not written.

    Args:
        folder: the model's.
        spectrogram_shape: the (frames, bands) of what it takes, without a number of frames if any
            number fits; None if it takes waveforms. Of settings by which frames are as many as a
            sound has, their number is not compared.

    Raises:
        WeightsError: there is no such file; it cannot be read; a setting is not known or has a
            wrong value, of which all problems are reported; or they make spectrograms of another
            shape.
    """
    what, example = "waveforms", '{"sampling_rate": 16000, "do_normalize": true}'
    if spectrogram_shape is not None:
        each = (f'{{"{TYPE}": "{name}"}}' for name in SPECTROGRAMS)
        what, example = "spectrograms", "` or `".join(each)
    file = read_processor_file(
        folder, "feature_extractor", what=f"how sounds become {what}", example=example
    )
    kind = WaveformSettings if spectrogram_shape is None else _kind(file)
    given = file.settings.items()
    try:
        settings = kind.model_validate(
            {
                key: value
                for key, value in given
                if key not in kind.inert and (value is not None or key in kind.nullable)
            }
        )
    except ValidationError as error:
        known = kind.model_fields
        problems = [file.problem(details, "sounds", known) for details in error.errors()]
        raise WeightsError(in_order(problems)) from None
    if isinstance(settings, SpectrogramSettings) and spectrogram_shape is not None:
        problem = settings.problem_of_shape(spectrogram_shape, file.place())
        if problem is not None:
            raise WeightsError(problem)
    return settings


def _kind(file: ProcessorFile) -> type[SpectrogramSettings]:
    """The settings of spectrograms that a file is about. Raises WeightsError if it is about none,
    or does not say."""
    stated = file.settings.get(TYPE)
    if not isinstance(stated, str) or stated not in SPECTROGRAMS:
        names = " or ".join(f"`{name}`" for name in SPECTROGRAMS)
        told = "must be stated" if stated is None else f"{quoted(stated)} is not supported"
        raise WeightsError(f"`{TYPE}` {told}", file.place(TYPE), f"it is {names}")
    return SPECTROGRAMS[stated]
