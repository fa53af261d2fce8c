"""Sounds that are read from WAV files, of which some are no sounds, or are cut off."""

from __future__ import annotations

import os
import wave
from dataclasses import dataclass
from io import BytesIO

import torch

from zoo.errors import InputError, Problem
from zoo.media_files import open_media
from zoo.wording import counted

WIDEST = 4
"""The most bytes of a sample."""
WHOLE, EXTENSIBLE = b"\x01\x00", b"\xfe\xff"
"""The tags of formats: whole numbers, and one that is stated elsewhere in the header."""
UNKNOWN = 2**32 - 1
"""The number of bytes that a program writes which knows no other, since it writes into a pipe."""


@dataclass(frozen=True, slots=True)
class Sound:
    """What was recorded.

    Args:
        samples: the samples, from -1 up to 1, the mean of all channels: (samples,), in float32.
        rate: how many samples there are in a second.
    """

    samples: torch.Tensor
    rate: int


def read_sound(source: str | os.PathLike[str] | bytes) -> Sound:
    """Read a WAV file of whole numbers (PCM), of 8, 16, 24 or 32 bits and any number of channels.

    Args:
        source: the path of a file, or the bytes of one.

    Raises:
        InputError: there is no such file, it cannot be read or is no such WAV file, or it is cut
            off or has no samples.
    """
    if not isinstance(source, str | os.PathLike | bytes):
        raise InputError(
            f"a sound is the path of a file, or bytes, not of the type `{type(source).__name__}`"
        )
    with open_media(source, "a sound", "*.wav") as file:
        return _read(file.read())


def _read(content: bytes) -> Sound:
    try:
        with wave.open(BytesIO(_with_plain_tag(content))) as opened:
            told = opened.getparams()
            data = opened.readframes(told.nframes)
    except Exception as error:  # of a damaged file, `wave` raises errors of several types
        reason = f": {error}" if error.args else ""
        raise InputError(
            Problem(
                f"this is not a WAV file of whole numbers (PCM){reason}",
                help="convert it: `ffmpeg -i IN -c:a pcm_s16le OUT.wav`",
            )
        ) from None
    if not data:
        raise InputError("the sound has no samples")
    if told.sampwidth > WIDEST:
        raise InputError(f"its samples have {told.sampwidth} bytes, and {WIDEST} at most are read")
    width = told.nchannels * told.sampwidth
    n_frames = len(data) // width
    if n_frames < told.nframes != UNKNOWN // width:
        raise InputError(
            f"the file is cut off: it announces {told.nframes:,} samples, and holds "
            f"{counted(n_frames, 'sample')}"
        )
    data = data[: n_frames * width]
    samples = _as_floats(data, told.sampwidth).view(-1, told.nchannels).mean(1)
    return Sound(samples, told.framerate)


def _with_plain_tag(content: bytes) -> bytes:
    """A file with the tag of whole numbers where it has the extensible one and means these, as many
    files of 24 bits or several channels do: `wave` of Python 3.11 does not read it."""
    at = content.find(b"fmt ") + 8
    if content[at : at + 2] == EXTENSIBLE and content[at + 24 : at + 26] == WHOLE:
        return content[:at] + WHOLE + content[at + 2 :]
    return content


def _as_floats(data: bytes, width: int) -> torch.Tensor:
    """Samples of so many bytes, the least significant first, as numbers from -1 up to 1."""
    each = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, width).to(torch.int32)
    if width == 1:
        each = each ^ 0x80  # of 8 bits, 128 stands for 0
    whole = torch.zeros(len(each), dtype=torch.int32)  # with these bytes as the most significant
    for place in range(width):
        whole |= each[:, place] << 8 * (WIDEST - width + place)
    return whole.float().div(2 ** (8 * WIDEST - 1))
