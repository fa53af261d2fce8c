"""What a model does with one text: the task is its spec's (`zoo.slots.Builder.task`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from zoo.errors import InputError, Problem, printable
from zoo.generation import Beam, Greedy, Sampling, generate, stream
from zoo.generation.prompts import check_length, read_ids
from zoo.running.labels import class_names
from zoo.running.text import SpecialIds, Text
from zoo.transformer import Transformer

N_SHOWN = 5
GENERATING = ("translate", "generate")
"""The tasks that make text, one token after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a text is generated.

    Args:
        max_new_tokens: at most.
        method: how tokens are chosen.
        eos: what ends it, over what the model's folder says.
        start: what a target begins with, over what the model's folder says.
        mask_id: the id of a masked token, over the tokenizer's.
    """

    max_new_tokens: int
    method: Greedy | Sampling | Beam
    eos: int | None = None
    start: int | None = None
    mask_id: int | None = None


def run_task(
    model: Transformer, content: str, *, text: Text, special: SpecialIds, options: Options
) -> dict[str, Any]:
    """Do the model's task with a text.

    Returns:
        The task, and what came of it under names of its own; `text` where that is text.

    Raises:
        InputError: the model has no task, or the text does not fit it.
    """
    task = model.spec.model.task
    if task is None:
        raise InputError(f"`zoo run` has no task for {model.spec.name}: its head says none")
    ids = _ids(text, content)
    if task in GENERATING:
        return {"task": task, **_generated(model, ids, text, special, options)}
    with torch.inference_mode():
        found = _READERS[task](model.eval(), ids, text, options)
    return {"task": task, **found}


def _ids(text: Text, content: str) -> list[int]:
    ids = text.encode(content)
    if not ids:
        raise InputError("the text is empty: no tokens are made of it")
    return ids


def _generated(
    model: Transformer, ids: list[int], text: Text, special: SpecialIds, options: Options
) -> dict[str, Any]:
    (found,) = generate(model, [ids], method=options.method, **_asked(model, special, options))
    shown = found.ids[:-1] if found.ended == "eos" else found.ids
    return {
        "text": text.decode(shown),
        "ids": list(found.ids),
        "score": found.score,
        "ended": found.ended,
    }


def stream_task(
    model: Transformer,
    content: str,
    *,
    text: Text,
    special: SpecialIds,
    options: Options,
    method: Greedy | Sampling,
) -> Iterator[str]:
    """The text of `run_task` for a model that generates, in pieces as its tokens come.

    Raises:
        InputError: the text does not fit the model.
    """
    asked = _asked(model, special, options)
    ends = {asked["eos"]} if isinstance(asked["eos"], int) else set(asked["eos"])
    ids: list[int] = []
    told = whole = ""
    for (id_,) in stream(model, [_ids(text, content)], method=method, **asked):
        if id_ is None or id_ in ends:
            break
        ids.append(id_)
        whole = text.decode(ids)
        # A token may be a part of a character, and a decoder may change what ends the text.
        if whole.startswith(told) and not whole.endswith("\N{REPLACEMENT CHARACTER}"):
            yield whole[len(told) :]
            told = whole
    if whole != told:
        yield whole[len(told) :] if whole.startswith(told) else f"\n{whole}"


def _asked(model: Transformer, special: SpecialIds, options: Options) -> dict[str, Any]:
    """Where generated text begins and ends, as `generate` takes it."""
    start = special.decoder_start_token_id if options.start is None else options.start
    eos = special.eos_token_id if options.eos is None else options.eos
    how = model.spec.model.generation
    return {
        "max_new_tokens": options.max_new_tokens,
        "eos": () if eos is None else eos,
        "start": start if how is not None and how.has_source else None,
    }


Reader = Callable[[torch.Tensor], torch.Tensor]


def _read(model: Transformer, ids: list[int]) -> tuple[Reader, torch.Tensor]:
    """The model and its input, (1, length), checked."""
    reading = model.spec.model.reading
    if reading is None:
        raise InputError(f"{model.spec.name} reads no ids")
    rows = read_ids([ids], None, what="text", vocab=reading.vocab, pad_id=None, pad="right")
    check_length(rows.lengths[0], reading.longest, "text")
    device = next(model.parameters()).device
    return cast("Reader", model), rows.to(device).values


def _embedded(model: Transformer, ids: list[int], text: Text, options: Options) -> dict[str, Any]:
    """One vector of the text: what the model puts out, or the mean over its tokens."""
    reader, source = _read(model, ids)
    output = reader(source)[0]
    return {"embedding": (output if output.dim() == 1 else output.mean(0)).tolist()}


def _filled(model: Transformer, ids: list[int], text: Text, options: Options) -> dict[str, Any]:
    """The likeliest tokens in the place of each masked one."""
    mask_id = text.mask_id() if options.mask_id is None else options.mask_id
    if mask_id is None or mask_id not in ids:
        raise InputError(
            Problem(
                "the text holds no masked token",
                help="write the tokenizer's `[MASK]` or `<mask>`; with ids, state `--mask-id`",
            )
        )
    reader, source = _read(model, ids)
    probabilities = reader(source)[0].softmax(-1)
    places = [place for place, id_ in enumerate(ids) if id_ == mask_id]
    found = {place: _best(probabilities[place]) for place in places}
    tokens = [
        [
            {"id": id_, "text": text.decode([id_]), "probability": value}
            for value, id_ in zip(values, best, strict=True)
        ]
        for values, best in found.values()
    ]
    filled = [found[place][1][0] if place in found else id_ for place, id_ in enumerate(ids)]
    return {"text": text.decode(filled), "tokens": tokens}


def _classified(model: Transformer, ids: list[int], text: Text, options: Options) -> dict[str, Any]:
    """The likeliest classes of the text, or of each of its tokens."""
    reader, source = _read(model, ids)
    probabilities = reader(source)[0].softmax(-1)
    rows = probabilities if probabilities.dim() == 2 else probabilities[None]
    names = class_names(model)
    classes = [
        [
            {"class": n, **({"label": names[n]} if n in names else {}), "probability": p}
            for p, n in zip(*_best(row), strict=True)
        ]
        for row in rows
    ]
    return {"classes": classes if probabilities.dim() == 2 else classes[0]}


def _best(probabilities: torch.Tensor) -> tuple[list[float], list[int]]:
    found = probabilities.topk(min(N_SHOWN, probabilities.shape[-1]))
    return found.values.tolist(), found.indices.tolist()


_READERS: Mapping[str, Callable[[Transformer, list[int], Text, Options], dict[str, Any]]] = {
    "embed": _embedded,
    "fill_mask": _filled,
    "classify": _classified,
}


def as_text(report: Mapping[str, Any]) -> str:
    """The result for people."""
    if "text" in report:
        lines = [str(report["text"])]
        for row in report.get("tokens", ()):
            lines.append("  ".join(f"{t['text']} {t['probability']:.3f}" for t in row))
        return "\n".join(lines)
    if "embedding" in report:
        return " ".join(f"{value:.6g}" for value in report["embedding"])
    classes = report["classes"]
    rows = classes if classes and isinstance(classes[0], list) else [classes]
    return "\n".join("  ".join(map(_class_text, row)) for row in rows)


def _class_text(found: Mapping[str, Any]) -> str:
    name = printable(str(found.get("label", found["class"])))
    return f"{name} {found['probability']:.3f}"
