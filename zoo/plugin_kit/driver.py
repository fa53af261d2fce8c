"""The common base of all drivers: small random inputs, the models of hosts, and assertions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, get_args

import torch
from torch import nn

from zoo.plugin_kit.report import PromiseError
from zoo.plugin_kit.sizes import SIZES
from zoo.position import PositionScheme, Rotation
from zoo.registering.plugin_errors import describe_failure
from zoo.slots import NormSite
from zoo.spec import ModelSpec
from zoo.transformer import Transformer

Tensors = tuple[torch.Tensor, ...]
Way = Callable[..., Tensors]
"""One way of calling a module: from its inputs to its outputs."""
BATCH, LENGTH, MEMORY_LENGTH = 2, 6, 5
LONG = 70
"""A length for what begins only after some tokens, such as windows, chunks and blocks of 64. A
module that has a table of its own for fewer is not called with it (`takes_many`)."""
WIDTH, VOCAB = SIZES["d_model"], SIZES["vocab"]
HIDDEN = 2
"""The token that `hiding_one` hides."""
SAME = 1e-9
"""Tolerance, relative to the largest value, for two ways to compute the same in float64."""


class Hosted(Transformer):
    """A model that holds the module of one component and, for an attention that reads a position
    scheme, the module of that scheme."""

    def __init__(self, part: nn.Module, scheme: nn.Module | None = None) -> None:
        super().__init__()
        self.part = part
        self.scheme = scheme


class Ramp(PositionScheme):
    """A position scheme whose effect is easily detected: it adds positions times channels."""

    def embed(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x (..., length, width), positions (..., length)."""
        channels = torch.arange(x.shape[-1], device=x.device)
        return x + (positions[..., None] * channels).to(x.dtype)


class Bare(Transformer):
    """A model that has only parameters."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            *path, attribute = name.split(".")
            owner: nn.Module = self
            for step in path:
                if step not in dict(owner.named_children()):
                    owner.add_module(step, nn.Module())
                owner = owner.get_submodule(step)
            owner.register_parameter(attribute, nn.Parameter(torch.empty(shape)))


class Driver:
    """Calls the module of one slot: `model.part`, or the model itself if a builder is checked."""

    names: Sequence[str] = ("x",)
    """Names of the inputs, for messages."""
    outputs: ClassVar[Sequence[str]] = ("the output",)
    """Names of the outputs, for messages."""

    def __init__(self, spec: ModelSpec, model: Any) -> None:
        self.spec = spec
        self.model = model

    @property
    def described(self) -> Any:
        """The description of the component under test."""
        host: Any = self.spec.model
        return host.part

    def inputs(self, dtype: torch.dtype, seed: int = 0) -> Tensors:
        """Return the inputs of the module, which are the same for each dtype up to rounding."""
        return (vectors(dtype, seed),)

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        """Return the outputs of the module for these inputs."""
        return (self.model.part(*inputs),)

    def ways(self, inputs: Tensors) -> Mapping[str, Way]:
        """Return the ways in which the module is called with inputs like these, any number of rows
        of them, by what messages say after "a call"."""
        return {"": self.__call__}

    def traced_ways(self, inputs: Tensors) -> Sequence[Way]:
        """Return those that are traced, as by `torch.compile`, which takes longer than all other
        checks: the plain one and the one with the most options."""
        ways = list(self.ways(inputs).values())
        return ways if len(ways) < 3 else [ways[0], ways[-1]]

    def with_cache(self, *inputs: torch.Tensor) -> Tensors:
        """Return the outputs of a few steps with a cache; none if the module takes none."""
        return ()

    def rows(self, inputs: Tensors) -> None:
        """Raises PromiseError unless each row of a batch has the output that it has alone. The
        model is in float64."""
        for told, way in self.ways(inputs).items():
            together = way(*inputs)
            for row in range(BATCH):
                alone = way(*(t[row : row + 1] for t in inputs))
                for one, all_rows in zip(alone, together, strict=True):
                    if not close(one, all_rows[row : row + 1], SAME):
                        raise PromiseError(
                            f"in a call{told}, a row of the batch has another output than alone\n"
                            "help: rows are independent: nothing is computed over the first "
                            "dimension, such as the mean of a batch"
                        )

    def check(self, inputs: Tensors) -> None:
        """Raises PromiseError unless the module returns what the slot specifies."""
        expect("the output", self(*inputs)[0], BATCH, LENGTH, WIDTH)

    def tokens(self) -> None:
        """Raises PromiseError unless the output for a token depends only on that token, if the slot
        requires that. The model is in float64."""

    def positioned(self) -> None:
        """Raises PromiseError unless the rotation and bias of a position scheme are applied. The
        model is in float64."""

    def continues(self) -> None:
        """Raises PromiseError unless the output token by token, with a cache, equals the output for
        all tokens at once. The model is in float64."""

    def leaks(self) -> Iterator[str]:
        """Yield a message for each dependence of the output on masked inputs. The model is in
        float64."""
        return iter(())


def every(ways: Iterable[Way]) -> Way:
    """Return the call of a module in all of these ways, one after the other."""

    def call(*inputs: torch.Tensor) -> Tensors:
        outputs: Tensors = ()
        for way in ways:
            outputs += way(*inputs)
        return outputs

    return call


def takes_many(call: Callable[[], object]) -> bool:
    """Return whether a call with `LONG` tokens does not fail."""
    try:
        call()
    except Exception:
        return False
    return True


def hiding_one(x: torch.Tensor) -> torch.Tensor:
    """Return a mask (batch, length) that hides one token of each row of x. It is not an end, which
    heads may pool whatever it is, and which no other token of a causal model may see."""
    seen = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    seen[:, HIDDEN] = False
    return seen


def without_hidden(output: torch.Tensor) -> torch.Tensor:
    """Return the outputs (batch, length, ...) without those of the token that `hiding_one` hides:
    it is padding, and may be left out."""
    return torch.cat([output[:, :HIDDEN], output[:, HIDDEN + 1 :]], 1)


def vectors(
    dtype: torch.dtype, seed: int, length: int = LENGTH, width: int = WIDTH
) -> torch.Tensor:
    """Return standard normal vectors, (batch, length, width)."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, length, width, generator=random, dtype=torch.float32).to(dtype)


def pixels(dtype: torch.dtype, seed: int, shape: tuple[int, int, int]) -> torch.Tensor:
    """Return images of this shape, (batch, channels, height, width), of standard normal values."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, *shape, generator=random, dtype=torch.float32).to(dtype)


def ids(seed: int, length: int = LENGTH) -> torch.Tensor:
    """Return ids of tokens, (batch, length), none of them 0, which may mean padding."""
    return torch.randint(1, VOCAB, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def with_another(x: torch.Tensor, position: int) -> torch.Tensor:
    """Return a copy of `x` with different values at a position."""
    changed, old = x.clone(), x[:, position]
    changed[:, position] = -old if x.is_floating_point() else old % (VOCAB - 1) + 1
    return changed


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    """Return whether `a` is near `b`, with `tolerance` relative to the largest value of `b`."""
    scale = max(float(b.detach().abs().max()), 1e-30) if b.numel() else 1.0
    return a.shape == b.shape and float((a - b).detach().abs().max()) <= tolerance * scale


def expect(what: str, found: object, *shape: int | None) -> None:
    """Raises PromiseError unless `found` is a tensor of this shape; None matches any size."""
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    if not isinstance(found, torch.Tensor):
        raise PromiseError(f"{what} must be a tensor ({sizes}), not {type(found).__name__}")
    fits = len(shape) == found.dim() and all(
        want in (None, size) for want, size in zip(shape, found.shape, strict=True)
    )
    if not fits:
        raise PromiseError(f"{what} must be ({sizes}), not {tuple(found.shape)}")


def expect_call(forward: Callable[..., Any], *args: object, **options: object) -> None:
    """Raises PromiseError unless `forward` takes these arguments."""
    try:
        inspect.signature(forward).bind(*args, **options)
    except TypeError as error:
        code = inspect.unwrap(forward).__code__
        keywords = f" and by keyword with {', '.join(options)}" if options else ""
        raise PromiseError(
            f"`forward` cannot be called as its slot says: {error}\n"
            f"  {code.co_filename}:{code.co_firstlineno}, in {code.co_name}\n"
            f"help: it is called with {len(args)} by place{keywords}"
        ) from None


def expect_by_token(module: nn.Module, shape: tuple[int, ...], help: str) -> None:
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
    try:
        found = module(tokens)
    except Exception as error:
        told = describe_failure(f"a call with x ({sizes})", error).message
        raise PromiseError(
            f"{told}\nhelp: x may have any number of dimensions before the last"
        ) from None
    expect(f"the output for x ({sizes})", found, *shape, output.shape[-1])
    if not close(found, output.reshape(*shape, output.shape[-1]), SAME):
        raise PromiseError(
            f"the same tokens have another output in a call with x ({sizes}) than in one with "
            f"x {tuple(x.shape)}\nhelp: {help}"
        )
    if not close(module(x[:1, :1]), output[:1, :1], SAME):
        raise PromiseError(f"a token alone has another output than beside others\nhelp: {help}")


def later(length: int) -> Sequence[int]:
    """Return the positions that are changed, one at a time, to find what sees later tokens: each of
    a few tokens, and of many one in the middle and the last."""
    return range(1, length) if length <= LENGTH else (length // 2, length - 1)


def expect_no_later(network: Callable[[torch.Tensor], torch.Tensor], *inputs: torch.Tensor) -> None:
    """Raises PromiseError if the output for a token changes when a later token of one of these
    inputs is another. The network is in float64."""
    for x in inputs:
        if x.shape[1] == LONG and not takes_many(partial(network, x)):
            continue
        output = network(x)
        for at in later(x.shape[1]):
            if not close(network(with_another(x, at))[:, :at], output[:, :at], SAME):
                raise PromiseError(
                    f"of {x.shape[1]} tokens, those before the token {at} have another output "
                    "when that token is another\n"
                    "help: what sees later tokens says so: its `looks_ahead` is True"
                )


def padded() -> torch.Tensor:
    """Return which tokens are no padding, (batch, length): the first two of the first row are."""
    seen = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    seen[0, :2] = False
    return seen


def turning(angles: torch.Tensor) -> Rotation:
    """Return a rotation as position schemes do: a map of vectors of any width by these angles,
    (length,) or (batch, length), one for each position; the identity where the angle is 0."""
    if angles.dim() == 2:
        angles = angles[:, None]  # the same for all heads

    def turn(x: torch.Tensor) -> torch.Tensor:
        cos, sin = angles.cos()[..., None], angles.sin()[..., None]
        return (x * cos + x.roll(1, -1) * sin).to(x.dtype)

    return turn


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
                "that it registers inside\nhelp: choose another name"
            )
