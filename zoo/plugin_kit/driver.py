"""What all drivers share: small random inputs, the models of hosts, and what is expected."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, get_args

import torch
from torch import nn

from zoo.plugin_kit.sizes import SIZES
from zoo.position import PositionScheme, Rotation
from zoo.registering.plugin_errors import describe_failure
from zoo.slots import NormSite
from zoo.spec import ModelSpec
from zoo.transformer import Transformer

Tensors = tuple[torch.Tensor, ...]
BATCH, LENGTH, MEMORY_LENGTH = 2, 6, 5
WIDTH, VOCAB = SIZES["d_model"], SIZES["vocab"]


class PromiseError(Exception):
    """What a plugin promises and does not keep."""


class Hosted(Transformer):
    """A model that holds one component's module, and of an attention that reads a position scheme
    that scheme's."""

    def __init__(self, part: nn.Module, scheme: nn.Module | None = None) -> None:
        super().__init__()
        self.part = part
        self.scheme = scheme


class Ramp(PositionScheme):
    """A position scheme that an embedding cannot overlook: it adds positions times channels."""

    def embed(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x (..., length, width), positions (..., length)."""
        channels = torch.arange(x.shape[-1], device=x.device)
        return x + (positions[..., None] * channels).to(x.dtype)


class Bare(Transformer):
    """A model of parameters and nothing else."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            owner, _, attribute = name.rpartition(".")
            if owner not in dict(self.named_children()):
                self.add_module(owner, nn.Module())
            self.get_submodule(owner).register_parameter(
                attribute, nn.Parameter(torch.empty(shape))
            )


class Driver:
    """Calls the module of one slot: `model.part`, or the model itself where a builder made it."""

    names: ClassVar[Sequence[str]] = ("x",)
    """What the inputs are called in messages."""
    outputs: ClassVar[Sequence[str]] = ("the output",)
    """What the outputs are called."""

    def __init__(self, spec: ModelSpec, model: Any) -> None:
        self.spec = spec
        self.model = model

    def inputs(self, dtype: torch.dtype, seed: int = 0) -> Tensors:
        """What the module is called with, for each dtype the same up to rounding."""
        return (vectors(dtype, seed),)

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        """What the module computes from the inputs."""
        return (self.model.part(*inputs),)

    def check(self, inputs: Tensors) -> None:
        """Raises PromiseError unless the module returns what the slot says."""
        expect("the output", self(*inputs)[0], BATCH, LENGTH, WIDTH)

    def tokens(self) -> None:
        """Raises PromiseError unless a token's output is made of that token alone, where it has to
        be. The model is in float64."""

    def positioned(self) -> None:
        """Raises PromiseError unless what a position scheme gives is applied. The model is in
        float64."""

    def continues(self) -> None:
        """Raises PromiseError unless token by token, with a cache, the output is that of all at
        once. The model is in float64."""

    def leaks(self) -> Iterator[str]:
        """What a mask hides and the output depends on nevertheless. The model is in float64."""
        return iter(())


def vectors(
    dtype: torch.dtype, seed: int, length: int = LENGTH, width: int = WIDTH
) -> torch.Tensor:
    """Standard normal vectors, (batch, length, width)."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, length, width, generator=random, dtype=torch.float32).to(dtype)


def ids(seed: int, length: int = LENGTH) -> torch.Tensor:
    """Ids of tokens, (batch, length), none of them 0, which may mean padding."""
    return torch.randint(1, VOCAB, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def with_another(x: torch.Tensor, position: int) -> torch.Tensor:
    """`x` with other values at a position."""
    changed, old = x.clone(), x[:, position]
    changed[:, position] = -old if x.is_floating_point() else old % (VOCAB - 1) + 1
    return changed


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    """Whether the largest difference is below this share of the largest value."""
    scale = max(float(b.detach().abs().max()), 1e-30) if b.numel() else 1.0
    return a.shape == b.shape and float((a - b).detach().abs().max()) <= tolerance * scale


def expect(what: str, found: object, *shape: int | None) -> None:
    """Raises PromiseError unless `found` is a tensor of that shape; None stands for any size."""
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
    """Raises PromiseError unless each token's output is that of the token alone, in a tensor of
    any shape.

    Args:
        module: in float64.
        shape: how the tokens of a batch come in another call.
        help: what to do if another token matters.
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
    if not close(found, output.reshape(*shape, output.shape[-1]), 1e-9):
        raise PromiseError(
            f"the same tokens have another output in a call with x ({sizes}) than in one with "
            f"x {tuple(x.shape)}\nhelp: {help}"
        )
    if not close(module(x[:1, :1]), output[:1, :1], 1e-9):
        raise PromiseError(f"a token alone has another output than beside others\nhelp: {help}")


def expect_no_later(
    network: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, other: torch.Tensor
) -> None:
    """Raises PromiseError unless a token's output stays what it is when the tokens after it are
    those of another input. The network is in float64."""
    n_same = LENGTH // 2
    others = torch.cat([x[:, :n_same], other[:, n_same:]], 1)
    if not close(network(others)[:, :n_same], network(x)[:, :n_same], 1e-9):
        raise PromiseError(
            "a token has another output when later tokens are others\n"
            "help: what sees later tokens says so: its `looks_ahead` is True"
        )


def turning(angles: torch.Tensor) -> Rotation:
    """What a position scheme gives as a rotation: a map of vectors of any width by their positions,
    of these angles, (length,); the identity where the angle is 0."""

    def turn(x: torch.Tensor) -> torch.Tensor:
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        return (x * cos + x.roll(1, -1) * sin).to(x.dtype)

    return turn


def expect_branch(module: nn.Module) -> None:
    """Raises PromiseError if a block could not register norms inside."""
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
