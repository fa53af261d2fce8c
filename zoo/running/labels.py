"""What the classes of an imported classifier are called."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from zoo.transformer import Transformer


class _Labels(BaseModel):
    """What a config.json says of them."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id2label: Mapping[int, str] = {}


def class_names(model: Transformer) -> Mapping[int, str]:
    """The names by the numbers of the classes, from the config.json that the model came with; empty
    where it came with none, or with one that names no classes."""
    config = (model.origin or {}).get("config")
    if not isinstance(config, str):
        return {}
    try:
        return _Labels.model_validate(json.loads(config)).id2label
    except (ValueError, RecursionError):
        return {}
