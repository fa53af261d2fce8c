"""The command line: `zoo run`."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

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
    from zoo.generation.methods import Beam, Greedy, Sampling
    from zoo.running.chat import Chat
    from zoo.running.image_model import ImageModel
    from zoo.running.settings import Settings
    from zoo.running.text_model import TextModel

GENERATING_OPTIONS = {
    "chat",
    "system",
    "max_new_tokens",
    "beams",
    "n_answers",
    "sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "repetition_penalty",
    "eos",
    "start",
    "stop",
    "source_language",
    "target_language",
    "draft",
    "lookup",
    "cuda_graph",
}


@click.command()
@click.argument("model", type=model_type)
@click.argument("inputs", nargs=-1, metavar="[TEXT|IMAGE]...")
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
    default=64,
    show_default=True,
    help="Generate at most so many tokens.",
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
    help="With a translator such as NLLB: the language of the texts, as its tokenizer names it.",
)
@click.option(
    "--target-language",
    metavar="LANG",
    help="With a translator such as NLLB: the language to translate into.",
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
@json_option
@click.pass_context
def run(
    context: click.Context,
    model: str,
    inputs: tuple[str, ...],
    labels: tuple[str, ...],
    texts: bool,
    top: int | None,
    chat: bool,
    system: str | None,
    pairs: bool,
    max_new_tokens: int,
    beams: int | None,
    n_answers: int,
    sample: bool | None,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    seed: int | None,
    repetition_penalty: float | None,
    eos: int | None,
    start: tuple[int, ...],
    source_language: str | None,
    target_language: str | None,
    stop: tuple[str, ...],
    draft: str | None,
    lookup: bool,
    dtype: str | None,
    device: str,
    cuda_graph: bool,
    weights: str | None,
    mask_id: int | None,
    as_json: bool,
) -> None:
    """Translate, continue, embed or classify texts, or images.

    MODEL, a folder or a model's name, does with each TEXT, or each IMAGE, a file, what it was made
    for: it may also fill in masked tokens, write captions, or with --pairs answer questions by
    texts. Without one, each line of the standard input is a text, or the path of an image; if it is
    `-`, the whole standard input is one. If the folder has no tokenizer, texts are ids: `5 9 33`.
    With --chat, the lines that you type on a terminal are the messages of one chat. With --label, a
    model that compares images with texts says how likely each describes the image; with --texts, it
    reads texts.

    With --json, a single TEXT or IMAGE gives one indented document, and several give a line of JSON
    each.
    """
    drawing = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
    }
    given = {name: value for name, value in drawing.items() if value is not None}
    changes = given.copy()
    if repetition_penalty is not None:
        changes["repetition_penalty"] = repetition_penalty
    _check_together(context.params, given)

    from zoo.generation import Lookup, quantize_weights
    from zoo.running.image_model import ImageModel
    from zoo.running.runner import load_runner
    from zoo.running.settings import Settings
    from zoo.running.tasks import GENERATING
    from zoo.running.text_model import TextModel

    reading = _Reading(pairs, chat, [] if system is None else [_message("system", system)])
    with _options_named(context):
        Settings().method(changes, sample=sample or bool(given), beams=beams)  # the options fit
        found = load_runner(
            model, of_texts=texts, device=device, dtype=dtype, registry=context.obj()
        )
        if weights == "int8":
            quantize_weights(found.transformer)
        gc.enable()  # the standard input may have any number of lines
        _refuse_unfitting(context, found)
        if isinstance(found, TextModel) and (source_language or target_language):
            found = found.translating(source=source_language, target=target_language)
        method = None
        if found.task in GENERATING:
            if given and not sample and not found.settings.do_sample:
                raise _only_drawn(given)
            method = found.settings.method(changes, sample=sample, beams=beams)
            if n_answers > 1:
                method = _of_several(method, n_answers)
            _tell_settings(found.settings, method)
        asked: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "method": method,
            "eos": eos,
            "start": start or None,
            "stop": stop,
            "cuda_graph": cuda_graph,
            "top": top,
        }
        if isinstance(found, ImageModel):
            asked["labels"] = labels or None
        else:
            asked["mask_id"] = mask_id
            asked["draft"] = Lookup() if lookup else None
            if draft is not None:
                smaller = TextModel.load(draft, device=device, dtype=dtype, registry=context.obj())
                asked["draft"] = found.draft(smaller)
                if weights == "int8":
                    quantize_weights(smaller.transformer)
        _answer_inputs(found, asked, inputs, reading, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Reading:
    """How inputs are read: two by two, as chats of one message after some instructions, or as they
    are."""

    pairs: bool
    chat: bool
    instructions: list[dict[str, str]]

    def prompts(self, given: Sequence[Any]) -> list[Any]:
        """The prompts of inputs."""
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


def _check_together(options: Mapping[str, Any], drawing: Collection[str]) -> None:
    """Raise UsageError if options contradict each other; `drawing` are those of drawing tokens that
    are given."""
    if drawing and (options["sample"] is False or options["beams"] is not None):
        raise _only_drawn(drawing)
    for one, other, told in _EXCLUSIVE:
        if options[one] and options[other]:
            raise click.UsageError(told)
    if options["system"] is not None and not options["chat"]:
        raise click.UsageError("--system goes with --chat")
    n_texts = len(options["inputs"])
    if options["pairs"] and n_texts % 2:
        raise click.UsageError(
            f"--pairs reads texts two by two, and here {'is' if n_texts == 1 else 'are'} "
            f"{counted(n_texts, 'text')}"
        )


def _refuse_unfitting(context: click.Context, model: TextModel | ImageModel) -> None:
    """Raise UsageError if an option is given that does not apply to the model."""
    from zoo.running.image_model import ImageModel
    from zoo.running.tasks import GENERATING

    name = model.transformer.spec.name
    if isinstance(model, ImageModel):
        languages = ("source_language", "target_language")
        no_texts = ("chat", "pairs", "mask_id", "draft", "lookup", *languages)
        _refuse(context, no_texts, f"{name} takes no texts")
    elif not model.transformer.spec.model.images:
        _refuse(context, ("labels", "texts"), f"{name} takes no images")
    if model.task not in GENERATING:
        _refuse(context, GENERATING_OPTIONS, f"{name} generates no text")


def _only_drawn(given: Iterable[str]) -> click.UsageError:
    return click.UsageError(f"--{next(iter(given)).replace('_', '-')} goes with --sample")


def _of_several(method: Greedy | Sampling | Beam, n_answers: int) -> Sampling | Beam:
    """A method that generates several texts. Raises UsageError for one that finds one alone."""
    from zoo.generation.methods import Greedy

    if isinstance(method, Greedy):
        raise click.UsageError("--answers goes with --sample or --beams")
    return type(method)(**{**dict(method), "n_answers": n_answers})


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
    model: TextModel | ImageModel,
    asked: Mapping[str, Any],
    inputs: tuple[str, ...],
    reading: _Reading,
    *,
    as_json: bool,
) -> None:
    """Print the results for the inputs of the command: its arguments, or the standard input as a
    whole, as typed messages, or line by line."""
    from zoo.running.image_model import ImageModel

    sees = isinstance(model, ImageModel)
    answer = partial(_answer, model, asked, as_json=as_json)
    if inputs == ("-",):
        if sees:
            answer(standard_input.content(), place=Place("standard input"))
        else:
            answer(*reading.prompts([standard_input.text()]))
    elif len(prompts := reading.prompts(inputs)) == 1:
        answer(*prompts)
    elif prompts:
        _answer_each(model, prompts, asked, as_json=as_json)
    elif reading.chat and sys.stdin is not None and sys.stdin.isatty():
        if asked["method"].n_answers > 1:
            raise click.UsageError("--answers: a chat that you type goes on with one answer")
        _converse(answer, reading.instructions)
    else:
        for number, (places, lines) in enumerate(standard_input.lines()):
            prompts = reading.prompts_of_lines(lines, places)
            # Messages about an image name its own path.
            where = list(map(_image_place, lines, places)) if sees else places
            _answer_each(model, prompts, _for_lines(asked, number), as_json=as_json, places=where)


def _answer(
    model: TextModel | ImageModel,
    asked: Mapping[str, Any],
    prompt: Any,
    *,
    as_json: bool,
    place: Place | None = None,
) -> str:
    """Print the result for one text or image, of a text on a terminal piece by piece; return the
    generated text."""
    from zoo.generation.methods import Beam
    from zoo.running.tasks import GENERATING
    from zoo.running.text_model import TextModel

    # A beam search has no final tokens before its end, and several texts come at once.
    method = asked["method"]
    in_pieces = model.task in GENERATING and not isinstance(method, Beam) and method.n_answers == 1
    shown = sys.stdout.isatty() and not as_json
    if not in_pieces or not shown or not isinstance(model, TextModel):
        (report,) = model.run([prompt], **asked, places=None if place is None else [place])
        print_report(as_json, report, _as_shown)
        return str(report.get("text", ""))
    text = ""
    for piece in model.stream(
        prompt, **{k: asked[k] for k in asked if k not in ("mask_id", "top")}
    ):
        sys.stdout.write(for_terminal(piece))
        sys.stdout.flush()
        text += piece
    sys.stdout.write("\n")
    return text


def _answer_each(
    model: TextModel | ImageModel,
    prompts: Iterable[Any],
    asked: Mapping[str, Any],
    *,
    as_json: bool,
    places: Sequence[Place] | None = None,
) -> None:
    """Print the result for each of several texts or images."""
    for report in model.run(prompts, **asked, places=places):
        print_report(as_json, report, _as_shown, one_of_several=True)


def _as_shown(report: Mapping[str, Any]) -> str:
    """The result as text for people. On a terminal, what a model writes does not command it."""
    from zoo.running.tasks import as_text

    text = as_text(report)
    return for_terminal(text) if sys.stdout.isatty() else text


def _for_lines(asked: Mapping[str, Any], number: int) -> dict[str, Any]:
    """What is asked of the lines that were read as the `number`th, counted from 0: batches within
    them are numbered from `number * AT_ONCE`, as there are at most AT_ONCE."""
    from zoo.generation.methods import for_batch

    method = asked["method"]
    return {**asked, "method": method and for_batch(method, number * standard_input.AT_ONCE)}


def _converse(answer: Callable[[Chat], str], chat: list[dict[str, str]]) -> None:
    """Answer typed lines, each as the next message of one chat."""
    click.echo("> ", nl=False, err=True)
    for _, (line,) in standard_input.lines():
        if line.strip():
            chat.append(_message("user", line))
            chat.append(_message("assistant", answer(chat)))
        click.echo("> ", nl=False, err=True)
    click.echo(err=True)


def _image_place(path: str, line: Place) -> Place:
    """The place of an image for messages: its path, or the line if that is empty."""
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
