"""Checks of the sounds in texts that a model is called with."""

from __future__ import annotations

import torch

from zoo.purpose import InsertedSounds
from zoo.transformer import Spectrogram
from zoo.wording import counted


def check_sounds(sounds: object, how: InsertedSounds) -> tuple[Spectrogram, ...]:
    """Return the spectrograms of sounds, after checking that they are such, and fit the model. A
    tensor (sounds, frames, bands) is of sounds that fill one window each.

    Raises:
        TypeError: they are neither a tensor of floating-point numbers nor a list of
            `Spectrogram`s.
        ValueError: the shape of one is wrong, or there are none.
    """
    if isinstance(sounds, torch.Tensor):
        bands = how.shape[1]
        if sounds.dim() != 3 or sounds.shape[-1] != bands:
            hint = ""
            if sounds.dim() == 2 and sounds.shape[-1] == bands:
                hint = "; a single sound is `sound[None]`"
            elif sounds.dim() in (2, 3) and sounds.shape[-2] == bands:
                hint = "; the bands come last: `sounds.movedim(-1, -2)`"
            found = tuple(sounds.shape)
            raise ValueError(
                f"sounds are (batch, frames, bands) = (.., .., {bands}), not {found}{hint}"
            )
        sounds = [Spectrogram(one[None], sounds.shape[1]) for one in sounds]
    if not isinstance(sounds, list | tuple):
        raise TypeError(
            "this model takes a tensor of sounds, (batch, frames, bands), or a list of "
            f"`Spectrogram`s, not a {type(sounds).__name__}"
        )
    if not sounds:
        raise ValueError("there are no sounds: leave them out")
    for number, sound in enumerate(sounds):
        if not isinstance(sound, Spectrogram):
            raise TypeError(f"sound {number} is a `Spectrogram`, not a {type(sound).__name__}")
        _check_sound(sound, number, how)
    if len(lengths := {sound.windows.shape[1] for sound in sounds}) > 1:
        told = " and ".join(map(str, sorted(lengths)))
        raise ValueError(
            f"the windows of all sounds of a call are of one length, and these have {told} frames"
        )
    return tuple(sounds)


def _check_sound(sound: Spectrogram, number: int, how: InsertedSounds) -> None:
    windows, bands = sound.windows, how.shape[1]
    if not isinstance(windows, torch.Tensor) or not windows.is_floating_point():
        found = windows.dtype if isinstance(windows, torch.Tensor) else type(windows).__name__
        raise TypeError(f"sound {number} is of floating-point numbers, not {found}")
    if windows.dim() != 3 or not len(windows) or windows.shape[2] != bands:
        raise ValueError(
            f"the windows of sound {number} are (n, frames, bands) = (n, frames, {bands}), not "
            f"{tuple(windows.shape)}"
        )
    n_windows, frames, _ = windows.shape
    if how.longest is not None and frames > how.longest:
        raise ValueError(
            f"the windows of sound {number} have {frames:,} frames, and the model has positions "
            f"for {how.longest:,}: cut it into more windows"
        )
    if not (n_windows - 1) * frames < sound.length <= n_windows * frames:
        raise ValueError(
            f"sound {number} has {counted(sound.length, 'frame')}, which are not those of "
            f"{counted(n_windows, 'window')} of {frames}"
        )
    if not n_states_of(sound, how):
        raise ValueError(
            f"sound {number} has {counted(sound.length, 'frame')}, of which no state is made: it "
            "is too short"
        )


def n_states_of(sound: Spectrogram, how: InsertedSounds) -> int:
    """The number of states of a sound that stand in a text."""
    n_windows, frames, _ = sound.windows.shape
    return how.states_of(n_windows, frames, sound.length)
