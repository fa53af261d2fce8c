"""The tables of a recipe that say where its data is, one for each form of data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self, TypeVar

from pydantic import Field, model_validator

from zoo.component import contradiction
from zoo.training.tables import Count, Seed, Table

Column = Annotated[int, Field(ge=1)]
Two = Annotated[tuple[Column, Column], Field(strict=False)]
TwoNames = Annotated[tuple[str, str], Field(strict=False)]
HeldOut = Count | str
"""Held-out data: a number of source sentences of the training data, or a file of its own."""
SeedOfParts = Annotated[
    Seed | None,
    Field(
        description="The seed of what is held out by number; by default the recipe's. If it is "
        "stated, runs with other seeds learn and are measured on the same data."
    ),
]


One = TypeVar("One", int, str)


def two_of(source: One | tuple[One, One]) -> tuple[One, One | None]:
    """The columns of the one text, or of the two, that a `source` names."""
    return source if isinstance(source, tuple) else (source, None)


class DataTable(Table):
    """Base class of all tables of data. The validation data must differ from the training data. The
    test data may be the training data, to measure what a model has memorised."""

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        parts = dict(self)
        if parts["valid"] == parts["train"]:
            raise contradiction("`valid` is the training data: nothing is held out", "valid")
        numbers = [n for n in (parts["valid"], parts["test"]) if isinstance(n, int)]
        if parts["seed"] is not None and not any(numbers):
            message = "it is of what is held out, and neither `valid` nor `test` is a number"
            raise contradiction(message, "seed")
        return self


def _check_distinct(source: One | tuple[One, One], target: One, what: str) -> None:
    """Raise a contradiction if one column or field, which is `what`, is named twice."""
    first, second = two_of(source)
    if target in (first, second):
        raise contradiction(f"source and target are the same {what}", "source", "target")
    if first == second:
        raise contradiction(f"the two texts of a pair are the same {what}", "source")


class Tsv(DataTable):
    """Pairs, one on each line, in columns separated by tabs: a source and its target or, for a
    decoder, a prompt and its answer or, for a classifier, a text, or two, and the label or the
    number."""

    train: str
    """The file with the training data."""
    source: Column | Two = 1
    """The column of the source, from 1; or the two columns of a pair of texts that is classified,
    `[1, 2]`."""
    target: Column = 2
    """The column of the target, the label or the number, from 1."""
    header: bool = False
    """Whether the first line names the columns."""
    valid: HeldOut = 0
    """The data that the loss is measured on during training: a number of source sentences, which
    are taken out of the training data, or a file."""
    test: HeldOut = 0
    """The data that the result is measured on, likewise."""
    seed: SeedOfParts = None

    @model_validator(mode="after")
    def _check(self) -> Tsv:
        _check_distinct(self.source, self.target, "column")
        return self


class Files(Table):
    """Two files, in which lines of the same number form a pair."""

    source: str
    """The file with the sources."""
    target: str
    """The file with the targets."""


class Parallel(DataTable):
    """Pairs in two files, line by line."""

    train: Files
    """The two files with the training data."""
    valid: Count | Files = 0
    """The data that the loss is measured on during training: a number of source sentences, which
    are taken out of the training data, or two files."""
    test: Count | Files = 0
    """The data that the result is measured on, likewise."""
    seed: SeedOfParts = None

    @model_validator(mode="after")
    def _check(self) -> Parallel:
        for name, part in (("train", self.train), ("valid", self.valid), ("test", self.test)):
            if isinstance(part, Files) and part.source == part.target:
                raise contradiction(f"source and target of `{name}` are the same file", name)
        return self


class Text(DataTable):
    """Text for models that continue it or fill in masked tokens; each line is a text of its own,
    with its indentation and all its repetitions. Blank lines, which are empty or of white space,
    are left out, unless the text is packed."""

    train: str
    """The file with the training data."""
    valid: HeldOut = 0
    """The data that the loss is measured on during training: a number of different lines, which
    are taken out of the training data with all their repetitions, or a file."""
    test: HeldOut = 0
    """The data that the result is measured on, likewise."""
    seed: SeedOfParts = None
    packed: bool = False
    """Whether lines, also blank ones, are joined in their order, each with its begin and end, and
    cut into sequences of `max_length` tokens for training and for `valid`. A sequence may hold
    several lines, and the later ones see the earlier ones. Each line of `test` is measured by
    itself."""


class Rows(DataTable):
    """Base class of the tables of data whose examples have fields: a chat, pairs, or text."""

    train: str
    source: str | TwoNames | None = None
    """The field of the source or the prompt, with dots for nested fields (`translation.de`); or the
    two fields of a pair of texts that is classified, `["premise", "hypothesis"]`; or the field of a
    list of words; none for text."""
    target: str | None = None
    """The field of the target, of the answer, of the label or the number, or of the text; or of a
    list of labels, those of the text or one of each word."""
    messages: str | None = None
    """The field of a chat: a list of messages, each with its `role` and `content`."""
    tools: str | None = None
    """The field of the tools that may be called in a chat: a list of JSON Schemas, or its JSON as
    text. If it is not stated, `tools` in those rows that have it."""
    valid: HeldOut = 0
    """The data that the loss is measured on during training: a number of source sentences, which
    are taken out of the training data, or data of its own, named as `train` is."""
    test: HeldOut = 0
    """The data that the result is measured on, likewise."""
    seed: SeedOfParts = None
    packed: bool = False
    """For text: whether examples are joined and cut, as for the kind `text`."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.messages is not None:
            others = [key for key in ("source", "target", "packed") if getattr(self, key)]
            if others:
                what = f"a chat is a whole example, beside which there is no `{others[0]}`"
                raise contradiction(what, others[0])
        elif self.tools is not None:
            raise contradiction("tools are called in chats, and no `messages` are named", "tools")
        elif self.target is None:
            what = "no field is named: `messages` of chats, `source` and `target` of pairs"
            raise contradiction(f"{what}, or `target` of text")
        elif self.source is not None:
            if self.packed:
                what = "only text is packed, and `source` makes pairs"
                raise contradiction(what, "packed", "source")
            _check_distinct(self.source, self.target, "field")
        return self


class Jsonl(Rows):
    """Pairs, text or chats as JSON lines: each line is a table, `{"tokens": ["EU", "rejects"],
    "tags": ["B-ORG", "O"]}`."""

    train: str
    """The file with the training data."""


class Datasets(Rows):
    """Pairs, text or chats from a data set that the `datasets` package loads."""

    path: str
    """A folder of files; or a file (`.csv`, `.json`, `.jsonl`, `.parquet`, and each as `.gz`),
    whose rows are the split `train`; or a name on the Hugging Face Hub."""
    revision: str | None = None
    """The revision on the Hub; state it, so that the data stays the same."""
    train: str = "train"
    """The split with the training data."""


Data = Tsv | Parallel | Text | Datasets | Jsonl


def is_packed(data: Data) -> bool:
    """Whether the examples are joined and cut."""
    return isinstance(data, Text | Rows) and data.packed


def is_text(data: Data) -> bool:
    """Whether the examples are text without a source."""
    if isinstance(data, Rows):
        return data.source is None and data.messages is None
    return isinstance(data, Text)


def has_chats(data: Data) -> bool:
    """Whether the examples are chats."""
    return isinstance(data, Rows) and data.messages is not None


DATA: Mapping[str, type[Table]] = {
    "tsv": Tsv,
    "parallel": Parallel,
    "text": Text,
    "jsonl": Jsonl,
    "datasets": Datasets,
}
