"""How the publisher of a model has set up its generation: the folder's `generation_config.json`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from zoo.errors import InputError, Place, Problem, WeightsError
from zoo.generation.methods import (
    AnyMethod,
    Beam,
    Greedy,
    Id,
    Method,
    Sampling,
    outside_vocabulary,
)
from zoo.running.settings_file import read_values, unreadable
from zoo.validating.value_errors import deepest, value_message

TOP_K = 50
"""The `top_k` with which `transformers` samples if the settings state none."""

UNSUPPORTED: Mapping[str, Any] = {
    "compression_ratio_threshold": None,
    "constraints": None,
    "diversity_penalty": 0.0,
    "dola_layers": None,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None,
    "forced_decoder_ids": None,
    "guidance_scale": 1.0,
    "logprob_threshold": None,
    "max_time": None,
    "no_speech_threshold": None,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "penalty_alpha": None,
    "return_timestamps": False,
    "sequence_bias": None,
    "stop_strings": None,
    "token_healing": False,
    "top_h": None,
    "typical_p": 1.0,
    "watermarking_config": None,
}
"""The settings of `transformers` that the zoo does not apply, with the value that changes nothing.
"""


class SettingsWarning(UserWarning):
    """A setting of the model's folder that would change what is generated is not applied."""


class Settings(BaseModel):
    """The settings of generation, under the names of `transformers`, whose meaning they have. None
    is for a setting that is not stated. Other keys are ignored.

    `read_from` is the file, for messages."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    eos_token_id: int | list[int] | None = None
    decoder_start_token_id: Id | None = None
    forced_bos_token_id: Id | None = None
    forced_eos_token_id: Id | list[Id] | None = None
    bad_words_ids: list[list[Id]] | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    renormalize_logits: bool | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    encoder_no_repeat_ngram_size: int | None = None
    suppress_tokens: list[Id] | None = None
    begin_suppress_tokens: list[Id] | None = None
    min_length: int | None = None
    min_new_tokens: int | None = None
    read_from: str = ""

    def check(self, names: Iterable[str], vocab: int) -> None:
        """Raise WeightsError if one of these settings holds an id that is outside the
        vocabulary."""
        for name in names:
            stated = [getattr(self, name)]
            while stated:
                one = stated.pop()
                if isinstance(one, list):
                    stated += one
                elif isinstance(one, dict):
                    stated += one.values()
                elif one is not None and one >= vocab:
                    (found,) = outside_vocabulary(f"`{name}`", one, vocab).problems
                    raise WeightsError(found._replace(place=Place(self.read_from)))

    def ends_within(self, vocab: int) -> list[int]:
        """The ids of `eos_token_id`, without those that are outside the vocabulary: these never
        come. A model whose vocabulary was made smaller often keeps one, and -1 stands for no end.

        Warns:
            SettingsWarning: some are outside.
        """
        stated = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        ends = [one for one in stated if one is not None]
        within = [one for one in ends if 0 <= one < vocab]
        if outside := [one for one in ends if one not in within]:
            warnings.warn(
                f"{self.read_from}: `eos_token_id` {outside[0]} is outside the vocabulary of "
                f"{vocab:,} tokens, so that it ends no text",
                SettingsWarning,
                stacklevel=3,
            )
        return within

    def method(
        self,
        changes: Mapping[str, Any] = {},
        *,
        sample: bool | None = None,
        beams: int | None = None,
    ) -> Greedy | Sampling | Beam:
        """The method of choosing tokens.

        Args:
            changes: fields of the method that differ from the settings.
            sample: whether tokens are drawn, whatever the settings say.
            beams: the number of beams, whatever the settings say; one is greedy search.

        Raises:
            InputError: a value of `changes` is out of range.
            WeightsError: a value of the settings is.
        """
        if sample is None:
            sample = bool(self.do_sample) and beams is None
        if sample:
            top_k = TOP_K if self.do_sample and self.top_k is None else self.top_k
            own = {"top_k": top_k or None}
            return self._method(Sampling, (*_ALWAYS, *_DRAWING), changes, own)
        if (self.num_beams or 1 if beams is None else beams) == 1:
            return self._method(Greedy, _ALWAYS, changes)
        if beams is not None:
            changes = {"size": beams, **changes}
        return self._method(Beam, (*_ALWAYS, *_SEARCHING), changes)

    def completed(self, method: AnyMethod) -> AnyMethod:
        """A method that the caller has chosen, with the ids that the model is forced to generate or
        kept from generating, unless the method states others.

        Raises:
            WeightsError: an id is out of range.
        """
        stated = {name: getattr(method, name) for name in method.model_fields_set}
        return self._method(type(method), _MODELS_OWN, stated)

    def applied(self, method: Method) -> dict[str, Any]:
        """The settings that count in a method of `method`, by name: those that change it, and are
        not replaced by others. Without those that `completed` adds."""
        plain: dict[str, Any] = dict(Sampling()) | dict(Beam(size=1)) | {"top_k": None}
        found: dict[str, Any] = {"do_sample": True} if isinstance(method, Sampling) else {}
        found = found if self.do_sample else {}
        for name, value in method:
            setting = _NAMES.get(name, name)
            if name in _MODELS_OWN or value == plain[name] or value != getattr(self, setting, None):
                continue
            found[setting] = value
        return found

    def _method(
        self,
        kind: type[AnyMethod],
        names: Sequence[str],
        changes: Mapping[str, Any],
        own: Mapping[str, Any] = {},
    ) -> AnyMethod:
        """A method with the settings of these names, the values of `own`, and the changes."""
        kind.model_validate(changes)  # what is wrong from here on is wrong in the file
        settings = {name: getattr(self, _NAMES.get(name, name)) for name in names}
        stated = {name: value for name, value in settings.items() if value is not None}
        try:
            return kind.model_validate({**stated, **own, **changes})
        except InputError as error:
            raise WeightsError(
                Problem(_published_name(problem.message), Place(self.read_from))
                for problem in error.problems
            ) from None


_MODELS_OWN = ("first_id", "last_id", "bad_words", "suppress_tokens", "begin_suppress_tokens")
_ALWAYS = (
    *_MODELS_OWN,
    "repetition_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "min_new_tokens",
)
_DRAWING = ("temperature", "top_p", "min_p")
_SEARCHING = ("size", "length_penalty", "early_stopping", "renormalize")
_NAMES = {
    "first_id": "forced_bos_token_id",
    "last_id": "forced_eos_token_id",
    "bad_words": "bad_words_ids",
    "size": "num_beams",
    "renormalize": "renormalize_logits",
}
"""The settings whose fields have another name in the methods."""
SETTINGS_OF_IDS = tuple(_NAMES.get(name, name) for name in _MODELS_OWN)
"""The settings that count whatever the method: the ids that are forced or kept from being
generated."""


def _published_name(message: str) -> str:
    """A message that begins with the name of a field, with that of the setting in its place."""
    _, name, rest = message.split("`", 2)
    return f"`{_NAMES.get(name, name)}`{rest}"


AnySettings = TypeVar("AnySettings", bound=Settings)


def read_settings(
    folder: Path,
    config: str | None,
    *,
    has_source: bool,
    kind: type[AnySettings] = Settings,  # type: ignore[assignment]
) -> AnySettings:
    """Read the settings of a folder's `generation_config.json`.

    If it has none, they are those of `config`, the text of the `config.json` that the model was
    imported with, as in transformers; empty if there is none. A `SettingsWarning` names settings
    that are not applied.

    Args:
        folder: the model's.
        config: the text of the config.json.
        has_source: whether the model has an encoder. A decoder's texts begin with the prompt, and
            nothing is forced there.
        kind: which settings are read, of which those of some models have more.

    Raises:
        WeightsError: the settings are damaged.
    """
    values, path = read_values(folder, config)
    if values == {}:
        return kind()
    found = _validated(values, kind, path)
    unsupported = [
        name
        for name, neutral in UNSUPPORTED.items()
        if values.get(name) not in (None, neutral) and name not in kind.model_fields
    ]
    changes: dict[str, Any] = {"read_from": str(path)}
    # Of several, `transformers` gives all the same score: its greedy search takes the least, its
    # sampling draws one, and its beams have whichever `torch.topk` finds first.
    if isinstance(found.forced_eos_token_id, list):
        changes["forced_eos_token_id"] = min(found.forced_eos_token_id, default=None)
    if not has_source:
        changes["forced_bos_token_id"] = None
    if found.min_length and found.min_new_tokens is None:
        if has_source:
            changes["min_new_tokens"] = found.min_length - 1  # without what begins the target
        else:
            unsupported.append("min_length")
    if (found.num_beams or 1) > 1 and found.do_sample:
        unsupported.append("num_beams")
    if unsupported:
        names = ", ".join(f"`{name}`" for name in sorted(unsupported))
        warnings.warn(
            f"{path}: {names}: not supported by the zoo, so that other texts may be generated than "
            "the publisher meant",
            SettingsWarning,
            stacklevel=4,  # who calls `TextModel.load`
        )
    return found.model_copy(update=changes)


def _validated(values: Any, kind: type[AnySettings], path: Path) -> AnySettings:
    """The settings of a file. Raises WeightsError for the first that is wrong."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        # One value has several errors if it may be of several types.
        same = [first, *(other for other in others if other["loc"][:1] == first["loc"][:1])]
        message = value_message(*deepest(values, same))
        if first["loc"]:
            message = f"`{first['loc'][0]}` {message}"
        raise unreadable(message, path) from None
