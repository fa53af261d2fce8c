"""Call norms, feed-forward networks and heads, and check their outputs against the interface in
`zoo.slots`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import torch

from zoo.plugin_kit.assertions import (
    AS_ALONE,
    SAME,
    close,
    expect,
    expect_branch,
    expect_by_token,
    expect_call,
    expect_no_later,
)
from zoo.plugin_kit.driver import Driver, Way
from zoo.plugin_kit.inputs import (
    BATCH,
    LENGTH,
    LONG,
    WIDTH,
    Tensors,
    hiding,
    hiding_one,
    ids,
    vectors,
    with_another,
    without_hidden,
)
from zoo.plugin_kit.report import PromiseError
from zoo.plugin_kit.sizes import SIZES
from zoo.slots import Head


class NormDriver(Driver):
    def check(self, inputs: Tensors) -> None:
        expect_call(self.model.part.forward, *inputs)
        super().check(inputs)
        self.expect_finite_at_zero(inputs)

    def tokens(self) -> None:
        # More dimensions, as heads have.
        help = "normalise along the last dimension alone"
        expect_by_token(self.model.part, (1, LENGTH, 1, BATCH), help)


class _StatesDriver(Driver):
    """Calls a module with states, and with the ids of the tokens if it takes them."""

    names = ("x", "ids")
    mask_stated_by: ClassVar[str]
    """The statement of the description that `forward` takes a `mask`."""

    def inputs(self, seed: int = 0) -> Tensors:
        x = super().inputs(seed)
        return (*x, ids(seed)) if self.described.takes_ids else x

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        return (self._output(*inputs),)

    def _output(self, x: torch.Tensor, ids: torch.Tensor | None = None, **options: Any) -> Any:
        """Return what the module returns for states x, and the ids of the tokens if it takes
        them."""
        if ids is not None:
            options["ids"] = ids
        return self.model.part(x, **options)

    def _mask(self) -> dict[str, Any]:
        """Return the mask as an argument of `forward`, without padding, if it takes one."""
        return {"mask": None} if getattr(self.described, self.mask_stated_by) else {}

    def _expect_arguments(self, x: torch.Tensor, *of_tokens: torch.Tensor) -> None:
        """Raises PromiseError unless `forward` takes what a model calls it with."""
        given = {"ids": of_tokens[0]} if of_tokens else {}
        expect_call(self.model.part.forward, x, **given, **self._mask())

    def ways(self, inputs: Tensors) -> Mapping[str, Way]:
        ways = super().ways(inputs)
        return {**ways, " with a `mask`": self._masked} if self._mask() else ways

    def _masked(self, *inputs: torch.Tensor) -> Tensors:
        return (self._output(*inputs, mask=hiding_one(inputs[0])),)


class FeedForwardDriver(_StatesDriver):
    mask_stated_by = "takes_mask"

    def _by_vectors(self, x: torch.Tensor, **options: Any) -> Any:
        """Return what the network returns for states x (..., d_model) in float64, of which each has
        an id of its own if it takes ids."""
        own = (1e6 * x[..., 0]).long() % SIZES["vocab"] if self.described.takes_ids else None
        return self._output(x, own, **options)

    def _masked(self, *inputs: torch.Tensor) -> Tensors:
        return tuple(map(without_hidden, super()._masked(*inputs)))

    def check(self, inputs: Tensors) -> None:
        expect_branch(self.model.part)
        self._expect_arguments(*inputs)
        super().check(inputs)
        self.expect_finite_at_zero(inputs)
        self.expect_residual(inputs)
        self.expect_no_skip(inputs)

    def tokens(self) -> None:
        if self.described.incremental:
            help = "a network that mixes tokens says so: its `incremental` is False"
            expect_by_token(self._by_vectors, (BATCH * LENGTH,), help)
        elif not self.described.looks_ahead:
            inputs = (vectors(torch.float64, 0, length) for length in (LENGTH, LONG))
            expect_no_later(partial(self._by_vectors, **self._mask()), *inputs)
        if self.described.takes_mask:
            self._check_mask()

    def _check_mask(self) -> None:
        """Raises PromiseError if the output for a token that the mask leaves depends on what it
        hides; if the network is incremental, also if it depends on the mask."""
        network, x = self._by_vectors, self.inputs()[0]
        mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
        without = network(x, mask=None)
        if not close(network(x, mask=mask), without, SAME):
            raise PromiseError(
                "the output is another with a mask that hides nothing than without one"
            )
        for hidden in (0, LENGTH - 1):  # padding on the left, and on the right
            seen = hiding(x, hidden)
            one, other = (network(v, mask=seen)[seen] for v in (x, with_another(x, hidden)))
            if not close(one, other, SAME):
                raise PromiseError(
                    "a token that the mask (batch, length) hides changes the output for others",
                    help="what `takes_mask` leaves out of all sums what the mask hides",
                )
            if self.described.incremental and not close(one, without[seen], SAME):
                raise PromiseError(
                    "a token has another output when the mask hides another token",
                    help="a network that mixes tokens says so: its `incremental` is False",
                )
            alone = network(x[:, seen[0]], mask=None)
            if not close(one, alone.flatten(0, 1), SAME):
                raise PromiseError(
                    "beside padding, which the mask (batch, length) hides, a token has another "
                    "output than without it",
                    help=AS_ALONE,
                )


class HeadDriver(_StatesDriver):
    mask_stated_by = "pools"

    def check(self, inputs: Tensors) -> None:
        head: Head = self.described
        self._expect_arguments(*inputs)
        output = self(*inputs)[0]
        self.expect_finite_at_zero(inputs)
        if head.pools:
            expect("the output, one for each sequence,", output, BATCH, None)
        else:
            n = SIZES["vocab"] if head.scores_tokens else None
            expect("the output", output, BATCH, LENGTH, n)
            says = type(head).scores_tokens is not Head.scores_tokens
            if output.shape[-1] == SIZES["vocab"] and not says:
                raise PromiseError(
                    "the output is as wide as the vocabulary, and the description does not say "
                    "whether it scores tokens, without which no model with it generates",
                    help="define the property `scores_tokens`",
                )
        classes = head.classes
        if classes is not None and output.shape[-1] != classes.number:
            raise PromiseError(
                f"the output is {output.shape[-1]} wide, and by the description's `classes` there "
                f"are {classes.number}"
            )
        of_tokens, sums = head.scores_tokens or classes is not None, output.sum(-1)
        if of_tokens and bool((output >= 0).all()) and close(sums, torch.ones_like(sums), 1e-5):
            raise PromiseError(
                "the output is one of probabilities, of which a loss, generation and `zoo run` "
                "take the softmax again",
                help="return the scores before the softmax",
            )
        self._check_ties(head)

    def tokens(self) -> None:
        if not self.described.pools:
            help = "a head of whole sequences says so: its `pools` is True"
            expect_by_token(self.model.part, (BATCH * LENGTH,), help)

    def leaks(self) -> Iterator[str]:
        if not self.described.pools:
            return
        x, *of_tokens = self.inputs()

        def head(states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
            output: torch.Tensor = self._output(states, *of_tokens, mask=mask)
            return output

        mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
        # Not the first, which a head may pool whatever it is.
        for hidden in () if self.described.reads_padding else (1, LENGTH - 1):
            seen = hiding(x, hidden)
            one, other = (head(states, mask=seen) for states in (x, with_another(x, hidden)))
            if not close(one, other, SAME):
                yield "a token that the mask (batch, length) hides changes the output"
                return
            if hidden == LENGTH - 1:
                alone = self._output(*(t[:, :hidden] for t in (x, *of_tokens)))
                if not close(one, alone, SAME):
                    yield (
                        "beside padding at the end, which the mask (batch, length) hides, a "
                        f"sequence has another output than alone\nhelp: {AS_ALONE}"
                    )
        if not close(head(x, mask=mask), head(x, mask=None), SAME):
            yield "the output is another with a mask that hides nothing than without one"
        if not bool(head(x, mask=~mask).isfinite().all()):
            yield "a mask that hides everything gives NaN"

    def _check_ties(self, head: Head) -> None:
        """Raises PromiseError unless a tensor that may be tied to a token table has its shape."""
        ties: object = head.ties("tokens.weight")
        table = (SIZES["vocab"], WIDTH)
        shapes = {name: tensor.shape for name, tensor in head.layout().tensors()}
        if not isinstance(ties, Mapping):
            raise PromiseError(f"`ties` must return a mapping, not {type(ties).__name__}")
        for name in ties:
            if shapes.get(name) != table:
                found = f"{shapes[name]} in" if name in shapes else "not in"
                raise PromiseError(
                    f"`ties` names the tensor `{name}`, which is {found} the layout; the token "
                    f"table that it is tied to is {table}"
                )
