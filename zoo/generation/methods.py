"""How the next token is chosen, and what comes out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from zoo.errors import InputError, Problem, did_you_mean, quoted
from zoo.toml.value_errors import nearest_literal, value_message

Share = Annotated[float, Field(gt=0.0, le=1.0)]


class Method(BaseModel):
    """What all methods have in common.

    Raises:
        InputError: a value is out of range, or a name is unknown; everything that is wrong is told.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    repetition_penalty: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    """What the logit of a token that the sequence holds already is divided by if it is positive and
    multiplied with if it is not (Keskar et al. 2019, arXiv:1909.05858); above 1 it repeats less.
    Far from 1 the results could be infinite."""

    @model_validator(mode="wrap")
    @classmethod
    def _in_the_zoos_words(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(values)
        except ValidationError as error:
            problems: list[Problem] = []
            for details in error.errors(include_url=False):
                name = str(details["loc"][0])
                if details["type"] == "extra_forbidden":
                    message = f"zoo.{cls.__name__} has no {quoted(name)}"
                    problems.append(Problem(message, help=did_you_mean(name, cls.model_fields)))
                else:
                    message = f"`{name}` {value_message(details)}"
                    problems.append(Problem(message, help=nearest_literal([details])))
            raise InputError(problems) from None


class Greedy(Method):
    """The most probable token."""


class Sampling(Method):
    """A random token from the model's distribution, with its unlikely end cut off. The steps are in
    the order of the fields, each on what the one before has left."""

    temperature: Annotated[float, Field(ge=1e-6, allow_inf_nan=False)] = 1.0
    """What logits are divided by: below 1 likely tokens become likelier. By less than 1e-6 the
    quotients could be infinite; `Greedy` is the limit."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """Only so many tokens, the most probable (Fan et al. 2018, arXiv:1805.04833)."""
    top_p: Share = 1.0
    """Only the fewest most probable tokens whose probabilities sum to this at least (Holtzman et
    al. 2019, arXiv:1904.09751)."""
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Only tokens whose probability is at least this share of the greatest (Nguyen et al. 2024,
    arXiv:2407.01082)."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of the random numbers, which are drawn for a batch as a whole: the same seed gives the same
    tokens for the same batch on the same machine."""


class Beam(Method):
    """The best of several sequences that are extended side by side (beam search)."""

    size: Annotated[int, Field(ge=1)] = 4
    """How many sequences are extended at a time."""
    length_penalty: Annotated[float, Field(ge=-16.0, le=16.0)] = 1.0
    """alpha: a sequence of n tokens, its end counted, is judged by log p / n**alpha. At 0 by its
    probability alone, which favours short ones. Far from 0 the power could be infinite, or 0."""
    length_formula: Literal["power", "gnmt"] = "power"
    """What log p is divided by: n**alpha, or ((5 + n) / 6)**alpha (Wu et al. 2016,
    arXiv:1609.08144; alpha = 0.6 in Vaswani et al. 2017)."""

    def judged(self, log_probability: float, n_tokens: int) -> float:
        """The score of a sequence of so many tokens."""
        length = n_tokens if self.length_formula == "power" else (5 + n_tokens) / 6
        return log_probability / float(length**self.length_penalty)


AnyMethod = TypeVar("AnyMethod", bound=Method)


def for_batch(method: AnyMethod, number: int) -> AnyMethod:
    """The method for one of several batches, the first being 0: each draws other numbers."""
    if number == 0 or not isinstance(method, Sampling):
        return method
    digest = hashlib.sha256(f"{method.seed}/{number}".encode()).digest()
    return method.model_copy(update={"seed": int.from_bytes(digest[:8], "little") >> 1})


@dataclass(frozen=True, slots=True)
class Generated:
    """One generated sequence.

    Args:
        ids: the new tokens, without the prompt; what ended the sequence is the last of them.
        score: the sum of the tokens' log-probabilities under the model; of a beam's, after its
            repetition penalty, and judged by its length.
        ended: by a token of `eos`, by a sequence of `stop`, or at `max_new_tokens`.
    """

    ids: tuple[int, ...]
    score: float
    ended: Literal["eos", "stop", "length"]
