"""The command line: `zoo run`."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from zoo.cli import standard_input
from zoo.cli.options import (
    device_option,
    dtype_choice,
    json_option,
    model_type,
    weights_option,
)
from zoo.cli.output import print_report
from zoo.errors import InputError, Place, Problem
from zoo.wording import counted, for_terminal

if TYPE_CHECKING:
    from zoo.generation import Beam, Draft, Greedy, Lookup, Sampling
    from zoo.registry import Registry
    from zoo.running.asked import Asked
    from zoo.running.chat import Chat
    from zoo.running.image_model import ImageModel
    from zoo.running.settings import Settings
    from zoo.running.sound_model import SoundModel
    from zoo.running.text_model import TextModel

_DRAWING = ("temperature", "top_k", "top_p", "min_p", "seed")
_LANGUAGES = ("source_language", "target_language")
_GENERATING = (
    "chat",
    "system",
    "max_new_tokens",
    "beams",
    "n_answers",
    "sample",
    *_DRAWING,
    "repetition_penalty",
    "eos",
    "start",
    "stop",
    *_LANGUAGES,
    "draft",
    "lookup",
    "cuda_graph",
)
"""The options of models that generate text, and among them those of drawing tokens and of
translating."""


@click.command()
@click.argument("model", type=model_type)
@click.argument("inputs", nargs=-1, metavar="[TEXT|IMAGE|SOUND]...")
@click.option(
    "--label",
    "labels",
    metavar="TEXT",
    multiple=True,
    help="With a model such as CLIP: a text that may describe an image. State it for each.",
)
@click.option(
    "--texts",
    is_flag=True,
    help="With a model such as CLIP: read TEXTs, not IMAGEs, and make their vectors.",
)
@click.option(
    "--top",
    type=click.IntRange(1),
    metavar="N",
    help="Tell the N likeliest classes, labels, masked tokens or answers.  [default: 5; all labels;"
    " 1 answer]",
)
@click.option(
    "--chat",
    is_flag=True,
    help="Answer each TEXT as the first message of a chat, by the model's chat template.",
)
@click.option(
    "--system", metavar="TEXT", help="With --chat: instructions that precede the message."
)
@click.option(
    "--pairs",
    is_flag=True,
    help="Read the TEXTs two by two, as pairs; or of each line the two sides of a tab.",
)
@click.option(
    "-n",
    "--max-new-tokens",
    type=click.IntRange(1),
    help="Generate at most so many tokens.  [default: 64; of a sound, as many as fit]",
)
@click.option(
    "--beams",
    type=click.IntRange(1, 10_000),
    help="Use beam search with so many beams.  [default: as the folder says]",
)
@click.option(
    "--answers",
    "n_answers",
    type=click.IntRange(1, 10_000),
    default=1,
    metavar="N",
    help="Draw N texts with --sample, or tell the N best with --beams.  [default: 1]",
)
@click.option(
    "--sample/--no-sample",
    default=None,
    help="Draw tokens at random, or take the likeliest.  [default: as the folder says]",
)
@click.option("--temperature", type=float, help="With --sample: below 1 favours likely tokens.")
@click.option("--top-k", type=int, help="With --sample: only so many of the likeliest tokens.")
@click.option(
    "--top-p", type=float, help="With --sample: only the likeliest, up to this probability in sum."
)
@click.option(
    "--min-p",
    type=float,
    help="With --sample: only tokens with at least this share of the highest probability.",
)
@click.option("--seed", type=int, help="With --sample: the seed.  [default: 0]")
@click.option(
    "--repetition-penalty",
    type=float,
    help="Above 1, tokens that have occurred become less likely.  [default: as the folder says]",
)
@click.option("--eos", type=int, help="The id that ends text.  [default: that of the folder]")
@click.option(
    "--start",
    type=int,
    multiple=True,
    help="The id that begins a target; stated again, the one after it, such as that of a language."
    "  [default: that of the folder]",
)
@click.option(
    "--source-language",
    metavar="LANG",
    help="With a translator such as NLLB: the language of the texts, as its tokenizer names it."
    " With Whisper: that of the sounds, such as `de`.  [default: that of the folder, or detected]",
)
@click.option(
    "--target-language",
    metavar="LANG",
    help="With a translator such as NLLB: the language to translate into. With Whisper: `en`, to"
    " translate into English.",
)
@click.option(
    "--stop",
    metavar="TEXT",
    multiple=True,
    help="End a generated text before this one. State it for each.",
)
@click.option(
    "--draft",
    type=model_type,
    metavar="MODEL",
    help="Let this smaller model, of the same tokenizer, guess tokens: the text stays the same.",
)
@click.option(
    "--lookup", is_flag=True, help="Guess tokens from the text so far: for text that is copied."
)
@click.option(
    "--dtype", type=dtype_choice, help="Compute in this dtype.  [default: that of the weights]"
)
@device_option
@click.option(
    "--cuda-graph",
    is_flag=True,
    help="On a GPU, record the step from token to token once: faster, the same text.",
)
@weights_option
@click.option("--mask-id", type=int, help="The id of a masked token, if texts are ids.")
@click.option(
    "--line-buffered",
    is_flag=True,
    help="Answer each line of the standard input when it comes, for another program that waits for "
    "the answer.  [default: 256 lines at once]",
)
@json_option
@click.pass_context
def run(context: click.Context, /, **given: Any) -> None:
    """Translate, continue, embed or classify texts, images or sounds.

    MODEL, a folder or a model's name, does with each TEXT, or each IMAGE or SOUND, a file, what it
    was made for: it may also fill in masked tokens, write captions, write down what is said, or
    with --pairs answer questions by texts. Without one, each line of the standard input is a text,
    or the path of a file; if it is `-`, the whole standard input is one. If the folder has no
    tokenizer, texts are ids: `5 9 33`. With --chat, the lines that you type on a terminal are the
    messages of one chat. With --label, a model that compares images with texts says how likely each
    describes the image; with --texts, it reads texts.

    With --json, a single TEXT, IMAGE or SOUND gives one indented document, and several give a line
    of JSON each.
    """
    options = _Options(**given)
    options.check()

    from zoo.generation import quantize_weights
    from zoo.running.image_model import ImageModel
    from zoo.running.runner import load_runner
    from zoo.running.settings import Settings

    with _options_named(context):
        options.chosen(Settings(do_sample=bool(options.drawing)))  # the options fit
        found = load_runner(
            options.model,
            of_texts=options.texts,
            device=options.device,
            dtype=options.dtype,
            registry=context.obj(),
        )
        if options.weights == "int8":
            quantize_weights(found.transformer)
        gc.enable()  # the standard input may have any number of lines
        _refuse_unfitting(context, found)
        source, target = options.source_language, options.target_language
        if not isinstance(found, ImageModel) and (source or target):
            found = found.translating(source=source, target=target)
        _answer_inputs(found, options.asked(found, context.obj()), options)


class _Options(NamedTuple):
    """The arguments and options of the command, under the names of its parameters."""

    model: str
    inputs: tuple[str, ...]
    labels: tuple[str, ...]
    texts: bool
    top: int | None
    chat: bool
    system: str | None
    pairs: bool
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
        return {name: getattr(self, name) for name in _DRAWING if getattr(self, name) is not None}

    @property
    def instructions(self) -> list[dict[str, str]]:
        """The messages that precede the first one of a chat."""
        return [] if self.system is None else [_message("system", self.system)]

    def check(self) -> None:
        """Raise UsageError if options contradict each other."""
        if self.drawing and (self.sample is False or self.beams is not None):
            raise self.only_drawn()
        for one, other, told in _EXCLUSIVE:
            if getattr(self, one) and getattr(self, other):
                raise click.UsageError(told)
        if self.system is not None and not self.chat:
            raise click.UsageError("--system goes with --chat")
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

    def asked(self, model: TextModel | ImageModel | SoundModel, registry: Registry) -> Asked:
        """What is asked of the model. Raises ZooError if it does not fit it."""
        from zoo.running.asked import Asked
        from zoo.running.sound_model import SoundModel
        from zoo.running.text_model import TextModel

        method = self.method(model.settings) if _generates(model) else None
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
            draft=draft,
            cuda_graph=self.cuda_graph,
            labels=self.labels or None,
            mask_id=self.mask_id,
            top=self.top,
        )

    def prompts(self, given: Sequence[Any]) -> list[Any]:
        """Inputs as they are read: two by two, as chats of one message, or as they are."""
        if self.pairs:
            return list(zip(given[::2], given[1::2], strict=True))
        if self.chat:
            return [[*self.instructions, _message("user", text)] for text in given]
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


def _refuse_unfitting(context: click.Context, model: TextModel | ImageModel | SoundModel) -> None:
    """Raise UsageError if an option is given that does not apply to the model."""
    from zoo.running.image_model import ImageModel
    from zoo.running.text_model import TextModel

    name = model.transformer.spec.name
    if not isinstance(model, TextModel):
        no_texts = ("chat", "pairs", "mask_id", "draft", "lookup")
        _refuse(context, no_texts, f"{name} takes no texts")
    if isinstance(model, ImageModel):
        _refuse(context, _LANGUAGES, f"{name} takes no texts")
    if not model.transformer.spec.model.images:
        _refuse(context, ("labels", "texts"), f"{name} takes no images")
    if not _generates(model):
        _refuse(context, _GENERATING, f"{name} generates no text")


def _generates(model: TextModel | ImageModel | SoundModel) -> bool:
    """Whether the model's task is one of generating text."""
    from zoo.running.tasks import GENERATING

    generates = model.transformer.spec.model.generation is not None
    return model.task in GENERATING or (model.task == "transcribe" and generates)


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
        raise InputError(
            Problem(f"a pair is two texts with a tab between, and here is {told}", place)
        )
    return sides[0], sides[1]


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _answer_inputs(
    model: TextModel | ImageModel | SoundModel, asked: Asked, options: _Options
) -> None:
    """Print the results for the inputs of the command: its arguments, or the standard input as a
    whole, as typed messages, or line by line."""
    from zoo.running.text_model import TextModel

    reads_files, as_json = not isinstance(model, TextModel), options.as_json
    answer = partial(_answer, model, asked, as_json=as_json)
    if options.inputs == ("-",):
        if reads_files:
            answer(standard_input.content(), places=[Place("standard input")])
        else:
            answer(*options.prompts([standard_input.text()]))
    elif len(prompts := options.prompts(options.inputs)) == 1:
        answer(*prompts)
    elif prompts:
        _answer_each(model, asked, prompts, as_json=as_json)
    elif options.chat and sys.stdin is not None and sys.stdin.isatty():
        if options.n_answers > 1:
            raise click.UsageError("--answers: a chat that you type goes on with one answer")
        _converse(answer, options.instructions)
    else:
        at_once = 1 if options.line_buffered else standard_input.AT_ONCE
        for number, (places, lines) in enumerate(standard_input.lines(at_once)):
            prompts = options.prompts_of_lines(lines, places)
            # Messages about a file name its own path.
            where = list(map(_file_place, lines, places)) if reads_files else places
            _answer_each(model, _for_lines(asked, number), prompts, as_json=as_json, places=where)


def _answer(
    model: TextModel | ImageModel | SoundModel,
    asked: Asked,
    prompt: Any,
    *,
    as_json: bool,
    places: Sequence[Place] | None = None,
) -> str:
    """Print the result for one text, image or sound, of a text on a terminal piece by piece; return
    the generated text."""
    from zoo.generation.methods import Beam
    from zoo.running.text_model import TextModel

    # A beam search has no final tokens before its end, and several texts come at once.
    method = asked.method
    in_pieces = method is not None and not isinstance(method, Beam) and method.n_answers == 1
    shown = sys.stdout.isatty() and not as_json
    if not in_pieces or not shown or not isinstance(model, TextModel):
        (report,) = model.answers([prompt], asked, places)
        print_report(as_json, report, _as_shown)
        return str(report.get("text", ""))
    text = ""
    for piece in model.pieces(prompt, asked):
        sys.stdout.write(for_terminal(piece))
        sys.stdout.flush()
        text += piece
    sys.stdout.write("\n")
    return text


def _answer_each(
    model: TextModel | ImageModel | SoundModel,
    asked: Asked,
    prompts: Iterable[Any],
    *,
    as_json: bool,
    places: Sequence[Place] | None = None,
) -> None:
    """Print the result for each of several texts, images or sounds."""
    for report in model.answers(prompts, asked, places):
        print_report(as_json, report, _as_shown, one_of_several=True)


def _as_shown(report: Mapping[str, Any]) -> str:
    """The result as text for people. On a terminal, what a model writes does not command it."""
    from zoo.running.tasks import as_text

    text = as_text(report)
    return for_terminal(text) if sys.stdout.isatty() else text


def _for_lines(asked: Asked, number: int) -> Asked:
    """What is asked of the lines that were read as the `number`th, counted from 0: batches within
    them are numbered from `number * AT_ONCE`, as there are at most AT_ONCE."""
    from zoo.generation.methods import for_batch

    method = asked.method and for_batch(asked.method, number * standard_input.AT_ONCE)
    return replace(asked, method=method)


def _converse(answer: Callable[[Chat], str], chat: list[dict[str, str]]) -> None:
    """Answer typed lines, each as the next message of one chat."""
    click.echo("> ", nl=False, err=True)
    for _, (line,) in standard_input.lines(1):
        if line.strip():
            chat.append(_message("user", line))
            chat.append(_message("assistant", answer(chat)))
        click.echo("> ", nl=False, err=True)
    click.echo(err=True)


def _file_place(path: str, line: Place) -> Place:
    """The place of a file for messages: its path, or the line if that is empty."""
    return Place(path) if path else line


def _refuse(context: click.Context, names: Collection[str], why: str) -> None:
    """Raise UsageError if one of these options is given, which does not apply because of `why`."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in names and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[-1]}: {why}")


@contextmanager
def _options_named(context: click.Context) -> Generator[None]:
    """Rename arguments in the block's errors to options, as typed: `top_p` becomes `--top-p`."""
    try:
        yield
    except InputError as error:
        typed = {
            f"`{option.name}`": f"`{option.opts[-1]}`"
            for option in context.command.params
            if isinstance(option, click.Option)
        }

        def told(text: str) -> str:
            return re.sub("`[a-z_]+`", lambda found: typed.get(found[0], found[0]), text)

        raise InputError(
            problem._replace(
                message=told(problem.message), help=problem.help and told(problem.help)
            )
            for problem in error.problems
        ) from None
