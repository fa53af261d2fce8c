"""Log-mel filter banks, as Kaldi computes them and as models of spectrograms were trained with."""

from __future__ import annotations

from typing import Literal

import torch

RATE: Literal[16000] = 16000
"""How many samples there are in a second. The numbers below are of this rate."""
WINDOW, HOP = 400, 160
"""The samples of a frame, 25 milliseconds, and those between the beginnings of two."""
N_FFT = 512
LOWEST = 20.0
"""The frequency at which the lowest band begins, in Hz; the highest ends at half the rate."""
PREEMPHASIS = 0.97
FLOOR = 2.0**-23
"""The least power of a band."""


def log_mel(
    samples: torch.Tensor, n_bands: int, *, window: Literal["hann", "povey"] = "hann"
) -> torch.Tensor:
    """The logarithms of the power in bands of equal width in mel, of each frame that the samples
    fill. From each frame, its mean is subtracted, then 0.97 of the sample before; a window follows:
    Hann's, or Kaldi's own, which is that to the power of 0.85 and named after Daniel Povey.

    Args:
        samples: (n,), at least `WINDOW` of them, 16,000 a second.
        n_bands: the number of bands.
        window: what each frame is multiplied by.

    Returns:
        (frames, n_bands), in float32. It is computed in float64.
    """
    frames = samples.double().unfold(0, WINDOW, HOP)
    frames = frames - frames.mean(1, keepdim=True)
    before = torch.cat([frames[:, :1], frames[:, :-1]], 1)
    shape = torch.hann_window(WINDOW, periodic=False, dtype=torch.float64, device="cpu")
    if window == "povey":
        shape = shape**0.85
    spectra = torch.fft.rfft((frames - PREEMPHASIS * before) * shape, N_FFT)
    power: torch.Tensor = spectra.abs().square() @ _bands(n_bands).T
    return power.clamp(min=FLOOR).log().float()


def _bands(n_bands: int) -> torch.Tensor:
    """The weight of each frequency in each band, (n_bands, N_FFT // 2 + 1): a triangle in mel,
    which begins where the band before has its peak and ends where the next one has it."""
    low, high = _mel(torch.tensor([LOWEST, RATE / 2], dtype=torch.float64, device="cpu"))
    corners = torch.linspace(low, high, n_bands + 2, dtype=torch.float64, device="cpu")[:, None]
    at = _mel(torch.arange(N_FFT // 2 + 1, dtype=torch.float64, device="cpu") * (RATE / N_FFT))
    return triangles(corners, at)


def triangles(corners: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Triangles of height 1, each of which begins at a corner, has its peak at the next one and
    ends at the one after that: their values at (n,), (corners - 2, n), for corners (corners, 1)."""
    left, peak, right = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (at - left) / (peak - left), (right - at) / (right - peak)
    return torch.minimum(rising, falling).clamp(min=0.0)


def _mel(hertz: torch.Tensor) -> torch.Tensor:
    return 1127.0 * torch.log1p(hertz / 700.0)
