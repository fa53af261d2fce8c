"""Other values of a recipe than those of its file, as a command states them: `seed=1`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from zoo.document import Document, parse
from zoo.errors import SpecError
from zoo.wording import quoted


def overridden(document: Document, changes: Sequence[str]) -> Document:
    """Return a document with other values, in which all else, comments too, is as it was.

    Args:
        document: what was read from a file.
        changes: `KEY=VALUE` each. The key has dots for tables (`training.steps`), and the value is
            written in TOML; what is not, such as `wide.toml`, is a string.

    Raises:
        SpecError: one has no `=` or no key, or its key leads through what is no table.
    """
    if not changes or document.problems:  # problems are told by who reads the document
        return document
    import tomlkit  # here: as a rule, a recipe is carried out as it is written

    text = tomlkit.parse(document.text or "")
    for change in changes:
        key, is_stated, value = change.partition("=")
        *around, last = path = [part.strip() for part in key.split(".")]
        if not is_stated or not all(path):
            hint = "write `KEY=VALUE`, such as `seed=1` or `training.steps=200`"
            raise SpecError(f"{quoted(change)} states no value of a key", help=hint)
        table: Any = text
        for index, name in enumerate(around):
            if name not in table:
                table[name] = tomlkit.table()
            table = table[name]
            if not isinstance(table, Mapping):
                message = f"{quoted(change)}: {quoted(name)} is no table"
                raise SpecError(message, document.place(tuple(path[: index + 1])))
        table[last] = _value(value.strip())
    return parse(tomlkit.dumps(text), document.name)


def _value(text: str) -> Any:
    """The value that a text in TOML has, or else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
