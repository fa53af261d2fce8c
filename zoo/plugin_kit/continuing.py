"""Check that modules that attend compute the same with a cache."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from zoo.cache import Cache
from zoo.context import LayerContext
from zoo.generation.fixed_cache import FixedCache
from zoo.plugin_kit.assertions import SAME, close, passes
from zoo.plugin_kit.attending import AttendingDriver
from zoo.plugin_kit.inputs import (
    BATCH,
    LENGTH,
    LONG,
    MEMORY_LENGTH,
    Tensors,
    padded,
    turning,
    turning_at,
    vectors,
)
from zoo.plugin_kit.report import PromiseError, no_failure
from zoo.plugin_kit.tape import Tape


class _Steps(NamedTuple):
    """How tokens come with a cache. If they are recorded, those after the first step come one by
    one.

    Args:
        when: the message if the output is then another.
        help: what to do about it.
        sizes: the numbers of new tokens.
        padded: whether there is padding on the left, which a mask hides.
        reordered: whether the rows are reordered and repeated after the first step.
        taken_back: whether the tokens of a step are taken back, and come again.
    """

    when: str
    help: str
    sizes: tuple[int, ...] = (3, 1, 2)
    padded: bool = False
    reordered: bool = False
    taken_back: bool = False


_NOTHING_KEPT = (
    "nothing was kept in the `cache`: `k, v = cache.extend(k, v)` returns the keys and values of "
    "all tokens so far, `cache.keep_state` keeps a state; a block passes on `context.cache`"
)
"""What to do if earlier tokens leave nothing."""

_STEPS = (
    _Steps(
        "when tokens come one by one with a `cache`",
        "keep keys that are turned already, and let the last query see all keys; what reads "
        "earlier tokens in another way is not incremental",
        sizes=(1,) * LENGTH,
    ),
    _Steps(
        "when several tokens come at once with a `cache`, as those of a prompt do",
        "with a cache, `causal` still hides the later ones of the new tokens: "
        "`tril(n_keys - n_queries)`",
    ),
    _Steps(
        "when tokens come with a `cache` and a `mask`, which hides padding on the left",
        "with a cache, `mask` is that of all tokens so far, (batch, 1, 1, key), and applies too",
        padded=True,
    ),
    _Steps(
        "after the rows of the `cache` were reordered and repeated, as beam search does",
        "keep what earlier tokens leave by `cache.extend` or `cache.keep_state`, which reorder it",
        padded=True,
        reordered=True,
    ),
    _Steps(
        "after tokens were taken back from the `cache`, as wrongly guessed ones are",
        "leave the tensors of `cache.state` as they are: `cache.keep_state` takes new ones",
        taken_back=True,
    ),
)

_LONG_STEPS = _Steps(
    f"when {LONG} tokens come with a `cache`",
    "the cache keeps all that later tokens need of earlier ones, whatever their number",
    sizes=(40, LONG - 42, 1, 1),
)

_RECORDED_STEPS = (
    _Steps(
        "in a step that is recorded (`recordable`)",
        "`cache.extend` then returns room for all tokens there will be, and `mask` hides what is "
        "empty; the query is at `cache.places(1, n_keys)`",
    ),
    _Steps(
        "in a step that is recorded (`recordable`), with padding on the left",
        "of `mask`, `cache.of_new(mask, 1)` is about the new token",
        padded=True,
        reordered=True,
    ),
)


OF_ANOTHER = "of_another"
"""The name in a layer's cache of the keys and values of another layer, which the kit stands for."""


class ContinuingDriver(AttendingDriver):
    """Calls a module that may continue from a cache."""

    @property
    def continued(self) -> bool:
        """Whether the description states that the module can continue from a cache."""
        raise NotImplementedError

    @property
    def recorded(self) -> bool:
        """Whether the description states that the module can continue in a step that is
        recorded."""
        raise NotImplementedError

    def continues(self) -> None:
        if not self.continued:
            return
        inputs = self.inputs()
        with torch.no_grad():  # as in generation: a cache has no gradients
            for positioned in (False, True):
                for steps in _STEPS:
                    self._check_steps(inputs, steps, positioned=positioned)
            of_many = vectors(torch.float64, 0, LONG), *inputs[1:]
            if passes(_Fed(self, of_many, None, positioned=False).whole):
                self._check_steps(of_many, _LONG_STEPS, positioned=False)
            self._check_counts(inputs)
            for positioned in (False, True) if self.recorded else ():
                for steps in _RECORDED_STEPS:
                    self._check_recorded(inputs, steps, positioned=positioned)

    def with_cache(self, *inputs: torch.Tensor) -> Tensors:
        if not self.continued:
            return ()
        fed, cache = _Fed(self, inputs, padded(), positioned=True), Cache(LENGTH)
        with torch.no_grad():
            return tuple(fed.output(cache, n_tokens) for n_tokens in (LENGTH - 2, 1, 1))

    def _check_steps(self, inputs: Tensors, steps: _Steps, *, positioned: bool) -> None:
        """Raises PromiseError unless the output of these steps with a cache is that of all tokens
        at once. With `positioned`, there are a rotation and a bias if the module takes them."""
        fed = _Fed(self, inputs, padded() if steps.padded else None, positioned)
        whole, length = fed.whole(), inputs[0].shape[1]
        cache = Cache(length, back=length if steps.taken_back else 0)
        again = [n for n in steps.sizes[1:] for _ in range(1 + steps.taken_back)]
        for number, n_tokens in enumerate([steps.sizes[0], *again]):
            if steps.taken_back and number and number % 2 == 0:
                cache.take_back(n_tokens)
            now = slice(cache.past.length, cache.past.length + n_tokens)
            with no_failure(f"a call {steps.when}", help=steps.help):
                found = fed.output(cache, n_tokens)
            real = slice(None) if fed.seen is None else fed.seen[fed.rows, now]
            if not close(found[real], whole[fed.rows, now][real], SAME):
                raise PromiseError(
                    f"the output is another {steps.when}, although it is said to be incremental",
                    help=steps.help if cache.n_bytes else _NOTHING_KEPT,
                )
            _expect_no_more(cache)
            if steps.reordered and len(fed.rows) == BATCH:
                fed.reorder(cache)

    def _check_recorded(self, inputs: Tensors, steps: _Steps, *, positioned: bool) -> None:
        """Raises PromiseError unless the output of these steps is that of all tokens at once, where
        those for one token are recorded."""
        fed = _Fed(self, inputs, padded() if steps.padded else None, positioned)
        whole, before = fed.whole(), Cache(LENGTH)
        fed.output(before, steps.sizes[0])
        if steps.reordered:
            fed.reorder(before)
        cache, first = FixedCache(before, fed.rows.device), before.past.length
        x = inputs[0][fed.rows, first : first + 1]
        recorded = Tape(lambda: self.call(x, fed.context(cache, 1))[0])
        for at in range(first, LENGTH):
            x.copy_(inputs[0][fed.rows, at : at + 1])
            with no_failure(f"a call {steps.when}", help=steps.help):
                found = recorded()
            if not close(found, whole[fed.rows, at : at + 1], SAME):
                raise PromiseError(f"the output is another {steps.when}", help=steps.help)

    def _check_counts(self, inputs: Tensors) -> None:
        """Raises PromiseError unless a cache stores as many elements as the layout states."""
        x, memory = self.sides(inputs)
        layout = self.described.layout()
        of_last = layout.cache_per_recent_token
        n_tokens = 2  # with which a state, unlike what is kept of each token, does not grow
        room = 4 * max(of_last, default=0) or n_tokens  # for more tokens than are kept
        cache = Cache(room)
        layer = cache.layer(0)
        positions = cache.past.append(n_tokens, seen=None, counted=None, device=x.device)
        context = LayerContext(
            causal=True,
            positions=positions,
            key_positions=positions,
            memory=memory,
            cache=layer,
        )
        self.call(x[:, :n_tokens], context)
        layer.by_sublayer.pop(OF_ANOTHER, None)
        of_all = layout.cache_per_token - sum(of_last.values())
        stated = room * of_all + sum(n * _kept(window, room) for window, n in of_last.items())
        stated += layout.state_per_sequence
        stated += sum(n * -(-room // every) for every, n in layout.cache_per_tokens.items())
        if memory is not None:
            stated += MEMORY_LENGTH * layout.cache_per_memory_token
        found = cache.n_bytes // (BATCH * x.element_size())
        if found != stated:
            over = "" if memory is None else f" and {MEMORY_LENGTH} tokens of a memory"
            raise PromiseError(
                f"of {room} tokens{over} the cache keeps {found} numbers, and `layout` says "
                f"{stated}",
                help="state Layout(..., cache=) for each token of the sequence itself, "
                "cache_window= for how many of them it is kept, cache_every= for how many it is "
                "kept once, memory_cache= for each of the memory, and state= for what `keep_state` "
                "keeps of all tokens together",
            )


class _Fed:
    """Inputs of which a module gets one token after the other, or several at once.

    Args:
        driver: calls the module.
        inputs: the tokens, and the memory if there is one.
        seen: (batch, length), False at padding; None if there is none.
        positioned: whether there are a rotation and a bias, if the module takes them.
    """

    def __init__(
        self,
        driver: ContinuingDriver,
        inputs: Tensors,
        seen: torch.Tensor | None,
        positioned: bool,
    ) -> None:
        self.driver, self.seen = driver, seen
        self.x, self.memory = driver.sides(inputs)
        self.rows = torch.arange(BATCH)
        self.rotates = positioned and driver.takes_rotation
        # Made once: a step that is recorded draws no random numbers.
        self.bias = driver.bias(self.x.dtype) if positioned and driver.takes_bias else None

    def whole(self) -> torch.Tensor:
        """The output for all tokens at once, without a cache."""
        length = self.x.shape[1]
        context = self.context(Cache(length), length)
        return self.driver.call(self.x, context._replace(cache=None))[0]

    def output(self, cache: Cache, n_tokens: int) -> torch.Tensor:
        """The output for the next tokens."""
        now = slice(cache.past.length, cache.past.length + n_tokens)
        return self.driver.call(self.x[self.rows, now], self.context(cache, n_tokens))[0]

    def reorder(self, cache: Cache) -> None:
        """Reorder and repeat the rows, as beam search does."""
        self.rows = torch.tensor([1, 0, 1])
        cache.select(self.rows, self.rows)

    def context(self, cache: Cache, n_tokens: int) -> LayerContext:
        """Register the next tokens with the cache, and return their context."""
        rows, seen = self.rows, self.seen
        now = slice(cache.past.length, cache.past.length + n_tokens)
        real = None if seen is None else seen[rows, now]
        positions = cache.past.append(n_tokens, seen=real, counted=real, device=rows.device)
        bias = memory_mask = None
        if self.bias is not None:
            bias = self.bias[..., cache.past.places(n_tokens), :]
            if cache.fixed:
                bias = F.pad(bias, (0, cache.past.capacity - LENGTH))
            else:
                bias = bias[..., : now.stop]
            bias = bias[0] if seen is None else bias[rows]
        if self.memory is not None and seen is not None:
            memory_mask = seen[rows, None, None, :MEMORY_LENGTH]
        return LayerContext(
            mask=cache.past.mask,
            tokens=real,
            causal=True,
            positions=positions,
            key_positions=cache.past.positions,
            rotation=turning(positions.double()) if self.rotates else None,
            rotations=turning_at if self.rotates else None,
            bias=bias,
            memory=None if self.memory is None else self.memory[rows],
            memory_mask=memory_mask,
            cache=cache.layer(0),
        )


def _expect_no_more(cache: Cache) -> None:
    """Raises PromiseError if a module put attributes of its own on the cache."""
    layer = cache.layer(0)
    new = Cache(1)
    pairs: list[tuple[object, object]] = [(cache, new), (cache.past, new.past)]
    pairs.append((layer, new.layer(0)))
    pairs += [(kept, new.layer(0).of("")) for kept in layer.by_sublayer.values()]
    for owner, other in pairs:
        for name in vars(owner).keys() - vars(other).keys():
            raise PromiseError(
                f"it keeps `{name}` as a new attribute of the `cache`, which is not reordered with "
                "its rows, as in beam search",
                help="keep tensors by `cache.extend`, `cache.keep_state`, `cache.put_summaries` "
                "and `cache.of_memory`",
            )


def _kept(window: int, room: int) -> int:
    """Return the number of tokens for which a cache of `room` allocates memory if it keeps the last
    `window`."""
    kept = Cache(room).layer(0).of("")
    kept.extend(torch.zeros(1, 1), window=window)
    return kept.n_bytes // torch.zeros(1).nbytes
