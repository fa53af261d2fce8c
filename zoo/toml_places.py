"""Where each key and value of a TOML text stands, from its concrete syntax tree."""

from __future__ import annotations

from dataclasses import dataclass, field

import tree_sitter_toml
from tree_sitter import Language, Node, Parser

Span = tuple[int, int, int]  # line and column from 1, width in characters
_Path = tuple[str | int, ...]


@dataclass(slots=True)
class Places:
    """`spans` maps a key path to the spans of its key and its value."""

    spans: dict[_Path, tuple[Span, Span]] = field(default_factory=dict[_Path, tuple[Span, Span]])
    duplicates: list[tuple[_Path, Span, Span]] = field(
        default_factory=list[tuple[_Path, Span, Span]]
    )


def find_places(text: str) -> Places:
    """Walk the text's syntax tree. A text with syntax errors gives what can be told of it."""
    return _Walk(text).places


class _Walk:
    def __init__(self, text: str) -> None:
        self.lines = text.encode().split(b"\n")
        self.places = Places()
        self.defined: dict[_Path, Span] = {}
        self.array_lengths: dict[_Path, int] = {}
        tree = Parser(Language(tree_sitter_toml.language())).parse(text.encode())
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
        full = (*prefix, path[-1])
        if node.type == "table_array_element":
            index = self.array_lengths.get(full, 0)
            self.array_lengths[full] = index + 1
            self.places.spans.setdefault(full, (self.span(keys[-1]), self.span(keys[-1])))
            full = (*full, index)
        self.define(full, self.span(keys[-1]), self.span(keys[-1]))
        for pair in pairs:
            if pair.type == "pair":
                self.pair(pair, full)

    def pair(self, node: Node, prefix: _Path) -> None:
        key, value = node.named_children[0], node.named_children[-1]
        path, keys = self.key_path(key)
        for depth in range(1, len(path)):
            span = self.span(keys[depth - 1])
            self.places.spans.setdefault((*prefix, *path[:depth]), (span, span))
        full = (*prefix, *path)
        self.define(full, self.span(keys[-1]), self.span(value))
        self.inside(value, full)

    def inside(self, value: Node, path: _Path) -> None:
        if value.type == "inline_table":
            for pair in value.named_children:
                if pair.type == "pair":
                    self.pair(pair, path)
        elif value.type == "array":
            items = [item for item in value.named_children if item.type != "comment"]
            for index, item in enumerate(items):
                self.define((*path, index), self.span(item), self.span(item))
                self.inside(item, (*path, index))

    def define(self, path: _Path, key: Span, value: Span) -> None:
        if path in self.defined:
            self.places.duplicates.append((path, self.defined[path], key))
        else:
            self.defined[path] = key
            self.places.spans[path] = (key, value)

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
        line = self.lines[row]
        end = end if last_row == row else len(line)
        column = len(line[:start].decode(errors="replace"))
        return row + 1, column + 1, max(1, len(line[start:end].decode(errors="replace")))


def _unquote(node: Node) -> str:
    text = (node.text or b"").decode(errors="replace")
    return text[1:-1] if node.type == "quoted_key" else text
