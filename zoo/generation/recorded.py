"""Generation whose steps are recorded as a CUDA graph.

A step for one token of each row launches hundreds of small kernels, and on a GPU launching them
takes longer than computing them. A graph launches all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import nn

from zoo.errors import InputError
from zoo.generation.decoding import Decoding, Memory, describe
from zoo.generation.fixed_cache import FixedCache
from zoo.generation.media import Media
from zoo.machine.devices import input_device
from zoo.transformer import Transformer

_checked: WeakKeyDictionary[nn.Module, set[int]] = WeakKeyDictionary()
"""Models, and the numbers of rows with which a step has not waited for the GPU."""

ELSEWHERE = "without `cuda_graph` it generates the same, step by step"


class Recording:
    """A call that was recorded as a CUDA graph. It computes from the tensors that it read then, and
    changes those that it changed then.

    Args:
        call: what is recorded; it must have been called before, so that all is made that is made
            once.
    """

    def __init__(self, call: Callable[[], torch.Tensor]) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._result = call()

    def __call__(self) -> torch.Tensor:
        """Compute again; the result is valid until the next call."""
        self._graph.replay()
        return self._result


class RecordedDecoding(Decoding):
    """`Decoding` that records its step for one token of each row, and runs the recording from then
    on. After another number of rows is selected, it records anew.

    Raises:
        InputError: the model is not on a GPU, or cannot be recorded.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        capacity: int,
        memory: Memory | None,
        media: Media | None = None,
    ) -> None:
        check_device(model)
        check_recordable(model, capacity)
        super().__init__(model, capacity=capacity, memory=memory, media=media, keep=True)
        self._module = model
        self._token: torch.Tensor | None = None
        self._warm = False
        self._recording: Recording | None = None

    def scores(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """As `Decoding.scores`. The result is valid until the next call."""
        if self.cache.past.length == 0:
            return super().scores(tokens, mask)
        if self._token is None or self._token.shape != tokens.shape:
            self._begin(tokens)
        else:
            self._token.copy_(tokens)
        if not self._warm:  # the first step makes what is made once, such as compiled layers
            self._warm = True
            return self._step()
        checked = _checked.setdefault(self._module, set())
        if len(tokens) not in checked:
            with waiting_refused(self.name):
                scores = self._step()
            checked.add(len(tokens))
            return scores
        if self._recording is None:
            self._recording = Recording(self._step)
        return self._recording()

    def _begin(self, tokens: torch.Tensor) -> None:
        """Prepare to record steps for this number of rows."""
        if not self.cache.fixed:
            self.cache = FixedCache(self.cache, self.device)
        self._token, self._recording, self._warm = tokens.clone(), None, False

    def _step(self) -> torch.Tensor:
        assert self._token is not None  # after `_begin`
        memory, memory_mask = self._memory_for(self._token.shape[0])
        states = self.model.decode(
            self._token, memory, target_mask=None, memory_mask=memory_mask, cache=self.cache
        )
        return self.model.head(states[:, -1])

    def select(self, rows: torch.Tensor, memory_rows: torch.Tensor | None = None) -> None:
        """As `Decoding.select`."""
        super().select(rows, memory_rows)
        if self._token is not None and len(rows) != len(self._token):
            self._token = None


def check_device(model: Transformer) -> None:
    """Raise InputError if the model is not where graphs are."""
    device = input_device(model)
    if device.type != "cuda":
        raise InputError(
            f"{model.spec.name} is on the device `{device}`, and `cuda_graph` is for models on "
            "a GPU",
            help='load it on the `device` "cuda", or move it there: `model.to("cuda")`',
        )


def check_recordable(model: Transformer, capacity: int) -> None:
    """Raise InputError if the steps of a generation up to this number of tokens differ in more than
    their tokens."""
    how, name = describe(model), model.spec.name
    if why := ", ".join(how.not_incremental or how.not_recordable):
        raise InputError(
            f"{name} cannot be recorded: what {why} does is not the same for every token",
            help=ELSEWHERE,
        )
    if how.changes(1, capacity):
        raise InputError(
            f"{name} cannot be recorded: its positions are told apart otherwise in longer "
            "sequences",
            help=ELSEWHERE,
        )


@contextmanager
def waiting_refused(name: str) -> Iterator[None]:
    """Refuse operations that wait for the device, which a graph cannot record.

    Raises:
        InputError: there was one.
    """
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        raise InputError(
            f"{name} cannot be recorded: one of its layers waits for a value from the GPU, as "
            "a mixture of large experts does",
            help=ELSEWHERE,
        ) from error
    finally:
        torch.cuda.set_sync_debug_mode(before)
