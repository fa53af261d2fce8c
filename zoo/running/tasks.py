"""Turning a model's output into the result of its task (`zoo.slots.Builder.task` of its spec)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from zoo.arguments import check_count
from zoo.errors import InputError
from zoo.purpose import Comparison, Task
from zoo.running.asked import Asked
from zoo.running.entities import Entity, entities, marks_entities
from zoo.running.labels import Labels
from zoo.running.text import Input, Text
from zoo.wording import printable

N_SHOWN = 5
"""The number of classes or tokens that are told, if nothing else is asked for."""
LONGEST_ANSWER = 30
"""The most tokens of an answer that is found in a text, as in BERT's own code for SQuAD."""


def check_top(top: object, task: Task, name: str) -> None:
    """Raise InputError if `top` is neither None nor a positive integer, or the model of this name
    and task ranks nothing."""
    if top is None:
        return
    check_count("top", top)
    if task not in ("classify", "fill_mask", "answer"):
        raise InputError(f"`top`: {name} ranks no classes, no masked tokens and no answers")


def read_off(
    task: Task,
    output: torch.Tensor,
    read: Input,
    *,
    text: Text,
    labels: Labels,
    asked: Asked,
) -> dict[str, Any]:
    """The result of a task that does not generate text, from the model's output for one text.

    Args:
        task: the task.
        output: for embedding, a vector (width,), or one per token, (length, width); for masked
            tokens, scores (length, vocab); for classification, scores (classes,) or
            (length, classes); for answers, scores (length, 2).
        read: the text as the model reads it.
        text: turns ids into text.
        labels: what the classes are.
        asked: among others the id of a masked token, and the most classes, tokens or answers that
            are told; by default as `classes_of`, five tokens, and one answer.
    """
    if task == "embed":
        return {"embedding": (output if output.dim() == 1 else output.mean(0)).tolist()}
    if task == "fill_mask":
        return _filled(output.softmax(-1), read.ids, text, asked.mask_id, asked.top or N_SHOWN)
    if task == "answer":
        return {"spans": _answers(output.log_softmax(0), read, asked.top or 1)}
    return classes_of(output, labels, read, top=asked.top)


def classes_of(
    output: torch.Tensor, labels: Labels, read: Input | None = None, *, top: int | None
) -> dict[str, Any]:
    """The likeliest classes, of scores (classes,), or (length, classes) of each position; then also
    the spans of a text whose words are known.

    There are `top` of them. By default these are five, and more if an input may be of several
    classes and is likelier than not of more; and all values of a regression, which do not compete.
    """
    what, values = _judged(output, labels.problem_type)
    each_token, names = output.dim() == 2, labels.id2label
    classes = [
        [
            {"class": n, **({"label": names[n]} if n in names else {}), what: value}
            for value, n in zip(*_best(row, top or _n_told(row, labels.problem_type)), strict=True)
        ]
        for row in (values if each_token else values[None])
    ]
    if not each_token:
        return {"classes": classes[0]}
    if read is None or not read.words or len(names) < output.shape[-1]:
        return {"classes": classes}
    return {"classes": classes, "spans": _spans(values, read, names)}


def _n_told(values: torch.Tensor, problem_type: str | None) -> int:
    """The number of classes that are told, of their values (classes,), if none is asked for."""
    if problem_type == "regression":
        return len(values)
    if problem_type == "multi_label_classification":
        return max(N_SHOWN, int((values > 0.5).sum()))
    return N_SHOWN


def _spans(
    probabilities: torch.Tensor, read: Input, names: Mapping[int, str]
) -> list[dict[str, Any]]:
    """The spans of a text that have a label: its entities, if the labels mark these, or else each
    word. The label of a word is that of its first token, and the probability of an entity the mean
    of those of its words."""
    best = probabilities[[word.token for word in read.words]].max(-1)
    labels = [names[number] for number in best.indices.tolist()]
    found = (
        entities(labels)
        if marks_entities(names.values())
        else [Entity(label, place, place + 1) for place, label in enumerate(labels)]
    )
    spans: list[dict[str, Any]] = []
    for one in found:
        probability = float(best.values[one.start : one.end].mean())
        span = read.span(one.start, one.end - 1)
        spans.append({"label": one.label, **span, "probability": probability})
    return spans


def _answers(logs: torch.Tensor, read: Input, top: int) -> list[dict[str, Any]]:
    """The likeliest answers in the second of a pair of texts, of the log-probabilities of each
    token to begin and to end an answer, (length, 2)."""
    begins, ends = logs[[word.token for word in read.words]].unbind(-1)
    n = len(read.words)
    # One row for each number of tokens that an answer has.
    sums = begins.new_full((min(n, LONGEST_ANSWER), n), -torch.inf)
    for more, row in enumerate(sums):
        row[: n - more] = begins[: n - more] + ends[more:]
    spans: list[dict[str, Any]] = []
    for value, place in zip(*_best(sums.flatten(), top), strict=True):
        more, first = divmod(place, n)
        if first + more < n:
            spans.append({**read.span(first, first + more), "probability": math.exp(value)})
    return spans


def compared(
    scores: torch.Tensor, comparison: Comparison, texts: Sequence[str], top: int | None
) -> dict[str, Any]:
    """How likely each of some texts describes an image, of the scores of all, (texts,); of the
    `top` likeliest, or of all."""
    sigmoid = comparison.probability == "sigmoid"
    probabilities = scores.sigmoid() if sigmoid else scores.softmax(-1)
    best = probabilities.sort(descending=True, stable=True)
    pairs = zip(best.values[:top].tolist(), best.indices[:top].tolist(), strict=True)
    return {"classes": [{"class": n, "label": texts[n], "probability": p} for p, n in pairs]}


def _judged(scores: torch.Tensor, problem_type: str | None) -> tuple[str, torch.Tensor]:
    """What the scores of classes stand for, and its values."""
    if problem_type == "regression":
        return "value", scores
    # A single class is a yes-or-no decision, of which a softmax would always be 1, and so is each
    # class if a text may be of several.
    if scores.shape[-1] == 1 or problem_type == "multi_label_classification":
        return "probability", scores.sigmoid()
    return "probability", scores.softmax(-1)


def _filled(
    probabilities: torch.Tensor, ids: Sequence[int], text: Text, mask_id: int | None, top: int
) -> dict[str, Any]:
    """The `top` likeliest tokens for each masked one, and the text filled in with the best of
    each."""
    places = [place for place, id_ in enumerate(ids) if id_ == mask_id]
    best = {place: _best(probabilities[place], top) for place in places}
    tokens = [
        [
            {"id": id_, "text": text.decode([id_], special=True), "probability": value}
            for value, id_ in zip(values, found, strict=True)
        ]
        for values, found in best.values()
    ]
    complete = [best[place][1][0] if place in best else id_ for place, id_ in enumerate(ids)]
    return {"text": text.decode(complete), "tokens": tokens}


def _best(values: torch.Tensor, top: int) -> tuple[list[float], list[int]]:
    found = values.topk(min(top, values.shape[-1]))
    return found.values.tolist(), found.indices.tolist()


def as_text(report: Mapping[str, Any]) -> str:
    """The result as text for people."""
    if report.get("segments"):
        return "\n".join(map(_segment_text, report["segments"]))
    if "text" in report:
        lines = [str(report["text"])]
        lines += [one["text"] for one in report.get("others", ())]
        for row in report.get("tokens", ()):
            lines.append("  ".join(f"{t['text']} {t['probability']:.3f}" for t in row))
        return "\n".join(lines)
    if "embedding" in report:
        return " ".join(f"{value:.6g}" for value in report["embedding"])
    if "spans" in report:
        return "  ".join(map(_span_text, report["spans"]))
    classes = report["classes"]
    rows = classes if classes and isinstance(classes[0], list) else [classes]
    return "\n".join("  ".join(map(_class_text, row)) for row in rows)


def _segment_text(found: Mapping[str, Any]) -> str:
    return f"[{_clock(found['begin'])} --> {_clock(found['end'])}] {found['text']}"


def _clock(seconds: float) -> str:
    """A time as `01:15.320`, or `1:01:15.320`."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    minutes, left = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:" * bool(hours) + f"{minutes:02}:{left:02}.{thousandths:03}"


def _span_text(found: Mapping[str, Any]) -> str:
    told = f"{found['probability']:.3f} {printable(found['text'])}"
    return f"{printable(found['label'])} {told}" if "label" in found else told


def _class_text(found: Mapping[str, Any]) -> str:
    name = printable(str(found.get("label", found["class"])))
    if "value" in found:
        return f"{name} {found['value']:.6g}"
    return f"{name} {found['probability']:.3f}"
