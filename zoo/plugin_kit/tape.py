"""A recorded step of generation without a GPU: what a CUDA graph does, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zoo.plugin_kit.report import PromiseError

WAITING = (
    "aten._local_scalar_dense",
    "aten.nonzero",
    "aten.masked_select",
    "aten._unique2",
    "aten.repeat_interleave",
)
"""The beginnings of the names of operations that wait for a GPU, for a value or a shape."""


class Tape:
    """A call that was recorded. As with a CUDA graph, another call runs the same operations on the
    same tensors, in their places in memory, and none of the Python between them: a number that
    Python has looked up stays what it was.

    Args:
        call: what is recorded, when it is first called.
    """

    def __init__(self, call: Callable[[], torch.Tensor]) -> None:
        self._call = call
        self._again: list[Callable[[], None]] = []
        self._result: torch.Tensor | None = None

    def __call__(self) -> torch.Tensor:
        """Compute, and the next time compute again; the result is valid until the next call.

        Raises:
            PromiseError: an operation waits for the GPU.
        """
        if self._result is None:
            with _Recorder(self._again):
                self._result = self._call()
        else:
            for again in self._again:
                again()
        return self._result


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Appends to a list what computes each operation again."""

    def __init__(self, operations: list[Callable[[], None]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations = operations

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if str(func).startswith(WAITING) or _selects_by_mask(func, args):
            raise PromiseError(
                f"`{func}` looks at a value, for which it would wait for the GPU, in a step that "
                "is recorded",
                help="compute with tensors alone, or do not say that it is `recordable`",
            )
        given = dict(kwargs or {})
        found = func(*args, **given)
        held = {_storage(tensor) for tensor in _tensors((args, given))}
        made = [_storage(tensor) not in held for tensor in _tensors(found)]
        if any(made) or func._schema.is_mutable:  # otherwise they are views, which stay valid

            def again() -> None:
                for before, after, new in zip(
                    _tensors(found), _tensors(func(*args, **given)), made, strict=True
                ):
                    if new:
                        before.copy_(after)

            self._operations.append(again)
        return found


def _selects_by_mask(func: torch._ops.OpOverload, args: Sequence[Any]) -> bool:
    """Whether it is x[mask], whose shape depends on values, or x[mask] = y; a y of one number is
    filled in without looking."""
    if not str(func).startswith(("aten.index.", "aten.index_put")):
        return False
    by_mask = any(tensor.dtype == torch.bool for tensor in _tensors(args[1]))
    return by_mask and not (len(args) > 2 and args[2].numel() == 1)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (value for value in tree_leaves(values) if isinstance(value, torch.Tensor))


def _storage(tensor: torch.Tensor) -> int:
    return cast("int", tensor.untyped_storage()._cdata)
