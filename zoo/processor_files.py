"""The files in which a model's publisher says how its inputs are prepared, as the processors of
`transformers` save them."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import Place, Problem, WeightsError
from zoo.files.of_model import PREPROCESSOR_SETTINGS, PROCESSOR_SETTINGS
from zoo.json_files import JsonFile, read_json
from zoo.validating.value_errors import value_message
from zoo.wording import did_you_mean, dotted

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


@dataclass(frozen=True, slots=True)
class ProcessorFile:
    """The settings for inputs of one kind, in a file with or without others.

    Args:
        file: the file.
        inside: the keys under which the settings are.
    """

    file: JsonFile
    inside: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """What is written, null too."""
        settings = self.file.data
        for key in self.inside:
            settings = settings[key]
        return settings

    def place(self, *keys: str) -> Place:
        """The place of a key, or without one, of all settings; that of the file if the key is not
        written there."""
        return self.file.place(*self.inside, *keys)

    def problem(self, details: ErrorDetails, what: str, known: Collection[str]) -> Problem:
        """The problem for an error of pydantic in these settings of `what`, such as `images`, of
        which those of the names `known` are supported."""
        keys = tuple(map(str, details["loc"]))
        place = self.place(*keys)
        if place.line is None:  # such as a number in an array
            place = self.place(*keys[:1])
        if details["type"] == "extra_forbidden":
            hint = did_you_mean(keys[0], known) if len(keys) == 1 else None
            message = f"`{dotted(keys)}` is a setting of {what} that is not supported"
            return Problem(message, place, hint)
        message = value_message(details)
        return Problem(f"`{dotted(keys)}` {message}" if keys else message, place)


def read_processor_file(folder: Path, nested: str, *, what: str, example: str) -> ProcessorFile:
    """Read the settings in a model's folder. As in `transformers`, those in a
    `processor_config.json` count before a `preprocessor_config.json`.

    Args:
        folder: the model's.
        nested: the key of a `processor_config.json` under which the settings may be.
        what: what they say, for messages, such as `how images become pixels`.
        example: a file of them, for messages.

    Raises:
        WeightsError: there is no such file, or it cannot be read.
    """
    if os.path.lexists(folder / PROCESSOR_SETTINGS):
        file = read_json(folder / PROCESSOR_SETTINGS)
        if isinstance(file.data.get(nested), dict):
            return ProcessorFile(file, (nested,))
    if os.path.lexists(folder / PREPROCESSOR_SETTINGS):
        return ProcessorFile(read_json(folder / PREPROCESSOR_SETTINGS))
    message = f"there is no {PREPROCESSOR_SETTINGS}, which says {what}"
    hint = f"put the one there that the model was published with, or write it: `{example}`"
    raise WeightsError(message, Place(str(folder)), hint)
