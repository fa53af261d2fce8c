"""A decoder whose text has sounds in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zoo.inputs.sounds import check_sounds, n_states_of
from zoo.purpose import InsertedSounds
from zoo.transformer import Sounds, Spectrogram
from zoo_components.modules.builders import Output
from zoo_components.modules.image_text import Projector
from zoo_components.modules.inserting import InsertingDecoder, Read
from zoo_components.modules.stack import Maps, Stack


class SoundTextDecoder(InsertingDecoder):
    """An `InsertingDecoder` of sounds.

    Args:
        how: which sounds may stand in a text.
        merge: how many states of the stack that reads them become one.
        options: as for `InsertingDecoder`.
    """

    medium = "sound"
    sound: Stack
    projector: Projector

    def __init__(self, *, how: InsertedSounds, merge: int, **options: Any) -> None:
        super().__init__(**options)
        self.how, self.merge = how, merge

    def read_sounds(self, sounds: Sounds) -> list[torch.Tensor]:
        """The states that stand in a text for each sound, (states of the sound, width of the
        vectors of tokens).

        Args:
            sounds: each a `zoo.transformer.Spectrogram`, or a tensor (sounds, frames, bands) of
                such as fill one window each.

        Raises:
            TypeError: they are neither a tensor of floating-point numbers nor a list of
                `Spectrogram`s.
            ValueError: the shape of one is wrong, or it is too short.
        """
        return [one.states for one in self._read(sounds, return_attention=False)[0]]

    def insert_sounds(
        self, target: torch.Tensor, sounds: Sounds, *, target_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids of a text with sounds in it, and the states that `decode` takes as `inserted`.

        Args:
            target: ids (batch, length), with `sound_id` at the place of each state of a sound.
            sounds: all sounds in their order, text by text, as `read_sounds` takes them.
            target_mask: a mask (batch, length) hides padding, in which no sound stands; those of
                other shapes change nothing here.

        Returns:
            The ids, (batch, length), with the number of a row of the states in the place of each
            `sound_id`, counted from the size of the vocabulary; and the states, (states of all
            sounds, width).

        Raises:
            TypeError: as `read_sounds`.
            ValueError: as `read_sounds`; a text has no places for a whole number of sounds, or all
                have places for another number of sounds than are given.
        """
        return self._inserting(target, sounds, target_mask)

    def forward(
        self,
        target: torch.Tensor,
        sounds: Sounds | None = None,
        *,
        target_mask: torch.Tensor | None = None,
        return_attention: bool = False,
    ) -> Output:
        """Score the next token of each position of texts with sounds in them.

        Args:
            target: ids (batch, length), with `sound_id` at the place of each state of a sound.
            sounds: all sounds in their order, text by text, as `read_sounds` takes them. Without
                any, `sound_id` is a token like others.
            target_mask: as in `EncoderDecoder.forward`.
            return_attention: also return the attention maps, those of the layers that read sounds
                as `encoder`: a row of the batch for each window.

        Returns:
            The head's output, (batch, target length, vocabulary), and the `AttentionMaps` if asked
            for.

        Raises:
            TypeError: as `insert_sounds`.
            ValueError: as `insert_sounds`.
        """
        return self._scored(
            target, sounds, target_mask=target_mask, return_attention=return_attention
        )

    def _read(self, sounds: Sounds, *, return_attention: bool) -> tuple[Sequence[Read], Maps]:
        checked = check_sounds(sounds, self.how)
        windows = torch.cat([sound.windows for sound in checked])
        mask = self._heard(checked, windows.device) if self.how.silence == "hidden" else None
        states, maps = self.sound(windows, mask=mask, return_weights=return_attention)
        states = states[:, : states.shape[1] // self.merge * self.merge]
        made = self.projector(states, (1, states.shape[1]))
        each = made.split([len(sound.windows) for sound in checked])
        return [
            Read(states.flatten(0, 1)[: n_states_of(sound, self.how)])  # those of silence are last
            for sound, states in zip(checked, each, strict=True)
        ], maps

    def _heard(self, sounds: Sequence[Spectrogram], device: torch.device) -> torch.Tensor | None:
        """Which states of each window are of the sound itself, (windows, states of the stack); None
        if all are."""
        frames, n_states = sounds[0].windows.shape[1], self.sound.embedded_length
        lengths: list[int] = []
        for sound in sounds:
            n_full = len(sound.windows) - 1
            last = n_states(sound.length - n_full * frames)
            lengths += [*[n_states(frames)] * n_full, last]
        if min(lengths) == n_states(frames):
            return None
        places = torch.arange(n_states(frames), device=device)
        return places < torch.tensor(lengths, device=device)[:, None]
