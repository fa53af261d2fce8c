"""What generation keeps of the tokens before, so that each is computed once.

One `Cache` belongs to one generation of one stack. It is made by whoever generates, handed down
through `decode` and `LayerContext`, and holds all state: modules have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from zoo.errors import InputError, Problem

Tensors = tuple[torch.Tensor, ...]


class Cache:
    """The tokens so far, for every layer of a stack.

    Tokens that a mask hides are not there: they have no position, whatever the stack's
    `count_positions` says, so that sequences of different lengths may be padded on the left.

    Args:
        capacity: how many tokens there will be at most; memory for them is taken at once.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._layers: dict[int, LayerCache] = {}
        self._seen: torch.Tensor | None = None
        self._positions: torch.Tensor | None = None
        self._device: torch.device | str = "cpu"

    def append(
        self,
        n_tokens: int,
        *,
        seen: torch.Tensor | None,
        counted: torch.Tensor | None,
        device: torch.device,
    ) -> torch.Tensor:
        """Note that so many tokens come next.

        Args:
            n_tokens: how many.
            seen: (rows, n_tokens), False where a token is hidden from attention; None for nowhere.
            counted: (rows, n_tokens), False where it has no position; None for nowhere.
            device: of the positions.

        Returns:
            Their positions, (n_tokens,), or (rows, n_tokens), -1 for those that have none.

        Raises:
            ValueError: there is no room for them.
            InputError: there is too little memory for the tokens that there will be.
        """
        if self.length + n_tokens > self.capacity:
            raise ValueError(
                f"the cache has room for {self.capacity} tokens, not {self.length + n_tokens}"
            )
        start, self.length = self.length, self.length + n_tokens
        self._device = device
        self._note_seen(start, seen)
        if self._positions is None and counted is None:
            return torch.arange(start, self.length, device=device)
        return self._note_positions(start, counted)

    def _note_seen(self, start: int, seen: torch.Tensor | None) -> None:
        if self._seen is None and seen is not None:
            self._seen = _room(seen, (seen.shape[0], self.capacity))
            self._seen[:, :start] = True
        if self._seen is not None:
            self._seen[:, start : self.length] = True if seen is None else seen

    def _note_positions(self, start: int, counted: torch.Tensor | None) -> torch.Tensor:
        if self._positions is None:
            assert counted is not None
            self._positions = _room(counted.long(), (counted.shape[0], self.capacity))
            self._positions[:, :start] = torch.arange(start, device=self._device)
        before = self._positions[:, :start].amax(1, keepdim=True) if start else -1
        if counted is None:
            new = before + torch.arange(1, self.length - start + 1, device=self._device)
        else:
            new = ((before + counted.cumsum(1)) + 1) * counted - 1
        self._positions[:, start : self.length] = new
        return self._positions[:, start : self.length]

    @property
    def positions(self) -> torch.Tensor:
        """The position of each token so far, (length,) or (rows, length)."""
        if self._positions is None:
            return torch.arange(self.length, device=self._device)
        return self._positions[:, : self.length]

    @property
    def mask(self) -> torch.Tensor | None:
        """(rows, 1, 1, length), False at hidden tokens; None where none is hidden."""
        return None if self._seen is None else self._seen[:, None, None, : self.length]

    def layer(self, number: int) -> LayerCache:
        """What the layer keeps that is run as the `number`th of a pass. A layer that is run
        several times has as many."""
        if number not in self._layers:
            self._layers[number] = LayerCache(self)
        return self._layers[number]

    def select(self, rows: torch.Tensor, memory_rows: torch.Tensor | None = None) -> None:
        """Keep these rows, (new rows,), in this order; a row may be repeated. Of what is kept of a
        memory, `memory_rows` stay, or all."""
        if self._seen is not None:
            self._seen = self._seen[rows]
        if self._positions is not None:
            self._positions = self._positions[rows]
        for layer in self._layers.values():
            for kept in layer.by_sublayer.values():
                kept.select(rows, memory_rows)

    @property
    def n_bytes(self) -> int:
        """The memory of the keys and values."""
        layers = self._layers.values()
        return sum(kept.n_bytes for layer in layers for kept in layer.by_sublayer.values())


class LayerCache:
    """What one layer keeps, for each of its sublayers."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.by_sublayer: dict[str, AttentionCache] = {}

    def of(self, sublayer: str) -> AttentionCache:
        """What the attention of that name keeps."""
        if sublayer not in self.by_sublayer:
            self.by_sublayer[sublayer] = AttentionCache(self.cache)
        return self.by_sublayer[sublayer]


class AttentionCache:
    """What one attention keeps of each token: tensors (rows, ..., tokens, width), such as its keys
    and values."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self._buffers: list[torch.Tensor] = []
        self._start = self._end = 0
        self._of_memory: Tensors | None = None

    def extend(self, *new: torch.Tensor, window: int | None = None) -> Tensors:
        """Keep what belongs to the next tokens.

        Args:
            new: each (rows, ..., new tokens, width).
            window: how many tokens, itself included, a token can need at most. Older ones are
                dropped; None keeps all.

        Returns:
            The same of all tokens that are kept, the new ones last.

        Raises:
            InputError: there is too little memory for the tokens that there will be.
        """
        if not self._buffers:
            room = self.cache.capacity if window is None else min(self.cache.capacity, 2 * window)
            shapes = [(*t.shape[:-2], room, t.shape[-1]) for t in new]
            self._buffers = [_room(t, shape) for t, shape in zip(new, shapes, strict=True)]
        n_new, n_before = new[0].shape[-2], self._end - self._start
        if window is not None and self._end + n_new > self._buffers[0].shape[-2]:
            return self._slide(new, n_before, window - 1)
        for buffer, tensor in zip(self._buffers, new, strict=True):
            buffer.narrow(-2, self._end, n_new).copy_(tensor)
        self._end += n_new
        if window is not None:
            self._start = max(self._start, self._end - n_new - (window - 1))
        return new if self._end - self._start == n_new else self._kept()

    def _slide(self, new: Tensors, n_before: int, n_past: int) -> Tensors:
        """Move the last `n_past` tokens to the front of the buffers, the new ones among them."""
        n_before = min(n_before, n_past)
        past = [t[..., t.shape[-2] - n_before :, :] for t in self._kept()]
        everything = tuple(torch.cat(pair, -2) for pair in zip(past, new, strict=True))
        n_kept = min(n_past, everything[0].shape[-2])
        for buffer, tensor in zip(self._buffers, everything, strict=True):
            buffer[..., :n_kept, :] = tensor[..., tensor.shape[-2] - n_kept :, :]
        self._start, self._end = 0, n_kept
        return everything

    def _kept(self) -> Tensors:
        n_kept = self._end - self._start
        return tuple(buffer.narrow(-2, self._start, n_kept) for buffer in self._buffers)

    def of_memory(self, make: Callable[[], Tensors]) -> Tensors:
        """What `make` returns, which belongs to the attended memory: made once."""
        if self._of_memory is None:
            self._of_memory = make()
        return self._of_memory

    def positions(self, n_tokens: int) -> torch.Tensor:
        """The positions of the last so many tokens, (n_tokens,) or (rows, n_tokens)."""
        positions = self.cache.positions
        return positions[..., positions.shape[-1] - n_tokens :]

    def select(self, rows: torch.Tensor, memory_rows: torch.Tensor | None) -> None:
        """As `Cache.select`."""
        if self._of_memory is not None and memory_rows is not None:
            self._of_memory = tuple(t.index_select(0, memory_rows) for t in self._of_memory)
        for number, buffer in enumerate(self._buffers):
            kept = buffer.new_empty(rows.shape[0], *buffer.shape[1:])
            # What lies behind the end is not copied.
            used = (..., slice(self._end), slice(None))
            torch.index_select(buffer[used], 0, rows, out=kept[used])
            self._buffers[number] = kept

    @property
    def n_bytes(self) -> int:
        """The memory of all that is kept."""
        return sum(t.nbytes for t in (*self._buffers, *(self._of_memory or ())))


def _room(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of any values. Raises InputError where there is too little memory for it."""
    try:
        return like.new_empty(shape)
    except RuntimeError:
        message = f"a cache of {tuple(shape)} does not fit into memory"
        raise InputError(Problem(message, help="a smaller `max_new_tokens` takes less")) from None
