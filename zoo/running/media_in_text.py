"""What images and sounds in a text have in common: the text with their places, as the publisher's
processor writes it, and its ids, with as many tokens for each as it has states."""

from __future__ import annotations

import json
import os
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from zoo.errors import InputError, WeightsError
from zoo.files.of_model import PREPROCESSOR_SETTINGS, PROCESSOR_SETTINGS, TOKENIZER_CONFIG
from zoo.json_files import read_json, read_json_if_there
from zoo.running.text import Input, Places, Text
from zoo.running.tokenizer_config import read_special_tokens
from zoo.spec import ModelSpec
from zoo.wording import allowed, counted, did_you_mean, quoted

if TYPE_CHECKING:
    from zoo.running.chat import Chat, Tools

_CLASS = "processor_class"
NAME = re.compile(r"\{(\w+)\}")
"""A name in a text of the tables."""


class Writing(Protocol):
    """How a processor writes images or sounds into a text: what the tables have in common."""

    @property
    def place(self) -> str:
        """What stands for one in a text that is written for the model."""

    @property
    def special(self) -> bool:
        """Whether the tokenizer adds its special tokens to a text."""

    @property
    def tokens(self) -> Mapping[str, str]:
        """The texts of special tokens, by the names that the table calls them."""


W = TypeVar("W", bound=Writing)
Medium = TypeVar("Medium")
Read = TypeVar("Read")


@cache
def _table(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The values of the processors of a table, by all their names, and by the model types that have
    them."""
    by_name: dict[str, Any] = {}
    of_types: dict[str, Any] = {}
    for name, stated in tomllib.loads(path.read_text("utf-8")).items():
        names, types = [name, *stated.pop("also", ())], stated.pop("model_types")
        by_name.update(dict.fromkeys(names, stated))
        of_types.update(dict.fromkeys(types, stated))
    return by_name, of_types


class MediaInText(ABC, Generic[W, Medium, Read]):
    """Makes what a model reads of texts with images or sounds in them.

    Args:
        folder: that of the model.
        config: the text of the `config.json` that it was imported with, if there was one.
        spec: the model's.
        text: turns text into its ids.
    """

    medium: ClassVar[str]
    """What stands in the texts, and the name of its token in the table: `image` or `sound`."""
    part: ClassVar[str]
    """The `type` of the parts of a chat that are their places."""
    table: ClassVar[Path]
    """The table of processors."""

    def __init__(self, folder: Path, config: str | None, spec: ModelSpec, text: Text) -> None:
        self.folder, self.config, self.spec, self.text = folder, config, spec, text

    def row(self, text: str | Chat, media: Sequence[Medium], tools: Tools | None = None) -> Input:
        """What the model reads of a text or of a chat in which `tools` may be called: its ids, with
        as many tokens for each image or sound as it has states, and these.

        Raises:
            InputError: it has places for another number of them; one cannot be read, or does not
                fit the model; or as `Text.encode` and `Text.write_chat`.
            WeightsError: the files of the folder that say how they are read or written are damaged,
                or not supported.
        """
        special = isinstance(text, str)  # a chat template writes the special tokens itself
        written = (
            text
            if isinstance(text, str)
            else self.text.write_chat(text, tools=tools, places=Places(self.part, len(media)))
        )
        if self.text.writes_ids:
            read, ids = self._read(media), self.text.encode(written)
        else:
            place = self._filled(self._writing.place)
            self._check_places(written.count(place), len(media), place)
            read = self._read(media)
            whole = self._written(written, place, read)
            ids = self.text.encode(whole, special=special and self._writing.special)
        n_states = iter(self._states(ids, read))
        each = (next(n_states) if id_ == self._inserted_id else 1 for id_ in ids)
        ids = [new for old, n in zip(ids, each, strict=True) for new in [old] * n]
        return self._input(ids, read)

    @property
    @abstractmethod
    def _inserted_id(self) -> int:
        """The id of the token at whose places states stand."""

    @property
    @abstractmethod
    def _writing(self) -> W:
        """How the processor writes them. Raises WeightsError if it is not known."""

    @abstractmethod
    def _read(self, media: Sequence[Medium]) -> Sequence[Read]:
        """Read each of them. Raises InputError with the problems of all that cannot be."""

    @abstractmethod
    def _one(self, read: Read) -> str:
        """What is written at the place of one of them."""

    @abstractmethod
    def _states(self, ids: Sequence[int], read: Sequence[Read]) -> list[int]:
        """How many states each of their places in the ids stands for. Raises InputError if there
        are other places."""

    @abstractmethod
    def _input(self, ids: list[int], read: Sequence[Read]) -> Input:
        """What the model is given."""

    def _written(self, text: str, place: str, read: Sequence[Read]) -> str:
        """A text with what stands at the places."""
        *before, rest = text.split(place)
        return (
            "".join(first + self._one(one) for first, one in zip(before, read, strict=True)) + rest
        )

    def _stated(self) -> Mapping[str, Any]:
        """What the table says of the processor that the `processor_class` of the folder's files
        names, in the order in which `transformers` looks for one, or else of that of the model
        type; nothing if there is none. Raises WeightsError if it is not known."""
        by_name, of_types = _table(self.table)
        for name in (PROCESSOR_SETTINGS, PREPROCESSOR_SETTINGS, TOKENIZER_CONFIG):
            if not os.path.lexists(self.folder / name):
                continue
            file = read_json(self.folder / name)
            stated = file.data.get(_CLASS)
            if isinstance(stated, str) and stated in by_name:
                found: Mapping[str, Any] = by_name[stated]
                return found
            if stated is not None:
                message = (
                    f"how the processor {quoted(stated)} writes {self.medium}s into a text is not "
                    "known"
                )
                hint = did_you_mean(str(stated), by_name) or allowed(by_name)
                raise WeightsError(message, file.place(_CLASS), hint)
        type_ = None if self.config is None else json.loads(self.config).get("model_type")
        return of_types.get(type_, {}) if isinstance(type_, str) else {}

    @property
    def _token(self) -> str:
        return self.text.token_of(self._inserted_id)

    @cached_property
    def _tokens(self) -> Mapping[str, str]:
        """The texts of the special tokens by their names, and that of the token for these media.
        What the settings of a whole processor say counts before what those of its tokenizer do."""
        ours, stated = self._writing.tokens, read_special_tokens(self.folder)
        whole = read_json_if_there(self.folder / PROCESSOR_SETTINGS)
        of_whole = {name: text for name in ours if isinstance(text := whole.get(name), str)}
        return {**ours, **stated, **of_whole, self.medium: self._token}

    def _filled(self, template: str, **more: object) -> str:
        """A text of the table with the values of the names in it."""
        known: Mapping[str, Any] = {**self._tokens, **more}
        return NAME.sub(lambda found: str(known[found[1]]), template)

    @property
    def _one_of_them(self) -> str:
        """An image or a sound, in words."""
        return f"{'an' if self.medium[0] in 'aeiou' else 'a'} {self.medium}"

    def _check_places(self, n_places: int, n_media: int, place: str) -> None:
        """Raise InputError unless there is a place for each of them."""
        if n_places != n_media:
            raise InputError(
                f"the text has {counted(n_places, 'place')} for {self._one_of_them}, "
                f"`{place}`, and {counted(n_media, self.medium)} given",
                help=f"write `{place}` once in the text for each {self.medium}, where it stands",
            )

    def _other_places(self, n_places: int, wanted: str, *, once_for: str) -> InputError:
        """The error for a text whose ids hold the token of these media too often or too seldom:
        what there is instead, and for what the id stands once."""
        if self.text.writes_ids:
            hint = f"write the id {self._inserted_id} once for {once_for}"
        else:
            place = self._filled(self._writing.place)
            hint = (
                f"write `{place}` where {self._one_of_them} stands, and nothing else that is read "
                "as one"
            )
        return InputError(
            f"the ids of the text have {counted(n_places, 'place')} for {self.medium}s, "
            f"`{self._token}`, and {wanted}",
            help=hint,
        )
