"""What a model's output means for its task: the task is its spec's (`zoo.slots.Builder.task`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from zoo.errors import printable
from zoo.purpose import Task
from zoo.running.text import Text

N_SHOWN = 5
GENERATING = ("translate", "generate")
"""The tasks that make text, one token after the other."""


def read_off(
    task: Task,
    output: torch.Tensor,
    ids: Sequence[int],
    *,
    text: Text,
    mask_id: int | None,
    labels: Mapping[int, str],
) -> dict[str, Any]:
    """The result of a task that makes no text, of the model's output for one text.

    Args:
        task: it.
        output: to embed, a vector (width,) or one for each token, (length, width); of masked
            tokens, scores (length, vocab); to classify, scores (classes,) or (length, classes).
        ids: the text's.
        text: turns ids into text.
        mask_id: the id of a masked token.
        labels: what classes are called, by their numbers.
    """
    if task == "embed":
        return {"embedding": (output if output.dim() == 1 else output.mean(0)).tolist()}
    # One class alone is there or is not: a softmax over it would always be 1.
    probabilities = output.sigmoid() if output.shape[-1] == 1 else output.softmax(-1)
    if task == "fill_mask":
        return _filled(probabilities, ids, text, mask_id)
    each_token = output.dim() == 2
    classes = [
        [
            {"class": n, **({"label": labels[n]} if n in labels else {}), "probability": p}
            for p, n in zip(*_best(row), strict=True)
        ]
        for row in (probabilities if each_token else probabilities[None])
    ]
    return {"classes": classes if each_token else classes[0]}


def _filled(
    probabilities: torch.Tensor, ids: Sequence[int], text: Text, mask_id: int | None
) -> dict[str, Any]:
    """The likeliest tokens in the place of each masked one, and the text with the first of each."""
    best = {place: _best(probabilities[place]) for place, id_ in enumerate(ids) if id_ == mask_id}
    tokens = [
        [
            {"id": id_, "text": text.decode([id_]), "probability": value}
            for value, id_ in zip(values, found, strict=True)
        ]
        for values, found in best.values()
    ]
    complete = [best[place][1][0] if place in best else id_ for place, id_ in enumerate(ids)]
    return {"text": text.decode(complete), "tokens": tokens}


def _best(probabilities: torch.Tensor) -> tuple[list[float], list[int]]:
    found = probabilities.topk(min(N_SHOWN, probabilities.shape[-1]))
    return found.values.tolist(), found.indices.tolist()


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
