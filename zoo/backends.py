"""What computes attention: chosen openly, and told.

    with zoo.attention_backend("flash") as taken:
        model(ids)
    print(taken)       # Counter({Taken(backend='flash', why='chosen', mask='causal flag'): 12})

`auto`, which holds without a choice, takes `fused` unless something speaks against it, and says
what. Any other choice is kept or is an error. It holds in the process, as torch's own switches do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Literal, NamedTuple, get_args

from zoo.errors import InputError, Problem, did_you_mean, quoted

Backend = Literal["auto", "fused", "flash", "efficient", "cudnn", "math"]
"""`fused` is `torch.nn.functional.scaled_dot_product_attention` with the kernel that torch picks;
`flash`, `efficient` and `cudnn` are the same with that kernel only; `math` is softmax(q k^T) v
written out."""


class Taken(NamedTuple):
    """A decision.

    Args:
        backend: what computes attention.
        why: what it was taken for.
        mask: what tells it which keys are seen: `none`, `causal flag`, or a mask's shape.
    """

    backend: str
    why: str
    mask: str


class _Choice:
    """The backend in force, who is told of decisions, and the thread that chose. It belongs to no
    thread: `torch.compile` sees a change of it here, and none of a context variable."""

    backend: Backend = "auto"
    taken: Counter[Taken] | None = None
    thread: int | None = None


_changing = Lock()


@contextmanager
def attention_backend(name: Backend) -> Iterator[Counter[Taken]]:
    """Let attention be computed by a backend in this block, in all threads. A choice inside another
    goes over it.

    Yields:
        How often which decision was taken, counted while the block runs.

    Raises:
        InputError: there is no such backend, or another thread is in such a block. Inside the
            block, an attention that the backend cannot compute raises it too, and says why.
    """
    if name not in get_args(Backend):
        raise InputError(
            Problem(
                f"there is no attention backend {quoted(name)}",
                help=did_you_mean(str(name), get_args(Backend)),
            )
        )
    taken: Counter[Taken] = Counter()
    with _changing:
        before = _Choice.backend, _Choice.taken, _Choice.thread
        if before[2] not in (None, get_ident()):
            message = "another thread has chosen an attention backend, which holds in the process"
            raise InputError(Problem(message, help="make one block around all threads"))
        _Choice.backend, _Choice.taken, _Choice.thread = name, taken, get_ident()
    try:
        yield taken
    finally:
        _Choice.backend, _Choice.taken, _Choice.thread = before


def choose(against: str | None, mask: Callable[[], str]) -> Backend:
    """The backend for one attention, never `auto`; called by the modules of attention plugins.

    Args:
        against: why a fused kernel cannot compute it, or None.
        mask: tells what is in `Taken.mask`; called if somebody is told.

    Raises:
        InputError: a fused kernel was chosen and cannot.
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
    """What `auto` takes for an attention, and why; `against` is as for `choose`."""
    return ("fused", "nothing speaks against it") if against is None else ("math", against)


def cannot(backend: str, why: str) -> InputError:
    """The error of a chosen backend that cannot compute an attention."""
    return InputError(
        Problem(
            f"the attention backend `{backend}` was chosen, and cannot compute this: {why}",
            help='"auto" takes what can, and says what it took',
        )
    )
