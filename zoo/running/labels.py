"""What the config.json of an imported model says besides its spec."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from zoo.transformer import Transformer


class _Labels(BaseModel):
    """The class names in a config.json."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id2label: Mapping[int, str] = {}


def published_config(model: Transformer) -> str | None:
    """The text of the config.json that the model was imported with, if there was one."""
    config = (model.origin or {}).get("config")
    return config if isinstance(config, str) else None


def class_names(model: Transformer) -> Mapping[int, str]:
    """The class names by class number, from the config.json that the model was imported with; empty
    if there was none, or if it names no classes."""
    config = published_config(model)
    if config is None:
        return {}
    try:
        return _Labels.model_validate(json.loads(config)).id2label
    except (ValueError, RecursionError):
        return {}
