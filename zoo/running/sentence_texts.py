"""How sentence-transformers prepares a text of which a vector is made: in small letters, with a
prompt before it, and cut off after some tokens, if the files of the model say so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zoo.errors import Place, WeightsError
from zoo.files.of_model import (
    LIST_OF_MODULES,
    MODULES,
    SENTENCE_CONFIG,
    SENTENCE_PROMPTS,
    find_files,
)
from zoo.json_files import read_json, read_json_if_there
from zoo.validating.value_errors import value_message
from zoo.wording import quoted


class _Prompts(BaseModel):
    """The file of prompts, as far as it is needed here."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    prompts: Mapping[str, str] = {}
    default_prompt_name: str | None = None


class CutWarning(UserWarning):
    """The end of a text is not read, since the files of the model say how many tokens are."""


class Reading(BaseModel):
    """How the Transformer module reads texts: whether in small letters, and at most how many
    tokens of each, with the prompt and the special tokens; None for all."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    do_lower_case: bool = False
    max_seq_length: Annotated[int, Field(strict=True, ge=1)] | None = None


def is_sentence_folder(folder: Path) -> bool:
    """Whether a folder lists modules of sentence-transformers."""
    return os.path.lexists(folder / LIST_OF_MODULES)


def reading_of(folder: Path) -> Reading:
    """How texts are read. Raises WeightsError if the file is damaged."""
    return _read(folder / SENTENCE_CONFIG, Reading)


def default_prompt(folder: Path) -> str:
    """The prompt that precedes every text; empty if there is none.

    Raises:
        WeightsError: a file is damaged or names a prompt that it does not state, or the vector is
            to be made without the tokens of the prompt.
    """
    path = folder / SENTENCE_PROMPTS
    stated = _read(path, _Prompts)
    name = stated.default_prompt_name
    if name is None:
        return ""
    if name not in stated.prompts:
        message = f"`default_prompt_name` is {quoted(name)}, which is none of its `prompts`"
        raise WeightsError(message, Place(str(path)))
    prompt = stated.prompts[name]
    for pooling in find_files(folder, MODULES[1:]):
        config = read_json(folder / pooling)
        if prompt and config.data.get("include_prompt", True) is False:
            message = "`include_prompt` is false, which is not supported"
            raise WeightsError(message, config.place("include_prompt"))
    return prompt


_Model = TypeVar("_Model", bound=BaseModel)


def _read(path: Path, kind: type[_Model]) -> _Model:
    """The values of a file, or the defaults if there is none."""
    values = read_json_if_there(path).items()
    try:
        return kind.model_validate({key: value for key, value in values if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = f"`{first['loc'][0]}` {value_message(first)}"
        raise WeightsError(message, Place(str(path))) from None
