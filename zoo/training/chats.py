"""Chats as a decoder learns them: what it reads before each answer, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from zoo.errors import InputError, TrainingError
from zoo.json_files import strict_json
from zoo.running.chat import ChatTemplate, Tools, read_messages, read_tools
from zoo.training.example import Example
from zoo.training.tokens import Tokens
from zoo.wording import quoted

_NOW = datetime(2025, 1, 1)
"""The time for templates that write the date: with another one on each day, no run could be
repeated."""


@dataclass(frozen=True)
class Chats:
    """Writes chats by the chat template of the model that learns them.

    Args:
        template: the template.
        tokens: the tokenizers of the model, whose `end` ends an answer.
    """

    template: ChatTemplate
    tokens: Tokens

    @classmethod
    def of(cls, folder: Path, tokens: Tokens) -> Chats:
        """Those of the model in a folder. Raises InputError and WeightsError as `ChatTemplate`."""
        return cls(ChatTemplate(folder, lambda: _NOW), tokens)

    def examples(self, chat: object, name: str, tools: object) -> list[Example]:
        """The texts of a chat, in which each answer follows what `zoo run` gives the model for it.
        As a rule it is one text; an answer begins a new one if the template has written what comes
        before it in another way for the answers of the assistant before, as templates do that drop
        the thoughts of earlier answers. A message with which the assistant begins is no answer.

        Args:
            chat: the messages.
            name: the name of the field that they are from.
            tools: the tools that may be called in it: a list, or the JSON of one; None for none.

        Raises:
            TrainingError: they are no messages or no tools, or the template does not accept them;
                none is an answer; or the template does not write an answer behind what the model is
                given, or without its end.
        """
        if not isinstance(chat, list | tuple) or not all(isinstance(one, Mapping) for one in chat):
            hint = 'such as `[{"role": "user", "content": "Hello!"}, ...]`'
            raise TrainingError(f"the field {quoted(name)} is no list of messages", help=hint)
        try:
            messages = read_messages(chat)
            answers = [
                number
                for number, message in enumerate(messages)
                if number and message["role"] == "assistant"
            ]
            parsed = _parsed(tools)
            return self._texts(messages, answers, None if parsed is None else read_tools(parsed))
        except InputError as error:
            raise TrainingError(error.problems) from None

    def _texts(
        self, messages: list[dict[str, Any]], answers: list[int], tools: Tools | None
    ) -> list[Example]:
        if not answers:
            hint = 'its answers are the messages of the role "assistant"'
            raise TrainingError("the chat has no answer that could be learned", help=hint)
        found: list[Example] = []
        text = ""  # what the last one of them has so far
        for number in answers:
            prompt = self.template.write(messages[:number], tools)
            answer = self._answer(messages[: number + 1], prompt, tools)
            if found and prompt.startswith(text):
                last = found[-1]
                prompts = (*last.prompts, prompt.removeprefix(text))
                found[-1] = last._replace(source=prompts, target=(*last.targets, answer))
            else:
                opening = found[0].opening if found else prompt
                found.append(Example((prompt,), (answer,), opening=opening))
            text = prompt + answer
        return found

    def _answer(self, messages: list[dict[str, Any]], prompt: str, tools: Tools | None) -> str:
        """The last message with its end, as the template writes it behind a prompt."""
        text = self.template.write(messages, tools, answered=True)
        where = f"the chat template in {quoted(self.template.path(tools))}"
        if not text.startswith(prompt):
            message = f"{where} does not write message {len(messages)} behind the prompt for it"
            hint = f"the prompt ends with {quoted(prompt[-40:])}: an answer has to go on from there"
            raise TrainingError(message, help=hint)
        answer, end, _ = text.removeprefix(prompt).partition(self.tokens.end)
        if not end:
            message = f"{where} does not end message {len(messages)} with {quoted(self.tokens.end)}"
            hint = "state in `[tokenizer]` which special token ends an answer, as `eos`"
            raise TrainingError(message, help=hint)
        return answer + end


def _parsed(tools: object) -> object:
    """Tools that are given as JSON. Data sets keep them so, as the schemas of two tools seldom have
    the same fields; a blank text is none."""
    if not isinstance(tools, str):
        return tools
    try:
        return strict_json(tools) if tools.strip() else None
    except (ValueError, RecursionError) as error:
        raise InputError(f"the tools of the chat are a text, and no JSON: {error}") from None
