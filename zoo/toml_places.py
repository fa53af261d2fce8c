"""Where each key and value of a TOML text stands, from its concrete syntax tree."""

from __future__ import annotations

from dataclasses import dataclass, field

import tree_sitter_toml
from tree_sitter import Language, Node, Parser

Span = tuple[int, int, int]  # line and column from 1, width in characters
_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A key at `path` that is written again at `span`, or that adds to `outer`, whose value is
    complete. `first` is where the other stands."""

    path: _Path
    span: Span
    first: Span
    outer: _Path | None = None


@dataclass(slots=True)
class Places:
    """`spans` maps a key path to the spans of its key and its value.

    `text_without_duplicates` has spaces in the place of the keys and tables of `duplicates`, so
    that everything else stands where it stood.
    """

    spans: dict[_Path, tuple[Span, Span]] = field(default_factory=dict[_Path, tuple[Span, Span]])
    duplicates: list[Duplicate] = field(default_factory=list[Duplicate])
    text_without_duplicates: str = ""


def find_places(text: str) -> Places:
    """Walk the text's syntax tree. A text with syntax errors gives what can be told of it."""
    walk = _Walk(text)
    walk.places.text_without_duplicates = walk.source.decode()
    return walk.places


class _Walk:
    def __init__(self, text: str) -> None:
        self.source = bytearray(text.encode())
        self.lines = self.source.split(b"\n")
        self.places = Places()
        self.tables: dict[_Path, Span] = {}  # by their heads
        self.values: dict[_Path, Span] = {}  # by `key = value`
        self.array_lengths: dict[_Path, int] = {}
        tree = Parser(Language(tree_sitter_toml.language())).parse(bytes(self.source))
        for node in tree.root_node.named_children:
            if node.type == "pair":
                self.pair(node, ())
            elif node.type in ("table", "table_array_element"):
                self.table(node)

    def table(self, node: Node) -> None:
        header, *pairs = node.named_children
        path, keys = self.key_path(header)
        prefix: _Path = ()
        for part, key in zip(path[:-1], keys, strict=False):
            prefix = (*prefix, part)
            self.places.spans.setdefault(prefix, (self.span(key), self.span(key)))
            if prefix in self.array_lengths:  # `[a.b]` belongs to the last `[[a]]`
                prefix = (*prefix, self.array_lengths[prefix] - 1)
        full, span = (*prefix, path[-1]), self.span(keys[-1])
        if node.type == "table_array_element":
            if self.is_again(node, full, span, in_tables=full not in self.array_lengths):
                return
            index = self.array_lengths.get(full, 0)
            self.array_lengths[full] = index + 1
            self.tables.setdefault(full, span)
            self.places.spans.setdefault(full, (span, span))
            full = (*full, index)
        elif self.is_again(node, full, span):
            return
        self.tables[full] = span
        self.places.spans[full] = (span, span)
        for pair in pairs:
            if pair.type == "pair":
                self.pair(pair, full)

    def pair(self, node: Node, prefix: _Path) -> None:
        key, value = node.named_children[0], node.named_children[-1]
        path, keys = self.key_path(key)
        full, span = (*prefix, *path), self.span(keys[-1])
        if self.is_again(node, full, span, implied=True):
            return
        for depth in range(1, len(path)):
            above = self.span(keys[depth - 1])
            self.places.spans.setdefault((*prefix, *path[:depth]), (above, above))
        self.values[full] = span
        self.places.spans[full] = (span, self.span(value))
        self.inside(value, full)

    def inside(self, value: Node, path: _Path) -> None:
        if value.type == "inline_table":
            inner = _Walk.__new__(_Walk)
            inner.__dict__ = {**self.__dict__, "values": {}}
            for pair in value.named_children:
                if pair.type == "pair":
                    inner.pair(pair, path)
        elif value.type == "array":
            items = [item for item in value.named_children if item.type != "comment"]
            for index, item in enumerate(items):
                self.places.spans[*path, index] = (self.span(item), self.span(item))
                self.inside(item, (*path, index))
