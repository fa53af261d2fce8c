"""The cache of generation, so that each token is computed once.

A `Cache` belongs to one generation with one stack, and has a `part` for each of several. The caller
creates it and passes it through `decode` and `LayerContext`. It holds all state; modules have none.
An attention keeps something of each token in it, such as keys and values, or a state of fixed size,
or both.

A cache can be made so that its last tokens can be taken back, such as drafts that were wrong. With
a window, it then keeps the keys and values of as many more tokens. A state cannot be rid of a token
that it has summed up, so the states before the last tokens are kept too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import torch

from zoo.errors import InputError

Tensors = tuple[torch.Tensor, ...]


class Past:
    """The tokens of a stack so far: how many there are, their positions, and which are hidden.

    It is an object of its own because each `AttentionCache` refers to it. If these referred to the
    whole `Cache`, which holds them, there would be a cycle: the memory of a cache would be freed
    not at the end of a generation, but when Python next happens to look for cycles.

    Tokens that a mask hides have no position, whatever the stack's `count_positions` says, so that
    sequences of different lengths can be padded on the left.

    Args:
        capacity: the largest number of tokens.
        back: how many of the last tokens can be taken back.
    """

    def __init__(self, capacity: int, *, back: int = 0) -> None:
        self.capacity, self.back = capacity, back
        self.length = self.least = 0  # the tokens so far, and those that cannot be taken back
        self._seen: torch.Tensor | None = None
        self._positions: torch.Tensor | None = None
        self.device: torch.device | str = "cpu"

    def append(
        self,
        n_tokens: int,
        *,
        seen: torch.Tensor | None,
        counted: torch.Tensor | None,
        device: torch.device,
        steps: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Register the next tokens.

        Args:
            n_tokens: their number.
            seen: (rows, n_tokens), False at tokens that are hidden from attention; None if none is.
            counted: (rows, n_tokens), False at tokens without a position; None if all have one.
            device: the device of the positions.
            steps: (rows, n_tokens), by how many positions each token is after the one before it;
                by one if None.

        Returns:
            Their positions, (n_tokens,), or (rows, n_tokens) with -1 at tokens without a position.

        Raises:
            ValueError: there is no room for them.
            InputError: there is too little memory for the tokens that there will be.
        """
        if self.length + n_tokens > self.capacity:
            raise ValueError(
                f"the cache has room for {self.capacity} tokens, not {self.length + n_tokens}; "
                "of several stacks, each is given its own, `cache.part(name)`"
            )
        start, self.length = self.length, self.length + n_tokens
        self.least = max(self.least, self.length - self.back)
        self.device = device
        self._note_seen(start, seen)
        if self._positions is None and counted is None and steps is None:
            return torch.arange(start, self.length, device=device)
        return self._note_positions(start, counted, steps)

    def _note_seen(self, start: int, seen: torch.Tensor | None) -> None:
        if self._seen is None and seen is not None:
            self._seen = _room(seen, (seen.shape[0], self.capacity))
            self._seen[:, :start] = True
        if self._seen is not None:
            self._seen[:, start : self.length] = True if seen is None else seen

    def _note_positions(
        self, start: int, counted: torch.Tensor | None, steps: torch.Tensor | None
    ) -> torch.Tensor:
        moved = counted if steps is None else steps if counted is None else steps * counted
        if self._positions is None:
            assert moved is not None
            self._positions = _room(moved.long(), (moved.shape[0], self.capacity))
            self._positions[:, :start] = torch.arange(start, device=self.device)
        before = self._positions[:, :start].amax(1, keepdim=True) if start else -1
        if moved is None:
            new = before + torch.arange(1, self.length - start + 1, device=self.device)
        else:
            new = before + moved.cumsum(1)
        if counted is not None:
            new = (new + 1) * counted - 1
        self._positions[:, start : self.length] = new
        return self._positions[:, start : self.length]

    @property
    def positions(self) -> torch.Tensor:
        """The position of each token so far, (length,) or (rows, length)."""
        if self._positions is None:
            return torch.arange(self.length, device=self.device)
        return self._positions[:, : self.length]

    def places(self, n_tokens: int) -> torch.Tensor:
        """The places of the last `n_tokens` tokens among those of `positions`, (n_tokens,)."""
        return torch.arange(self.length - n_tokens, self.length, device=self.device)

    @property
    def mask(self) -> torch.Tensor | None:
        """(rows, 1, 1, length), False at hidden tokens; None if none is hidden."""
        return None if self._seen is None else self._seen[:, None, None, : self.length]

    def select(self, rows: torch.Tensor) -> None:
        """Keep these rows, as `Cache.select`."""
        if self._seen is not None:
            self._seen = self._seen[rows]
        if self._positions is not None:
            self._positions = self._positions[rows]


class Cache:
    """The cached tokens of every layer of a stack: `past` is what they are, and a `layer` what is
    kept of them.

    Args:
        capacity: the largest number of tokens; memory for them is allocated at once.
        back: how many of the last tokens `take_back` can take back.
    """

    fixed = False
    """Whether all tensors have the shapes of the whole capacity, from one token to the next."""

    def __init__(self, capacity: int, *, back: int = 0) -> None:
        self.past = Past(capacity, back=back)
        self._layers: dict[int, LayerCache] = {}
        self._parts: dict[str, Cache] = {}

    def layer(self, number: int) -> LayerCache:
        """The cache of the `number`th layer of a pass. A layer that runs several times has one for
        each."""
        if number not in self._layers:
            self._layers[number] = LayerCache(self.past)
        return self._layers[number]

    def part(self, name: str) -> Cache:
        """The cache of the stack of this name, in a model that decodes with several stacks: each
        registers the tokens with its own."""
        if name not in self._parts:
            self._parts[name] = Cache(self.past.capacity, back=self.past.back)
        return self._parts[name]

    def take_back(self, n_tokens: int) -> int:
        """Forget the last tokens of every row, as if they had never come.

        A state is kept after each call of the model, and not after each token. So in a model with
        states, all tokens of a call are taken back with one of them.

        Args:
            n_tokens: how many at least.

        Returns:
            How many were taken back. Those beyond `n_tokens` are to be given to the model again.

        Raises:
            ValueError: `back` is too small for that.
        """
        past = self.past
        length = past.length - n_tokens
        if n_tokens and (with_state := {at for kept in self._kept() for at in kept.state_lengths}):
            length = max((at for at in with_state if at <= length), default=-1)
        if length < past.least:
            raise ValueError(f"{n_tokens} tokens cannot be taken back, with `back` {past.back}")
        taken = past.length - length
        self._shorten(length)
        return taken

    def _shorten(self, length: int) -> None:
        for part in self._parts.values():
            part._shorten(length)
        for layer in self._layers.values():
            for kept in layer.by_sublayer.values():
                kept.shorten(self.past.length - length, length)
        self.past.length = length

    def _kept(self) -> Iterator[AttentionCache]:
        """What is kept by the attentions of all layers and parts."""
        for part in self._parts.values():
            yield from part._kept()
        for layer in self._layers.values():
            yield from layer.by_sublayer.values()

    def select(self, rows: torch.Tensor, memory_rows: torch.Tensor | None = None) -> None:
        """Keep these rows, (new rows,), in this order; a row may be repeated. Of the cached tensors
        of a memory, keep `memory_rows`, or all."""
        for part in self._parts.values():
            part.select(rows, memory_rows)
        self.past.select(rows)
        for layer in self._layers.values():
            for kept in layer.by_sublayer.values():
                kept.select(rows, memory_rows)

    @property
    def n_bytes(self) -> int:
        """The size of all cached tensors in bytes."""
        return sum(kept.n_bytes for kept in self._kept())


class LayerCache:
    """The caches of one layer, for each of its sublayers."""

    def __init__(self, past: Past) -> None:
        self.past = past
        self.by_sublayer: dict[str, AttentionCache] = {}

    def of(self, sublayer: str) -> AttentionCache:
        """The cache of the attention with this name."""
        if sublayer not in self.by_sublayer:
            self.by_sublayer[sublayer] = AttentionCache(self.past)
        return self.by_sublayer[sublayer]


class AttentionCache:
    """The cached tensors of one attention: of each token, such as keys and values, (rows, ...,
    tokens, width), and a `state` of all of them, (rows, ...)."""

    def __init__(self, past: Past) -> None:
        self.past = past
        self._buffers: list[torch.Tensor] = []
        self._end = 0
        self._summaries: Tensors = ()
        self._of_memory: Tensors | None = None
        self._states: dict[int, Tensors] = {}

    @property
    def state(self) -> Tensors | None:
        """What `keep_state` stored after the last tokens; None before the first ones."""
        return self._states[max(self._states)] if self._states else None

    @property
    def state_lengths(self) -> Collection[int]:
        """The numbers of tokens after which there is a state."""
        return self._states.keys()

    @property
    def tokens(self) -> Tensors:
        """The tensors of the tokens that are kept, the latest last; none before the first ones."""
        return self._last(self._end)

    def keep_state(self, *state: torch.Tensor) -> None:
        """Store what all tokens so far, the new ones included, leave for the next ones, in place of
        the `state` before them.

        Args:
            state: tensors (rows, ...), whose shapes do not depend on the number of tokens. Those of
                floating-point numbers are kept in float32 at least: every token adds to a state,
                and in bfloat16 a sum of some hundred no longer grows.
        """
        self._states[self.past.length] = tuple(
            t.to(torch.promote_types(t.dtype, torch.float32)) if t.is_floating_point() else t
            for t in state
        )
        enough = self.past.length - self.past.back
        past = sorted(length for length in self._states if length <= enough)
        for length in past[:-1]:
            del self._states[length]

    def extend(self, *new: torch.Tensor, window: int | None = None) -> Tensors:
        """Store the tensors of the next tokens.

        Args:
            new: tensors (rows, ..., new tokens, width).
            window: the number of tokens that a token can attend to, including itself. Older ones
                are dropped; None keeps all.

        Returns:
            The tensors of all tokens that are kept, the new ones last.

        Raises:
            InputError: there is too little memory for the tokens that there will be.
        """
        n_new, n_past = new[0].shape[-2], self._end
        if not self._buffers:
            room = self.past.capacity
            if window is not None:
                room = min(room, 2 * window + self.past.back)
            shapes = [(*t.shape[:-2], room, t.shape[-1]) for t in new]
            self._buffers = [_room(t, shape) for t, shape in zip(new, shapes, strict=True)]
        if window is not None:
            n_past = min(n_past, window - 1)
            if self._end + n_new > self._buffers[0].shape[-2]:
                return self._slide(new, n_past, window - 1 + self.past.back)
        for buffer, tensor in zip(self._buffers, new, strict=True):
            buffer.narrow(-2, self._end, n_new).copy_(tensor)
        self._end += n_new
        return new if n_past == 0 else self._last(n_past + n_new)

    def put_summaries(self, places: torch.Tensor, *new: torch.Tensor, every: int) -> Tensors:
        """Store tensors of which there is one for several tokens, such as a summary of them. Each
        has a place of its own, since rows may differ in how many of their tokens are hidden.

        Args:
            places: those of the new ones, (rows, n), from 0. What was there before is replaced, so
                that one of tokens that are not complete yet may be stored too.
            new: tensors (rows, n, width). Of several for one place, any may be the one stored.
            every: the number of tokens that each is for.

        Returns:
            The tensors at all places that the tokens so far can have filled, (rows, places, width);
            what is at a place that a row has not filled has no meaning.

        Raises:
            InputError: there is too little memory for the tokens that there will be.
        """
        if not self._summaries:
            room = -(-self.past.capacity // every)
            shapes = [(t.shape[0], room, t.shape[-1]) for t in new]
            # Zeros: a weight of 0 would not hide what is not a number.
            self._summaries = tuple(
                _room(t, shape).zero_() for t, shape in zip(new, shapes, strict=True)
            )
        for table, tensor in zip(self._summaries, new, strict=True):
            table.scatter_(1, places[..., None].expand_as(tensor), tensor)
        n_filled = -(-self.past.length // every)
        return tuple(table[:, :n_filled] for table in self._summaries)

    def _slide(self, new: Tensors, n_past: int, n_kept: int) -> Tensors:
        """Move the last `n_kept` tokens, new ones included, to the front of the buffers; return
        the last `n_past` earlier ones and the new ones."""
        every = [torch.cat(pair, -2) for pair in zip(self.tokens, new, strict=True)]
        n_kept = min(n_kept, every[0].shape[-2])
        for buffer, tensor in zip(self._buffers, every, strict=True):
            buffer[..., :n_kept, :] = tensor[..., tensor.shape[-2] - n_kept :, :]
        self._end = n_kept
        n = n_past + new[0].shape[-2]
        return tuple(tensor[..., tensor.shape[-2] - n :, :] for tensor in every)

    def _last(self, n_tokens: int) -> Tensors:
        return tuple(buffer.narrow(-2, self._end - n_tokens, n_tokens) for buffer in self._buffers)

    def shorten(self, n_tokens: int, length: int) -> None:
        """Forget the last `n_tokens`, which leaves `length` of the stack's."""
        self._end = max(self._end - n_tokens, 0)
        self._states = {at: state for at, state in self._states.items() if at <= length}

    def of_memory(self, make: Callable[[], Tensors]) -> Tensors:
        """Return the tensors of the attended memory, computed by `make` on the first call."""
        if self._of_memory is None:
            self._of_memory = make()
        return self._of_memory

    def positions(self, n_tokens: int) -> torch.Tensor:
        """The positions of the last `n_tokens` tokens, (n_tokens,) or (rows, n_tokens)."""
        positions = self.past.positions
        return positions[..., positions.shape[-1] - n_tokens :]

    def places(self, n_queries: int, n_keys: int) -> torch.Tensor:
        """The places of the last `n_queries` tokens among the last `n_keys`, (n_queries,)."""
        return torch.arange(n_keys - n_queries, n_keys, device=self.past.device)

    def of_new(self, mask: torch.Tensor, n_tokens: int) -> torch.Tensor:
        """The columns of a mask (..., key) that are about the last `n_tokens` tokens."""
        return mask[..., -n_tokens:]

    def select(self, rows: torch.Tensor, memory_rows: torch.Tensor | None) -> None:
        """As `Cache.select`."""
        if self._of_memory is not None and memory_rows is not None:
            self._of_memory = tuple(t.index_select(0, memory_rows) for t in self._of_memory)
        for length, state in self._states.items():
            self._states[length] = tuple(t.index_select(0, rows) for t in state)
        self._summaries = tuple(table.index_select(0, rows) for table in self._summaries)
        for number, buffer in enumerate(self._buffers):
            kept = buffer.new_empty(rows.shape[0], *buffer.shape[1:])
            # Elements after the end are not copied.
            used = (..., slice(self._end), slice(None))
            torch.index_select(buffer[used], 0, rows, out=kept[used])
            self._buffers[number] = kept

    @property
    def n_bytes(self) -> int:
        """The size of all cached tensors in bytes."""
        states = (tensor for state in self._states.values() for tensor in state)
        kept = (*self._buffers, *self._summaries, *(self._of_memory or ()), *states)
        return sum(t.nbytes for t in kept)


def _room(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Allocate a tensor without setting its values. Raises InputError if memory is short."""
    try:
        return like.new_empty(shape)
    except RuntimeError:
        message = f"a cache of {tuple(shape)} does not fit into memory"
        raise InputError(message, help="a smaller `max_new_tokens` takes less") from None
