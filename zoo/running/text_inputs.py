"""What a model of texts reads: the ids of a text, of a pair of texts or of a chat, and whether they
fit the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from zoo.errors import InputError
from zoo.generation.prompts import SHORTEN, check_length, read_ids
from zoo.purpose import Reading
from zoo.running.asked import Asked
from zoo.running.compared_texts import ids_to_compare
from zoo.running.media_in_text import MediaInText
from zoo.running.settings import Settings
from zoo.running.text import Input, Text
from zoo.spec import ModelSpec

if TYPE_CHECKING:
    from zoo.running.chat import Chat, Prompt


_TRUNCATE = "nothing is cut unasked: `--truncate`, in Python `truncating()`, leaves out the end"


@dataclass(frozen=True, slots=True)
class TextInputs:
    """Makes the inputs of a model of texts.

    Args:
        spec: the model's.
        text: turns text into its ids.
        settings: how the publisher has set up generation.
        media: of a model in whose texts images or sounds may stand, reads texts with them.
        asked: what is asked of the model.
    """

    spec: ModelSpec
    text: Text
    settings: Settings
    media: MediaInText[Any, Any, Any] | None
    asked: Asked

    def read(self, prompt: Prompt, media: Sequence[Any] = ()) -> Input:
        """The ids of a text, a pair of texts or a chat, with images or sounds in it; none of a
        blank text, of which a translator would invent a sentence. Raises InputError if they do not
        fit the model."""
        if self.spec.model.task == "translate" and isinstance(prompt, str) and not prompt.strip():
            return Input([])
        if self.spec.model.comparison is not None:
            return Input(self._compared_ids(prompt))
        found = self._encoded(prompt, media)
        if not found.ids or (self.spec.model.task == "answer" and not found.words):
            raise InputError("the text is empty: no tokens are made of it")
        self._check_ids(found.ids)
        if self.spec.model.task == "fill_mask" and self.asked.mask_id not in found.ids:
            raise InputError(
                "the text holds no masked token",
                help="write the tokenizer's `[MASK]` or `<mask>`; with ids, state `mask_id`",
            )
        return found

    def _compared_ids(self, prompt: Prompt) -> list[int]:
        """The ids of a text that is compared with images. Raises InputError if it does not fit."""
        if not isinstance(prompt, str):
            raise InputError(f"{self.spec.name} takes texts, neither pairs of texts nor chats")
        return ids_to_compare(self.text, prompt, spec=self.spec, what="text")

    def _encoded(self, prompt: Prompt, media: Sequence[Any]) -> Input:
        """What the tokenizer makes of it. Raises InputError if the model does not take its kind."""
        tools = self.asked.tools
        if tools is not None and (isinstance(prompt, str) or _is_pair(prompt)):
            raise InputError("tools are called in chats, and this is a text")
        if _is_pair(prompt):
            return self._pair(prompt)
        if self.spec.model.task == "answer":
            raise InputError(
                f"{self.spec.name} takes pairs of a question and a text",
                help='`--pairs`, or in Python `run([("Who wrote it?", "The text.")])`',
            )
        if self.media is not None and isinstance(prompt, str | list | tuple):
            return self.media.row(cast("str | Chat", prompt), media, tools)
        if not isinstance(prompt, list | tuple):
            return self._one_text(cast("str", prompt))
        if self.spec.model.task == "generate":
            return Input(self.text.encode(self.text.write_chat(prompt, tools=tools), special=False))
        raise InputError(f"{self.spec.name} takes texts, not chats")

    def _pair(self, pair: tuple[str, str]) -> Input:
        if self.spec.model.generation is not None:
            raise InputError(f"{self.spec.name} takes texts, not pairs of texts")
        found = self.text.encode_pair(pair, text_reading(self.spec).token_types)
        return found if self.spec.model.task == "answer" else Input(found.ids, found.types)

    def _one_text(self, text: str) -> Input:
        found, classes = Input(self.text.encode(text)), self.spec.model.classes
        if classes is None or not classes.each_token:
            return found
        return found._replace(text=text, words=self.text.words(text))

    def _check_ids(self, ids: list[int]) -> None:
        """Raise InputError if an id is outside the vocabulary, or the model has too few
        positions."""
        reading = text_reading(self.spec)
        read_ids([ids], what="text", vocab=reading.vocab)
        most_new = self.asked.max_new_tokens if self.spec.model.task == "generate" else 0
        can_truncate = not most_new and not self.text.writes_ids
        help = _TRUNCATE if can_truncate else SHORTEN
        check_length(len(ids), reading.longest, "text", most_new=most_new, help=help)
        if self.spec.model.rereads is not None:
            self._check_rereading(ids)

    def _check_rereading(self, ids: list[int]) -> None:
        """Raise InputError if the model cannot read a text as its target too: the files beside it
        do not say with which id this begins, or the text does not end with that of its end, at
        which the model looks."""
        name, settings, vocab = self.spec.name, self.settings, text_reading(self.spec).vocab
        if settings.decoder_start_token_id is None:
            raise InputError(
                f"{name} reads a text a second time, as a target, and no file says with which "
                "id this begins",
                help="state `decoder_start_token_id` in a generation_config.json beside the "
                "weights",
            )
        settings.check(["decoder_start_token_id"], vocab)
        ends = settings.ends_within(vocab)
        if ends and ids[-1] not in ends:
            raise InputError(
                f"{name} classifies a text by its end, the id {ends[0]}, and this one ends with "
                f"{ids[-1]}"
            )


def text_reading(spec: ModelSpec) -> Reading:
    """How a model reads a text."""
    model = spec.model
    return model.called_with[0] if model.rereads is None else model.rereads


def _is_pair(prompt: object) -> TypeGuard[tuple[str, str]]:
    """Whether this is a pair of texts, and no chat, whose messages are tables."""
    if not isinstance(prompt, list | tuple):
        return False
    return len(prompt) == 2 and all(isinstance(side, str) for side in prompt)
