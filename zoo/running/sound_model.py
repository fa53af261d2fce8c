"""A model with the files of its folder that sounds need: from sounds to the result of its task."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

import torch

from zoo.errors import InputError, Place
from zoo.generation import Beam, Greedy, Sampling
from zoo.generation.evaluating import evaluating
from zoo.generation.outputs import check_numbers
from zoo.loading import OpenModel
from zoo.machine.devices import as_input
from zoo.purpose import Task
from zoo.running.asked import Asked
from zoo.running.batches import cut
from zoo.running.folder_model import FolderModel
from zoo.running.labels import labels_of
from zoo.running.letters import read_letters, without_blanks
from zoo.running.media import places_of, read_each
from zoo.running.sentencepiece import Pieces, read_pieces
from zoo.running.settings import read_settings
from zoo.running.speech import SpeechSettings
from zoo.running.tasks import check_top, classes_of
from zoo.running.text import Detokenizer
from zoo.running.tokenized import Tokenized, read_text
from zoo.running.transcribing import Heard, Transcriber, times_of
from zoo.sounds.files import Sound, read_sound
from zoo.sounds.settings import (
    SlaneySettings,
    SoundSettings,
    check_length,
    read_sound_settings,
)
from zoo.sounds.windows import Window, windows_of
from zoo.transformer import Transformer

if TYPE_CHECKING:
    from zoo.transformer import EncodingSounds

FIRST_TIME = "<|0.00|>"
"""The first of the tokens for times, which tokenizers do not count among the special ones."""
LONGEST_TEXT = 448
"""The most tokens of the text of a window, with those that it begins with, if the model has
positions for any number: as many as Whisper has."""


@dataclass(frozen=True, slots=True, repr=False)
class SoundModel(FolderModel):
    """A model that takes sounds, with what says how they become what it takes
    (`preprocessor_config.json`, or `processor_config.json`) and, if it writes down what is said,
    its letters (`vocab.json`) or its tokenizer, and if it generates text, its settings of
    generation, as `zoo.TextModel`.

    Args:
        transformer: the model.
        sound_settings: how sounds become waveforms or spectrograms.
        text: turns ids into text, if the model generates this or scores the tokens of each part of
            a sound.
        settings: how the publisher has set up generation.
    """

    transformer: Transformer
    sound_settings: SoundSettings
    text: Detokenizer
    settings: SpeechSettings

    @classmethod
    def of(cls, opened: OpenModel) -> Self:
        """The model that is open, with the files beside it.

        Raises:
            ZooError: as `zoo.load`.
            InputError: the model takes no sounds.
            WeightsError: the file that says how sounds become what the model takes is missing or
                has a setting that is not supported; or another file beside the weights is damaged.
        """
        spec, folder = opened.spec, opened.folder
        if not spec.model.hears:
            others = "ImageModel` takes images" if spec.model.images else "TextModel` takes texts"
            raise InputError(f"{spec.name} takes no sounds", help=f"`zoo.{others}")
        sound_settings = read_sound_settings(folder, spec.model.spectrogram_shape)
        how, settings = spec.model.transcription, SpeechSettings()
        letters = None if how is None else read_letters(folder, how)
        text: Detokenizer = letters or read_pieces(folder) or read_text(folder)
        if isinstance(text, Tokenized):
            text.hidden_from = text.id_of(FIRST_TIME)
        if (generation := spec.model.generation) is not None:
            kind = SpeechSettings
            settings = read_settings(folder, opened.config, has_source=True, kind=kind)
            settings.check_begin(generation.target_vocab)
        return cls(opened.read(), sound_settings, text, settings)

    @property
    def task(self) -> Task:
        """The task of the model.

        Raises:
            InputError: the model has no task that takes sounds.
        """
        spec = self.transformer.spec
        if spec.model.task is None:
            raise InputError(
                f"`zoo run` has no task for {spec.name}: its head writes no letters, and makes "
                "neither classes nor a vector of a sound"
            )
        return spec.model.task

    def translating(self, *, source: str | None = None, target: str | None = None) -> Self:
        """Take this model, which knows several languages, for two of them.

        Args:
            source: the language that is spoken: its code, `de`, or its name, `german`. By default
                it is detected, unless the model's folder states it.
            target: the language that is written: `en`, into which other languages are translated,
                or the source. By default the latter, unless the model's folder says otherwise.

        Raises:
            InputError: the model generates no text, there is no such language, or it is not
                translated into this one.
        """
        if self.transformer.spec.model.generation is None:
            raise InputError(f"{self.transformer.spec.name} knows no languages")
        settings = self.settings
        if isinstance(self.text, Pieces):
            if source is not None:
                raise InputError(
                    f"{self.transformer.spec.name} is not told which language is spoken"
                )
            if target is not None:
                first = self.text.language_id(target)
                settings = settings.model_copy(update={"forced_bos_token_id": first})
            return replace(self, settings=settings)
        if source is not None:
            settings = settings.speaking(source)
        if target is not None:
            settings = settings.writing(target)
        return replace(self, settings=settings)

    def most_new(self, start: int | Sequence[int] | None = None) -> int:
        """The most tokens that the model has positions for, of the text of a window that begins
        with `start`, or as the model's folder says; 448 with these if it has any number."""
        how = self.transformer.spec.model.generation
        longest = LONGEST_TEXT if how is None or how.longest is None else how.longest
        begin = self.settings.begin() if start is None else start
        return max(1, longest - (len(begin) if isinstance(begin, Sequence) else 1))

    def run(
        self,
        sounds: Iterable[str | os.PathLike[str] | bytes],
        *,
        top: int | None = None,
        max_new_tokens: int | None = None,
        method: Greedy | Sampling | Beam | None = None,
        eos: int | None = None,
        start: int | Sequence[int] | None = None,
        stop: Sequence[str] = (),
        timestamps: bool = False,
        cuda_graph: bool = False,
        places: Sequence[Place] | None = None,
    ) -> list[dict[str, Any]]:
        """Run the model's task: write down what is said, classify sounds, or embed them. Each sound
        is computed by itself, so that no other changes its result.

        Args:
            sounds: paths of WAV files, or bytes of files.
            top: how many of the likeliest classes are told; five by default.
            max_new_tokens: the most tokens that are generated for a window; by default as
                many as the model has positions for (`most_new`).
            method, eos, start, stop, cuda_graph: for a model that generates text, as in
                `TextModel.run`; there is one text of a sound. A `start` is in place of the ids of a
                language and a task too.
            timestamps: whether a model such as Whisper also writes when each part of the text is
                said. It then hears a long sound as in `transformers`: each window begins where the
                last part of the one before ends.
            places: where each sound is, for messages; by default a file's path, or `sound 2`.

        Returns:
            A result for each sound: its `task`, and depending on the task the `text` and its `ids`,
            of a generated text also `score` and `ended` (see `zoo.Generated`), the `language` that
            is spoken, if the model knows several, and if the sound is longer than what the model
            hears at once, all this for each of its `windows`, with their `begin` and `end` in
            seconds; with `timestamps` not these, but its `segments`, likewise; the likeliest
            `classes`; or `embedding`, what the model's pooler makes of the states, or without one
            their mean.

        Raises:
            InputError: the model has no task, or a sound does not fit it.
            WeightsError: what the model computes is NaN.
        """
        asked = Asked(
            max_new_tokens=self.most_new(start) if max_new_tokens is None else max_new_tokens,
            method=method,
            eos=eos,
            start=start,
            stop=stop,
            cuda_graph=cuda_graph,
            timestamps=timestamps,
            top=top,
        )
        return self.answers(sounds, asked, places)

    def answers(
        self,
        sounds: Iterable[str | os.PathLike[str] | bytes],
        asked: Asked,
        places: Sequence[Place] | None = None,
    ) -> list[dict[str, Any]]:
        """The results of `run`. Raises as it does."""
        if isinstance(sounds, str | bytes) or not isinstance(sounds, Iterable):
            raise InputError('sounds are a list, of one sound too: `run(["speech.wav"])`')
        sounds, task = list(sounds), self.task
        model, spec = self.transformer, self.transformer.spec
        check_top(asked.top, task, spec.name)
        transcriber = None
        if spec.model.generation is None:
            asked.refuse_generating(spec.name)
        elif asked.method is not None and asked.method.n_answers > 1:
            raise InputError("one text is written of a sound: leave `n_answers` out")
        else:
            times = None
            if asked.timestamps:
                times = times_of(spec, self.settings, self.sound_settings)
            transcriber = Transcriber(model, self.text, self.settings, asked, times)
        if places is None:
            places = places_of(sounds, "sound")
        results: list[dict[str, Any]] = []
        for batch in cut(list(zip(sounds, places, strict=True))):
            for heard in read_each(batch, partial(self._heard, whole=asked.timestamps)):
                if transcriber is None:
                    found = self._read(heard.given, task, asked.top)
                else:
                    found = transcriber.written(heard)
                results.append({"task": task, **found})
        return results

    def _heard(self, sound: str | os.PathLike[str] | bytes, *, whole: bool) -> Heard:
        """A sound as the model takes it, in windows or as a whole. Raises InputError if it does not
        fit the model."""
        read, settings = read_sound(sound), self.sound_settings
        windows = [Window(0, len(read.samples))]
        if whole and isinstance(settings, SlaneySettings):
            return Heard(windows, settings.whole(read)[None], read.rate)
        if settings.longest is not None:
            windows = windows_of(read.samples, settings.longest, settings.sampling_rate)
        parts = [Sound(read.samples[one.start : one.end], read.rate) for one in windows]
        given = torch.stack([settings.prepared(part) for part in parts])
        if (shortest := self.transformer.spec.model.shortest_sound) is not None:
            check_length(read.samples, shortest)
        longest, _ = self.transformer.spec.model.spectrogram_shape or (None, None)
        if longest is not None and given.shape[1] > longest:
            raise InputError(
                f"the sound has {given.shape[1]:,} frames, and the model has positions for "
                f"{longest:,}",
                help="cut it: `ffmpeg -i IN -f segment -segment_time SECONDS OUT%03d.wav`",
            )
        return Heard(windows, given, read.rate)

    def _read(self, given: torch.Tensor, task: Task, top: int | None) -> dict[str, Any]:
        """Run the model on a waveform, (1, samples, 1), or a spectrogram, (1, frames, bands), and
        read off the result."""
        model = self.transformer
        with torch.inference_mode(), evaluating(model):
            given = as_input(model, given)
            if task == "embed":
                output = cast("EncodingSounds", model).encode_sound(given)[0]
            else:
                output = model(given)[0]
        check_numbers(output, model.spec.name)
        how = model.spec.model.transcription
        if how is not None:
            ids = without_blanks(output.argmax(-1).tolist(), how.blank)
            return {"text": self.text.decode(ids), "ids": ids}
        if task == "classify":
            return classes_of(output, labels_of(model.spec, model.origin), top=top)
        return {"embedding": output.tolist()}
