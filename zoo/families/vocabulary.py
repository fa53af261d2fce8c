"""The translation of words in configurations to names of the zoo's components: data beside the
family files, in `vocabulary.toml`.

The core knows no component by name. The file says, for example, that `gelu_new` is the activation
`gelu_tanh`, and that a `rope_type` of `yarn` is the position kind `rotary_yarn`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from zoo.document import Document, read_document
from zoo.errors import Problem, SpecError
from zoo.families.expression import ExpressionError
from zoo.validating.value_errors import value_message
from zoo.wording import dotted, quoted

FILE_NAME = "vocabulary.toml"
_KEYS = {"missing": "is missing", "extra_forbidden": "is an unknown key"}
"""The messages for keys, by the type of pydantic's error."""


class RopeKind(BaseModel):
    """A kind of rotary position: its name, and the setting for each of its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    fields: Mapping[str, str] = Field(default_factory=dict[str, str])


class SentenceWords(BaseModel):
    """The zoo's names for the modules of sentence-transformers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    """The kind of the head that pools, and perhaps projects and normalises."""
    pooling: Mapping[str, str]
    """The head's name of each way of pooling."""
    activations: Mapping[str, str]
    """The head's name of each activation of a dense layer."""


class PartWords(BaseModel):
    """How one of several models in a checkpoint, such as the language model, is told from the
    others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: str
    """The key of its configuration."""
    architecture: str
    """The end of the name of the class of `transformers` that it is alone."""
    names: Mapping[str, str]
    """How the names of its tensors begin, and how in this class; the first that fits counts."""
    others: frozenset[str]
    """The first words of the names of the tensors of others, perhaps with `model.` in front."""

    def own(self, name: str) -> str:
        """The name of a tensor or module in the class of the part alone."""
        for old, new in self.names.items():
            if name.startswith(old):
                return f"{new}{name.removeprefix(old)}"
        return name

    def other(self, name: str) -> str | None:
        """How the name of a tensor begins that belongs to another part; None for others."""
        base = "model." if name.startswith("model.") else ""
        word = name.removeprefix(base).partition(".")[0]
        return f"{base}{word}" if word in self.others else None


class Vocabulary(BaseModel):
    """The words of configurations."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    activations: Mapping[str, str] = Field(default_factory=dict[str, str])
    """The zoo's name of each activation."""
    rope: Mapping[str, RopeKind] = Field(default_factory=dict[str, RopeKind])
    """The kind of position for each `rope_type`."""
    sentence: SentenceWords | None = None
    """The words of sentence-transformers."""
    parts: Mapping[str, PartWords] = Field(default_factory=dict[str, PartWords])
    """The parts of checkpoints of several models that are models alone."""
    inert: frozenset[str] = frozenset()
    """Keys of configurations that do not affect the results of a model in evaluation."""

    def activation(self, name: Any) -> str:
        """Return the zoo's name of an activation. Raises `ExpressionError` if it is not known."""
        if name not in self.activations:
            raise ExpressionError(f"the activation {quoted(name)} is not known")
        return self.activations[name]


def read_vocabulary(folder: Path) -> Vocabulary:
    """Read the vocabulary of a folder of families. Raises `SpecError` if it is malformed."""
    document = read_document(folder / FILE_NAME)
    if document.problems:
        raise SpecError(document.problems)
    try:
        return Vocabulary.model_validate(document.data)
    except ValidationError as error:
        raise SpecError(_problem(document, wrong) for wrong in error.errors()) from None


def _problem(document: Document, wrong: ErrorDetails) -> Problem:
    key, kind = quoted(dotted(wrong["loc"])), wrong["type"]
    place = document.place(wrong["loc"], value=kind != "extra_forbidden")
    return Problem(f"{key} {_KEYS.get(kind) or value_message(wrong)}", place)
