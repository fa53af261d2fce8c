"""A decoder whose text has images of any size in it, each of which sees all of itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from zoo_components.modules.inserting import Read
from zoo_components.modules.native_images import Inserted, NativeImageTextDecoder


class BidirectionalImageTextDecoder(NativeImageTextDecoder):
    """A `NativeImageTextDecoder` in which the states of an image attend to each other in both
    directions, in some layers.

    Args:
        windowed: the numbers of these layers, which have windows.
        options: as for `NativeImageTextDecoder`.
    """

    def __init__(self, *, windowed: Collection[int], **options: Any) -> None:
        super().__init__(**options)
        self.windowed = frozenset(windowed)

    def _joined(self, read: Sequence[Read]) -> Inserted:
        inserted = super()._joined(read)
        n_states = torch.tensor([len(one.states) for one in read])
        numbers = torch.arange(len(n_states)).repeat_interleave(n_states)
        images = numbers.to(inserted.states.device)
        return inserted._replace(images=images, block_layers=self.windowed)
