"""Notice where a model in float64 rounds to a narrower dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zoo.plugin_kit.report import PromiseError


class NoRounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
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
