"""Several sequences that continue one prompt."""

from __future__ import annotations

import torch

from zoo.errors import InputError, Problem
from zoo.generation.decoding import Decoding
from zoo.memory_limit import memory_limit


def check_memory(n: int, what: str, scores: torch.Tensor, decoding: Decoding) -> None:
    """Raise InputError if what `n` sequences for each prompt need after it is larger than the
    machine's memory: for each prompt the `scores`, (batch, vocab), their log-probabilities, and
    what is cached of the prompt. The cache of a source is left out, which beams share. `what` are
    the sequences."""
    limit, cache = memory_limit(), decoding.cache
    one = scores.nbytes + scores.numel() * max(scores.itemsize, torch.float32.itemsize)
    if decoding.memory is None:
        one += cache.n_bytes * cache.length // cache.capacity
    if limit is not None and n * one > limit:
        raise InputError(
            Problem(
                f"{n:,} {what} do not fit into memory: their scores and what is cached of the "
                f"prompt are {n * one:,} bytes, and this machine has {limit:,}",
                help=f"fewer {what} take less",
            )
        )
