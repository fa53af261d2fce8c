"""Reading the files of a recipe's data, of each form: lines with their sides and places."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from zoo.errors import Place, Problem, TrainingError, placed
from zoo.files.endless import check_ends
from zoo.json_files import strict_json
from zoo.training.data_tables import Data, Datasets, Jsonl, Parallel, Text, Tsv, two_of
from zoo.training.fields import sides_of_row
from zoo.training.hub import name_of, read_split
from zoo.training.split import Words
from zoo.wording import quoted

if TYPE_CHECKING:
    from zoo.training.chats import Chats


class Where(NamedTuple):
    """One line of a file, with its number, counted from 1."""

    path: Path
    number: int
    text: str

    def place(self, column: int = 1) -> Place:
        if not self.text:  # a row of a data set, or an empty line: nothing to quote
            return Place(str(self.path), self.number)
        return Place(str(self.path), self.number, column, self.text)


class Line(NamedTuple):
    """The sides of one line. An empty side is missing; the source is None for text, and the second
    text is None for what is no pair of texts. The column where the target begins is None for JSON,
    which can write the same text in several ways and places. The opening is that of a chat."""

    source: str | Words | None
    target: str | Words
    source_at: Where
    target_at: Where | None = None
    second: str | Words | None = None
    target_column: int | None = None
    opening: str | None = None

    @property
    def sides(self) -> dict[str, str | Words]:
        """The sides that it should have, by their names."""
        sides = {"source": self.source, "second text": self.second, "target": self.target}
        return {name: side for name, side in sides.items() if side is not None}

    @property
    def lists(self) -> tuple[str, ...]:
        """The names of the sides that are lists."""
        return tuple(name for name, side in self.sides.items() if isinstance(side, tuple))

    @property
    def stripped(self) -> Line:
        """The line without the white space around its sides."""
        return self._replace(
            source=_stripped(self.source),
            target=_stripped(self.target),
            second=_stripped(self.second),
        )

    def place_of(self, label: str) -> Place:
        """The place of the target, or of a label in it; of its line, if that cannot be told."""
        at = self.target_at or self.source_at
        if self.target_column is not None:
            return at.place(self.target_column)
        before, *after = at.text.split(f'"{label}"')
        return at.place(len(before) + 2 if len(after) == 1 else 1)


Side = TypeVar("Side", str | Words, str | Words | None)


def _stripped(side: Side) -> Side:
    if isinstance(side, tuple):
        return tuple(one.strip() for one in side)
    return None if side is None else side.strip()


ReadPart = Callable[[Any], tuple[Iterator[Line], Path]]
"""Returns the lines of a part of the data, and the file that messages name."""


def reader_of(data: Data, folder: Path, chats: Chats | None = None) -> ReadPart:
    """What reads the parts of a recipe's `[data]`, whose file names are relative to `folder`, with
    `chats` to write chats. It raises `TrainingError` for a file that is missing, empty, or not in
    its form."""
    match data:
        case Tsv():
            return lambda name: (_tsv(folder / name, data), folder / name)
        case Text():
            return lambda name: (text_lines(folder / name), folder / name)
        case Jsonl():
            return lambda name: (_jsonl(folder / name, data, chats), folder / name)
        case Parallel():
            return lambda files: (
                _parallel(folder / files.source, folder / files.target),
                folder / files.source,
            )
        case Datasets():
            name = name_of(data, folder)
            return lambda split: (_rows(data, folder, split, name, chats), Path(name))


def _rows(
    data: Datasets, folder: Path, split: str, name: str, chats: Chats | None
) -> Iterator[Line]:
    """The rows of a split of the data set `name`."""
    for number, row in read_split(data, folder, split, chats):
        at = Where(Path(f"{name} ({split})"), number, "")
        yield Line(row.source, row.target, at, second=row.second, opening=row.opening)


def read_whole(path: Path) -> str:
    """Read a text unchanged.

    Raises:
        TrainingError: the file is missing, empty or not UTF-8.
    """
    raw = _content(path)  # once: it may be a pipe
    for _ in _lines_in(raw, path):
        pass  # a file that is not UTF-8 is reported with the place of the error
    return raw.decode("utf-8-sig")


def text_lines(path: Path) -> Iterator[Line]:
    """The lines of a text, each a target. Raises as `read_whole`."""
    return (Line(None, line.text, line) for line in _lines(path))


_EACH_A_TABLE = 'each line is a table: `{"text": "...", "label": "..."}`'


def _jsonl(path: Path, data: Jsonl, chats: Chats | None) -> Iterator[Line]:
    # Numbers of texts are texts, as written; those of messages are for the template.
    parsed = {} if chats else {"parse_int": str, "parse_float": str}
    for line in _lines(path):
        if not line.text.strip():
            continue
        try:
            row = strict_json(line.text, **parsed)
        except (ValueError, RecursionError) as error:
            told, column = getattr(error, "msg", error), getattr(error, "colno", 1)
            hint = None if line.text.rstrip().endswith("}") else _EACH_A_TABLE
            raise TrainingError(Problem(f"no JSON: {told}", line.place(column), hint)) from None
        if not isinstance(row, dict):
            raise TrainingError(Problem("this is JSON, but no table", line.place(), _EACH_A_TABLE))
        try:
            sides = sides_of_row(row, data, chats)
        except TrainingError as error:
            raise placed(error, line.place()) from None
        for one in sides:  # there are no columns
            yield Line(one.source, one.target, line, line, one.second, opening=one.opening)


def _tsv(path: Path, data: Tsv) -> Iterator[Line]:
    first, second = two_of(data.source)
    lines, n_columns = _lines(path), 0
    if data.header:
        next(lines, None)
    for line in lines:
        written = line.text.split("\t")
        n_columns = max(n_columns, len(written))
        columns = dict(enumerate(written, 1))
        source = columns.get(first, "")
        other = None if second is None else columns.get(second, "")
        rest = "\t".join(written[data.target - 1 :]).lstrip()
        begin = len(line.text) - len(rest) + 1
        yield Line(source, columns.get(data.target, ""), line, second=other, target_column=begin)
    last = max(first, second or first, data.target)
    if 1 < n_columns < last:
        key = "target" if last == data.target else "source"
        message = f"{quoted(path)} has {n_columns} columns, and `{key}` is column {last}"
        raise TrainingError(message)  # in place of one for each line


def _parallel(source: Path, target: Path) -> Iterator[Line]:
    for one, other in zip_longest(_lines(source), _lines(target)):
        if one is not None and other is not None:
            begin = len(other.text) - len(other.text.lstrip()) + 1
            yield Line(one.text, other.text, one, other, target_column=begin)
        elif left := one or other:
            ended = target if other is None else source
            raise TrainingError(
                Problem(
                    f"this line has no other in {quoted(ended)}, which ends before it",
                    left.place(),
                    help="line by line, the two files are translations of each other",
                )
            )


def _lines(path: Path) -> Iterator[Where]:
    """The lines of a UTF-8 text, without their line ends."""
    return _lines_in(_content(path), path)


def _content(path: Path) -> bytes:
    """Read a file that is not empty, unpacked if its name ends in `.gz`."""
    try:
        check_ends(path)
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TrainingError(
            Problem(
                f"the data file {quoted(path)} cannot be read: {reason}",
                help="its name is relative to the recipe's folder, or to --data",
            )
        ) from None
    if path.suffix == ".gz":
        raw = _unpacked(raw, path)
    elif raw.startswith(_GZIP):
        hint = "give it a name that ends in `.gz`"
        raise TrainingError(Problem("the file is packed by gzip", Place(str(path)), hint))
    if not raw.strip():
        raise TrainingError(Problem("the file is empty", Place(str(path))))
    return raw


_GZIP = b"\x1f\x8b"
"""What a file that gzip has packed begins with."""


def _unpacked(raw: bytes, path: Path) -> bytes:
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        message = f"gzip cannot unpack the file: {error}"
        raise TrainingError(Problem(message, Place(str(path)))) from None


def _lines_in(raw: bytes, path: Path) -> Iterator[Where]:
    """The lines of a file's content, decoded one by one. They end in line feeds or, if there is
    none, in carriage returns, as in old files of the Macintosh."""
    end = b"\n" if b"\n" in raw else b"\r"
    lines = raw.removeprefix(b"\xef\xbb\xbf").removesuffix(end).split(end)
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError as error:
            column = len(line[: error.start].decode("utf-8")) + 1
            shown = line.decode("utf-8", "replace")
            place = Place(str(path), number, column, shown)
            message = f"not UTF-8: the byte 0x{line[error.start]:02x}"
            raise TrainingError(Problem(message, place, "save the file as UTF-8")) from None
        yield Where(path, number, text)
