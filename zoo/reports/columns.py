"""The columns of a table: the values that are not the same in all rows, and their text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

WIDEST = 40
"""The most characters of a cell in the text; the data has all."""
LINE = 100
"""The most characters of a line; a wider table with more columns than rows is turned."""


class Value(NamedTuple):
    """A value, and whether it was written in a file or is a default."""

    value: Any
    stated: bool


ABSENT = Value(None, False)
"""The value of a key that a row does not have."""


def differing(
    sides: Iterable[Mapping[str, Value]], taken: Collection[str]
) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield the columns of a table: the name and the values, one for each side, of each key path
    whose values differ and are stated by some side. Columns that differ in the same way, and whose
    paths have the same end, are yielded once.

    Args:
        sides: the values of each row, by their key paths.
        taken: names that other columns have. The name of a column is the shortest end of its path
            that is not taken and is the end of no other path; that of a `kind` is the name of its
            table.
    """
    found = list(sides)
    alike: dict[tuple[str, str], tuple[list[str], tuple[object, ...]]] = {}
    paths = in_order(found)
    for path in paths:
        values = [side.get(path, ABSENT) for side in found]
        told = [repr(one.value) for one in values]
        if len(set(told)) > 1 and any(one.stated for one in values):
            name = path.removesuffix(".kind")
            same = alike.setdefault(
                (name.rpartition(".")[2], repr(told)), ([], tuple(one.value for one in values))
            )
            same[0].append(name)
    everywhere = {*taken} | {path.removesuffix(".kind") for path in paths}
    for same_paths, column in alike.values():
        yield _short(same_paths[0], everywhere.difference(same_paths)), column


def _short(path: str, others: Iterable[str]) -> str:
    """Return the shortest end of a path that is the end of none of the others."""
    ends = [f".{other}" for other in others]
    parts = path.split(".")
    for n in range(1, len(parts)):
        short = ".".join(parts[-n:])
        if not any(end.endswith(f".{short}") for end in ends):
            return short
    return path


def in_order(found: Sequence[Mapping[str, object]]) -> list[str]:
    """Return all paths in the order of the full forms: a path that only some have stands behind
    the one that is before it there."""
    paths: list[str] = []
    for side in found:
        at = 0
        for path in side:
            if path not in paths:
                paths.insert(at, path)
            at = paths.index(path) + 1
    return paths


# --- text ---------------------------------------------------------------------------------------


def laid_out(columns: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """Format a table. One that is wider than `LINE` and has more columns than rows is turned: it
    gets a line for each column.

    Args:
        columns: the cells of each, of which the first is its name.
        right: of each column, whether its cells are aligned on the right.
    """
    text = aligned(columns, right)
    if len(columns) >= len(columns[0]) and any(len(line) > LINE for line in text.split("\n")):
        turned = [list(line) for line in zip(*columns, strict=True)]
        return aligned(turned, [False] * len(turned))
    return text


def aligned(columns: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """Format a table that is never turned. Arguments are those of `laid_out`."""
    padded: list[list[str]] = []
    for cells, on_the_right in zip(columns, right, strict=True):
        align, width = ">" if on_the_right else "<", max(map(len, cells))
        padded.append([f"{cell:{align}{width}}" for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def cell(value: object) -> str:
    """Format a value, which may be one for each layer."""
    if value is None:
        return ""
    if isinstance(value, dict):
        text = _of_each([cell(one) or "none" for one in value["per_layer"]])
        return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."
    if isinstance(value, list):
        return f"[{', '.join(cell(one) for one in value)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of_each(values: Sequence[str]) -> str:
    """Format the values of all layers: `512 x 5, none`, or `(512, none) x 3` where they repeat."""
    n = len(values)
    for period in range(2, n // 2 + 1):
        if all(values[i] == values[i % period] for i in range(n)):
            times, rest = divmod(n, period)
            whole = f"({_of_each(values[:period])}) x {times}"
            return f"{whole}, {_of_each(values[:rest])}" if rest else whole
    runs = [(one, len(list(same))) for one, same in groupby(values)]
    return ", ".join(one if count == 1 else f"{one} x {count}" for one, count in runs)
