"""Chats: the messages of a conversation become one prompt, by the chat template of the model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from zoo.errors import InputError, Place, Problem, WeightsError
from zoo.files.endless import check_ends
from zoo.files.of_model import CHAT_TEMPLATE, OLDER_CHAT_TEMPLATE, TOKENIZER_CONFIG
from zoo.json_files import read_json, read_json_if_there
from zoo.running.tokenizer_config import read_special_tokens
from zoo.validating.value_errors import value_message
from zoo.wording import quoted

Chat = Sequence[Mapping[str, Any]]
"""The messages of a conversation: `[{"role": "user", "content": "Hello!"}]`. The usual roles are
`system`, `user` and `assistant`. A message may have further keys, for templates that read them. For
a model that takes images in its texts, a content may also be a list of parts, in which
`{"type": "image"}` is the place of an image: `[{"type": "image"}, {"type": "text", "text": "What is
it?"}]`."""


Prompt = str | tuple[str, str] | Chat
"""What a model is run on: a text, a pair of texts, or a chat."""


class ChatTemplate:
    """The chat template of a model: a Jinja template that writes messages as a prompt. It gets what
    `apply_chat_template` of `transformers` gives it, and is run in Jinja's sandbox.

    Args:
        folder: the model's folder. The template is in its `chat_template.jinja`, or under
            `chat_template` in its `chat_template.json` or its `tokenizer_config.json`.
        now: the time, for templates that write the date.

    Raises:
        InputError: the model has no chat template.
        WeightsError: a file is damaged, or the template is wrong.
    """

    def __init__(self, folder: Path, now: Callable[[], datetime] = datetime.now) -> None:
        self.special_tokens = read_special_tokens(folder)
        self.path, source = _find_source(folder)
        try:
            self._template = _environment(now).from_string(source)
        except Exception as error:  # for deep nesting, Jinja raises what Python does
            line = None
            if isinstance(error, jinja2.TemplateSyntaxError) and self.path.name == CHAT_TEMPLATE:
                line = error.lineno  # in JSON, it would be the line of the value, not of the file
            message = f"the chat template is wrong: {_reason(error)}"
            raise WeightsError(Problem(message, Place(str(self.path), line))) from None

    def render(self, chat: Chat, *, n_images: int | None = None, answered: bool = False) -> str:
        """Write the messages as a prompt, up to where the answer of the assistant begins.

        Args:
            chat: the messages.
            n_images: how many images stand in them; None for a model that takes none in its texts.
                Otherwise the template gets every content as a list of parts, as such templates
                expect it. If no part is an image, all stand before the first text of the user.
            answered: whether the text ends with the last message instead.

        Raises:
            InputError: a message is not valid, or the template does not accept the messages.
        """
        messages = read_messages(chat, _Message if n_images is None else _MessageOfParts)
        if n_images is not None:
            _place_images(messages, n_images)
        given = {"messages": messages, "tools": None, "documents": None}
        try:
            return self._template.render(
                {**self.special_tokens, **given, "add_generation_prompt": not answered}
            )
        except Exception as error:  # a template can fail in any way that Python can
            where = f"the chat template in {quoted(self.path)}"
            message = f"{where} does not accept these messages: {_reason(error)}"
            raise InputError(message) from None


def _reason(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return error.message or "it is not a template"
    return str(error) or type(error).__name__


class _Message(BaseModel):
    """A message, of plain data alone: a template could call the methods of other objects."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, JsonValue]

    role: str
    content: str


class _MessageOfParts(_Message):
    """A message of parts, some of which may be places of images."""

    content: str | list[dict[str, JsonValue]]  # type: ignore[assignment]


def read_messages(chat: Chat, kind: type[_Message] = _Message) -> list[dict[str, Any]]:
    """The messages of a chat as plain data. Raises InputError if one is not valid, or there is
    none."""
    messages = [_read_message(number, message, kind) for number, message in enumerate(chat, 1)]
    if not messages:
        raise InputError("the chat is empty: it has no messages")
    return messages


def _read_message(number: int, message: object, kind: type[_Message]) -> dict[str, Any]:
    try:
        return kind.model_validate(message).model_dump()
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        key = f"{quoted(details['loc'][0])} " if details["loc"] else ""
        what = "is missing" if details["type"] == "missing" else value_message(details)
        help = 'a message is a table of strings: `{"role": "user", "content": "Hello!"}`'
        problem = Problem(f"message {number} of the chat: {key}{what}", help=help)
        raise InputError(problem) from None


def _place_images(messages: list[dict[str, Any]], n_images: int) -> None:
    """Make every content a list of parts, in place, with the places of images before the first text
    of the user if no message has any."""
    for message in messages:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
    parts = (part for message in messages for part in message["content"])
    if any(part.get("type") == "image" for part in parts):
        return
    first = next((one for one in messages if one["role"] == "user"), messages[0])
    first["content"] = [{"type": "image"}] * n_images + first["content"]


class _Named(BaseModel):
    """One of several chat templates."""

    name: str
    template: str


class _Stated(BaseModel):
    """What a `tokenizer_config.json` says of chat templates."""

    chat_template: str | list[_Named] | None = None


def _find_source(folder: Path) -> tuple[Path, str]:
    """Return the file that contains the chat template, and the template."""
    path = folder / CHAT_TEMPLATE
    if os.path.lexists(path):
        try:
            check_ends(path)
            return path, path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise WeightsError(Problem(f"this cannot be read: {error}", Place(str(path)))) from None
    path = folder / OLDER_CHAT_TEMPLATE
    if os.path.lexists(path):
        file = read_json(path)
        stated = file.data.get("chat_template")
        if not isinstance(stated, str):
            raise WeightsError(Problem("`chat_template` must be a string", file.place()))
        return path, stated
    path = folder / TOKENIZER_CONFIG
    try:
        found = _Stated.model_validate(read_json_if_there(path)).chat_template
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        message = f"this cannot be read for the chat template: {details['msg']}"
        raise WeightsError(Problem(message, Place(str(path)))) from None
    if isinstance(found, list):
        found = next((named.template for named in found if named.name == "default"), None)
    if found is None:
        message = f"the model has no chat template: its folder {quoted(folder)} has no "
        message += f"{CHAT_TEMPLATE}, and no `chat_template` in {TOKENIZER_CONFIG}"
        raise InputError(Problem(message, help="a text without a chat is continued as it is"))
    return path, found


class _Generation(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}`, which marks the answers of the assistant for
    training; it writes what is inside."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own interface)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """Return the sandbox, with the names that chat templates are written for."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: now().strftime(format)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter, write `<` and `&` as they are: a prompt is not HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
