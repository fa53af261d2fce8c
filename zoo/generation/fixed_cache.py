"""A cache whose tensors keep their shapes and their places in memory from one token to the next, so
that a step of generation can be recorded once, as a CUDA graph, and run again.

Where a `Cache` gives a layer the tokens so far, this one gives it all of its room, with a mask that
hides what is not filled yet. What would be a number is a tensor on the device, which the recorded
step itself changes.
"""

from __future__ import annotations

import math
from typing import Self

import torch

from zoo.cache import AttentionCache, Cache, LayerCache, Past, Tensors

ALIGNED = 8
"""The capacity is a multiple of this, as kernels of attention read masks with such rows."""


class FixedPast(Past):
    """The tokens of a `FixedCache`, to which further ones are added one at a time. They cannot be
    taken back.

    Args:
        past: the tokens so far.
        device: the device of the model.
    """

    def __init__(self, past: Past, device: torch.device) -> None:
        super().__init__(ALIGNED * math.ceil(past.capacity / ALIGNED))
        self.length, self.device = past.length, device
        self._at = torch.tensor([past.length - 1], device=device)
        seen = torch.zeros(1, self.capacity, dtype=torch.bool, device=device)
        if past._seen is not None:
            seen = seen.repeat(len(past._seen), 1)
        seen[:, : past.length] = True if past._seen is None else past._seen[:, : past.length]
        self._seen: torch.Tensor = seen
        if past._positions is not None:
            self._positions = self._table(past._positions[:, : past.length])

    def _table(self, positions: torch.Tensor) -> torch.Tensor:
        """Room for the positions of all tokens, those of the tokens so far filled in."""
        table = positions.new_full((len(positions), self.capacity), -1)
        table[:, : positions.shape[1]] = positions
        return table

    @property
    def at(self) -> torch.Tensor:
        """The place of the latest token, (1,)."""
        return self._at

    def append(
        self,
        n_tokens: int,
        *,
        seen: torch.Tensor | None,
        counted: torch.Tensor | None,
        device: torch.device,
        steps: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `Past.append`, for one token of each row, by one position. Raises ValueError for
        others."""
        if n_tokens != 1:
            raise ValueError(f"a cache of fixed shapes takes one token at a time, not {n_tokens}")
        if steps is not None:
            raise ValueError("a cache of fixed shapes takes no tokens of images")
        start = self.length
        self.length += 1
        self._at.add_(1)
        if seen is None:
            self._seen.index_fill_(1, self._at, True)  # the value, as torch has it
        else:
            if len(self._seen) != len(seen):  # the first token that may be hidden
                self._seen = self._seen.repeat(len(seen), 1)
            self._seen.index_copy_(1, self._at, seen)
        if counted is not None and self._positions is None:
            before = torch.arange(start, device=device)
            self._positions = self._table(before.repeat(len(counted), 1))
        if self._positions is None:
            return self._at
        new = self._positions.amax(1, keepdim=True) + 1
        if counted is not None:
            new = new.where(counted, -1)
        self._positions.index_copy_(1, self._at, new)
        return new

    def places(self, n_tokens: int) -> torch.Tensor:
        """The place of the latest token, (1,)."""
        return self._at

    @property
    def positions(self) -> torch.Tensor:
        """The position at each place, (capacity,) or (rows, capacity)."""
        if self._positions is None:
            return torch.arange(self.capacity, device=self.device)
        return self._positions

    @property
    def mask(self) -> torch.Tensor:
        """(1 or rows, 1, 1, capacity), False at hidden tokens and at places that are not filled."""
        return self._seen[:, None, None, :]

    def select(self, rows: torch.Tensor) -> None:
        """As `Past.select`. Tensors stay in their place if the number of rows does."""
        if len(self._seen) > 1:
            self._seen = _moved(self._seen, rows)
        if self._positions is not None:
            self._positions = _moved(self._positions, rows)


class FixedCache(Cache):
    """The tokens of a cache, and what it keeps of them, in tensors of fixed shapes.

    Args:
        cache: the tokens so far; it is not to be used any more.
        device: the device of the model.
    """

    fixed = True

    def __init__(self, cache: Cache, device: torch.device) -> None:
        self.past = past = FixedPast(cache.past, device)
        self._layers = {number: _held(layer, past) for number, layer in cache._layers.items()}
        self._parts = {name: FixedCache(part, device) for name, part in cache._parts.items()}


def _held(layer: LayerCache, past: FixedPast) -> LayerCache:
    """What a layer of another cache keeps."""
    found = LayerCache(past)
    found.by_sublayer = {
        name: FixedAttentionCache.of(kept, past) for name, kept in layer.by_sublayer.items()
    }
    return found


class FixedAttentionCache(AttentionCache):
    """What one attention keeps, in a cache of fixed shapes."""

    def __init__(self, past: FixedPast) -> None:
        super().__init__(past)
        self._fixed = past

    @classmethod
    def of(cls, kept: AttentionCache, past: FixedPast) -> Self:
        """What another cache keeps. Tokens that a window has dropped leave their places empty."""
        found = cls(past)
        found._of_memory = kept._of_memory
        if kept.state is not None:
            found._states = {0: kept.state}
        for tokens in kept.tokens:
            room = tokens.new_zeros(*tokens.shape[:-2], past.capacity, tokens.shape[-1])
            room[..., past.length - tokens.shape[-2] : past.length, :] = tokens
            found._buffers.append(room)
        return found

    def keep_state(self, *state: torch.Tensor) -> None:
        """As `AttentionCache.keep_state`, in the tensors of the state before."""
        for before, after in zip(self._states[0], state, strict=True):
            before.copy_(after)

    def extend(self, *new: torch.Tensor, window: int | None = None) -> Tensors:
        """Store the tensors of the next token, (rows, ..., 1, width), and return those of all
        places; those beyond a window stay."""
        for buffer, tensor in zip(self._buffers, new, strict=True):
            buffer.index_copy_(-2, self._fixed.at, tensor.to(buffer.dtype))
        return tuple(self._buffers)

    def places(self, n_queries: int, n_keys: int) -> torch.Tensor:
        """The place of the latest token, (1,)."""
        return self._fixed.at

    def of_new(self, mask: torch.Tensor, n_tokens: int) -> torch.Tensor:
        """The column of a mask (..., key) that is about the latest token."""
        return mask.index_select(-1, self._fixed.at)

    def select(self, rows: torch.Tensor, memory_rows: torch.Tensor | None) -> None:
        """As `Cache.select`. Tensors stay in their place if the number of rows does."""
        if self._of_memory is not None and memory_rows is not None:
            self._of_memory = tuple(_moved(tensor, memory_rows) for tensor in self._of_memory)
        self._states = {
            at: tuple(_moved(tensor, rows) for tensor in state)
            for at, state in self._states.items()
        }
        self._buffers = [_moved(buffer, rows) for buffer in self._buffers]


def _moved(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """These rows of a tensor: in its own memory, if there are as many as before."""
    found = tensor.index_select(0, rows)
    return tensor.copy_(found) if found.shape == tensor.shape else found
