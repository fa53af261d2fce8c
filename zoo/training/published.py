"""The special tokens that a saved model was published with. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from zoo.running.settings_file import read_values
from zoo.training.sides import Sides


class Published(NamedTuple):
    """Special ids, as the settings of generation beside a model state them.

    Args:
        pad: the id of padding.
        bos: the id that a target, or a text, begins with.
        first: the id that each target has next, whatever its text, such as that of a language.
        ends: the ids that end a target, or a text.
    """

    pad: int | None = None
    bos: int | None = None
    first: int | None = None
    ends: tuple[int, ...] = ()


UNPUBLISHED = Published()
"""For a model whose special ids nobody has stated."""


def read_published(folder: Path, config: str | None, sides: Sides) -> Published:
    """Read the special ids of a saved model. What is no id, such as the -1 of some configurations,
    is not stated.

    Args:
        folder: the model's.
        config: the text of the `config.json` that it was imported with, if there is one.
        sides: what it reads and predicts. A target that follows a source begins with
            `decoder_start_token_id`, or else, as in `transformers`, with `bos_token_id`.

    Raises:
        WeightsError: the settings cannot be read.
    """
    values, _ = read_values(folder, config)
    if not isinstance(values, dict):
        return UNPUBLISHED
    begins = [_ids(values.get("bos_token_id"))]
    if sides.has_source:
        begins.insert(0, _ids(values.get("decoder_start_token_id")))
    firsts = _ids(values.get("forced_bos_token_id")) if sides.has_source else ()
    return Published(
        pad=next(iter(_ids(values.get("pad_token_id"))), None),
        bos=next((ids[0] for ids in begins if ids), None),
        first=next(iter(firsts), None),
        ends=_ids(values.get("eos_token_id")),
    )


def _ids(stated: Any) -> tuple[int, ...]:
    found = stated if isinstance(stated, list) else [stated]
    return tuple(dict.fromkeys(one for one in found if type(one) is int and one >= 0))
