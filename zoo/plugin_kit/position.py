"""Call the modules of position schemes, and check their outputs."""

from __future__ import annotations

from typing import Any

import torch

from zoo.plugin_kit.assertions import (
    close,
    expect,
    expect_axes,
    expect_call,
)
from zoo.plugin_kit.driver import Driver
from zoo.plugin_kit.hosts import EMBEDDED_WIDTH, ReadingHost
from zoo.plugin_kit.inputs import (
    BATCH,
    LENGTH,
    LONG,
    Tensors,
    vectors,
)
from zoo.plugin_kit.report import PromiseError, no_failure
from zoo.plugin_kit.sizes import SIZES
from zoo.position import PositionScheme
from zoo.slots import Position

FAR = 100_000
"""A position that every scheme without a longest position must support."""
_FLAGS = {"embed": "embedded", "rotation": "rotates", "bias": "adds_bias"}
"""The methods of a scheme, and by which statement of its description a model knows of each."""


class PositionDriver(Driver):
    names = ("x", "heads")
    outputs = ("what `embed` returns", "what a rotation returns", "what `bias` returns")

    def inputs(self, seed: int = 0, length: int = LENGTH) -> Tensors:
        heads = vectors(self.dtype, seed + 1, length).view(BATCH, length, SIZES["n_heads"], -1)
        return vectors(self.dtype, seed, length, EMBEDDED_WIDTH), heads.transpose(1, 2)

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        x, heads = inputs
        positions = torch.arange(LENGTH, device=x.device)
        return tuple(self._results(x, heads, positions, positions).values())

    def check(self, inputs: Tensors) -> None:
        self._check_description()
        self._check_arguments(inputs[0])
        embedded, turned, *bias = self(*inputs)
        expect("what `embed` returns", embedded, BATCH, LENGTH, EMBEDDED_WIDTH)
        expect("what a rotation returns", turned, *inputs[1].shape)
        for added in bias:
            expect("what `bias` returns", added, SIZES["n_heads"], LENGTH, LENGTH)
        self._check_axes(*inputs)
        self._check_rows(*inputs)
        self._check_longest(*inputs)
        longest = self.described.longest
        for length in (LENGTH, LONG if longest is None else min(LONG, longest)):
            self._check_parts(*self.inputs(length=length))
        self._check_difference(*inputs)

    def rows(self) -> None:
        """`check` has seen to it, with positions for each row."""

    @property
    def described(self) -> Position:
        """The description of the scheme."""
        host: Any = self.spec.model
        found: Position = host.scheme if isinstance(host, ReadingHost) else host.part
        return found

    def _check_description(self) -> None:
        """Raises PromiseError unless the description matches the methods of the module."""
        part, described = self.model.part, self.described
        defined = {m for m in _FLAGS if getattr(type(part), m) is not getattr(PositionScheme, m)}
        read = isinstance(self.spec.model, ReadingHost)
        if not defined and not described.absent and not read:
            raise PromiseError(f"the module defines none of {', '.join(_FLAGS)}: it does nothing")
        for method, flag in _FLAGS.items():
            stated = bool(getattr(described, flag))
            if (method in defined) != stated and not described.absent:
                does = "does not define" if stated else "defines"
                raise PromiseError(
                    f"the module {does} `{method}`, and the description says `{flag} = {stated}`, "
                    "by which a model knows what to call"
                )

    def _check_arguments(self, x: torch.Tensor) -> None:
        """Raises PromiseError unless the methods take what a model calls them with."""
        scheme = self.model.part
        positions = torch.arange(LENGTH)
        expect_call(scheme.embed, x, positions)
        expect_call(scheme.rotation, positions, x.dtype)
        expect_call(scheme.rotation_at, positions[:, None], x.dtype)
        expect_call(scheme.bias, positions, positions, x.dtype)

    def _check_axes(self, x: torch.Tensor, heads: torch.Tensor) -> None:
        """Raises PromiseError unless the description states the axes of the module, and tokens all
        of whose coordinates are their position are rotated by it."""
        scheme, stated = self.model.part, self.described.axes
        expect_axes(scheme, self.described)
        if stated == 1:
            return
        positions = torch.arange(LENGTH, device=x.device)
        with no_failure("`rotation_at`"):
            rotation = scheme.rotation_at(positions[:, None].expand(-1, stated), x.dtype)
        if not close(rotation(heads), scheme.rotation(positions, x.dtype)(heads), 1e-5):
            raise PromiseError(
                "`rotation_at` gives another result than `rotation` for tokens whose coordinates "
                "all are their position"
            )

    def _results(
        self, x: torch.Tensor, heads: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the results of the methods for x and for heads at the positions of the queries."""
        scheme = self.model.part
        rotation, bias = scheme.rotation(queries, x.dtype), scheme.bias(queries, keys, x.dtype)
        found = {"embed": scheme.embed(x, queries)}
        found["rotation"] = heads if rotation is None else rotation(heads)
        return found if bias is None else {**found, "bias": bias}

    def _check_difference(self, x: torch.Tensor, heads: torch.Tensor) -> None:
        """Raises PromiseError unless other positions are encoded in another way."""
        positions = torch.arange(LENGTH)
        one, other = (self._results(x, heads, at, at) for at in (positions, positions.roll(1)))
        acts = any(getattr(self.described, flag) for flag in _FLAGS.values())
        if acts and all(close(found, one[name], 1e-5) for name, found in other.items()):
            raise PromiseError(
                "the results are the same at other positions, which nothing then tells apart",
                help="go by the positions that are passed",
            )

    def rounded(self) -> None:
        longest = self.described.longest
        end = FAR if longest is None else longest
        if end <= 256 or not (self.described.embedded or self.described.rotates):
            return  # a bias may be rounded: it is small near the query
        at = torch.tensor([end - 2])
        x, heads = self.inputs(length=1)
        one, other = (self._results(x, heads, queries, at) for queries in (at, at + 1))
        if all(torch.equal(other[name], one[name]) for name in ("embed", "rotation")):
            raise PromiseError(
                f"in bfloat16, the positions {int(at)} and {int(at) + 1} are encoded the same: it "
                "has each whole number up to 256 only",
                help="compute what follows from positions in float32 or wider, and go to the dtype "
                "of x last",
            )

    def _check_longest(self, x: torch.Tensor, heads: torch.Tensor) -> None:
        """Raises PromiseError unless the scheme supports all positions up to the stated longest,
        and the distances of the last ones to all others."""
        longest = self.described.longest
        end = FAR if longest is None else longest
        if end < LENGTH:
            return
        positions = torch.arange(end)
        says = "there is no end" if longest is None else f"there are {longest}"
        help = f"by the description's `longest` {says}; define it as a property"
        with no_failure(f"a call with position {end - 1}", help=help):
            self._results(x, heads, positions[-LENGTH:], positions)

    def _check_rows(self, x: torch.Tensor, heads: torch.Tensor) -> None:
        """Raises PromiseError unless each row of a batch can have its own positions, and padding
        the position -1."""
        one = torch.arange(LENGTH)
        # A row with padding on the left, and one whose distances between positions are others.
        rows = torch.stack([(one - 2).clamp(min=-1), one.flip(0)])
        together = self._results(x, heads, rows, rows)
        told, of_all = "for positions (batch, length)", (SIZES["n_heads"], LENGTH, LENGTH)
        expect(f"what `embed` returns {told}", together["embed"], *x.shape)
        expect(f"what a rotation returns {told}", together["rotation"], *heads.shape)
        if "bias" in together and together["bias"].shape != of_all:
            expect(f"what `bias` returns {told}", together["bias"], BATCH, *of_all)
        for name, found in together.items():
            if not bool(found.isfinite().all()):
                raise PromiseError(f"`{name}` is not finite for the position -1, that of padding")
        for row, positions in enumerate(rows):
            alone = self._results(x[row : row + 1], heads[row : row + 1], positions, positions)
            for name, found in together.items():
                expected = alone[name]
                found = found[row] if found.dim() == 4 or name == "embed" else found
                if not close(found, expected.view(found.shape), 1e-5):
                    raise PromiseError(
                        f"`{name}` gives another result for positions (batch, length) than for "
                        "those of each row alone",
                        help="rows that are padded on the left have positions of their own",
                    )

    def _check_parts(self, x: torch.Tensor, heads: torch.Tensor) -> None:
        """Raises PromiseError unless the results depend on the position of a token, not on its
        index in the call nor on later positions: generation calls the module with the first tokens
        and then with one after the other."""
        length = x.shape[1]
        positions = torch.arange(length)
        whole = self._results(x, heads, positions, positions)
        for n in {*range(1, LENGTH), length // 2, length}:
            if self.described.changes(n, length):
                continue  # then generation computes all of them anew
            keys, last = positions[:n], slice(n - 1, n)
            first = self._results(x[:, :n], heads[..., :n, :], keys, keys)
            one = self._results(x[:, last], heads[..., last, :], positions[last], keys)
            for name, expected in whole.items():
                seen = slice(n if name == "bias" else None)  # the columns, which are of keys
                if not close(first[name], expected[..., :n, seen], 1e-5):
                    raise PromiseError(
                        f"`{name}` gives another result for the first {n} tokens alone than for "
                        f"all {length}",
                        help="what depends on how many there are says so: `changes(before, "
                        "after)` of the description returns True",
                    )
                if not close(one[name], expected[..., last, seen], 1e-5):
                    raise PromiseError(
                        f"`{name}` gives another result for the last token alone than for all",
                        help="go by the positions that are passed, not by how many there are",
                    )
