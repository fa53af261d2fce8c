"""How the text begins that is written of a sound: with ids that say in which language is spoken,
and whether that is written down or translated into English (Whisper: Radford et al. 2022,
arXiv:2212.04356, section 2.3)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field

from zoo.errors import InputError, Place, WeightsError
from zoo.generation.methods import Id
from zoo.running.settings import Settings
from zoo.wording import did_you_mean, quoted

ENGLISH = "en"
"""The language that is translated into."""
TRANSCRIBE, TRANSLATE = "transcribe", "translate"
"""The names of the tasks in the settings."""


class SpeechSettings(Settings):
    """The settings of generation with those of how a text begins."""

    lang_to_id: dict[str, Id] | None = None
    """The id of each language by its token, such as `<|en|>`."""
    task_to_id: dict[str, Id] | None = None
    """The id of each task by its name."""
    language: str | None = None
    """The language that is spoken: its token, its code, `en`, or its name, `english`."""
    task: str | None = None
    """What is written: a transcript, or a translation."""
    no_timestamps_token_id: Annotated[int, Field(ge=1)] | None = None
    """The id with which no times are written between the words. The one after it is the time 0, and
    the one before it stands for a sound in which nothing is said."""
    max_initial_timestamp_index: Id | None = None
    """The latest time that a text begins with, in steps of a time."""
    no_speech_threshold: float | None = None
    """A window is left out if the id for nothing that is said is likelier than this, and the text
    is unlikely by `logprob_threshold`."""
    logprob_threshold: float | None = None
    """A text is unlikely, and drawn anew, if the mean log-probability of its tokens is below."""
    compression_ratio_threshold: float | None = None
    """A text repeats itself, and is drawn anew, if its ids are more times as long as compressed."""
    forced_decoder_ids: list[list[Id | None]] | None = None
    """How older checkpoints state a language and a task: pairs of a place after the first id, and
    the id there, null for a language that is detected. They count if neither is stated."""

    @property
    def languages(self) -> dict[str, int]:
        """The id of each language by its code."""
        return {_code(token): id_ for token, id_ in (self.lang_to_id or {}).items()}

    def check_begin(self, vocab: int) -> None:
        """Raise WeightsError if these settings do not fit each other, or hold an id that is outside
        the vocabulary."""
        names = ("lang_to_id", "task_to_id", "no_timestamps_token_id", "forced_decoder_ids")
        self.check(names, vocab)
        try:
            begin = self.begin()
        except InputError as error:
            raise WeightsError(
                problem._replace(place=Place(self.read_from)) for problem in error.problems
            ) from None
        if None in begin and not self.languages:
            raise WeightsError(
                "`forced_decoder_ids` asks for the language of a sound, and there is no "
                "`lang_to_id`, the ids of the languages",
                Place(self.read_from),
                "take the generation_config.json of the model that this one was trained from",
            )

    def begin(self, *, timestamps: bool = False) -> list[int | None]:
        """The ids that a text begins with, one with `timestamps` or one without; None in place of a
        language that is to be detected, and none at all if the settings do not state the first.

        Raises:
            InputError: the settings state no such language or task.
        """
        if self.decoder_start_token_id is None:
            return []
        found: list[int | None] = [self.decoder_start_token_id]
        if self.language is None and self.task is None:
            found += self._forced()
        if self.language is not None:
            found[1:2] = [self._language_id(self.language)]
        elif self.languages and found[1:2] in ([], [None]):
            found[1:2] = [None]
        tasks = self.task_to_id or {}
        if self.task is not None or (tasks and not {*found} & {*tasks.values()}):
            found.append(self._task_id(self.task or TRANSCRIBE))
        stated = found[-1] == self.no_timestamps_token_id
        if timestamps and stated:
            found.pop()
        elif not (timestamps or stated or self.no_timestamps_token_id is None):
            found.append(self.no_timestamps_token_id)
        return found

    def speaking(self, language: str) -> Self:
        """These settings for sounds in another language.

        Raises:
            InputError: there is no such language.
        """
        self._language_id(language)
        return self.model_copy(update={"language": language})

    def writing(self, language: str) -> Self:
        """These settings for texts in another language: a translation, if that is English and not
        known to be spoken.

        Raises:
            InputError: there is no such language, or it is neither English nor spoken.
        """
        target = self._language_id(language)
        spoken = None if self.language is None else self._language_id(self.language)
        if target not in (spoken, self.languages.get(ENGLISH)):
            raise InputError(
                f"a sound is written down in the language that is spoken, or translated into "
                f"English, and not into {quoted(language)}",
                help="if that is spoken, state it as the language of the source",
            )
        task = TRANSCRIBE if target == spoken else TRANSLATE
        self._task_id(task)
        return self.model_copy(update={"task": task})

    def _language_id(self, language: str) -> int:
        known = self.languages
        if not isinstance(language, str):
            raise InputError(f"a language is its code or name, not {language!a:.80}")
        name = language.lower()
        code = _codes().get(name, _code(name))
        if code not in known:
            hint = "its generation_config.json states no languages (`lang_to_id`)"
            if known:
                hint = did_you_mean(name, [*known, *_names_of(known)])
            raise InputError(f"the model has no language {quoted(language)}", help=hint)
        return known[code]

    def _task_id(self, task: str) -> int:
        known = self.task_to_id or {}
        if task not in known:
            hint = did_you_mean(task, known) if known else None
            raise InputError(f"the model has no task {quoted(task)}", help=hint)
        return known[task]

    def _forced(self) -> list[int | None]:
        pairs = self.forced_decoder_ids or []
        for number, pair in enumerate(pairs, 1):
            if len(pair) != 2 or pair[0] != number or (pair[1] is None and number > 1):
                raise InputError(
                    "`forced_decoder_ids` are pairs of a place and the id there, of the places "
                    "after the first id, from 1, and null at the first of these alone"
                )
        return [pair[1] for pair in pairs]


def _code(token: str) -> str:
    """The code of a language: of `<|en|>`, `en`."""
    return token.removeprefix("<|").removesuffix("|>")


def _names_of(codes: dict[str, int]) -> Iterator[str]:
    return (name for name, code in _codes().items() if code in codes)


@cache
def _codes() -> dict[str, str]:
    """The codes of languages by their names."""
    path = Path(__file__).with_name("language_codes.toml")
    return tomllib.loads(path.read_text("utf-8"))
