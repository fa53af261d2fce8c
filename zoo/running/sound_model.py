"""A model with the files of its folder that sounds need: from sounds to the result of its task."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import torch

from zoo.devices import input_device
from zoo.errors import InputError, Place, Problem
from zoo.generation.decoding import check_numbers
from zoo.generation.evaluating import evaluating
from zoo.loading import load
from zoo.purpose import Task
from zoo.reading import spec_of_weights
from zoo.registry import Registry, load_registry
from zoo.running.asked import Asked
from zoo.running.batches import cut
from zoo.running.labels import read_labels
from zoo.running.letters import Letters, read_letters, without_blanks
from zoo.running.media import places_of, read_each
from zoo.running.tasks import check_top, classes_of
from zoo.sounds.files import read_sound
from zoo.sounds.settings import SoundSettings, check_length, read_sound_settings
from zoo.store.found_weights import find_weights
from zoo.transformer import Transformer
from zoo.weights.reader import read_header

if TYPE_CHECKING:
    from zoo.transformer import EncodingSounds


@dataclass(frozen=True, slots=True)
class SoundModel:
    """A model that takes sounds.

    Args:
        transformer: the model.
        sound_settings: how sounds become waveforms or spectrograms.
        letters: what its ids stand for, if it writes down what is said.
    """

    transformer: Transformer
    sound_settings: SoundSettings
    letters: Letters

    def __repr__(self) -> str:
        """One line, and not all modules."""
        return f"<SoundModel {self.transformer.spec.name}>"

    @classmethod
    def load(
        cls,
        path_or_name: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        registry: Registry | None = None,
    ) -> Self:
        """Load a model with the files beside it in its folder: how sounds become what it takes
        (`preprocessor_config.json`, or `processor_config.json`) and, for a model that writes down
        what is said, its letters (`vocab.json`).

        The arguments are those of `zoo.load`.

        Raises:
            ZooError: as `zoo.load`.
            InputError: the model takes no sounds.
            WeightsError: the file that says how sounds become what the model takes is missing or
                has a setting that is not supported; or another file beside the weights is damaged.
        """
        registry = load_registry() if registry is None else registry
        path = find_weights(path_or_name, registry).path
        spec = spec_of_weights(read_header(path), str(path), registry)
        if not spec.model.hears:
            others = "ImageModel` takes images" if spec.model.images else "TextModel` takes texts"
            raise InputError(Problem(f"{spec.name} takes no sounds", help=f"`zoo.{others}"))
        settings = read_sound_settings(path.parent, spec.model.spectrogram_shape)
        how = spec.model.transcription
        letters = Letters() if how is None else read_letters(path.parent, how)
        return cls(
            load(path_or_name, device=device, dtype=dtype, registry=registry), settings, letters
        )

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

    def run(
        self,
        sounds: Iterable[str | os.PathLike[str] | bytes],
        *,
        top: int | None = None,
        places: Sequence[Place] | None = None,
    ) -> list[dict[str, Any]]:
        """Run the model's task: write down what is said, classify sounds, or embed them. Each sound
        is computed by itself, so that no other changes its result.

        Args:
            sounds: paths of WAV files, or bytes of files.
            top: how many of the likeliest classes are told; five by default.
            places: where each sound is, for messages; by default a file's path, or `sound 2`.

        Returns:
            A result for each sound: its `task`, and depending on the task the `text` and its `ids`;
            the likeliest `classes`; or `embedding`, what the model's pooler makes of the states, or
            without one their mean.

        Raises:
            InputError: the model has no task, or a sound does not fit it.
            WeightsError: what the model computes is NaN.
        """
        return self.answers(sounds, Asked(top=top), places)

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
        check_top(asked.top, task, self.transformer.spec.name)
        if places is None:
            places = places_of(sounds, "sound")
        results: list[dict[str, Any]] = []
        for batch in cut(range(len(sounds))):
            asked_for = [(sounds[place], places[place]) for place in batch]
            prepared = read_each(asked_for, self._prepared)
            results += [{"task": task, **self._read(one, task, asked.top)} for one in prepared]
        return results

    def _prepared(self, sound: str | os.PathLike[str] | bytes) -> torch.Tensor:
        """The waveform of a sound, (samples, 1), or its spectrogram, (frames, bands). Raises
        InputError if it does not fit the model."""
        read = read_sound(sound)
        prepared = self.sound_settings.prepared(read)
        if (shortest := self.transformer.spec.model.shortest_sound) is not None:
            check_length(read.samples, shortest)
        return prepared

    def _read(self, prepared: torch.Tensor, task: Task, top: int | None) -> dict[str, Any]:
        """Run the model on a waveform or a spectrogram, and read off the result."""
        model = self.transformer
        dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        with torch.inference_mode(), evaluating(model):
            given = prepared[None].to(input_device(model), dtype)
            if task == "embed":
                output = cast("EncodingSounds", model).encode_sound(given)[0]
            else:
                output = model(given)[0]
        check_numbers(output, model.spec.name)
        how = model.spec.model.transcription
        if how is not None:
            ids = without_blanks(output.argmax(-1).tolist(), how.blank)
            return {"text": self.letters.text(ids), "ids": ids}
        if task == "classify":
            return classes_of(output, read_labels(model), top=top)
        return {"embedding": output.tolist()}
