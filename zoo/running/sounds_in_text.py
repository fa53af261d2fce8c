"""Sounds in a text: their spectrograms, and the text with their places, as the publisher's
processor writes it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from zoo.errors import InputError, Place, WeightsError
from zoo.files.of_model import PROCESSOR_SETTINGS
from zoo.inputs.sounds import n_states_of
from zoo.json_files import read_json
from zoo.running.media import places_of, read_each
from zoo.running.media_in_text import MediaInText
from zoo.running.text import Input, Text
from zoo.sounds.files import read_sound
from zoo.sounds.settings import SlaneySettings, read_sound_settings
from zoo.spec import ModelSpec
from zoo.transformer import Spectrogram
from zoo.wording import counted, quoted

if TYPE_CHECKING:
    from zoo.purpose import InsertedSounds

    SoundFile = str | os.PathLike[str] | bytes
    """A sound: the path of a WAV file, or its bytes."""

_LONGEST = "max_audio_len"
"""The key of the most seconds of a sound, in the settings of a whole processor."""


class Writing(NamedTuple):
    """How a processor writes sounds into a text: a table of sounds_in_text.toml, which says what
    each key is."""

    place: str = "{sound}"
    sound: str = "{sound}"
    special: bool = True
    windows: Literal["one", "each", "whole"] = "each"
    longest: float | None = None
    tokens: Mapping[str, str] = {}


class SoundsInText(MediaInText[Writing, "SoundFile", Spectrogram]):
    """Makes ids and spectrograms of texts with sounds in them.

    Args:
        folder: that of the model.
        config: the text of the `config.json` that it was imported with, if there was one.
        spec: the model's.
        how: the sounds that may stand in its texts.
        text: turns text into its ids.
    """

    medium: ClassVar[str] = "sound"
    part: ClassVar[str] = "audio"
    table: ClassVar[Path] = Path(__file__).with_suffix(".toml")

    def __init__(
        self, folder: Path, config: str | None, spec: ModelSpec, how: InsertedSounds, text: Text
    ) -> None:
        super().__init__(folder, config, spec, text)
        self.how = how

    @cached_property
    def settings(self) -> SlaneySettings:
        """How sounds become spectrograms. Raises WeightsError as `read_sound_settings`, or if they
        are not cut into windows of one length."""
        bands = self.how.shape[1]
        found = read_sound_settings(self.folder, (self.how.longest, bands))
        if not isinstance(found, SlaneySettings):
            message = "by these settings of sounds, these become no windows of one length"
            hint = "state `WhisperFeatureExtractor` as `feature_extractor_type`, by which they do"
            raise WeightsError(message, Place(str(self.folder)), hint)
        return found

    @property
    def _inserted_id(self) -> int:
        return self.how.sound_id

    @cached_property
    def _writing(self) -> Writing:
        return Writing(**self._stated())

    @cached_property
    def _longest(self) -> float | None:
        """The most seconds of a sound; None for no limit. Raises WeightsError if the settings of
        the processor say what is no number."""
        if self._writing.windows == "one":
            return self.settings.chunk_length
        path = self.folder / PROCESSOR_SETTINGS
        if self._writing.longest is None or not os.path.lexists(path):
            return self._writing.longest
        file = read_json(path)
        stated = file.data.get(_LONGEST, self._writing.longest)
        if isinstance(stated, bool) or not isinstance(stated, int | float):
            message = f"`{_LONGEST}` must be a number of seconds, not {quoted(str(stated))}"
            raise WeightsError(message, file.place(_LONGEST))
        return stated

    def _read(self, media: Sequence[SoundFile]) -> list[Spectrogram]:
        return read_each(zip(media, places_of(media, "sound"), strict=True), self._spectrogram)

    def _spectrogram(self, source: SoundFile) -> Spectrogram:
        """Raises InputError if the sound cannot be read, or does not fit the model."""
        sound, settings = read_sound(source), self.settings
        settings.check_rate(sound)
        seconds = len(sound.samples) / sound.rate
        if self._longest is not None and seconds > self._longest:
            raise InputError(
                f"the sound has {seconds:,.1f} seconds, and {self.spec.name} hears "
                f"{self._longest:g} of a sound",
                help="cut it, and state each part as a sound: `ffmpeg -i IN -f segment "
                f"-segment_time {self._longest:g} OUT%03d.wav`",
            )
        made = settings.windows(sound, whole=self._writing.windows == "whole")
        found = Spectrogram(made, settings.n_frames(len(sound.samples)))
        if not n_states_of(found, self.how):
            n_samples = counted(len(sound.samples), "sample")
            raise InputError(f"the sound has {n_samples}, of which the model makes no state")
        return found

    def _one(self, read: Spectrogram) -> str:
        return self._filled(self._writing.sound)

    def _states(self, ids: Sequence[int], read: Sequence[Spectrogram]) -> list[int]:
        found = [n_states_of(sound, self.how) for sound in read]
        if (n_places := ids.count(self._inserted_id)) != len(found):
            there = f"there are {counted(len(found), 'sound')}"
            raise self._other_places(n_places, there, once_for="each sound")
        return found

    def _input(self, ids: list[int], read: Sequence[Spectrogram]) -> Input:
        return Input(ids, sounds=tuple(read))
