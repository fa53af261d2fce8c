"""Reading the files of a recipe's data, of each form: lines with their sides and places."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import Place, TrainingError
from zoo.files.endless import check_ends
from zoo.json_files import strict_json
from zoo.training.data_tables import Data, Datasets, Jsonl, Parallel, Text, Tsv, two_of
from zoo.training.fields import lines_of_row
from zoo.training.hub import name_of, read_split
from zoo.training.line import Line, Where
from zoo.wording import quoted

if TYPE_CHECKING:
    from zoo.training.chats import Chats


def lines_of(
    data: Data, folder: Path, part: Any, chats: Chats | None = None
) -> tuple[Iterator[Line], Path]:
    """The lines of a part of a recipe's `[data]`, and the file that messages name.

    Args:
        data: the table.
        folder: the folder that its file names are relative to.
        part: what the table states for the part, such as a file name.
        chats: writes chats; None for other data.

    Raises:
        TrainingError: a file is missing, empty, or not in its form.
    """
    match data:
        case Tsv():
            return _tsv(folder / part, data), folder / part
        case Text():
            return text_lines(folder / part), folder / part
        case Jsonl():
            return _jsonl(folder / part, data, chats), folder / part
        case Parallel():
            source = folder / part.source
            return _parallel(source, folder / part.target), source
        case Datasets():
            return read_split(data, folder, part, chats), Path(name_of(data, folder))


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
            raise TrainingError(f"no JSON: {told}", line.place(column), hint) from None
        if not isinstance(row, dict):
            raise TrainingError("this is JSON, but no table", line.place(), _EACH_A_TABLE)
        yield from lines_of_row(row, data, line, chats)


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
                f"this line has no other in {quoted(ended)}, which ends before it",
                left.place(),
                help="line by line, the two files are translations of each other",
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
            f"the data file {quoted(path)} cannot be read: {reason}",
            help="its name is relative to the recipe's folder, or to --data",
        ) from None
    if path.suffix == ".gz":
        raw = _unpacked(raw, path)
    elif raw.startswith(_GZIP):
        hint = "give it a name that ends in `.gz`"
        raise TrainingError("the file is packed by gzip", Place(str(path)), hint)
    if not raw.strip():
        raise TrainingError("the file is empty", Place(str(path)))
    return raw


_GZIP = b"\x1f\x8b"
"""What a file that gzip has packed begins with."""


def _unpacked(raw: bytes, path: Path) -> bytes:
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise TrainingError(f"gzip cannot unpack the file: {error}", Place(str(path))) from None


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
            raise TrainingError(message, place, "save the file as UTF-8") from None
        yield Where(path, number, text)
