"""What models of texts and of images have in common that generate text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import torch

from zoo.errors import InputError
from zoo.generation import Beam, Generated, Greedy, Sampling, generate
from zoo.generation.methods import for_batch
from zoo.generation.request import check_method, not_for_beams
from zoo.running.settings import SETTINGS_OF_IDS, Settings
from zoo.running.stops import Stops
from zoo.running.text import Text
from zoo.spec import ModelSpec
from zoo.transformer import Transformer


def generate_arguments(
    spec: ModelSpec,
    settings: Settings,
    text: Text,
    *,
    max_new_tokens: int,
    method: Greedy | Sampling | Beam | None,
    eos: int | None,
    start: int | Sequence[int] | None,
    stop: Sequence[str],
) -> dict[str, Any]:
    """The arguments of `generate` that say how text is generated, where it begins and where it
    ends: those that are given, and else those of the model's folder.

    Raises:
        InputError: what is given does not fit the model.
        WeightsError: the settings do not fit it.
    """
    how = spec.model.generation
    assert how is not None  # the model has a task that generates
    asked: dict[str, Any] = {"max_new_tokens": max_new_tokens, "eos": eos, "start": start}
    stated = [*SETTINGS_OF_IDS]
    if eos is None:
        asked["eos"] = settings.ends_within(how.target_vocab)
    if start is None and how.has_source:
        asked["start"] = settings.decoder_start_token_id
        stated.append("decoder_start_token_id")
    settings.check(stated, how.target_vocab)
    if method is None:
        asked["method"] = settings.method()
    else:
        check_method(method, (Greedy, Sampling, Beam))
        asked["method"] = settings.completed(method)
    if stops := Stops.read(stop, text):
        if isinstance(asked["method"], Beam):
            raise not_for_beams("texts to `stop` at are")
        asked["stop"] = stops
    with suppress(TypeError):  # a single id has no length
        if len(cast("Sequence[int]", start)) > 1:
            # The target begins with more than its usual id, so nothing is missing after that.
            asked["method"] = asked["method"].model_copy(update={"first_id": None})
    return asked


def refuse_generating(name: str, **given: object) -> None:
    """Raise InputError if one of these arguments about generating is given to a model of this name,
    which generates nothing."""
    for argument, value in given.items():
        if value is not None and value is not False:
            raise InputError(f"{name} generates no text: leave `{argument}` out")


def generated(
    model: Transformer,
    inputs: torch.Tensor | Sequence[Sequence[int]],
    asked: Mapping[str, Any],
    text: Text,
    *,
    batch: int,
) -> list[dict[str, Any]]:
    """The results of a task that generates text, for one batch of inputs.

    Args:
        model: the model.
        inputs: ids or pixels, as `zoo.generate` takes them.
        asked: its other arguments, of `generate_arguments`.
        text: turns ids into text.
        batch: the number of the batch among others, from 0.
    """
    method = for_batch(asked["method"], batch)
    found = generate(model, inputs, **{**asked, "method": method})
    return [_result(one, text, asked.get("stop")) for one in found]


def blank(n_answers: int) -> dict[str, Any]:
    """The results of a text of which there is nothing to translate, as those of `generated`."""
    made: dict[str, Any] = {"text": "", "ids": [], "score": 0.0, "ended": "eos"}
    others = [blank(1) for _ in range(n_answers - 1)]
    return {**made, "others": others} if others else made


def _result(found: Generated, text: Text, stops: Stops | None) -> dict[str, Any]:
    shown = text.decode(found.ids[:-1] if found.ended == "eos" else found.ids)
    return {
        "text": shown if stops is None else stops.before(shown),
        "ids": list(found.ids),
        "score": found.score,
        "ended": found.ended,
        **({"others": [_result(one, text, stops) for one in found.others]} if found.others else {}),
    }
