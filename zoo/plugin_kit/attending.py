"""Call the modules that attend, which are attention and blocks, and check their outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from zoo.cache import Cache
from zoo.context import LayerContext
from zoo.plugin_kit.driver import (
    BATCH,
    LENGTH,
    MEMORY_LENGTH,
    WIDTH,
    Driver,
    PromiseError,
    Tensors,
    close,
    expect,
    expect_branch,
    expect_call,
    padded,
    turning,
    vectors,
    with_another,
)
from zoo.plugin_kit.hosts import MEMORY_WIDTH
from zoo.position import Rotation
from zoo.registering.plugin_errors import describe_failure

Attended = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""The output, and the weights by name."""


class _Steps(NamedTuple):
    """How tokens come with a cache.

    Args:
        when: the message if the output is then another.
        help: what to do about it.
        sizes: the numbers of new tokens.
        padded: whether there is padding on the left, which a mask hides.
        reordered: whether the rows are reordered and repeated after the first step.
    """

    when: str
    help: str
    sizes: tuple[int, ...] = (3, 1, 2)
    padded: bool = False
    reordered: bool = False


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
        "keep what earlier tokens leave by `cache.extend` alone, which reorders it",
        padded=True,
        reordered=True,
    ),
)


_OWN_POSITIONS = (
    "help: rows that are padded on the left have positions of their own, and a rotation and bias "
    "of their own with them"
)


class AttendingDriver(Driver):
    """Calls a module that attends to the sequence itself or to a memory."""

    names = ("x", "memory")
    outputs = ("the output", "the output beside weights", "the weights", "the weights of a memory")

    @property
    def crosses(self) -> bool:
        """Whether there is a memory."""
        return getattr(self.spec.model, "memory_width", None) is not None

    @property
    def continued(self) -> bool:
        """Whether the description states that the module can continue from a cache."""
        raise NotImplementedError

    @property
    def looks_ahead(self) -> bool:
        """Whether the description states that a position sees more than the positions that the mask
        of its query leaves visible."""
        return False

    @property
    def n_keys(self) -> int:
        """The number of positions that can be attended to."""
        return MEMORY_LENGTH if self.crosses else LENGTH

    def inputs(self, dtype: torch.dtype, seed: int = 0) -> Tensors:
        x = vectors(dtype, seed)
        return (x, vectors(dtype, seed + 1, MEMORY_LENGTH, MEMORY_WIDTH)) if self.crosses else (x,)

    def sides(self, inputs: Tensors) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the sequence, and the memory if there is one."""
        return (inputs[0], inputs[1]) if self.crosses else (inputs[0], None)

    def call(self, x: torch.Tensor, context: LayerContext) -> Attended:
        """Return the output for tokens x (batch, length, d_model), and the weights if requested."""
        raise NotImplementedError

    def attend(
        self,
        inputs: Tensors,
        *,
        mask: torch.Tensor | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        bias: torch.Tensor | None = None,
        return_weights: bool = False,
    ) -> Attended:
        """Run `call` with all tokens at once. `mask` applies to the memory if there is one."""
        x, memory = self.sides(inputs)
        tokens = None
        if memory is None and mask is not None and mask.shape[-2] == 1:
            tokens = mask[:, 0, 0]
        context = LayerContext(
            mask=mask if memory is None else None,
            tokens=tokens,
            causal=causal,
            positions=torch.arange(LENGTH),
            rotation=rotation,
            bias=bias,
            memory=memory,
            memory_mask=None if memory is None else mask,
            return_weights=return_weights,
        )
        return self.call(x, context)

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        fused, _ = self.attend(inputs)
        output, weights = self.attend(inputs, return_weights=True)
        return fused, output, *weights.values()

    def check(self, inputs: Tensors) -> None:
        fused, weights = self.attend(inputs)
        if weights:
            raise PromiseError("weights are returned although `return_weights` is not set")
        output, weights = self.attend(inputs, return_weights=True)
        expect("the output", output, BATCH, LENGTH, WIDTH)
        # Where a second call without weights differs too, `determinism` says why.
        if not close(fused, output, 1e-5) and close(fused, self.attend(inputs)[0], 1e-5):
            raise PromiseError("the output is another when `return_weights` is set")
        for values in weights.values():
            expect("the weights", values, BATCH, None, LENGTH, None)

    @property
    def takes_rotation(self) -> bool:
        """Whether queries and keys can be rotated: position schemes need `head_dim`, and a
        description may refuse those that rotate."""
        stated = getattr(self.described, "head_dim", None) is not None
        return stated and not self.crosses and bool(self.described.takes_rotation)

    @property
    def takes_bias(self) -> bool:
        """Whether a bias can be added to the scores: position schemes need `n_heads`, and a
        description may refuse those that add one."""
        stated = getattr(self.described, "n_heads", None) is not None
        return stated and not self.crosses and bool(self.described.takes_bias)

    def _accepts(self, inputs: Tensors, **options: Any) -> bool:
        try:
            self.attend(inputs, **options)
        except (ValueError, NotImplementedError):
            return False
        return True

    def bias(self, dtype: torch.dtype) -> torch.Tensor:
        """Return a bias of the scores as position schemes do, (batch, heads, query, key)."""
        random = torch.Generator().manual_seed(0)
        shape = BATCH, self.described.n_heads, LENGTH, LENGTH
        return torch.randn(shape, generator=random).to(dtype)

    def positioned(self) -> None:
        inputs = self.inputs(torch.float64)
        if self.takes_rotation:
            self._expect_taken(inputs, "rotation", turning(torch.ones(LENGTH)))
            self._check_rotation(inputs)
        if self.takes_bias:
            self._expect_taken(inputs, "bias", self.bias(inputs[0].dtype)[0])
            self._check_bias(inputs)
        if not self.crosses:
            self._check_rows(inputs)

    def _expect_taken(self, inputs: Tensors, name: str, given: Any) -> None:
        """Raises PromiseError if the module refuses what a position scheme gives."""
        try:
            self.attend(inputs, **{name: given})
        except (ValueError, NotImplementedError) as error:
            raise PromiseError(
                f"a `{name}`, which position schemes give, is refused by {type(error).__name__}\n"
                f"help: a property `takes_{name}` of the description that returns False makes a "
                "spec with such a scheme an error, with its place"
            ) from None

    def _check_rotation(self, inputs: Tensors) -> None:
        # Only the last token is rotated: its keys affect what others see of it, and its queries
        # what it sees of others, if it does not see itself.
        turn = turning(torch.eye(LENGTH)[-1])
        widths = set()

        def turned(x: torch.Tensor) -> torch.Tensor:
            widths.add(x.shape[-1])
            return turn(x)

        unseen = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)
        unseen[..., -1, -1] = False
        for what, at, mask in (("keys", slice(-1), None), ("queries", slice(-1, None), unseen)):
            if not self._accepts(inputs, mask=mask):
                continue  # cannot be checked
            one, _ = self.attend(inputs, mask=mask)
            two, _ = self.attend(inputs, mask=mask, rotation=turned)
            if close(one[:, at], two[:, at], 1e-6):
                raise PromiseError(
                    f"the {what} are not turned by the `rotation` that the position scheme gives\n"
                    "help: apply it to queries and to keys; or refuse such schemes by a property "
                    "`takes_rotation` of the description"
                )
        head_dim = self.described.head_dim
        if others := sorted(widths - {head_dim}):
            raise PromiseError(
                f"`rotation` is called with vectors of {others[0]} numbers, and the description's "
                f"`head_dim`, for which position schemes make it, says {head_dim}"
            )

    def _check_bias(self, inputs: Tensors) -> None:
        one, _ = self.attend(inputs)
        two, _ = self.attend(inputs, bias=self.bias(inputs[0].dtype)[0])
        if close(one, two, 1e-6):
            raise PromiseError(
                "the `bias` that the position scheme gives changes nothing\n"
                "help: add it to the scores; or refuse such schemes by a property `takes_bias` of "
                "the description"
            )

    def _check_rows(self, inputs: Tensors) -> None:
        """Raises PromiseError unless each row of a batch can have its own positions, and with them
        its own rotation and bias, as if it were alone."""
        seen = padded()
        places = Cache(LENGTH).append(LENGTH, seen=seen, counted=seen, device=seen.device)
        bias = self.bias(inputs[0].dtype) if self.takes_bias else None
        given = ["positions (batch, query)"]
        given += ["a rotation by them"] if self.takes_rotation else []
        given += ["a bias (batch, heads, query, key)"] if self.takes_bias else []

        def called(rows: slice | int) -> torch.Tensor:
            positions = places[rows]
            context = LayerContext(
                positions=positions,
                key_positions=positions,
                rotation=turning(positions.double()) if self.takes_rotation else None,
                bias=None if bias is None else bias[rows],
            )
            x = inputs[0][rows]
            return self.call(x if isinstance(rows, slice) else x[None], context)[0]

        told = f"with {', '.join(given)}"
        try:
            together = called(slice(None))
        except Exception as error:
            message = describe_failure(f"a call {told}", error).message
            raise PromiseError(f"{message}\n{_OWN_POSITIONS}") from None
        for row in range(BATCH):
            if not close(together[row : row + 1], called(row), 1e-9):
                raise PromiseError(
                    f"{told} a row has another output than alone, with its own\n{_OWN_POSITIONS}"
                )

    def continues(self) -> None:
        if not self.continued:
            return
        inputs = self.inputs(torch.float64)
        with torch.no_grad():  # as in generation: a cache has no gradients
            for positioned in (False, True):
                for steps in _STEPS:
                    self._check_steps(inputs, steps, positioned=positioned)
            self._check_counts(inputs)

    def _check_steps(self, inputs: Tensors, steps: _Steps, *, positioned: bool) -> None:
        """Raises PromiseError unless the output of these steps with a cache is that of all tokens
        at once. With `positioned`, there are a rotation and a bias if the module takes them."""
        seen = padded() if steps.padded else None
        rows = torch.arange(BATCH)
        whole, _ = self.call(
            inputs[0], self._next(inputs, Cache(LENGTH), LENGTH, rows, seen, positioned)
        )
        cache = Cache(LENGTH)
        for n_tokens in steps.sizes:
            now = slice(cache.length, cache.length + n_tokens)
            context = self._next(inputs, cache, n_tokens, rows, seen, positioned)
            context = context._replace(cache=cache.layer(0))
            try:
                found, _ = self.call(inputs[0][rows, now], context)
            except Exception as error:
                told = describe_failure(f"a call {steps.when}", error).message
                raise PromiseError(f"{told}\nhelp: {steps.help}") from None
            real = slice(None) if seen is None else seen[rows, now]
            if not close(found[real], whole[rows, now][real], 1e-9):
                raise PromiseError(
                    f"the output is another {steps.when}, although it is said to be incremental\n"
                    f"help: {steps.help}"
                )
            _expect_no_more(cache)
            if steps.reordered and len(rows) == BATCH:
                rows = torch.tensor([1, 0, 1])  # as beam search does
                cache.select(rows, rows)

    def _next(
        self,
        inputs: Tensors,
        cache: Cache,
        n_tokens: int,
        rows: torch.Tensor,
        seen: torch.Tensor | None,
        positioned: bool,
    ) -> LayerContext:
        """Register the next tokens of these rows with the cache, and return their context, without
        the cache. `seen` (batch, length) is False at padding."""
        _, memory = self.sides(inputs)
        now = slice(cache.length, cache.length + n_tokens)
        real = None if seen is None else seen[rows, now]
        positions = cache.append(n_tokens, seen=real, counted=real, device=rows.device)
        rotation = bias = memory_mask = None
        if positioned and self.takes_rotation:
            rotation = turning(positions.double())
        if positioned and self.takes_bias:
            bias = self.bias(torch.float64)[..., now, : now.stop]
            bias = bias[0] if seen is None else bias[rows]
        if memory is not None and seen is not None:
            memory_mask = seen[rows, None, None, :MEMORY_LENGTH]
        return LayerContext(
            mask=cache.mask,
            tokens=real,
            causal=True,
            positions=positions,
            key_positions=cache.positions,
            rotation=rotation,
            bias=bias,
            memory=None if memory is None else memory[rows],
            memory_mask=memory_mask,
        )

    def _check_counts(self, inputs: Tensors) -> None:
        """Raises PromiseError unless a cache stores as many elements as the layout states."""
        x, memory = self.sides(inputs)
        layout = self.described.layout()
        of_last = layout.cache_per_recent_token
        room = 4 * max(of_last, default=0) or 1  # for more tokens than are kept
        cache = Cache(room)
        position = cache.append(1, seen=None, counted=None, device=x.device)
        context = LayerContext(
            causal=True,
            positions=position,
            key_positions=position,
            memory=memory,
            cache=cache.layer(0),
        )
        self.call(x[:, :1], context)
        of_all = layout.cache_per_token - sum(of_last.values())
        stated = room * of_all + sum(n * _kept(window, room) for window, n in of_last.items())
        if memory is not None:
            stated += MEMORY_LENGTH * layout.cache_per_memory_token
        found = cache.n_bytes // (BATCH * x.element_size())
        if found != stated:
            over = "" if memory is None else f" and {MEMORY_LENGTH} tokens of a memory"
            tokens = "a token" if room == 1 else f"{room} tokens"
            raise PromiseError(
                f"of {tokens}{over} the cache keeps {found} numbers, and `layout` says {stated}\n"
                "help: state Layout(..., cache=) for each token of the sequence itself, "
                "cache_window= for how many of them it is kept, memory_cache= for each of the "
                "memory"
            )

    def leaks(self) -> Iterator[str]:
        inputs = self.inputs(torch.float64)

        def depends(queries: slice, hidden: int = -1, **options: Any) -> bool:
            changed = (*inputs[:-1], with_another(inputs[-1], hidden))
            pairs = [
                [self.attend(i, return_weights=asked, **options)[0] for i in (inputs, changed)]
                for asked in (False, True)
            ]
            return any(not close(one[:, queries], two[:, queries], 1e-9) for one, two in pairs)

        # Padding on either side: what reads earlier tokens alone never sees that on the right.
        sides = ("at the end", -1, slice(-1)), ("at the start", 0, slice(1, None))
        for side, hidden, others in sides:
            mask = torch.ones(BATCH, 1, 1, self.n_keys, dtype=torch.bool)
            mask[..., hidden] = False
            if depends(slice(None) if self.crosses else others, hidden, mask=mask):
                yield f"a key {side} that a mask (batch, 1, 1, key) hides changes the output"
            _, weights = self.attend(inputs, mask=mask, return_weights=True)
            if any(w[..., hidden].any() for w in weights.values() if w.shape[-1] == self.n_keys):
                yield f"the weight of a key {side} that the mask hides is not 0"
        if self.looks_ahead:
            return
        if not self.crosses and depends(slice(-1), causal=True):
            yield "a later position changes the output, although `causal` is set"
        mask = torch.ones(BATCH, 1, LENGTH, self.n_keys, dtype=torch.bool)
        mask[:, :, 2, -1] = False
        if not self._accepts(inputs, mask=mask):
            return  # refused, as by a recurrence, which has no weight for each pair
        if depends(slice(2, 3), mask=mask):
            yield "a key that a mask (batch, 1, query, key) hides from a query changes its output"
        n_heads = getattr(self.described, "n_heads", None)
        if n_heads is not None:
            one, _ = self.attend(inputs, mask=mask)
            by_head, _ = self.attend(inputs, mask=mask.expand(-1, n_heads, -1, -1))
            if not close(by_head, one, 1e-9):
                yield "a mask (batch, heads, query, key), the same for each head, is another"
        mask[:, :, 2] = False
        outputs = [
            self.attend(inputs, mask=mask, return_weights=asked)[0] for asked in (False, True)
        ]
        if not all(bool(output.isfinite().all()) for output in outputs):
            yield "a query that may attend to nothing gives NaN"


class AttentionDriver(AttendingDriver):
    @property
    def continued(self) -> bool:
        return bool(self.described.incremental)

    def call(self, x: torch.Tensor, context: LayerContext) -> Attended:
        found = self.model.part(x, context.memory, **self._options(context))
        output, weights = _pair(found, "the output and the weights, or None")
        return output, {} if weights is None else {"": weights}

    def _options(self, context: LayerContext) -> dict[str, Any]:
        """Return the keyword arguments that a block passes to its attention."""
        if context.memory is None:
            options: dict[str, Any] = {
                "mask": context.mask,
                "causal": context.causal,
                "rotation": context.rotation,
                "bias": context.bias,
                "positions": context.positions,
            }
        else:  # for a memory, a block passes only the mask
            options = {"mask": context.memory_mask}
        if self.model.scheme is not None:
            options["scheme"] = self.model.scheme
        if context.cache is not None:
            name = "self_attn" if context.memory is None else "cross_attn"
            options["cache"] = context.cache.of(name)
        return {**options, "return_weights": context.return_weights}

    def check(self, inputs: Tensors) -> None:
        expect_branch(self.model.part)
        x, memory = self.sides(inputs)
        options = self._options(LayerContext(memory=memory))
        options |= {"cache": None} if self.continued else {}
        expect_call(self.model.part.forward, x, memory, **options)
        super().check(inputs)


class BlockDriver(AttendingDriver):
    @property
    def continued(self) -> bool:
        return not self.described.not_incremental

    @property
    def looks_ahead(self) -> bool:
        return bool(self.described.looks_ahead)

    def call(self, x: torch.Tensor, context: LayerContext) -> Attended:
        output, weights = _pair(self.model.part(x, context), "the states and the weights by name")
        return output, dict(weights)


def _expect_no_more(cache: Cache) -> None:
    """Raises PromiseError if a module put attributes of its own on the cache."""
    layer = cache.layer(0)
    new = Cache(1)
    pairs: list[tuple[object, object]] = [(cache, new), (layer, new.layer(0))]
    pairs += [(kept, new.layer(0).of("")) for kept in layer.by_sublayer.values()]
    for owner, other in pairs:
        for name in vars(owner).keys() - vars(other).keys():
            raise PromiseError(
                f"it keeps `{name}` as a new attribute of the `cache`, which is not reordered with "
                "its rows, as in beam search\n"
                "help: keep tensors by `cache.extend` and `cache.of_memory`"
            )


def _kept(window: int, room: int) -> int:
    """Return the number of tokens for which a cache of `room` allocates memory if it keeps the last
    `window`."""
    kept = Cache(room).layer(0).of("")
    kept.extend(torch.zeros(1, 1), window=window)
    return kept.n_bytes // torch.zeros(1).nbytes


def _pair(found: object, what: str) -> tuple[Any, Any]:
    """Return `found` as a pair. Raises PromiseError unless it is a tuple of two."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise PromiseError(f"`forward` must return {what}, as a tuple, not {type(found).__name__}")
    return found
