"""Choose the attention backend, and see which one was used and why.

    with zoo.attention_backend("flash") as taken:
        model(ids)
    print(taken)       # Counter({Taken(backend='flash', why='chosen', mask='causal flag'): 12})

The default, `auto`, takes `fused` unless it cannot compute the attention, and records the reason
if so. Any other choice is used or is an error. A choice applies to the whole process, as torch's
own switches do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Literal, NamedTuple, get_args

from zoo.errors import InputError
from zoo.wording import did_you_mean, quoted

Backend = Literal["auto", "fused", "flash", "efficient", "cudnn", "math"]
"""`fused` is `torch.nn.functional.scaled_dot_product_attention` with the kernel that torch picks;
`flash`, `efficient` and `cudnn` are the same with that kernel only; `math` is softmax(q k^T) v
written out."""


class Taken(NamedTuple):
    """The choice of a backend for one attention.

    Args:
        backend: the backend that computes it.
        why: the reason for the choice.
        mask: how the visible keys are specified: `none`, `causal flag`, or the shape of a mask.
    """

    backend: str
    why: str
    mask: str


class _Choice:
    """The current backend, the counter of decisions, and the thread that chose. Global, since
    `torch.compile` notices a change of a class attribute, but not of a context variable."""

    backend: Backend = "auto"
    taken: Counter[Taken] | None = None
    thread: int | None = None


_changing = Lock()


@contextmanager
def attention_backend(name: Backend) -> Iterator[Counter[Taken]]:
    """Compute attention with this backend inside the block, in all threads. Blocks may be nested;
    the innermost counts.

    Args:
        name: `auto`, a fused kernel where it can compute the attention and else `math`; `fused`,
            the fused kernel that torch picks; `flash`, `efficient` or `cudnn`, that kernel only; or
            `math`, softmax(q k^T) v step by step.

    Yields:
        A counter of the decisions, updated while the block runs.

    Raises:
        InputError: there is no such backend, or another thread is in such a block. Also raised
            inside the block, with the reason, for an attention that the backend cannot compute.
    """
    if name not in get_args(Backend):
        raise InputError(
            f"there is no attention backend {quoted(name)}",
            help=did_you_mean(str(name), get_args(Backend)),
        )
    taken: Counter[Taken] = Counter()
    with _changing:
        before = _Choice.backend, _Choice.taken, _Choice.thread
        if before[2] not in (None, get_ident()):
            message = "another thread has chosen an attention backend, which holds in the process"
            raise InputError(message, help="make one block around all threads")
        _Choice.backend, _Choice.taken, _Choice.thread = name, taken, get_ident()
    try:
        yield taken
    finally:
        _Choice.backend, _Choice.taken, _Choice.thread = before


def choose(against: str | None, mask: Callable[[], str]) -> Backend:
    """Return the backend for one attention, never `auto`; called by modules of attention plugins.

    Args:
        against: why a fused kernel cannot compute it, or None.
        mask: returns `Taken.mask`; called only if decisions are counted.

    Raises:
        InputError: a fused kernel was chosen and cannot compute it.
    """
    chosen = _Choice.backend
    if chosen == "auto":
        found, why = automatic(against)
    elif against is not None and chosen != "math":
        raise cannot(chosen, against)
    else:
        found, why = chosen, "chosen"
    if _Choice.taken is not None:
        _Choice.taken[Taken(found, why, mask())] += 1
    return found


def automatic(against: str | None) -> tuple[Backend, str]:
    """Return the backend that `auto` takes, and why; `against` is as for `choose`."""
    return ("fused", "nothing speaks against it") if against is None else ("math", against)


def cannot(backend: str, why: str) -> InputError:
    """Return the error for a chosen backend that cannot compute an attention."""
    return InputError(
        f"the attention backend `{backend}` was chosen, and cannot compute this: {why}",
        help='"auto" takes what can, and says what it took',
    )
