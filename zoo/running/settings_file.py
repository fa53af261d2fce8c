"""The file with the settings of generation, as plain data. Imports no torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from zoo.errors import Place, WeightsError
from zoo.files.endless import check_ends
from zoo.files.of_model import SETTINGS


def read_values(folder: Path, config: str | None) -> tuple[Any, Path]:
    """Read the settings of generation that a model was published with.

    Args:
        folder: the model's, with or without a `generation_config.json`.
        config: the text of the `config.json` that the model was imported with, which counts if
            there is no such file, as in `transformers`; None if there is none.

    Returns:
        The settings, a dict unless the file holds something else; and the file, or else the folder,
        for messages.

    Raises:
        WeightsError: they cannot be read.
    """
    path = folder
    try:
        if os.path.lexists(folder / SETTINGS):
            path = folder / SETTINGS
            check_ends(path)
            return json.loads(path.read_text("utf-8")), path
        return {} if config is None else _with_decoder(json.loads(config)), path
    except (ValueError, OSError, RecursionError) as error:
        raise unreadable(error, path) from None


def unreadable(reason: object, path: Path) -> WeightsError:
    """The error for settings that cannot be read."""
    return WeightsError(f"the settings of generation cannot be read: {reason}", Place(str(path)))


def _with_decoder(config: Any) -> Any:
    """A config.json with the values that only the configuration of its decoder states."""
    if not isinstance(config, dict):
        return config
    inner = next((config[name] for name in ("decoder", "text_config") if name in config), None)
    if not isinstance(inner, dict):
        return config
    return inner | {name: value for name, value in config.items() if value is not None}
