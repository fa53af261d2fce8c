"""What the config.json of an imported model says besides its spec."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from zoo.transformer import Transformer


class Labels(BaseModel):
    """What a config.json says of the classes: their names by number, and the kind of problem:
    `multi_label_classification` if a text may be of several classes, `regression` if the scores are
    themselves what is asked for."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id2label: Mapping[int, str] = {}
    problem_type: str | None = None

    @field_validator("id2label", mode="wrap")
    @classmethod
    def _or_none(cls, value: object, read: ValidatorFunctionWrapHandler) -> Mapping[int, str]:
        """Names that cannot be read do not hide what the scores stand for."""
        try:
            names: Mapping[int, str] = read(value)
        except ValidationError:
            return {}
        return names


def published_config(model: Transformer) -> str | None:
    """The text of the config.json that the model was imported with, if there was one."""
    config = (model.origin or {}).get("config")
    return config if isinstance(config, str) else None


def read_labels(model: Transformer) -> Labels:
    """Read the classes from the config.json that the model was imported with; there are none if
    there was none, or if it cannot be read."""
    config = published_config(model)
    if config is None:
        return Labels()
    try:
        return Labels.model_validate(json.loads(config))
    except (ValueError, RecursionError):
        return Labels()
