"""Reading the data of a recipe: examples with a target and, for pairs, a source."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import singledispatch
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, cast

from zoo.endless_files import check_ends
from zoo.errors import Place, Problem, TrainingError, placed
from zoo.json_files import strict_json
from zoo.training.fields import sides_of_row
from zoo.training.split import Example, Splits, Words, held_out
from zoo.training.tables import (
    Data,
    Datasets,
    Files,
    Jsonl,
    Parallel,
    Text,
    Tsv,
    is_packed,
    two_of,
)
from zoo.wording import counted, quoted

MAX_LINES = 10
"""The most wrong lines of a file that are reported one by one. More than these tend to have one
common cause, such as swapped columns, unlike the mistakes in a recipe or a spec."""


def read_data(
    data: Data, folder: Path, seed: int, place_of: Callable[[str], Place] | None = None
) -> Splits:
    """Read the examples of a recipe's `[data]` in three parts.

    Duplicate pairs in the training data are removed; a separate file of held-out pairs is kept as
    it is. Lines of text are kept as they are, with their indentation, order and repetitions. Blank
    lines are kept in packed text, whose parts they separate, and otherwise left out.

    Args:
        data: the table.
        folder: the folder that its file names are relative to.
        seed: decides which examples are held out, if the table gives a number of them.
        place_of: returns the place in the recipe of the key of a part, for messages.

    Raises:
        TrainingError: files are missing, empty, not UTF-8, or have lines with one side missing. The
            error has the problems of all three parts, but only the first wrong lines of a file.
    """
    read, packed = _reader(data, folder), is_packed(data)
    problems: list[Problem] = []

    def part(name: str, stated: Any) -> list[Example]:
        if isinstance(stated, int):
            return []  # held out of the training data
        try:
            found = _examples(*read(stated))
        except TrainingError as error:
            problems.extend((placed(error, place_of(name)) if place_of else error).problems)
            return []
        return found if packed and name != "test" else _not_blank(found)

    train, valid, test = (part(name, getattr(data, name)) for name in ("train", "valid", "test"))
    if problems:
        raise TrainingError(problems)
    n_read = len(train)
    if train[0].source is not None:
        train = list(dict.fromkeys(train))
    n_held_out = [n if isinstance(n, int) else 0 for n in (data.test, data.valid)]
    try:
        rest, test_taken, valid_taken = held_out(train, n_held_out, seed)
    except TrainingError as error:
        larger = "test" if n_held_out[0] > n_held_out[1] else "valid"
        raise placed(error, place_of(larger)) if place_of else error from None
    return Splits(rest, valid or valid_taken, test or test_taken, n_read - len(train))


def read_lines(path: Path) -> list[Example]:
    """Read a text, one example for each line that is not blank. Raises as `read_data`."""
    return _not_blank(_examples(_text_lines(path), path))


def _text_lines(path: Path) -> Iterator[_Line]:
    return (_Line(None, line.text, line) for line in _lines(path))


def _not_blank(examples: list[Example]) -> list[Example]:
    return [example for example in examples if not example.is_blank]


def read_whole(path: Path) -> str:
    """Read a text unchanged. Raises as `read_data`."""
    raw = _content(path)  # once: it may be a pipe
    for _ in _lines_in(raw, path):
        pass  # a file that is not UTF-8 is reported with the place of the error
    return raw.decode("utf-8-sig")


class _Where(NamedTuple):
    """One line of a file, with its number, counted from 1."""

    path: Path
    number: int
    text: str

    def place(self, column: int = 1) -> Place:
        if not self.text:  # a row of a data set, or an empty line: nothing to quote
            return Place(str(self.path), self.number)
        return Place(str(self.path), self.number, column, self.text)


class _Line(NamedTuple):
    """The sides of one line. An empty side is missing; the source is None for text, and the second
    text is None for what is no pair of texts. The column where the target begins is None for JSON,
    which can write the same text in several ways and places."""

    source: str | Words | None
    target: str | Words
    source_at: _Where
    target_at: _Where | None = None
    second: str | Words | None = None
    target_column: int | None = None

    @property
    def sides(self) -> dict[str, str | Words]:
        """The sides that it should have, by their names."""
        sides = {"source": self.source, "second text": self.second, "target": self.target}
        return {name: side for name, side in sides.items() if side is not None}

    @property
    def lists(self) -> tuple[str, ...]:
        """The names of the sides that are lists."""
        return tuple(name for name, side in self.sides.items() if isinstance(side, tuple))

    def place_of(self, label: str) -> Place:
        """The place of the target, or of a label in it; of its line, if that cannot be told."""
        at = self.target_at or self.source_at
        if self.target_column is not None:
            return at.place(self.target_column)
        before, *after = at.text.split(f'"{label}"')
        return at.place(len(before) + 2 if len(after) == 1 else 1)


Read = Callable[[Any], tuple[Iterator[_Line], Path]]
"""Returns the lines of a part of the data, and the file that messages name."""


@singledispatch
def _reader(data: Any, folder: Path) -> Read:
    raise TypeError(f"{type(data).__name__} is not a table of data")


@_reader.register
def _(data: Tsv, folder: Path) -> Read:
    return lambda name: (_tsv(folder / name, data), folder / name)


@_reader.register
def _(data: Text, folder: Path) -> Read:
    return lambda name: (_text_lines(folder / name), folder / name)


@_reader.register
def _(data: Parallel, folder: Path) -> Read:
    def read(files: Files) -> tuple[Iterator[_Line], Path]:
        source, target = folder / files.source, folder / files.target
        return _parallel(source, target), source

    return read


@_reader.register
def _(data: Jsonl, folder: Path) -> Read:
    return lambda name: (_jsonl(folder / name, data), folder / name)


@_reader.register
def _(data: Datasets, folder: Path) -> Read:
    from zoo.training.hub import name_of, read_split

    name = name_of(data, folder)

    def lines(split: str) -> Iterator[_Line]:
        for number, (source, second, target) in enumerate(read_split(data, folder, split), 1):
            at = _Where(Path(f"{name} ({split})"), number, "")
            yield _Line(source, target, at, second=second)

    return lambda split: (lines(split), Path(name))


def place_of_label(data: Data, folder: Path, part: str, label: str) -> Place | None:
    """The place of the first line with this label in a part of the data, `train`, `valid` or
    `test`, or in the training data if the part is taken out of it; None if there is none."""
    stated = getattr(data, part)
    lines, _ = _reader(data, folder)(data.train if isinstance(stated, int) else stated)
    return next((line.place_of(label) for line in lines if label in _labels(line)), None)


def _labels(line: _Line) -> Words:
    return line.target if isinstance(line.target, tuple) else (line.target,)


def _examples(lines: Iterable[_Line], path: Path) -> list[Example]:
    """The examples of these lines. Raises TrainingError for lines with one side missing, with
    another number of labels than of words, or with lists where others have none."""
    examples: list[Example] = []
    wrong: list[Problem] = []
    lists: tuple[str, ...] | None = None
    for line in lines:
        if line.source is not None and not any(line.sides.values()):
            continue  # there is no pair
        lists = line.lists if lists is None else lists
        if problem := _problem(line, lists):
            wrong.append(problem)
        else:
            second = cast("str | None", line.second)  # a list is a problem
            examples.append(Example(line.source, line.target, second))
    if wrong:
        problems = wrong[:MAX_LINES]
        if left := len(wrong) - len(problems):
            same = {problem.message for problem in wrong} <= _ONE_SIDED
            what = "one side missing" if same else "something wrong"
            lines_have = "1 more line has" if left == 1 else f"{left:,} more lines have"
            problems.append(Problem(f"{lines_have} {what}", Place(str(path))))
        raise TrainingError(problems)
    if all(example.is_blank for example in examples):
        raise TrainingError(Problem("there is nothing to learn from: no lines", Place(str(path))))
    return examples


_ONE_SIDED = {f"the {side} is missing" for side in ("source", "second text", "target")}


def _problem(line: _Line, lists: tuple[str, ...]) -> Problem | None:
    """What is wrong with a line, in a file whose first line has these lists."""
    if line.source is None:
        return None
    start = line.source_at.place()
    if isinstance(line.second, tuple):
        return Problem("the second text is a list", start, "a pair is two texts")
    if line.lists != lists:
        help = "words and their labels are lists in every line, and texts in none"
        if {*line.lists, *lists} == {"target"}:
            help = "the labels of a text are a list, `[]` if it has none, in every line or in none"
        told = f"{_listed(line.lists)} here, and {_listed(lists)} in the lines before"
        return Problem(told, start, help)
    if isinstance(line.source, tuple) and len(line.source) != len(_labels(line)):
        told = f"{counted(len(line.source), 'word')} and {counted(len(_labels(line)), 'label')}"
        return Problem(f"there are {told}", start, "each word has one label")
    if isinstance(line.target, tuple) and (problem := _wrong_labels(line, line.target)):
        return problem
    # A list of labels may be empty.
    needed = {name: side for name, side in line.sides.items() if side != () or name == "source"}
    missing = next((name for name, side in needed.items() if not side), None)
    if missing is None:
        return None
    if missing != "target":
        return Problem(f"the {missing} is missing", start)
    at = line.target_at or line.source_at
    one_column = line.target_at is None and at.text and "\t" not in at.text
    hint = "a tab separates the columns" if one_column else None
    return Problem("the target is missing", at.place(max(1, len(at.text))), hint)


def _wrong_labels(line: _Line, labels: Words) -> Problem | None:
    """What is wrong with the labels of a list: one is empty or, of those of a text, there twice."""
    start = line.source_at.place()
    if "" in labels:
        return Problem(f"label {labels.index('') + 1} of the list is missing", start)
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is None or isinstance(line.source, tuple):
        return None
    hint = "a list has the labels of the text, each once, and not 1 or 0 for each class"
    return Problem(f"the label {quoted(twice)} is there twice", start, hint)


def _listed(lists: tuple[str, ...]) -> str:
    if not lists:
        return "there is no list"
    return f"the {' and the '.join(lists)} {'is a list' if len(lists) == 1 else 'are lists'}"


_EACH_A_TABLE = 'each line is a table: `{"text": "...", "label": "..."}`'


def _jsonl(path: Path, data: Jsonl) -> Iterator[_Line]:
    for line in _lines(path):
        if not line.text.strip():
            continue
        try:
            row = strict_json(line.text, parse_int=str, parse_float=str)  # texts, as written
        except (ValueError, RecursionError) as error:
            told, column = getattr(error, "msg", error), getattr(error, "colno", 1)
            hint = _EACH_A_TABLE if line.text.startswith("[") else None
            raise TrainingError(Problem(f"no JSON: {told}", line.place(column), hint)) from None
        if not isinstance(row, dict):
            raise TrainingError(Problem("this is JSON, but no table", line.place(), _EACH_A_TABLE))
        try:
            sides = sides_of_row(row, data.source, data.target)
        except TrainingError as error:
            raise placed(error, line.place()) from None
        yield _Line(sides.source, sides.target, line, line, sides.second)  # there are no columns


def _tsv(path: Path, data: Tsv) -> Iterator[_Line]:
    first, second = two_of(data.source)
    lines, n_columns = _lines(path), 0
    if data.header:
        next(lines, None)
    for line in lines:
        written = line.text.split("\t")
        n_columns = max(n_columns, len(written))
        columns = dict(enumerate(map(str.strip, written), 1))
        source = columns.get(first, "")
        other = None if second is None else columns.get(second, "")
        rest = "\t".join(written[data.target - 1 :]).lstrip()
        begin = len(line.text) - len(rest) + 1
        yield _Line(source, columns.get(data.target, ""), line, second=other, target_column=begin)
    last = max(first, second or first, data.target)
    if 1 < n_columns < last:
        key = "target" if last == data.target else "source"
        message = f"{quoted(path)} has {n_columns} columns, and `{key}` is column {last}"
        raise TrainingError(message)  # in place of one for each line


def _parallel(source: Path, target: Path) -> Iterator[_Line]:
    for one, other in zip_longest(_lines(source), _lines(target)):
        if one is not None and other is not None:
            begin = len(other.text) - len(other.text.lstrip()) + 1
            yield _Line(one.text.strip(), other.text.strip(), one, other, target_column=begin)
        elif left := one or other:
            ended = target if other is None else source
            raise TrainingError(
                Problem(
                    f"this line has no other in {quoted(ended)}, which ends before it",
                    left.place(),
                    help="line by line, the two files are translations of each other",
                )
            )


def _lines(path: Path) -> Iterator[_Where]:
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


def _lines_in(raw: bytes, path: Path) -> Iterator[_Where]:
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
        yield _Where(path, number, text)
