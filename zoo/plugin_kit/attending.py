"""Call the modules that attend, which are attention and blocks, and check their outputs: masks and
positions. `zoo.plugin_kit.continuing` checks them with a cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import torch

from zoo.cache import Past
from zoo.context import LayerContext
from zoo.plugin_kit.assertions import AS_ALONE, SAME, close, expect, passes
from zoo.plugin_kit.driver import Driver, Way
from zoo.plugin_kit.hosts import MEMORY_WIDTH
from zoo.plugin_kit.inputs import (
    BATCH,
    LENGTH,
    LONG,
    MEMORY_LENGTH,
    Tensors,
    hiding_one,
    later,
    padded,
    turning,
    turning_at,
    vectors,
    with_another,
    without_hidden,
)
from zoo.plugin_kit.report import PromiseError, no_failure
from zoo.position import Rotation

Attended = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""The output, and the weights by name."""


_OWN_POSITIONS = (
    "rows that are padded on the left have positions of their own, and a rotation and bias of "
    "their own with them"
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
    def looks_ahead(self) -> bool:
        """Whether the description states that a position sees more than the positions that the mask
        of its query leaves visible."""
        return False

    @property
    def causal(self) -> bool:
        """Whether the module is only called with `causal`: it may refuse to be without."""
        return not self.crosses and bool(self.described.only_causal)

    @property
    def n_keys(self) -> int:
        """The number of positions that can be attended to."""
        return MEMORY_LENGTH if self.crosses else LENGTH

    def inputs(self, seed: int = 0) -> Tensors:
        x = vectors(self.dtype, seed)
        if not self.crosses:
            return (x,)
        return x, vectors(self.dtype, seed + 1, MEMORY_LENGTH, MEMORY_WIDTH)

    def sides(self, inputs: Tensors) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the sequence, and the memory if there is one."""
        return (inputs[0], inputs[1]) if self.crosses else (inputs[0], None)

    def call(self, x: torch.Tensor, context: LayerContext) -> Attended:
        """Return the output for tokens x (batch, length, d_model), and the weights if requested.

        Raises:
            PromiseError: the output has another shape than x.
        """
        output, weights = self.called(x, context)
        expect(f"the output{_given(context)}", output, *x.shape)
        return output, weights

    def called(self, x: torch.Tensor, context: LayerContext) -> Attended:
        """Return what the module returns for tokens x, the weights by name."""
        raise NotImplementedError

    def attend(
        self,
        inputs: Tensors,
        *,
        mask: torch.Tensor | None = None,
        causal: bool | None = None,
        rotation: Rotation | None = None,
        bias: torch.Tensor | None = None,
        return_weights: bool = False,
    ) -> Attended:
        """Run `call` with all tokens at once. `mask` applies to the memory if there is one, and
        `causal` is by default what the module needs."""
        x, memory = self.sides(inputs)
        tokens = None
        if memory is None and mask is not None and mask.shape[-2] == 1:
            tokens = mask[:, 0, 0]
        context = LayerContext(
            mask=mask if memory is None else None,
            tokens=tokens,
            causal=self.causal if causal is None else causal,
            positions=torch.arange(x.shape[1], device=x.device),
            rotation=rotation,
            rotations=None if rotation is None else turning_at,
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

    def ways(self, inputs: Tensors) -> Mapping[str, Way]:
        x, memory = self.sides(inputs)
        if memory is not None:
            return {"": self.__call__, " with a `mask`": self._way(masked=True)}
        given: dict[str, Any] = {}  # without what is refused, which `positioned` tells
        if self.takes_rotation:
            angles = torch.arange(x.shape[1], device=x.device, dtype=torch.float64)
            given["rotation"] = turning(angles)
        if self.takes_bias:
            # A learned one, which has a gradient.
            given["bias"] = self.bias(x.dtype)[0].to(x.device).requires_grad_()
        given = {name: one for name, one in given.items() if self._accepts(inputs, **{name: one})}
        told = " and ".join(f"`{name}`" for name in ("mask", *given))
        return {
            "": self.__call__,
            " with `causal`": self._way(causal=True),
            f" with {told}": self._way(masked=True, **given),
            f" with `causal` and {told}": self._way(masked=True, causal=True, **given),
        }

    def _way(self, *, masked: bool = False, **options: Any) -> Way:
        """Return the call of the module with these options of `attend` and, if it is `masked`, with
        a mask that hides one key of each row."""

        def call(*inputs: torch.Tensor) -> Tensors:
            mask = hiding_one(inputs[-1])[:, None, None] if masked else None
            output, _ = self.attend(inputs, mask=mask, **options)
            return (without_hidden(output) if masked and not self.crosses else output,)

        return call

    def check(self, inputs: Tensors) -> None:
        fused, weights = self.attend(inputs)
        if weights:
            raise PromiseError("weights are returned although `return_weights` is not set")
        output, weights = self.attend(inputs, return_weights=True)
        # Where a second call without weights differs too, `determinism` says why.
        if not close(fused, output, 1e-5) and close(fused, self.attend(inputs)[0], 1e-5):
            raise PromiseError("the output is another when `return_weights` is set")
        if self.crosses:
            self._check_memory(inputs, fused)
        for values in weights.values():
            expect("the weights (batch, heads, query, key)", values, BATCH, None, LENGTH, None)

    def _check_memory(self, inputs: Tensors, output: torch.Tensor) -> None:
        """Raises PromiseError if the memory changes nothing, unless the description says so."""
        absent = getattr(self.described, "absent", False)
        attends = getattr(self.described, "attends_to_memory", not absent)
        x, memory = inputs
        if attends and close(self.attend((x, memory.flip(-1)))[0], output, 1e-5):
            raise PromiseError(
                "the memory changes nothing",
                help="what attends to no memory refuses it: a validator raises a `ValueError` if "
                "the `memory_width` of a block, or the `key_width` of an attention, is not None",
            )

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
        inputs = self.inputs()
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
                f"a `{name}`, which position schemes give, is refused by {type(error).__name__}",
                help=f"a property `takes_{name}` of the description that returns False makes a "
                "spec with such a scheme an error, with its place",
            ) from None

    def _check_rotation(self, inputs: Tensors) -> None:
        # One token is turned: its keys affect what later ones see of it; and its queries what it
        # sees of others, if it does not see itself. Some token must count, as a block may leave
        # others out.
        widths = set()
        unseen = ~torch.eye(LENGTH, dtype=torch.bool).expand(BATCH, 1, -1, -1)
        keys = {token: slice(token + 1, None) for token in range(LENGTH - 1)}
        queries = {token: slice(token, token + 1) for token in range(1, LENGTH)}
        for what, seen_at, mask in (("keys", keys, None), ("queries", queries, unseen)):
            if not self._accepts(inputs, mask=mask):
                continue  # cannot be checked
            plain, _ = self.attend(inputs, mask=mask)

            def same(token: int, at: slice, mask: Any = mask, plain: Any = plain) -> bool:
                def turned(x: torch.Tensor) -> torch.Tensor:
                    widths.add(x.shape[-1])
                    return turning(torch.eye(LENGTH)[token])(x)

                found, _ = self.attend(inputs, mask=mask, rotation=turned)
                return close(found[:, at], plain[:, at], 1e-6)

            if all(same(token, at) for token, at in seen_at.items()):
                raise PromiseError(
                    f"the {what} are not turned by the `rotation` that the position scheme gives",
                    help="apply it to queries and to keys; or refuse such schemes by a property "
                    "`takes_rotation` of the description",
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
                "the `bias` that the position scheme gives changes nothing",
                help="add it to the scores; or refuse such schemes by a property `takes_bias` of "
                "the description",
            )

    def _check_rows(self, inputs: Tensors) -> None:
        """Raises PromiseError unless each row of a batch can have its own positions, and with them
        its own rotation and bias, as if it were alone."""
        seen = padded()
        places = Past(LENGTH).append(LENGTH, seen=seen, counted=seen, device=seen.device)
        bias = self.bias(inputs[0].dtype) if self.takes_bias else None
        given = ["positions (batch, query)"]
        given += ["a rotation by them"] if self.takes_rotation else []
        given += ["a bias (batch, heads, query, key)"] if self.takes_bias else []

        def called(rows: slice | int) -> torch.Tensor:
            positions = places[rows]
            context = LayerContext(
                causal=self.causal,
                positions=positions,
                key_positions=positions,
                rotation=turning(positions.double()) if self.takes_rotation else None,
                rotations=turning_at if self.takes_rotation else None,
                bias=None if bias is None else bias[rows],
            )
            x = inputs[0][rows]
            return self.call(x if isinstance(rows, slice) else x[None], context)[0]

        told = f"with {', '.join(given)}"
        with no_failure(f"a call {told}", help=_OWN_POSITIONS):
            together = called(slice(None))
        for row in range(BATCH):
            if not close(together[row : row + 1], called(row), SAME):
                raise PromiseError(
                    f"{told} a row has another output than alone, with its own",
                    help=_OWN_POSITIONS,
                )

    def leaks(self) -> Iterator[str]:
        inputs = self.inputs()
        yield from list(self.leaks_of_padding()) or self._other_beside_padding(inputs)
        if not self.looks_ahead:
            yield from self._leaks_of_later(inputs)
            yield from self._leaks_of_pairs(inputs)

    def leaks_of_padding(self) -> Iterator[str]:
        """What a mask of keys hides, on either side: what reads earlier tokens alone never sees
        padding on the right."""
        inputs = self.inputs()
        sides = ("at the end", -1, slice(-1)), ("at the start", 0, slice(1, None))
        ways = dict.fromkeys((self.causal, not self.crosses))
        for causal, (side, hidden, others) in product(ways, sides):
            told = f"{side}{self._told_causal(causal)}"
            mask = torch.ones(BATCH, 1, 1, self.n_keys, dtype=torch.bool)
            mask[..., hidden] = False
            queries = slice(None) if self.crosses else others
            if self._depends(inputs, queries, hidden, mask=mask, causal=causal):
                yield f"a key {told} that a mask (batch, 1, 1, key) hides changes the output"
            _, weights = self.attend(inputs, mask=mask, causal=causal, return_weights=True)
            if any(w[..., hidden].any() for w in weights.values() if w.shape[-1] == self.n_keys):
                yield f"the weight of a key {told} that the mask hides is not 0"

    def _other_beside_padding(self, inputs: Tensors) -> Iterator[str]:
        """Whether a row has another output beside padding, which a mask hides, than alone."""
        x, memory = self.sides(tuple(t[:1] for t in inputs))

        def called(
            keys: slice, places: torch.Tensor, mask: torch.Tensor | None, causal: bool
        ) -> torch.Tensor:
            if memory is not None:
                return self.call(x, LayerContext(memory=memory[:, keys], memory_mask=mask))[0]
            positions = places[:, keys]
            context = LayerContext(
                mask=mask,
                tokens=None if mask is None else mask[:, 0, 0],
                causal=causal,
                positions=positions,
                key_positions=positions,
            )
            return self.call(x[:, keys], context)[0]

        ways = dict.fromkeys((self.causal, not self.crosses))
        for causal, (side, real) in product(ways, (("end", slice(-2)), ("start", slice(2, None)))):
            seen = torch.zeros(1, self.n_keys, dtype=torch.bool)
            seen[:, real] = True
            places = torch.where(seen, seen.cumsum(-1) - 1, -1)
            beside = called(slice(None), places, seen[:, None, None], causal)
            alone = called(real, places, None, causal)
            if not close(beside if self.crosses else beside[:, real], alone, SAME):
                yield (
                    f"beside padding at the {side}{self._told_causal(causal)}, which a mask "
                    "(batch, 1, 1, key) hides, a row has another output than alone\n"
                    f"help: {AS_ALONE}"
                )

    def _told_causal(self, causal: bool) -> str:
        """Return the words for a call with `causal`, where there are calls without it too."""
        return " with `causal`" if causal and not self.causal else ""

    def _leaks_of_later(self, inputs: Tensors) -> Iterator[str]:
        """What `causal` hides, and whether later positions are seen without it."""
        if self.crosses:
            return
        leaks = list(self._later_seen(inputs))
        many = (vectors(torch.float64, 0, LONG),)
        if not leaks and passes(partial(self.attend, many, causal=True)):
            leaks = list(self._later_seen(many))
        yield from leaks[:1]
        attends = getattr(self.described, "attends", not getattr(self.described, "absent", False))
        if attends and not (self.causal or self._depends(inputs, slice(-1))):
            yield (
                "no later position changes the output, although `causal` is not set\n"
                "help: what sees no later ones in any stack says so: its `only_causal` is True"
            )

    def _leaks_of_pairs(self, inputs: Tensors) -> Iterator[str]:
        """What a mask of pairs of queries and keys hides."""
        mask = torch.ones(BATCH, 1, LENGTH, self.n_keys, dtype=torch.bool)
        mask[:, :, 2, 0] = False  # an earlier one, which is seen with `causal` too
        if not self._accepts(inputs, mask=mask):
            return  # refused, as by a recurrence, which has no weight for each pair
        if self._depends(inputs, slice(2, 3), 0, mask=mask):
            yield "a key that a mask (batch, 1, query, key) hides from a query changes its output"
        n_heads = getattr(self.described, "n_heads", None)
        if n_heads is not None:
            one, _ = self.attend(inputs, mask=mask)
            by_head, _ = self.attend(inputs, mask=mask.expand(-1, n_heads, -1, -1))
            if not close(by_head, one, SAME):
                yield "a mask (batch, heads, query, key), the same for each head, is another"
        mask[:, :, 2] = False
        for asked in (False, True):
            output, _ = self.attend(inputs, mask=mask, return_weights=asked)
            if not output.isfinite().all():
                yield "a query that may attend to nothing gives NaN"
                return

    def _depends(self, inputs: Tensors, queries: slice, hidden: int = -1, **options: Any) -> bool:
        """Whether the output of these queries changes with the key of number `hidden`, with or
        without weights being asked for."""
        changed = (*inputs[:-1], with_another(inputs[-1], hidden))
        for asked in (False, True):
            one, two = (
                self.attend(given, return_weights=asked, **options)[0][:, queries]
                for given in (inputs, changed)
            )
            if not close(one, two, SAME):
                return True
        return False

    def _later_seen(self, inputs: Tensors) -> Iterator[str]:
        """Yield a message for each later position that changes the output although `causal` is
        set."""
        outputs = [self.attend(inputs, causal=True, return_weights=w)[0] for w in (False, True)]
        for at in later(inputs[0].shape[1]):
            changed = (with_another(inputs[0], at),)
            for asked, output in zip((False, True), outputs, strict=True):
                found, _ = self.attend(changed, causal=True, return_weights=asked)
                if not close(found[:, :at], output[:, :at], SAME):
                    yield (
                        f"the position {at} of {inputs[0].shape[1]} changes the output of earlier "
                        "ones, although `causal` is set"
                    )


def _given(context: LayerContext) -> str:
    """Return what a call is given besides tokens, for a message: with it alone an output may get
    another shape, by broadcasting."""
    masks = {"mask": context.mask, "memory's mask": context.memory_mask, "bias": context.bias}
    given = [f"{name} {tuple(t.shape)}" for name, t in masks.items() if t is not None]
    given += ["`cache`"] if context.cache is not None else []
    return f" of a call with a {' and a '.join(given)}" if given else ""
