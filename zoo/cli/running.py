"""The command line: `zoo run`."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from zoo.cli import standard_input
from zoo.cli.options import (
    device_option,
    dtype_choice,
    json_option,
    model_type,
    path_type,
    weights_option,
)
from zoo.cli.output import print_report
from zoo.cli.run_options import DRAWING, RunOptions, generates, message
from zoo.errors import InputError, Place
from zoo.files.of_model import WEIGHTS, WEIGHTS_INDEX
from zoo.wording import for_terminal, typed

if TYPE_CHECKING:
    from zoo.registry import Registry
    from zoo.running.asked import Asked
    from zoo.running.chat import Chat
    from zoo.running.runner import Runner

_LANGUAGES = ("source_language", "target_language")
_OF_SOUNDS = ("timestamps",)
_GENERATING = (
    "chat",
    "system",
    "tools",
    "max_new_tokens",
    "beams",
    "n_answers",
    "sample",
    *DRAWING,
    "repetition_penalty",
    "eos",
    "start",
    "stop",
    *_OF_SOUNDS,
    *_LANGUAGES,
    "draft",
    "lookup",
    "cuda_graph",
)
"""The options of models that generate text, and among them those of translating."""


@click.command()
@click.argument("model", type=model_type)
@click.argument("inputs", nargs=-1, metavar="[TEXT|IMAGE|SOUND]...")
@click.option(
    "--image",
    "images",
    metavar="IMAGE",
    multiple=True,
    help="With a model such as LLaVA: an image that stands in each TEXT, at its `<image>`. "
    "Repeat it for several.",
)
@click.option(
    "--sound",
    "sounds",
    metavar="SOUND",
    multiple=True,
    help="With a model such as Qwen2-Audio: a sound that stands in each TEXT, at its `<|AUDIO|>`."
    " Repeat it for several.",
)
@click.option(
    "--label",
    "labels",
    metavar="TEXT",
    multiple=True,
    help="With a model such as CLIP: a text that may describe an image. Repeat it for several.",
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
    "--tools",
    type=path_type,
    metavar="FILE",
    help="With --chat: the tools that the model may call, as a JSON array of their schemas.",
)
@click.option(
    "--pairs",
    is_flag=True,
    help="Read the TEXTs two by two, as pairs; or of each line the two sides of a tab.",
)
@click.option(
    "--truncate",
    is_flag=True,
    help="Leave out the end of a TEXT that is too long for the model: of a pair, that of the longer"
    " one, and of a question and a text, that of the text.",
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
    help="End a generated text before this one. Repeat it for several.",
)
@click.option(
    "--timestamps",
    is_flag=True,
    help="With Whisper: write when each part of the text is said.",
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

    MODEL is a folder, or the name of a model. It does what it was made for: translate, continue a
    text, make a vector, fill in masked tokens, classify, write captions, or write down what is
    said.

    TEXT is a text, or ids such as `5 9 33` if the folder has no tokenizer. IMAGE and SOUND are
    files. Without an argument, each line of the standard input is one; with `-`, the whole standard
    input is one.

    With --chat, a TEXT is a message; without one, the lines that you type on a terminal are the
    messages of a chat. With --pairs, a model classifies pairs of texts, or answers questions by
    texts. With --label, a model that compares images with texts says how likely each describes the
    image; with --texts, it makes vectors of texts. With --image or --sound, images or sounds stand
    in the texts.

    With --json, a single TEXT, IMAGE or SOUND gives one indented document, and several give a line
    of JSON each.
    """
    options = RunOptions(**given)
    options.check()

    from zoo.generation import quantize_weights
    from zoo.running.image_model import ImageModel
    from zoo.running.runner import load_runner
    from zoo.running.settings import Settings
    from zoo.running.text_model import TextModel

    with _options_named(context):
        options.chosen(Settings(do_sample=bool(options.drawing)))  # the options fit
        registry = context.obj()
        _refuse_swapped(options, registry)
        found = load_runner(
            options.model,
            of_texts=options.texts,
            device=options.device,
            dtype=options.dtype,
            registry=registry,
        )
        if options.weights == "int8":
            quantize_weights(found.transformer)
        gc.enable()  # the standard input may have any number of lines
        _refuse_unfitting(context, found)
        source, target = options.source_language, options.target_language
        if not isinstance(found, ImageModel) and (source or target):
            found = found.translating(source=source, target=target)
        if options.truncate and isinstance(found, TextModel):
            found = found.truncating()
        _answer_inputs(found, options.asked(found, registry), options)


def _refuse_swapped(options: RunOptions, registry: Registry) -> None:
    """Raise UsageError if a TEXT is the folder of a model, and what stands for MODEL is none."""
    named = options.model.partition("@")[0]
    if os.path.exists(options.model) or named in registry.models or registry.catalog.file(named):
        return
    for text in options.inputs:
        if any(os.path.isfile(Path(text, name)) for name in (WEIGHTS, WEIGHTS_INDEX)):
            right = f"zoo run {typed(text)} {typed(options.model)}"
            raise click.UsageError(f"MODEL comes before TEXT: `{right}`")


def _refuse_unfitting(context: click.Context, model: Runner) -> None:
    """Raise UsageError if an option is given that does not apply to the model."""
    from zoo.running.image_model import ImageModel
    from zoo.running.sound_model import SoundModel
    from zoo.running.text_model import TextModel

    name = model.transformer.spec.name
    if not isinstance(model, TextModel):
        no_texts = ("chat", "pairs", "truncate", "mask_id", "draft", "lookup")
        _refuse(context, no_texts, f"{name} takes no texts")
    if not isinstance(model, SoundModel):
        _refuse(context, _OF_SOUNDS, f"{name} takes no sounds")
    if isinstance(model, ImageModel):
        _refuse(context, _LANGUAGES, f"{name} takes no texts")
    if not model.transformer.spec.model.images:
        _refuse(context, ("labels", "texts"), f"{name} takes no images")
    if not isinstance(model, TextModel) or model.images is None:
        _refuse(context, ("images",), f"{name} takes no images in its texts")
    if not isinstance(model, TextModel) or model.sounds is None:
        _refuse(context, ("sounds",), f"{name} takes no sounds in its texts")
    if not generates(model):
        _refuse(context, _GENERATING, f"{name} generates no text")


def _answer_inputs(model: Runner, asked: Asked, options: RunOptions) -> None:
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
    model: Runner,
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
    model: Runner,
    asked: Asked,
    prompts: Sequence[Any],
    *,
    as_json: bool,
    places: Sequence[Place] | None = None,
) -> None:
    """Print the result for each of several texts, images or sounds."""
    n = len(prompts)
    asked = replace(asked, images=[*asked.images] * n, sounds=[*asked.sounds] * n)
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
            chat.append(message("user", line))
            chat.append(message("assistant", answer(chat)))
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
