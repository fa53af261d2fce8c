"""Sounds that are read from WAV files, of which some are no sounds, or are cut off."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from zoo.errors import InputError
from zoo.files.media import open_media
from zoo.wording import counted

WHOLE, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
"""The tags of formats: whole numbers, floats, and one that is stated elsewhere in the header."""
WIDTHS = {WHOLE: (1, 2, 3, 4), FLOAT: (4, 8)}
"""The bytes that a sample of each format may have."""
UNKNOWN = (2**32 - 1, 2**31 - 2**12)
"""The numbers of bytes that `ffmpeg` and `sox` write where they know none, since they write into a
pipe. A file that is longer than 4 GiB (RF64) has the first too, and its own number elsewhere."""


@dataclass(frozen=True, slots=True)
class Sound:
    """What was recorded.

    Args:
        samples: the samples, from -1 up to 1, the mean of all channels: (samples,), in float32.
            Those of a file of floats are as they are stored, which may be beyond.
        rate: how many samples there are in a second.
    """

    samples: torch.Tensor
    rate: int


class _Format(NamedTuple):
    """How samples are stored: of how many channels, in how many bytes each."""

    tag: int
    n_channels: int
    rate: int
    width: int


def read_sound(source: str | os.PathLike[str] | bytes) -> Sound:
    """Read a WAV file of any number of channels, of whole numbers (PCM) of 8, 16, 24 or 32 bits, or
    of floats of 32 or 64.

    Args:
        source: the path of a file, or the bytes of one.

    Raises:
        InputError: there is no such file, it cannot be read or is no such WAV file, it is cut off,
            or has no samples or one that is no finite number.
    """
    if not isinstance(source, str | os.PathLike | bytes):
        raise InputError(
            f"a sound is the path of a file, or bytes, not of the type `{type(source).__name__}`"
        )
    with open_media(source, "a sound", "*.wav") as file:
        return _read(memoryview(file.read()))


def _read(content: memoryview) -> Sound:
    if bytes(content[:4]) not in (b"RIFF", b"RF64") or bytes(content[8:12]) != b"WAVE":
        raise _unreadable("this is not a WAV file")
    how, long = None, 0
    for name, size, data in _chunks(content):
        if name == b"ds64" and len(data) >= 16:
            (long,) = struct.unpack_from("<Q", data, 8)
        elif name == b"fmt ":
            how = _format(data)
        elif name == b"data":
            if how is None:
                break
            if size in UNKNOWN and size > len(data):
                size = long or len(data)
            return Sound(_samples(data, size, how), how.rate)
    missing = "no format before its samples" if how is None else "no samples"
    raise _unreadable(f"this WAV file has {missing}")


def _chunks(content: memoryview) -> Iterator[tuple[bytes, int, memoryview]]:
    """The chunks of a file: the name of each, how many bytes it announces, and those there are."""
    at = 12
    while at + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, at)
        end = len(content) if size in UNKNOWN else at + 8 + size
        yield name, size, content[at + 8 : end]
        at = end + size % 2


def _format(data: memoryview) -> _Format:
    """Read how samples are stored. Raises InputError if they are not stored as is read here."""
    if len(data) < 16:
        raise _unreadable("the header of this WAV file is damaged")
    tag, n_channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", data)
    if tag == EXTENSIBLE and len(data) >= 26:
        (tag,) = struct.unpack_from("<H", data, 24)
    width = (bits + 7) // 8
    if not n_channels or not rate:
        raise _unreadable(
            f"the header of this WAV file is damaged: it states {counted(n_channels, 'channel')} "
            f"and {counted(rate, 'sample')} a second"
        )
    if width not in WIDTHS.get(tag, ()):
        raise _unreadable(
            f"this WAV file is of the format {tag} with {bits} bits a sample: whole numbers (PCM, "
            "format 1) of 8, 16, 24 or 32 bits are read, and floats (format 3) of 32 or 64"
        )
    return _Format(tag, n_channels, rate, width)


def _samples(data: memoryview, size: int, how: _Format) -> torch.Tensor:
    """The mean of all channels, (samples,), of what there is of `size` bytes."""
    width = how.n_channels * how.width
    n_samples = len(data) // width
    if n_samples < size // width:
        raise InputError(
            f"the file is cut off: it announces {counted(size // width, 'sample')}, and holds "
            f"{counted(n_samples, 'sample')}"
        )
    if not n_samples:
        raise InputError("the sound has no samples")
    numbers = _numbers(np.frombuffer(data[: n_samples * width], np.uint8), how)
    samples = numbers.view(-1, how.n_channels).mean(1)
    if not bool(samples.isfinite().all()):
        raise InputError("the sound has samples that are no finite numbers")
    return samples


def _numbers(data: np.ndarray[tuple[int], np.dtype[np.uint8]], how: _Format) -> torch.Tensor:
    """Samples, the least significant byte first, as floats; whole numbers from -1 up to 1."""
    if how.tag == FLOAT:
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused later
            return torch.from_numpy(data.view(f"<f{how.width}").astype(np.float32))
    if how.width == 1:  # 128 stands for 0
        return (torch.from_numpy(data.astype(np.float32)) - 128) / 128
    if how.width == 3:  # as the most significant bytes of 32 bits
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = data.reshape(-1, 3)
        whole, bits = wide.view("<i4")[:, 0], 32
    else:
        whole, bits = data.view(f"<i{how.width}"), 8 * how.width
    return torch.from_numpy(whole.astype(np.float32)).div(2 ** (bits - 1))


def _unreadable(message: str) -> InputError:
    return InputError(message, help="convert it: `ffmpeg -i IN -c:a pcm_s16le OUT.wav`")
