"""What is asked of a generation, whatever its model and its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zoo.arguments import check_count
from zoo.errors import InputError
from zoo.generation.ends import Ends
from zoo.generation.methods import Beam, Greedy, Method, Sampling
from zoo.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens are guessed by a smaller model of the same kind and with the same vocabulary
    (Leviathan et al. 2022, arXiv:2211.17192).

    Args:
        model: the smaller model.
        n_tokens: how many tokens it guesses at a time.

    Raises:
        InputError: `n_tokens` is not an integer of at least 1.
    """

    model: Transformer
    n_tokens: int = 4

    def __post_init__(self) -> None:
        check_count("n_tokens", self.n_tokens)


LONGEST = 32
"""The most tokens that are looked for: all rows of so many are kept, and more tell no more."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Tokens are guessed to be those that followed the last time that the sequence, its prompt
    included, held its latest tokens (Saxena 2023, "Prompt Lookup Decoding"). It helps where text is
    copied from the prompt, as in summaries, corrections and code.

    Args:
        n_tokens: how many tokens are guessed at a time.
        longest: how many of the latest tokens are looked for at most, up to 32. Fewer are looked
            for where so many are not found.

    Raises:
        InputError: a number is not an integer of at least 1, or `longest` is above 32.
    """

    n_tokens: int = 8
    longest: int = 3

    def __post_init__(self) -> None:
        check_count("n_tokens", self.n_tokens)
        if check_count("longest", self.longest) > LONGEST:
            raise InputError(f"`longest` is at most {LONGEST}, not {self.longest}")


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """The arguments of `generate` that are not its inputs, of which none contradicts another.

    Args:
        method: how tokens are chosen.
        ends: when a sequence ends.
        start: with an encoder, the ids that each target begins with.
        draft: what guesses tokens, if anything does.
        cache: whether to use a key-value cache.
        cuda_graph: whether the step from one token to the next is recorded.

    Raises:
        InputError: two of them contradict each other, or the draft is none.
    """

    method: Greedy | Sampling | Beam
    ends: Ends
    start: int | Sequence[int] | None = None
    draft: Draft | Lookup | None = None
    cache: bool = True
    cuda_graph: bool = False

    def __post_init__(self) -> None:
        if self.cuda_graph and not self.cache:
            raise InputError("a step that is recorded has a cache: leave `cache` True")
        if self.draft is None:
            return
        if not isinstance(self.draft, Draft | Lookup):
            raise InputError(
                f"`draft` is a zoo.Draft(...) or zoo.Lookup(...), not {self.draft!r:.80}"
            )
        if isinstance(self.method, Beam):
            raise InputError(
                "guessed tokens are for greedy search and sampling, not for several beams",
                help="one beam is greedy search: `--beams 1`, or in Python `zoo.Greedy()`",
            )
        if not self.cache:
            raise InputError("guessed tokens are checked with a cache: leave `cache` True")
        if self.cuda_graph:
            raise InputError(
                "guessed tokens are checked several at a time, and a CUDA graph is of one: `draft` "
                "or `cuda_graph`"
            )


def check_method(method: object, kinds: tuple[type[Method], ...]) -> None:
    """Raise InputError if `method` is of none of these kinds."""
    if not isinstance(method, kinds):
        known = ", ".join(f"zoo.{kind.__name__}(...)" for kind in kinds)
        raise InputError(f"`method` is one of {known}, not {method!r:.80}")
