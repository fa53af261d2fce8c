"""Chats: the messages of a conversation become one prompt, by the chat template of the model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError

from zoo.errors import InputError, Place, WeightsError
from zoo.files.endless import check_ends
from zoo.files.of_model import (
    CHAT_TEMPLATE,
    OLDER_CHAT_TEMPLATE,
    TOKENIZER_CONFIG,
    TOOLS_TEMPLATE,
)
from zoo.json_files import read_json, read_json_if_there
from zoo.resolving.tables import described
from zoo.running.text import Places
from zoo.running.tokenizer_config import read_special_tokens
from zoo.validating.value_errors import value_message
from zoo.wording import quoted

Chat = Sequence[Mapping[str, Any]]
"""The messages of a conversation: `[{"role": "user", "content": "Hello!"}]`. The usual roles are
`system`, `user`, `assistant` and `tool`. A message may have further keys, for templates that read
them; one with `tool_calls` may have no content. For a model that takes images in its texts, a
content may also be a list of parts, in which `{"type": "image"}` is the place of an image:
`[{"type": "image"}, {"type": "text", "text": "What is it?"}]`; and for one that takes sounds,
`{"type": "audio"}` that of a sound."""
Tools = Sequence[Mapping[str, Any]]
"""The tools that a model may call in a chat, each as a JSON Schema: `[{"type": "function",
"function": {"name": "weather", "description": "...", "parameters": {...}}}]`."""

Prompt = str | tuple[str, str] | Chat
"""What a model is run on: a text, a pair of texts, or a chat."""


_DEFAULT, _TOOLS = "default", "tool_use"
"""The names of the template for chats, and of that for chats with tools."""


class _Source(NamedTuple):
    """A chat template, and the file that it is in."""

    path: Path
    text: str


class _Compiled(NamedTuple):
    """A chat template that can be rendered, and the file that it is in."""

    path: Path
    template: jinja2.Template


class ChatTemplate:
    """The chat template of a model: a Jinja template that writes messages as a prompt. It gets what
    `apply_chat_template` of `transformers` gives it, and is run in Jinja's sandbox.

    Args:
        folder: the model's folder. The template is in its `chat_template.jinja`, or under
            `chat_template` in its `chat_template.json` or its `tokenizer_config.json`. Beside it
            may be another one for chats with tools, under the name `tool_use`.
        now: the time, for templates that write the date.

    Raises:
        InputError: the model has no chat template.
        WeightsError: a file is damaged, or the template is wrong.
    """

    def __init__(self, folder: Path, now: Callable[[], datetime] = datetime.now) -> None:
        self.special_tokens = read_special_tokens(folder)
        self._sources, self._environment = _find_sources(folder), _environment(now)
        self._default = self._compiled(self._sources[_DEFAULT])

    @cached_property
    def _for_tools(self) -> _Compiled:
        """The template for chats with tools, of which a model may have one of its own."""
        return self._compiled(self._sources[_TOOLS]) if _TOOLS in self._sources else self._default

    def _compiled(self, source: _Source) -> _Compiled:
        """Raises WeightsError if the template is wrong."""
        try:
            return _Compiled(source.path, self._environment.from_string(source.text))
        except Exception as error:  # for deep nesting, Jinja raises what Python does
            line = None
            if isinstance(error, jinja2.TemplateSyntaxError) and source.path.suffix == ".jinja":
                line = error.lineno  # in JSON, it would be the line of the value, not of the file
            message = f"the chat template is wrong: {_reason(error)}"
            raise WeightsError(message, Place(str(source.path), line)) from None

    def path(self, tools: Tools | None) -> Path:
        """The file of the template that writes a chat with these tools."""
        return (self._default if tools is None else self._for_tools).path

    def render(
        self, chat: Chat, *, tools: Tools | None = None, places: Places | None = None
    ) -> str:
        """Write the messages as a prompt, up to where the answer of the assistant begins.

        Args:
            chat: the messages.
            tools: the tools that the model may call.
            places: those of images or sounds in them; None for a model that takes none in its
                texts. Otherwise the template gets every content as a list of parts, as such
                templates expect it. If no part is such a place, all are before the first text of
                the user.

        Raises:
            InputError: a message or a tool is not valid, or the template does not accept them.
            WeightsError: the template for chats with tools is wrong.
        """
        messages = read_messages(chat, _Message if places is None else _MessageOfParts)
        if places is not None:
            _put(places, messages)
        return self.write(messages, None if tools is None else read_tools(tools))

    def write(
        self, messages: list[dict[str, Any]], tools: Tools | None, *, answered: bool = False
    ) -> str:
        """As `render`, of messages and tools that have been read. With `answered`, the text ends
        with the last message instead."""
        given = {"messages": messages, "tools": tools, "documents": None}
        path, template = self._default if tools is None else self._for_tools
        try:
            return template.render(
                {**self.special_tokens, **given, "add_generation_prompt": not answered}
            )
        except Exception as error:  # a template can fail in any way that Python can
            where = f"the chat template in {quoted(path)}"
            raise InputError(f"{where} does not accept these messages: {_reason(error)}") from None


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
    """A message of parts, some of which may be places of images or sounds."""

    content: str | list[dict[str, JsonValue]]  # type: ignore[assignment]


def read_messages(chat: Chat, kind: type[_Message] = _Message) -> list[dict[str, Any]]:
    """The messages of a chat as plain data. Raises InputError if one is not valid, or there is
    none."""
    messages = [_read_message(number, message, kind) for number, message in enumerate(chat, 1)]
    if not messages:
        raise InputError("the chat is empty: it has no messages")
    return messages


def _read_message(number: int, message: object, kind: type[_Message]) -> dict[str, Any]:
    """A message as templates expect it, and `transformers` gives it to them: a key that is null is
    missing, and thoughts have both names by which templates look for them."""
    given: Any = message
    if isinstance(message, Mapping):
        given = {key: value for key, value in message.items() if value is not None}
    calls = isinstance(given, dict) and given.get("tool_calls")
    try:
        checked = kind.model_validate({"content": "", **given} if calls else given).model_dump()
    except ValidationError as error:
        help = 'a message is a table of strings: `{"role": "user", "content": "Hello!"}`'
        message = f"message {number} of the chat: {_what_is_wrong(error)}"
        raise InputError(message, help=help) from None
    found = {key: checked[key] for key in given}
    thoughts = [found[key] for key in _THOUGHTS if key in found]
    if not thoughts:
        return found
    return {"thinking": thoughts[0], **found, "reasoning_content": thoughts[0]}


_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""The keys under which the thoughts of an answer are kept."""
_TOOL = TypeAdapter(dict[str, JsonValue], config=ConfigDict(strict=True))


def read_tools(tools: object) -> list[dict[str, Any]]:
    """Tools as plain data. Raises InputError if one is not valid."""
    if not isinstance(tools, list | tuple):
        message = f"the tools of the chat must be an array, not {described(tools)}"
        raise InputError(message, help=_EACH_A_TOOL)
    found: list[dict[str, Any]] = []
    for number, tool in enumerate(tools, 1):
        try:
            found.append(_TOOL.validate_python(tool))
        except ValidationError as error:
            told = f"tool {number} of the chat: {_what_is_wrong(error)}"
            raise InputError(told, help=_EACH_A_TOOL) from None
    return found


def _what_is_wrong(error: ValidationError) -> str:
    """The first error in a message or a tool, with the key that it is under."""
    details = error.errors(include_url=False)[0]
    key = f"{quoted(details['loc'][0])} " if details["loc"] else ""
    return key + ("is missing" if details["type"] == "missing" else value_message(details))


_EACH_A_TOOL = (
    'a tool is a table with its JSON Schema: `{"type": "function", "function": {"name": ...}}`'
)


def _put(places: Places, messages: list[dict[str, Any]]) -> None:
    """Make every content a list of parts, in place, with the places before the first text of the
    user if no message has any."""
    for message in messages:
        if isinstance(message.get("content"), str):
            message["content"] = [{"type": "text", "text": message["content"]}]
    parts = (part for message in messages for part in message.get("content", ()))
    if any(part.get("type") == places.part for part in parts):
        return
    first = next((one for one in messages if one["role"] == "user"), messages[0])
    first["content"] = [{"type": places.part}] * places.number + first.get("content", [])


class _Named(BaseModel):
    """One of several chat templates."""

    name: str
    template: str


class _Stated(BaseModel):
    """What a `tokenizer_config.json` says of chat templates."""

    chat_template: str | list[_Named] | None = None


def _find_sources(folder: Path) -> dict[str, _Source]:
    """Return the chat template, and that for chats with tools if there is one, by their names."""
    path = folder / CHAT_TEMPLATE
    if os.path.lexists(path):
        paths = {_DEFAULT: path, _TOOLS: folder / TOOLS_TEMPLATE}
        return {name: _read_source(one) for name, one in paths.items() if os.path.lexists(one)}
    path = folder / OLDER_CHAT_TEMPLATE
    if os.path.lexists(path):
        file = read_json(path)
        stated = file.data.get("chat_template")
        if not isinstance(stated, str):
            raise WeightsError("`chat_template` must be a string", file.place())
        return {_DEFAULT: _Source(path, stated)}
    path = folder / TOKENIZER_CONFIG
    try:
        found = _Stated.model_validate(read_json_if_there(path)).chat_template
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        message = f"this cannot be read for the chat template: {details['msg']}"
        raise WeightsError(message, Place(str(path))) from None
    named = [_Named(name=_DEFAULT, template=found)] if isinstance(found, str) else found or []
    sources = {one.name: _Source(path, one.template) for one in named}
    if _DEFAULT not in sources:
        message = f"the model has no chat template: its folder {quoted(folder)} has no "
        message += f"{CHAT_TEMPLATE}, and no `chat_template` in {TOKENIZER_CONFIG}"
        raise InputError(message, help="a text without a chat is continued as it is")
    return sources


def _read_source(path: Path) -> _Source:
    """Raises WeightsError if the file cannot be read."""
    try:
        check_ends(path)
        return _Source(path, path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(f"this cannot be read: {error}", Place(str(path))) from None


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
