"""The assertions of the checks, each of which raises `PromiseError`: about shapes, signatures, and
outputs that are compared."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

import torch
from torch import nn

from zoo.plugin_kit.inputs import LONG, Tensors, later, vectors, with_another
from zoo.plugin_kit.report import PromiseError, no_failure
from zoo.slots import Embedding, NormSite, Position

SAME = 1e-9
"""Tolerance, relative to the largest value, for two ways to compute the same in float64."""

AS_ALONE = (
    "padding, which `mask` hides, is as if it were not there: it counts in no mean, and the first "
    "token is the first one that is seen"
)
"""The help for an output that is another beside padding."""


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    """Return whether `a` is near `b`, with `tolerance` relative to the largest value of `b`."""
    scale = max(float(b.detach().abs().max()), 1e-30) if b.numel() else 1.0
    return a.shape == b.shape and float((a - b).detach().abs().max()) <= tolerance * scale


def equal(a: Tensors, b: Tensors) -> bool:
    """Return whether the tensors of two calls are equal, element by element; NaN equals NaN."""
    return all(
        one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
        for one, other in zip(a, b, strict=True)
    )


def gap(a: torch.Tensor, b: torch.Tensor) -> str:
    """Return the largest difference, for a message."""
    return f"{float((a - b).detach().abs().max()):.1e}" if a.shape == b.shape else "in shape"


def expect_equal(
    when: str, first: Mapping[str, torch.Tensor], again: Mapping[str, torch.Tensor]
) -> None:
    """Raises PromiseError unless all tensors are equal."""
    changed = [name for name in first if not torch.equal(first[name], again[name])]
    if changed:
        raise PromiseError(f"`{changed[0]}` has other values {when}")


def expect_close(
    when: str,
    expected: Tensors,
    found: Tensors,
    tolerance: float = SAME,
    *,
    help: str | None = None,
) -> None:
    """Raises PromiseError unless the outputs are equal within the tolerance."""
    for a, b in zip(expected, found, strict=True):
        if not close(b, a, tolerance):
            raise PromiseError(
                f"the output is another {when} (largest difference {gap(a, b)})", help=help
            )


def passes(call: Callable[[], object]) -> bool:
    """Return whether a call does not fail, as with `LONG` tokens."""
    try:
        call()
    except Exception:
        return False
    return True


def expect(what: str, found: object, *shape: int | None) -> None:
    """Raises PromiseError unless `found` is a tensor of this shape; None matches any size."""
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    if not isinstance(found, torch.Tensor):
        raise PromiseError(
            f"{what} must be a tensor ({sizes}), not {type(found).__name__}",
            help="end `forward` with `return` and the output" if found is None else None,
        )
    fits = len(shape) == found.dim() and all(
        want in (None, size) for want, size in zip(shape, found.shape, strict=True)
    )
    if not fits:
        raise PromiseError(f"{what} must be ({sizes}), not {tuple(found.shape)}")


def expect_call(method: Callable[..., Any], *args: object, **options: object) -> None:
    """Raises PromiseError unless a method, such as `forward`, takes these arguments."""
    try:
        inspect.signature(method).bind(*args, **options)
    except TypeError as error:
        code = inspect.unwrap(method).__code__
        keywords = f" and by keyword with {', '.join(options)}" if options else ""
        raise PromiseError(
            f"`{code.co_name}` cannot be called as its slot says: {error}\n"
            f"  {code.co_filename}:{code.co_firstlineno}, in {code.co_name}",
            help=f"it is called with {len(args)} by place{keywords}",
        ) from None


def expect_positions(module: nn.Module, call: Callable[[], object]) -> None:
    """Raises PromiseError if, in a call of a module, an attention inside is given no positions."""
    given: list[object] = []

    def note(_: nn.Module, __: object, options: dict[str, Any]) -> None:
        if options.keys() & {"causal", "positions"}:  # an attention, and not over a memory
            given.append(options.get("positions"))

    inside = [one for one in module.modules() if one is not module]
    hooks = [one.register_forward_pre_hook(note, with_kwargs=True) for one in inside]
    call()
    for hook in hooks:
        hook.remove()
    if any(value is None for value in given):
        raise PromiseError(
            "an attention inside is called without positions, which say where its queries are, "
            "with a cache and beside padding",
            help="pass on `positions=context.positions`, and in a builder "
            "`LayerContext(positions=...)`",
        )


def expect_axes(module: object, described: Position | Embedding) -> None:
    """Raises PromiseError unless a module has the axes that its description states."""
    found, stated = getattr(module, "axes", 1), described.axes
    if found != stated:
        raise PromiseError(
            f"the module has `axes = {found}`, and the description says `axes = {stated}`"
        )


def expect_by_token(
    module: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...], help: str
) -> None:
    """Raises PromiseError unless the output for each token depends only on that token, for inputs
    of any shape.

    Args:
        module: the module, in float64.
        shape: the shape, without channels, of the same tokens in a second call.
        help: the help text for an output that depends on other tokens.
    """
    x = vectors(torch.float64, 0)
    output: torch.Tensor = module(x)
    tokens = x.reshape(*shape, x.shape[-1])
    sizes = ", ".join(map(str, tokens.shape))
    any_shape = "x may have any number of dimensions before the last"
    with no_failure(f"a call with x ({sizes})", help=any_shape):
        found = module(tokens)
    expect(f"the output for x ({sizes})", found, *shape, output.shape[-1])
    if not close(found, output.reshape(*shape, output.shape[-1]), SAME):
        raise PromiseError(
            f"the same tokens have another output in a call with x ({sizes}) than in one with "
            f"x {tuple(x.shape)}",
            help=help,
        )
    if not close(module(x[:1, :1]), output[:1, :1], SAME):
        raise PromiseError("a token alone has another output than beside others", help=help)


def expect_no_later(network: Callable[[torch.Tensor], torch.Tensor], *inputs: torch.Tensor) -> None:
    """Raises PromiseError if the output for a token changes when a later token of one of these
    inputs is another. The network is in float64."""
    for x in inputs:
        if x.shape[1] == LONG and not passes(partial(network, x)):
            continue
        output = network(x)
        for at in later(x.shape[1]):
            if not close(network(with_another(x, at))[:, :at], output[:, :at], SAME):
                raise PromiseError(
                    f"of {x.shape[1]} tokens, those before the token {at} have another output "
                    "when that token is another",
                    help="what sees later tokens says so: its `looks_ahead` is True",
                )


def expect_branch(module: nn.Module) -> None:
    """Raises PromiseError if a block cannot register norms inside the module."""
    if isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        raise PromiseError(
            f"`build` returns a bare {type(module).__name__}, which would run the norms that the "
            "block registers inside; return a module of a class of your own"
        )
    for site in get_args(NormSite):
        if hasattr(module, f"{site}_norm"):
            raise PromiseError(
                f"the module has a `{site}_norm` of its own, which is what a block calls the norm "
                "that it registers inside",
                help="choose another name",
            )
