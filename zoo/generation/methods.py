"""The methods of choosing tokens, and the result of a generation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from zoo.document import KeyPath
from zoo.errors import InputError, Problem
from zoo.validating.value_errors import nearest_literal, path_in, value_message
from zoo.wording import did_you_mean, quoted

Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Id = Annotated[int, Field(ge=0)]
Tokens = Annotated[tuple[Id, ...], Field(strict=False)]
Word = Annotated[tuple[Id, ...], Field(strict=False, min_length=1)]


class Method(BaseModel):
    """Base class of the methods.

    Raises:
        InputError: a value is out of range, or a name is unknown; the error lists all problems.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    repetition_penalty: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)] = 1.0
    """Penalty on tokens that the sequence already holds: their logits are divided by it if positive
    and multiplied by it otherwise (Keskar et al. 2019, arXiv:1909.05858). Values above 1 reduce
    repetition. The range is bounded because far from 1 the results could be infinite."""
    no_repeat_ngram_size: Annotated[int, Field(ge=0)] = 0
    """No sequence of this number of tokens occurs twice, the prompt included (Paulus et al. 2017,
    arXiv:1705.04304); 0 for no limit."""
    encoder_no_repeat_ngram_size: Annotated[int, Field(ge=0)] = 0
    """No sequence of this number of tokens of the source, or for a decoder of the prompt, is
    generated (Roller et al. 2020, arXiv:2004.13637); 0 for no limit."""
    bad_words: Annotated[tuple[Word, ...], Field(strict=False)] = ()
    """Sequences of ids that are not generated. An id of `eos` alone is not forbidden by them."""
    suppress_tokens: Tokens = ()
    """Ids that are not generated, those of `eos` included."""
    begin_suppress_tokens: Tokens = ()
    """Ids that are not generated as the first new token, or after `first_id`."""
    min_new_tokens: Annotated[int, Field(ge=0)] = 0
    """No id of `eos` comes before this number of new tokens."""
    first_id: Id | None = None
    """The first new token, whatever the model scores; many translators begin a target with the id
    of its language."""
    last_id: Id | None = None
    """The token that follows when only one of `max_new_tokens` is left; mostly an id of `eos`."""
    timestamp_begin: Id | None = None
    """The id of the time 0; those after it are later times, in even steps. With it, a text has a
    time where each of its parts begins and one where it ends, as Whisper writes them (Radford et
    al. 2022, arXiv:2212.04356): it begins with one, none is earlier than one before, two follow
    each other between parts, and a time is taken where all together are likelier than any other
    token. The id before it, which says that there are no times, is not generated, and ids below
    the least of `eos` are those of words."""
    max_initial_timestamp: Annotated[int, Field(ge=0)] | None = None
    """The latest time that a text begins with, in steps."""
    n_answers: Annotated[int, Field(ge=1, le=10_000)] = 1
    """The number of sequences that are generated for a prompt: drawn one by one, or the best of a
    beam search, of which there are fewer where no more can be generated."""

    @model_validator(mode="wrap")
    @classmethod
    def _in_the_zoos_words(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(values)
        except ValidationError as error:
            problems: list[Problem] = []
            by_path: dict[KeyPath, list[ErrorDetails]] = {}
            for details in error.errors(include_url=False):
                by_path.setdefault(path_in(values, details["loc"]), []).append(details)
            for path, same in by_path.items():
                name = path[0] if path else f"zoo.{cls.__name__}"
                if same[0]["type"] == "extra_forbidden":
                    message = f"zoo.{cls.__name__} has no {quoted(name)}"
                    problems.append(
                        Problem(message, help=did_you_mean(str(name), cls.model_fields))
                    )
                else:
                    message = f"`{name}` {value_message(*same)}"
                    problems.append(Problem(message, help=nearest_literal(same)))
            raise InputError(problems) from None

    @property
    def n_forced(self) -> int:
        """How many tokens at the beginning are forced: 1 with a `first_id`, else 0."""
        return 0 if self.first_id is None else 1

    def constrains(self, n_new: int, max_new_tokens: int) -> bool:
        """Whether it may forbid or force the token that follows `n_new` new ones, of at most
        `max_new_tokens`."""
        return bool(
            self.no_repeat_ngram_size
            or self.encoder_no_repeat_ngram_size
            or self.bad_words
            or self.suppress_tokens
            or (self.begin_suppress_tokens and n_new == self.n_forced)
            or n_new < self.min_new_tokens
            or (self.first_id is not None and n_new == 0)
            or (self.last_id is not None and n_new == max_new_tokens - 1)
            or self.timestamp_begin is not None
        )

    def check(self, vocab: int) -> None:
        """Raise InputError if an id is outside the vocabulary."""
        names = ("first_id", "last_id", "timestamp_begin")
        stated = [(name, getattr(self, name)) for name in names]
        stated += [("bad_words", id_) for word in self.bad_words for id_ in word]
        stated += [("suppress_tokens", id_) for id_ in self.suppress_tokens]
        stated += [("begin_suppress_tokens", id_) for id_ in self.begin_suppress_tokens]
        for name, id_ in stated:
            if id_ is not None and id_ >= vocab:
                raise outside_vocabulary(f"`{name}`", id_, vocab)


def outside_vocabulary(what: str, id_: int, vocab: int) -> InputError:
    """The error for an id that the model does not have; `what` holds it."""
    return InputError(
        f"{what} holds the id {id_}, which is outside the vocabulary",
        help=f"the model has {vocab:,} tokens, with ids from 0 to {vocab - 1:,}",
    )


class Greedy(Method):
    """Choose the most probable token in each step."""

    n_answers: Literal[1] = 1
    """These tokens make a single sequence."""


class Sampling(Method):
    """Draw each token at random from the model's distribution, without its unlikely tail. The
    fields are applied in their order, each to the result of the previous one."""

    temperature: Annotated[float, Field(ge=1e-6, allow_inf_nan=False)] = 1.0
    """The divisor of the logits: below 1, likely tokens become likelier. Below 1e-6 the quotients
    could be infinite; `Greedy` is the limit."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """Keep only this number of the most probable tokens (Fan et al. 2018, arXiv:1805.04833)."""
    top_p: Share = 1.0
    """Keep only the smallest set of most probable tokens whose probabilities sum to at least this,
    and the most probable one in any case (Holtzman et al. 2019, arXiv:1904.09751)."""
    min_p: Share = 0.0
    """Keep only tokens whose probability is at least this fraction of the largest one (Nguyen et
    al. 2024, arXiv:2407.01082)."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the random numbers, which are drawn for a batch as a whole: the same seed gives the
    same tokens for the same batch on the same machine."""


class Beam(Method):
    """The best of several sequences that are extended side by side (beam search)."""

    size: Annotated[int, Field(ge=1, le=10_000)] = 4
    """The number of sequences that are extended at a time. It is bounded because a file may state
    it, and of more the search would not end."""
    length_penalty: Annotated[float, Field(ge=-16.0, le=16.0, allow_inf_nan=False)] = 1.0
    """alpha: the score of a sequence of n tokens, its end included, is log p / n**alpha. At 0 the
    score is the log-probability alone, which favours short sequences. The range is bounded because
    far from 0 the power could be infinite, or 0."""
    length_formula: Literal["power", "gnmt"] = "power"
    """The divisor of log p: n**alpha for `power`, ((5 + n) / 6)**alpha for `gnmt` (Wu et al. 2016,
    arXiv:1609.08144; alpha = 0.6 in Vaswani et al. 2017)."""
    early_stopping: bool | Literal["never"] = False
    """When a search ends after `size` sequences have ended: at once; or, with `False`, when the
    best one that runs on scores no better as it is; or, with `"never"`, when it cannot score better
    any more, at the greatest length. With a `length_penalty` of 0 or less the last two are one."""
    renormalize: bool = False
    """Whether the probabilities of the tokens that are left sum to 1 again, after the repetition
    penalty and what is forbidden or forced."""

    @model_validator(mode="after")
    def _check_answers(self) -> Self:
        if self.n_answers > self.size:
            raise InputError(
                f"`n_answers` is at most the number of beams, {self.size}, not {self.n_answers}"
            )
        return self

    def score(self, log_probability: float, n_tokens: int) -> float:
        """The length-normalised score of a sequence of `n_tokens` tokens."""
        length = n_tokens if self.length_formula == "power" else (5 + n_tokens) / 6
        return log_probability / float(length**self.length_penalty)


AnyMethod = TypeVar("AnyMethod", bound=Method)


def for_batch(method: AnyMethod, number: int) -> AnyMethod:
    """The method for batch `number`, counted from 0: sampling gets a different seed in each."""
    if number == 0 or not isinstance(method, Sampling):
        return method
    digest = hashlib.sha256(f"{method.seed}/{number}".encode()).digest()
    return method.model_copy(update={"seed": int.from_bytes(digest[:8], "little") >> 1})


@dataclass(frozen=True, slots=True)
class Generated:
    """One generated sequence.

    Args:
        ids: the new tokens, without the prompt; they include the token or stop sequence that ended
            the sequence.
        score: the sum of the tokens' log-probabilities under the model; for beam search, after the
            repetition penalty and what is forbidden or forced, and normalised by length.
        ended: why the sequence ended: a token of `eos`, a sequence of `stop`, or `max_new_tokens`.
        others: further sequences for the same prompt, if the method asks for `n_answers`; of a beam
            search the next best ones, best first.
    """

    ids: tuple[int, ...]
    score: float
    ended: Literal["eos", "stop", "length"]
    others: tuple[Generated, ...] = ()


def with_others(found: Sequence[Generated]) -> Generated:
    """The first of several sequences for one prompt, which holds the others."""
    first, *others = found
    return replace(first, others=tuple(others))
