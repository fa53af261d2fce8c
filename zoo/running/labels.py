"""What the classes of a model are: as its spec says or, of an imported model, its config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from zoo.provenance.origin import published_config
from zoo.spec import ModelSpec


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


def labels_of(spec: ModelSpec, origin: Mapping[str, Any] | None) -> Labels:
    """Read the classes of a model from its spec and from the config.json that it was imported with,
    if there was one and it can be read. What the spec says comes first."""
    config, found = published_config(origin), Labels()
    if config is not None:
        with suppress(ValueError, RecursionError):
            found = Labels.model_validate(json.loads(config))
    classes = spec.model.classes
    stated: dict[str, object] = {}
    if classes is not None and classes.labels is not None:
        stated["id2label"] = dict(enumerate(classes.labels))
    if classes is not None and classes.problem_type is not None:
        stated["problem_type"] = classes.problem_type
    return found.model_copy(update=stated)
