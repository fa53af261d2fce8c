"""The options of `zoo run`, how they fit together, and what they ask of a model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from zoo.errors import InputError, Place, placing
from zoo.wording import counted

if TYPE_CHECKING:
    from zoo.generation import Beam, Draft, Greedy, Lookup, Sampling
    from zoo.registry import Registry
    from zoo.running.asked import Asked
    from zoo.running.runner import Runner
    from zoo.running.settings import Settings
    from zoo.running.text_model import TextModel

DRAWING = ("temperature", "top_k", "top_p", "min_p", "seed")
"""The options of drawing tokens."""


class RunOptions(NamedTuple):
    """The arguments and options of the command, under the names of its parameters."""

    model: str
    inputs: tuple[str, ...]
    images: tuple[str, ...]
    sounds: tuple[str, ...]
    labels: tuple[str, ...]
    texts: bool
    top: int | None
    chat: bool
    system: str | None
    tools: Path | None
    pairs: bool
    truncate: bool
    max_new_tokens: int | None
    beams: int | None
    n_answers: int
    sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    repetition_penalty: float | None
    eos: int | None
    start: tuple[int, ...]
    source_language: str | None
    target_language: str | None
    stop: tuple[str, ...]
    timestamps: bool
    draft: str | None
    lookup: bool
    dtype: str | None
    device: str
    cuda_graph: bool
    weights: str | None
    mask_id: int | None
    line_buffered: bool
    as_json: bool

    @property
    def drawing(self) -> dict[str, float]:
        """The options of drawing tokens that are given."""
        return {name: getattr(self, name) for name in DRAWING if getattr(self, name) is not None}

    @property
    def instructions(self) -> list[dict[str, str]]:
        """The messages that precede the first one of a chat."""
        return [] if self.system is None else [message("system", self.system)]

    def check(self) -> None:
        """Raise UsageError if options contradict each other."""
        if self.drawing and (self.sample is False or self.beams is not None):
            raise self.only_drawn()
        for one, other, told in _EXCLUSIVE:
            if getattr(self, one) and getattr(self, other):
                raise click.UsageError(told)
        for name in ("system", "tools"):
            if getattr(self, name) is not None and not self.chat:
                raise click.UsageError(f"--{name} goes with --chat")
        if self.line_buffered and self.inputs:
            raise click.UsageError("--line-buffered goes with lines of the standard input")
        n_texts = len(self.inputs)
        if self.pairs and n_texts % 2:
            raise click.UsageError(
                f"--pairs reads texts two by two, and here {'is' if n_texts == 1 else 'are'} "
                f"{counted(n_texts, 'text')}"
            )

    def only_drawn(self) -> click.UsageError:
        """The error for an option of drawing tokens where none are drawn."""
        name = next(iter(self.drawing)).replace("_", "-")
        return click.UsageError(f"--{name} goes with --sample")

    def chosen(self, settings: Settings) -> Greedy | Sampling | Beam:
        """The method of choosing tokens: as asked, and else by the settings of a model's folder.
        Raises InputError if a value is out of range."""
        changes = self.drawing
        if self.repetition_penalty is not None:
            changes["repetition_penalty"] = self.repetition_penalty
        return settings.method(changes, sample=self.sample, beams=self.beams)

    def method(self, settings: Settings) -> Greedy | Sampling | Beam:
        """As `chosen`, with the number of answers; what the settings add is told. Raises UsageError
        if an option does not fit the method."""
        from zoo.generation.methods import Greedy

        if self.drawing and not self.sample and not settings.do_sample:
            raise self.only_drawn()
        found = self.chosen(settings)
        if self.n_answers > 1:
            if isinstance(found, Greedy):
                raise click.UsageError("--answers goes with --sample or --beams")
            found = type(found)(**{**dict(found), "n_answers": self.n_answers})
        _tell_settings(settings, found)
        return found

    def draft_for(self, model: TextModel, registry: Registry) -> Draft | Lookup | None:
        """What guesses the model's tokens, if that is asked for."""
        from zoo.generation import Lookup, quantize_weights

        if self.draft is None:
            return Lookup() if self.lookup else None
        load = type(model).load
        smaller = load(self.draft, device=self.device, dtype=self.dtype, registry=registry)
        found = model.draft(smaller)
        if self.weights == "int8":
            quantize_weights(smaller.transformer)
        return found

    def asked(self, model: Runner, registry: Registry) -> Asked:
        """What is asked of the model. Raises ZooError if it does not fit it."""
        from zoo.running.asked import Asked
        from zoo.running.sound_model import SoundModel
        from zoo.running.text_model import TextModel

        method = self.method(model.settings) if generates(model) else None
        draft = self.draft_for(model, registry) if isinstance(model, TextModel) else None
        start, most_new = self.start or None, self.max_new_tokens
        if most_new is None:
            most_new = model.most_new(start) if isinstance(model, SoundModel) else 64
        return Asked(
            max_new_tokens=most_new,
            method=method,
            eos=self.eos,
            start=start,
            stop=self.stop,
            timestamps=self.timestamps,
            draft=draft,
            cuda_graph=self.cuda_graph,
            images=(self.images,) if self.images else (),
            sounds=(self.sounds,) if self.sounds else (),
            labels=self.labels or None,
            mask_id=self.mask_id,
            top=self.top,
            tools=None if self.tools is None else _tools_in(self.tools),
        )

    def prompts(self, given: Sequence[Any]) -> list[Any]:
        """Inputs as they are read: two by two, as chats of one message, or as they are."""
        if self.pairs:
            return list(zip(given[::2], given[1::2], strict=True))
        if self.chat:
            return [[*self.instructions, message("user", text)] for text in given]
        return list(given)

    def prompts_of_lines(self, lines: Sequence[str], places: Sequence[Place]) -> list[Any]:
        """The prompts of lines, of which each is one. Raises InputError if one is no pair."""
        each = chain.from_iterable(map(_sides, lines, places)) if self.pairs else lines
        return self.prompts(list(each))


_EXCLUSIVE = (
    ("sample", "beams", "--sample and --beams are two ways to choose tokens; take one"),
    ("draft", "lookup", "--draft and --lookup are two ways to guess tokens; take one"),
    ("pairs", "chat", "--pairs and --chat are two ways to read a text; take one"),
    ("texts", "labels", "--label is compared with images, and --texts reads none; take one"),
)
"""Options of which only one can be given, and what is said of both."""


def generates(model: Runner) -> bool:
    """Whether the model generates text. Raises InputError if it has no task."""
    _ = model.task  # raises if it has none
    return model.transformer.spec.model.generation is not None


def _tell_settings(settings: Settings, method: Greedy | Sampling | Beam) -> None:
    """Say on the standard error what the folder, and no option, says of how tokens are chosen."""
    if applied := settings.applied(method):
        import json

        shown = ", ".join(f"{name} = {json.dumps(value)}" for name, value in applied.items())
        click.echo(f"{settings.read_from}: {shown}", err=True)


def _sides(line: str, place: Place) -> tuple[str, str]:
    """The two texts of a line. Raises InputError if there are not two."""
    sides = line.split("\t")
    if len(sides) != 2:
        told = counted(len(sides) - 1, "tab")
        raise InputError(f"a pair is two texts with a tab between, and here is {told}", place)
    return sides[0], sides[1]


def _tools_in(path: Path) -> list[dict[str, Any]]:
    """The tools in a JSON file. Raises ZooError if there are none that are valid."""
    from zoo.json_files import json_value, read_bytes, strict_json
    from zoo.running.chat import read_tools

    with placing(Place(str(path))):
        return read_tools(json_value(path, read_bytes(path), strict_json))


def message(role: str, content: str) -> dict[str, str]:
    """A message of a chat."""
    return {"role": role, "content": content}
