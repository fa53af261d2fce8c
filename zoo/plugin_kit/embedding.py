"""Call the modules of embeddings, and check their outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from zoo.plugin_kit.assertions import (
    AS_ALONE,
    SAME,
    close,
    expect,
    expect_axes,
    expect_no_later,
    passes,
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
    pixels,
    vectors,
    with_another,
    without_hidden,
)
from zoo.plugin_kit.report import PromiseError
from zoo.plugin_kit.sizes import SIZES
from zoo.registering.plugin_errors import describe_failure
from zoo.slots import Embedding


class EmbeddingDriver(Driver):
    def inputs(self, seed: int = 0) -> Tensors:
        if self.described.image_shape is not None:
            return (pixels(self.dtype, seed, self.described.image_shape),)
        if self.described.takes_ids:
            return (ids(seed),)
        return (vectors(self.dtype, seed, width=self.input_width),)

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        x = inputs[0]
        return self.made(x, torch.arange(self.length, device=x.device))

    def made(
        self, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None = None
    ) -> Tensors:
        """Return the vectors for the input x, and what each layer gets if the embedding makes
        that."""
        vectors = self.embed(x, positions, mask)
        if self.described.layer_input_width is None:
            return (vectors,)
        return vectors, self.model.part.layer_inputs(x, vectors)

    def ways(self, inputs: Tensors) -> Mapping[str, Way]:
        ways = super().ways(inputs)
        return ways if inputs[0].is_floating_point() else {**ways, " with a `mask`": self._masked}

    def _masked(self, x: torch.Tensor) -> Tensors:
        positions = torch.arange(self.length, device=x.device)
        return tuple(without_hidden(one) for one in self.made(x, positions, hiding_one(x)))

    @property
    def input_width(self) -> int:
        """The width of the vectors that it is called with; by the description, any will do if
        it states none."""
        stated: int | None = self.described.input_width
        return WIDTH if stated is None else stated

    @property
    def length(self) -> int:
        """The number of vectors that the embedding returns for the input."""
        described: Embedding = self.described
        if described.image_shape is not None:
            if described.n_vectors is None:
                raise PromiseError(
                    "the description states an `image_shape`, and no `n_vectors`, by which a "
                    "stack knows how many vectors it gets"
                )
            return described.n_vectors
        return self.embedded_length(LENGTH)

    def embedded_length(self, length: int) -> int:
        """The number of vectors that the embedding returns for ids or vectors of this length."""
        of_module = getattr(self.model.part, "embedded_length", lambda length: length)
        return int(of_module(length))

    def embed(
        self, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None = None
    ) -> Any:
        more = {"coordinates": None} if self.described.axes > 1 else {}
        return self.model.part(x, positions, token_types=None, mask=mask, **more)

    def check(self, inputs: Tensors) -> None:
        expect_axes(self.model.part, self.described)
        try:
            output, *of_layers = self(*inputs)
        except Exception as error:
            if not inputs[0].is_floating_point() or self.described.image_shape is not None:
                raise
            told = describe_failure(f"a call with vectors of width {self.input_width}", error)
            raise PromiseError(
                told.message,
                help="the description's `input_width` is "
                f"{self.described.input_width}; it is the width that `forward` needs, or None if "
                "it takes any",
            ) from None
        expect("the output", output, BATCH, self.length, WIDTH)
        for found in of_layers:
            sizes = SIZES["n_layers"], self.described.layer_input_width
            expect("the output of `layer_inputs`", found, BATCH, self.length, *sizes)
        if close(output, self.embed(inputs[0], torch.arange(self.length) + 1), 1e-5):
            raise PromiseError("the position scheme that `build` receives is not applied")
        last = self.described.token_types - 1
        if last > 0 and close(self._of_type(inputs[0], last), self._of_type(inputs[0], 0), 1e-5):
            raise PromiseError(
                "the vectors are the same for all token types, of which the description's "
                f"`token_types` says that there are {last + 1}"
            )
        if not inputs[0].is_floating_point() and self.described.vocab is not None:
            self._check_vocabulary(inputs[0], self.described.vocab)

    def _check_vocabulary(self, x: torch.Tensor, vocab: int) -> None:
        """Raises PromiseError if an id that is not in the vocabulary gets a vector too."""
        for outside in (vocab, -1):
            changed = x.clone()
            changed[0, 0] = outside
            if passes(partial(self, changed)):
                raise PromiseError(
                    f"the id {outside} gets a vector, and the vocabulary has the ids from 0 to "
                    f"{vocab - 1}: ids of another tokenizer would go unnoticed",
                    help="look ids up as they are, by `nn.Embedding`, which refuses others; or "
                    "raise an `IndexError`",
                )

    def _of_type(self, x: torch.Tensor, number: int) -> torch.Tensor:
        """The vectors of tokens that all have the type of this number."""
        positions, types = torch.arange(self.length), torch.full((BATCH, self.length), number)
        found: torch.Tensor = self.model.part(x, positions, token_types=types, mask=None)
        return found

    def tokens(self) -> None:
        described = self.described
        if described.image_shape is not None:
            return  # an image has no tokens to leave out
        x = self.inputs()[0]
        if not described.incremental:
            if not described.looks_ahead:
                expect_no_later(self._embed_all, x, self._many())
            return
        whole = self.made(x, torch.arange(LENGTH))
        for place in range(LENGTH):  # as generation calls: with the next token alone
            one = slice(place, place + 1)
            alone = self.made(x[:, one], torch.tensor([place]))
            if not all(close(a, b[:, one], SAME) for a, b in zip(alone, whole, strict=True)):
                raise PromiseError(
                    "a token alone has another vector than beside others",
                    help="an embedding that mixes tokens says so: its `incremental` is False",
                )

    def _many(self) -> torch.Tensor:
        """Return an input of many tokens."""
        if self.described.takes_ids:
            return ids(0, LONG)
        return vectors(torch.float64, 0, LONG, self.input_width)

    def _embed_all(self, x: torch.Tensor) -> torch.Tensor:
        vectors: torch.Tensor = self.embed(x, torch.arange(self.embedded_length(x.shape[1])))
        return vectors

    def leaks(self) -> Iterator[str]:
        x = self.inputs()[0]
        if x.is_floating_point():
            return  # the padding of a signal is silence, which is not hidden
        for hidden in (0, LENGTH - 1):  # padding on the left, and on the right
            mask = hiding(x, hidden)
            one, other = (
                self.embed(tokens, torch.arange(self.length), mask)[mask]
                for tokens in (x, with_another(x, hidden))
            )
            if not close(one, other, SAME):
                yield "a token that the mask (batch, length) hides changes the vectors of others"
                return
            alone = self.embed(x[:, mask[0]], torch.arange(self.length)[mask[0]])
            if not close(one, alone.flatten(0, 1), SAME):
                yield (
                    "beside padding, which the mask (batch, length) hides, tokens have other "
                    f"vectors than alone\nhelp: {AS_ALONE}"
                )
                return
