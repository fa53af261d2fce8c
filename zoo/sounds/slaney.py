"""Log-mel spectrograms with Slaney's filters (Auditory Toolbox, 1998), as librosa computes them and
as Whisper (Radford et al. 2022, arXiv:2212.04356) and the models of NVIDIA's NeMo were trained
with."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from zoo.sounds.filter_bank import triangles

HIGHEST = 8000.0
"""The frequency at which the highest band ends, in Hz; the lowest begins at 0."""
FLOOR = 1e-10
"""The least power of a band."""
BLOCK = 3000
"""The number of frames that are computed at a time."""
ADDED = 2.0**-24
"""What NeMo adds to the power of a band."""
EPS = 1e-5
"""What NeMo adds to the standard deviation of a band."""
RANGE = 8.0
"""How far below the greatest power of a spectrogram its numbers may be, in powers of 10."""
LINEAR = 3 / 200
"""The mel of a Hz below 1,000 Hz, which are 15 mel."""
STEP = math.log(6.4) / 27
"""The logarithm of the ratio of two frequencies above that are 1 mel apart."""


def slaney_log_mel(
    samples: torch.Tensor, *, n_bands: int, rate: int, n_fft: int, hop: int
) -> torch.Tensor:
    """The logarithms, to base 10, of the power in bands of mel, of frames of `n_fft` samples with a
    Hann window, whose centers are `hop` samples apart. The samples are mirrored at their ends. What
    is further below the greatest than `RANGE` is lifted to it; then 4 is added, and all is divided
    by 4.

    Args:
        samples: (n,), more than n_fft / 2 of them.
        n_bands: the number of bands.
        rate: how many samples there are in a second.
        n_fft: the samples of a frame.
        hop: the samples between two.

    Returns:
        (n // hop, n_bands), in float32. It is computed in float64.
    """
    hann = torch.hann_window(n_fft, dtype=torch.float64, device="cpu")
    power = _power(samples.double(), hann, hop, _bands(n_bands, rate, n_fft), ends="reflect")
    logs = power.clamp(min=FLOOR).log10()
    return ((logs.clamp(min=float(logs.max()) - RANGE) + 4.0) / 4.0).float()


def normalized_log_mel(
    samples: torch.Tensor,
    *,
    n_bands: int,
    rate: int,
    n_fft: int,
    window: int,
    hop: int,
    preemphasis: float,
) -> torch.Tensor:
    """The logarithms of the power in bands of mel, of frames with a Hann window, whose centers are
    `hop` samples apart; of each band, less its mean and over its standard deviation. Before, the
    sample before each, times `preemphasis`, is subtracted from it. Zeros are put at both ends of
    the samples.

    Args:
        samples: (n,), at least 2 * hop of them.
        n_bands: the number of bands.
        rate: how many samples there are in a second.
        n_fft: the samples of a Fourier transform.
        window: those of the window, in its middle.
        hop: the samples between two frames.
        preemphasis: the share of the sample before.

    Returns:
        (n // hop, n_bands), in float32. It is computed in float64.
    """
    samples = samples.double()
    samples = torch.cat([samples[:1], samples[1:] - preemphasis * samples[:-1]])
    hann = torch.hann_window(window, periodic=False, dtype=torch.float64, device="cpu")
    before = (n_fft - window) // 2
    hann = F.pad(hann, (before, n_fft - window - before))
    power = _power(samples, hann, hop, _bands(n_bands, rate, n_fft), ends="constant")
    logs = (power + ADDED).log()
    return ((logs - logs.mean(0)) / (logs.std(0) + EPS)).float()


def _power(
    samples: torch.Tensor, window: torch.Tensor, hop: int, bands: torch.Tensor, *, ends: str
) -> torch.Tensor:
    """The power in bands, (n // hop, n_bands), of samples (n,) that go on at both ends as `F.pad`
    says, in frames of the length of the window whose centers are `hop` samples apart."""
    half = len(window) // 2
    longer = F.pad(samples[None], (half, half), mode=ends)[0]
    frames = longer.unfold(0, len(window), hop)[: len(samples) // hop]
    # The spectra of a long sound would take many times its memory.
    parts = (
        torch.fft.rfft(some * window).abs().square() @ bands.T
        for some in torch.split(frames, BLOCK)
    )
    return torch.cat(list(parts))


def _bands(n_bands: int, rate: int, n_fft: int) -> torch.Tensor:
    """The weight of each frequency in each band, (n_bands, n_fft // 2 + 1): a triangle in Hz of the
    area 1, whose corners are the peaks of the bands beside it. The peaks are evenly spaced in
    mel."""
    highest = 15 + math.log(HIGHEST / 1000) / STEP
    peaks = torch.linspace(0, highest, n_bands + 2, dtype=torch.float64, device="cpu")
    corners = _hertz(peaks)[:, None]
    at = torch.arange(n_fft // 2 + 1, dtype=torch.float64, device="cpu") * (rate / n_fft)
    return triangles(corners, at) * (2 / (corners[2:] - corners[:-2]))


def _hertz(mel: torch.Tensor) -> torch.Tensor:
    return torch.where(mel < 15, mel / LINEAR, 1000 * ((mel - 15) * STEP).exp())
