"""Detecting changes to a recipe between the parts of a resumed run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from zoo.document import Document, KeyPath, read_document
from zoo.errors import Place, ZooError
from zoo.wording import dotted

_FREE: tuple[KeyPath, ...] = (("evaluation",), ("training", "steps"))


def deciding(document: Document) -> dict[KeyPath, Any]:
    """The values of a recipe that determine the weights of a step, by key path."""
    return {
        path: value
        for path, value in _values(document.data, ())
        if not any(path[: len(free)] == free for free in _FREE)
    }


def changes(before: Path, now: Document) -> tuple[tuple[str, Place], ...]:
    """The changes since the recipe was saved at `before`, each as a note with its place in the
    current recipe; empty if none was saved."""
    kept: dict[KeyPath, Any] = {}
    with suppress(ZooError):
        kept = deciding(read_document(before))
    stated = deciding(now)
    return tuple(
        (_told(path, kept, stated), now.place(path, value=True))
        for path in ({**stated, **kept} if kept else ())
        if kept.get(path) != stated.get(path)
    )


def _told(path: KeyPath, kept: dict[KeyPath, Any], stated: dict[KeyPath, Any]) -> str:
    was = f"was {kept[path]!r}" if path in kept else "was not stated"
    return f"`{dotted(path)}` {was} when the run began" + ("" if path in stated else "; it is gone")


def _values(data: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _values(value, (*path, key))
    else:
        yield path, data
