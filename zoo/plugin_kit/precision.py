"""The promise of a component about its output in narrower and wider dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zoo.plugin_kit.assertions import expect_close, gap
from zoo.plugin_kit.driver import Driver, Way, finite
from zoo.plugin_kit.drivers import hosted
from zoo.plugin_kit.inputs import Tensors
from zoo.plugin_kit.report import PromiseError, no_failure
from zoo.registering.plugin_errors import describe_failure
from zoo.registry import Registry
from zoo.spec import ModelSpec

FLOAT32_ERROR = 1e-4
"""Tolerance of float32 compared with float64, relative to the largest value."""
BFLOAT16_ERROR = 0.5
"""Tolerance of bfloat16 compared with float64, of the norm of all differences relative to that of
all values."""


def precision(spec: ModelSpec, _registry: Registry) -> None:
    """The outputs in float32 and float64 are equal up to rounding and have the dtype of the module,
    which can also be called in bfloat16, where they are still similar. In float64, nothing inside
    is narrower."""
    narrow, single, double = (
        _outputs_in(dtype, spec) for dtype in (torch.bfloat16, torch.float32, torch.float64)
    )
    expect_close(
        "in float32 than in float64",
        double,
        tuple(t.double() for t in single),
        FLOAT32_ERROR,
        help="state every `eps`, since the default of `rms_norm` depends on the dtype; and "
        "compute what cancels, such as the difference of large sums, in another way",
    )
    for wide, output in zip(double, narrow, strict=True):
        # Of all elements together: a router may send one token to another expert.
        if float((output - wide).detach().norm()) > BFLOAT16_ERROR * float(wide.detach().norm()):
            raise PromiseError(
                "the output in bfloat16 has little to do with that in float64 (largest difference "
                f"{gap(output, wide)})"
            )
    hosted(spec, torch.bfloat16).rounded()
    driver = hosted(spec)
    inputs = driver.inputs()
    for tensor in inputs:
        tensor.requires_grad_(tensor.is_floating_point())
    try:
        with _NoRounding():  # type: ignore[no-untyped-call]
            driver.in_every_way(*inputs)
    except PromiseError as error:
        where = describe_failure("", error).message.split("\n")[1:]
        raise PromiseError(
            "\n".join([str(error), *where]),
            help="compute in the dtype of x; what needs float32 in narrower models is computed in "
            "`torch.promote_types(x.dtype, torch.float32)`",
        ) from None
    _check_autocast(hosted(spec, torch.float32))


def _check_autocast(driver: Driver) -> None:
    """Raises PromiseError unless a model in float32 learns with autocast to bfloat16, where maps
    return bfloat16 and other operations float32."""
    inputs = driver.inputs()
    driver.model.train()
    for told, way in driver.ways(inputs).items():
        what = f"training in bfloat16 by autocast, in a call{told},"
        with no_failure(what, help="what is put together has one dtype: `y.to(x.dtype)`"):
            with torch.autocast("cpu", torch.bfloat16):
                outputs = way(*inputs)
            sums = [t.float().sum() for t in outputs if t.requires_grad]
            if sums:
                torch.stack(sums).sum().backward()  # type: ignore[no-untyped-call]


def _outputs_in(dtype: torch.dtype, spec: ModelSpec) -> Tensors:
    """Return the outputs of a model of this dtype, called in each way. Raises PromiseError if a
    call fails, or they are of another dtype or not finite."""
    driver = hosted(spec, dtype)
    outputs: Tensors = ()
    for told, way in driver.ways(driver.inputs()).items():
        found = outputs_of(driver, way, told)
        if not finite(found):
            in_call = told and f" in a call{told}"
            raise PromiseError(f"the output of a model in {dtype} is not finite{in_call}")
        outputs += found
    return outputs


def outputs_of(driver: Driver, way: Way, told: str) -> Tensors:
    """Return the outputs of a call. Raises PromiseError if it fails, or they are of another
    dtype than the model."""
    dtype = driver.dtype
    help = (
        "make tensors in the dtype of x, such as `x.new_ones(...)`; what comes from `cache.state` "
        "is in float32 at least"
    )
    with no_failure(f"a call in {dtype}{told}", help=help):
        outputs = way(*driver.inputs())
    for output in outputs:
        if output.is_floating_point() and output.dtype != dtype:
            in_call = told and f" in a call{told}"
            raise PromiseError(
                f"a model in {dtype} puts out {output.dtype}{in_call}",
                help="make tensors in the dtype of x, such as `x.new_ones(...)`; what is "
                "computed in float32 goes back by `.to(x.dtype)`",
            )
    return outputs


class _NoRounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises PromiseError for an operation that makes narrower floating-point numbers of those in
    float64 that have a gradient. Constants, such as the slopes of a bias, may be rounded ones."""

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        wide = any(t.requires_grad and t.dtype == torch.float64 for t in _real((args, kwargs)))
        narrow = [t.dtype for t in _real(found) if torch.finfo(t.dtype).bits < 64]
        if wide and narrow and not _makes_new(func):
            raise PromiseError(
                f"a model in float64 rounds to a narrower dtype inside: `{func}` makes {narrow[0]}"
            )
        return found


def _makes_new(func: torch._ops.OpOverload) -> bool:
    """Whether it reads no values, as `x.new_zeros` and `zeros_like`."""
    name = str(func)
    return name.startswith("aten.new_") or "_like." in name


def _real(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of real or complex numbers."""
    return (
        value
        for value in tree_leaves(values)
        if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
    )
