"""A sound that is longer than what a model hears at once, in windows."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

PAUSE = 0.1
"""How long the pause is that is looked for, in seconds."""
SHARE = 6
"""It is looked for in the last sixth of a window."""


class Window(NamedTuple):
    """A part of a sound: its first sample, and the one after its last."""

    start: int
    end: int


def windows_of(samples: torch.Tensor, longest: int, rate: int) -> list[Window]:
    """Cut a sound into windows that follow each other and together are all of it. Each but the last
    ends in the middle of the quietest tenth of a second of its last sixth, where a word is least
    likely to be cut: of 30 seconds, after 25 or more.

    Args:
        samples: (n,).
        longest: the most samples of a window, at least a second.
        rate: how many samples there are in a second.
    """
    found: list[Window] = []
    start, pause = 0, round(PAUSE * rate)
    while len(samples) - start > longest:
        looked_at = samples[start + longest - longest // SHARE : start + longest]
        sums = F.pad(looked_at.double().square(), (1, 0)).cumsum(0)
        quietest = int((sums[pause:] - sums[:-pause]).argmin())
        end = start + longest - len(looked_at) + quietest + pause // 2
        found.append(Window(start, end))
        start = end
    return [*found, Window(start, len(samples))]
