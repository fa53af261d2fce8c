"""Locate each key and value of a TOML text by its concrete syntax tree."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from itertools import accumulate

import tree_sitter_toml
from tree_sitter import Language, Node, Parser

Span = tuple[int, int, int]  # line and column from 1, width in characters
_Path = tuple[str | int, ...]
_NOTHING = b"\xff"
"""A byte that does not occur in UTF-8; it marks bytes to delete."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A key at `path` that is written a second time at `span`, or that adds to `outer`, whose value
    is already complete. `first` is the span of the first occurrence, or of `outer`."""

    path: _Path
    span: Span
    first: Span
    outer: _Path | None = None


@dataclass(slots=True)
class Places:
    """`spans` maps a key path to the spans of its key and its value.

    In `text_without_duplicates`, the entries that `duplicates` lists are replaced with spaces, so
    that the positions of all others are unchanged.
    """

    spans: dict[_Path, tuple[Span, Span]] = field(default_factory=dict[_Path, tuple[Span, Span]])
    duplicates: list[Duplicate] = field(default_factory=list[Duplicate])
    text_without_duplicates: str = ""


def find_places(text: str) -> Places:
    """Walk the syntax tree of a text; of a text with syntax errors, the parts that parse."""
    walk = _Walk(text)
    walk.places.text_without_duplicates = walk.source.replace(_NOTHING, b"").decode()
    return walk.places


class _Walk:
    def __init__(self, text: str) -> None:
        self.source = bytearray(text.encode(errors="replace"))
        self.lines = bytes(self.source).split(b"\n")
        self.places = Places()
        self.tables: dict[_Path, Span] = {}  # made by a head or by a dotted key
        self.values: dict[_Path, Span] = {}  # made by `key = value`
        self.array_lengths: dict[_Path, int] = {}
        self.columns: dict[int, list[int]] = {}
        tree = Parser(Language(tree_sitter_toml.language())).parse(bytes(self.source))
        for node in tree.root_node.named_children:
            if node.type == "pair":
                self.pair(node, ())
            elif node.type in ("table", "table_array_element"):
                self.table(node)

    def table(self, node: Node) -> None:
        head, *pairs = node.named_children
        path, keys = self.key_path(head)
        prefix: _Path = ()
        for part, key in zip(path[:-1], keys, strict=False):
            prefix = (*prefix, part)
            if prefix in self.values:
                self.duplicate(node, (*prefix, *path[len(prefix) :]), keys[-1], prefix)
                return
            self.places.spans.setdefault(prefix, (self.span(key), self.span(key)))
            if prefix in self.array_lengths:  # `[a.b]` belongs to the last `[[a]]`
                prefix = (*prefix, self.array_lengths[prefix] - 1)
        full, span = (*prefix, path[-1]), self.span(keys[-1])
        again = node.type == "table_array_element" and full in self.array_lengths
        if full in self.values or (full in self.tables and not again):
            self.duplicate(node, full, keys[-1])
            return
        if node.type == "table_array_element":
            index = self.array_lengths.get(full, 0)
            self.array_lengths[full] = index + 1
            self.tables[full] = span
            self.places.spans.setdefault(full, (span, span))
            full = (*full, index)
        self.tables[full] = span
        self.places.spans[full] = (span, span)
        for pair in pairs:
            if pair.type == "pair":
                self.pair(pair, full)

    def pair(self, node: Node, prefix: _Path) -> None:
        children = [child for child in node.named_children if child.type != "comment"]
        key, value = children[0], children[-1]
        path, keys = self.key_path(key)
        full = (*prefix, *path)
        for depth in range(1, len(path)):
            outer, span = (*prefix, *path[:depth]), self.span(keys[depth - 1])
            if outer in self.values:
                self.duplicate(node, full, keys[-1], outer)
                return
            self.tables.setdefault(outer, span)
            self.places.spans.setdefault(outer, (span, span))
        if full in self.places.spans:
            self.duplicate(node, full, keys[-1])
            return
        self.values[full] = self.span(keys[-1])
        self.places.spans[full] = (self.span(keys[-1]), self.span(value))
        self.inside(value, full)

    def inside(self, value: Node, path: _Path) -> None:
        if value.type == "inline_table":
            for pair in value.named_children:
                if pair.type == "pair":
                    self.pair(pair, path)
        elif value.type == "array":
            items = [item for item in value.named_children if item.type != "comment"]
            for index, item in enumerate(items):
                span = self.span(item)
                self.places.spans[(*path, index)] = (span, span)
                self.inside(item, (*path, index))

    def duplicate(self, node: Node, path: _Path, key: Node, outer: _Path | None = None) -> None:
        """Record a duplicate and blank it in the text, in an inline table together with the comma
        before it."""
        first = self.places.spans[path if outer is None else outer][0]
        self.places.duplicates.append(Duplicate(path, self.span(key), first, outer))
        before = node.prev_named_sibling
        inline = node.parent is not None and node.parent.type == "inline_table"
        start = before.end_byte if inline and before is not None else node.start_byte
        for index in range(start, node.end_byte):
            byte = self.source[index]
            if byte not in b"\r\n":  # one space for each character, however many bytes it has
                self.source[index : index + 1] = _NOTHING if byte & 0xC0 == 0x80 else b" "

    def key_path(self, node: Node) -> tuple[tuple[str, ...], list[Node]]:
        parts: list[Node] = []
        pending = [node]
        while pending:  # the grammar nests `a.b.c` as ((a.b).c)
            current = pending.pop()
            if current.type == "dotted_key":
                pending += reversed(current.named_children)
            else:
                parts.append(current)
        return tuple(_unquote(part) for part in parts), parts

    def span(self, node: Node) -> Span:
        (row, start), (last_row, end) = node.start_point, node.end_point
        end = end if last_row == row else len(self.lines[row])
        if not self.lines[row].isascii():
            columns = self.columns_of(row)
            start, end = columns[start], columns[end]
        return row + 1, start + 1, max(1, end - start)

    def columns_of(self, row: int) -> list[int]:
        """Return the number of characters that begin before each byte of a line."""
        if row not in self.columns:
            begins = (byte & 0xC0 != 0x80 for byte in self.lines[row])
            self.columns[row] = list(accumulate(begins, initial=0))
        return self.columns[row]


def _unquote(node: Node) -> str:
    """Return the name of a key, without quotes and with its escapes resolved."""
    text = (node.text or b"").decode(errors="replace")
    if node.type != "quoted_key":
        return text
    try:
        return next(iter(tomllib.loads(f"{text} = 0")))
    except ValueError:
        return text[1:-1]
