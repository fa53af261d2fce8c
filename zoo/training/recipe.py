"""Reading of recipes, which say what is trained, on which data, and how: from TOML to tables.

Each table of a recipe is validated by a pydantic model, which its key `kind` selects if there are
several (`kind = "tsv"`). As for specs, all problems of a file are found in one pass, each with its
place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from zoo.arguments import check_path
from zoo.document import Document, given, read_document
from zoo.errors import Findings, Place, Problem, SpecError, TrainingError
from zoo.file_kinds import OF_SPECS
from zoo.training.data_tables import DATA, Data, has_chats
from zoo.training.optimizer_tables import (
    OPTIMIZERS,
    SCHEDULES,
    Muon,
    Optimizer,
    Schedule,
    WarmupStableDecay,
)
from zoo.training.tables import (
    TOKENIZERS,
    Evaluation,
    Head,
    Lora,
    Masking,
    OfModel,
    Table,
    Tokenizer,
    Training,
)
from zoo.validating.value_errors import deepest, nearest_literal, path_in, value_message
from zoo.wording import counted, did_you_mean, meant, quoted

KINDS: Mapping[str, Mapping[str, type[Table]]] = {
    "data": DATA,
    "tokenizer": TOKENIZERS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
}
"""The tables whose class is selected by their key `kind`."""
TABLES: Mapping[str, type[Table]] = {
    "training": Training,
    "masking": Masking,
    "evaluation": Evaluation,
}
"""The tables with a fixed class."""
OPTIONAL: Mapping[str, type[Table]] = {"lora": Lora}
"""Those that mean something else where they are left out than where they are empty."""


@dataclass(frozen=True)
class Recipe:
    """A validated recipe. `document` is its source, which has the place of each key."""

    head: Head
    data: Data
    tokenizer: Tokenizer
    optimizer: Optimizer
    schedule: Schedule
    training: Training
    masking: Masking
    evaluation: Evaluation
    lora: Lora | None
    document: Document

    @property
    def folder(self) -> Path:
        """The default folder of the files that the recipe names; for text and data, the working
        directory."""
        return Path(self.document.name).parent

    @property
    def text(self) -> str:
        """The recipe as TOML: as it was written, if it was."""
        if self.document.text is not None:
            return self.document.text
        import tomlkit  # here: a recipe, as a rule, is a file

        return tomlkit.dumps(_stated(self.document.data))

    def place(self, *path: str | int) -> Place:
        """The place of the value of a key, such as `place("optimizer", "lr")`."""
        return self.document.place(path, value=True)

    def error(self, message: str, *path: str | int, help: str | None = None) -> TrainingError:
        """The error for the value of a key, which does not fit the model, the data or the run."""
        return TrainingError(message, self.place(*path), help)

    def values(self) -> dict[str, Any]:
        """All values by their key paths, such as `optimizer.lr`, with defaults."""
        tables: dict[str, Any] = self.head.model_dump(mode="json", exclude={"format"})
        for name in KINDS:
            kind = {"kind": self.document.data[name]["kind"]}
            tables[name] = kind | getattr(self, name).model_dump(mode="json")
        for name in (*TABLES, *OPTIONAL):
            table: Table | None = getattr(self, name)
            if table is not None:
                tables[name] = table.model_dump(mode="json")
        return dict(_values(tables, ""))

    def notes(self) -> Iterator[str]:
        """Notes on effects of the keys that their reader may not expect."""
        training, warmup = self.training, self.schedule.warmup
        n_checkpoints = math.ceil(training.steps / training.checkpoint_every)
        if training.average > n_checkpoints:
            told = counted(n_checkpoints, "checkpoint")
            yield f"average = {training.average}: the run has {told}, and all count"
        if "valid_every" in training.model_fields_set and self.data.valid == 0:
            yield f"valid_every = {training.valid_every:,}: no data is held out (`valid`)"
        if warmup > training.steps:
            yield (
                f"warmup = {warmup:,}: the learning rate does not reach its peak in "
                f"{training.steps:,} steps"
            )


def _values(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _values(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _stated(table: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data without the keys that are None, which TOML cannot state."""
    return {
        key: _stated(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }


def read_recipe(source: str | Path | Mapping[str, Any]) -> Recipe:
    """Read and validate a recipe. Imports no torch.

    Args:
        source: a TOML file, TOML text (a string of more than one line), or plain data. The files
            that text and data name are relative to the working directory.

    Raises:
        SpecError: every problem found, each with its place.
    """
    expected = "a recipe is the path of a TOML file, TOML text or a dict"
    return recipe_of(given(source) or read_document(check_path(source, expected)))


def recipe_of(document: Document) -> Recipe:
    """Validate the recipe in a document. Raises as `read_recipe`."""
    for key in OF_SPECS:
        if key in document.data:
            hint = "a recipe names it as its `model`; `zoo build` makes it without training"
            message = "this is the spec of a model, and no recipe"
            raise SpecError(message, document.place((key,)), hint)
    reader = _Reader(document)
    tables = {
        **{name: reader.of_kind(name, kinds) for name, kinds in KINDS.items()},
        **{name: reader.table(name, cls) for name, cls in TABLES.items()},
        **{
            name: reader.table(name, cls) if name in document.data else None
            for name, cls in OPTIONAL.items()
        },
    }
    rest = {key: value for key, value in document.data.items() if key not in tables}
    head = reader.make(Head, rest, (), known=(*Head.model_fields, *tables))
    reader.findings.add(*_contradictions(document, tables))
    if reader.findings:
        raise reader.findings.error()
    return Recipe(head=head, document=document, **tables)


def _home(name: str, path: tuple[str, ...]) -> str | None:
    """Return a help text for a key that another table has than the one at `path`. A table that can
    be left out is none: its `dropout` is more often meant for the model."""
    if path and meant(name) in Head.model_fields:
        return f"`{meant(name)}` stands above all tables"
    of_tables = {
        **{table: tuple(kinds.values()) for table, kinds in KINDS.items()},
        **{table: (cls,) for table, cls in TABLES.items()},
    }
    for table, classes in of_tables.items():
        if (table,) != path and any(meant(name) in cls.model_fields for cls in classes):
            return f"`{meant(name)}` is a key of `[{table}]`"
    return None


def _contradictions(document: Document, tables: Mapping[str, Any]) -> Iterator[Problem]:
    """What tables state that does not fit others. A table that is wrong itself is None."""
    data, training, schedule = (tables[name] for name in ("data", "training", "schedule"))
    if data is not None and training is not None and training.keep == "best" and data.valid == 0:
        message = '`keep = "best"` compares losses on held-out data, and nothing is held out'
        place = document.place(("training", "keep"), value=True)
        yield Problem(message, place, "state `valid` in `[data]`")
    if isinstance(schedule, WarmupStableDecay) and training is not None:
        left = training.steps - schedule.warmup
        if schedule.decay > left:
            message = f"`decay` = {schedule.decay:,} is more than the {max(left, 0):,} steps"
            place = document.place(("schedule", "decay"), value=True)
            hint = "lower `decay` or `warmup`, or state more `steps` in `[training]`"
            yield Problem(f"{message} after the warm-up", place, hint)
    tokenizer = tables["tokenizer"]
    if data is not None and has_chats(data) and not isinstance(tokenizer, OfModel | None):
        message = "chats are written by the chat template of a saved model"
        place = document.place(("tokenizer", "kind"), value=True)
        hint = 'state `kind = "of_model"`, and a saved model with such a template as `model`'
        yield Problem(message, place, hint)
    if tables["lora"] is not None:
        yield from _not_with_lora(document, training, tables["optimizer"])


def _not_with_lora(
    document: Document, training: Training | None, optimizer: Optimizer | None
) -> Iterator[Problem]:
    """What a recipe with `[lora]` cannot state."""
    if training is not None and training.frozen:
        message = "with `[lora]`, all weights that it does not name are frozen"
        yield Problem(message, document.place(("training", "frozen")), "leave out `frozen`")
    if training is not None and training.average > 1:
        message = "the mean of several products B A is no product of this rank"
        place = document.place(("training", "average"), value=True)
        yield Problem(message, place, "leave out `average`, or `[lora]`")
    if training is not None and training.shard:
        message = "with `[lora]`, weights are not sharded: most of them have no gradients"
        place = document.place(("training", "shard"), value=True)
        yield Problem(message, place, "leave out `shard`: each process has all weights")
    if isinstance(optimizer, Muon):
        message = "Muon is for matrices of layers, and with `[lora]` none of them is trained"
        place = document.place(("optimizer", "kind"), value=True)
        yield Problem(message, place, 'A and B are trained by `kind = "adamw"`')


class _Reader:
    """Makes the tables of one recipe and collects the problems."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.findings = Findings()
        self.findings.add(*document.problems)

    def of_kind(self, name: str, kinds: Mapping[str, type[Table]]) -> Any:
        """Make the table `name`, whose class is selected by its key `kind`."""
        value = self.document.data.get(name)
        if not isinstance(value, dict):
            first, *others = kinds
            instead = f" (or {', '.join(map(quoted, others))})"
            self.not_a_table(name, value, f'kind = "{first}"', instead)
            return None
        kind = value.get("kind")
        if not isinstance(kind, str) or kind not in kinds:
            what = "the key `kind` is missing" if kind is None else f"unknown kind {quoted(kind)}"
            place = self.document.place((name, "kind"), value=True)
            self.findings.add(Problem(what, place, did_you_mean(str(kind or ""), kinds)))
            return None
        rest = {key: inner for key, inner in value.items() if key != "kind"}
        return self.make(kinds[kind], rest, (name,))

    def table(self, name: str, cls: type[Table]) -> Any:
        value = self.document.data.get(name, {})
        if not isinstance(value, dict):
            self.not_a_table(name, value, "...")
            return None
        return self.make(cls, value, (name,))

    def not_a_table(self, name: str, value: object, line: str, instead: str = "") -> None:
        what = "is missing" if value is None else "must be a table"
        place, help = self.document.place((name,)), f"add `[{name}]` and `{line}`{instead}"
        self.findings.add(Problem(f"`[{name}]` {what}", place, help))

    def make(
        self,
        cls: type[Table],
        value: dict[str, Any],
        path: tuple[str, ...],
        known: tuple[str, ...] = (),
    ) -> Any:
        """Make one table; return None and note the problems if it is invalid."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            fields: dict[str, list[ErrorDetails]] = {}
            for details in error.errors(include_url=False):
                fields.setdefault(str(details["loc"][:1]), []).append(details)
            for same in fields.values():
                self.note(deepest(value, same), value, path, known or tuple(cls.model_fields))
            return None

    def note(
        self,
        same: Sequence[ErrorDetails],
        value: dict[str, Any],
        path: tuple[str, ...],
        known: tuple[str, ...],
    ) -> None:
        """Note the errors of one key, or of the table as a whole."""
        details = same[0]
        inner = path_in(value, details["loc"])
        where = (*path, *inner)
        if not details["loc"]:  # keys that contradict each other
            keys = [key for key in details.get("ctx", {}).get("keys", ()) if key in value]
            place = self.document.place((*path, *keys[:1]), value=bool(keys))
            self.findings.add(Problem(value_message(details), place))
        elif details["type"] == "missing" and isinstance(details["loc"][-1], int):
            place = self.document.place(where, value=True)
            message = f"`{details['loc'][0]}` must have more items than {details['loc'][-1]}"
            self.findings.add(Problem(message, place))
        elif details["type"] == "missing":
            name, place = details["loc"][-1], self.document.place(where)
            absent = [f"`[{table}]` and " for table in path if table not in self.document.data]
            help = f"add {''.join(absent)}`{name} = ...`"
            self.findings.add(Problem(f"the key `{name}` is missing", place, help))
        elif details["type"] == "extra_forbidden":
            name, place = str(inner[-1]), self.document.place(where)
            hint = (_home(name, path) or did_you_mean(name, known)) if len(inner) == 1 else None
            self.findings.add(Problem(f"unknown key {quoted(name)}", place, hint))
        else:
            place = self.document.place(where, value=True)
            message = f"`{details['loc'][0]}` {value_message(*same)}"
            self.findings.add_once(Problem(message, place, nearest_literal(same)))
