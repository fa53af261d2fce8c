"""The examples of a recipe's data, each with a target and, for pairs, a source, and what is wrong
with their lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from zoo.errors import Place, Problem, TrainingError, noted, placing
from zoo.training.data_tables import Data, is_packed
from zoo.training.example import Example, Words
from zoo.training.line import Line
from zoo.training.lines import lines_of, text_lines
from zoo.training.split import Splits, held_out
from zoo.wording import counted, quoted

if TYPE_CHECKING:
    from zoo.training.chats import Chats

MAX_LINES = 10
"""The most wrong lines of a file that are reported one by one. More than these tend to have one
common cause, such as swapped columns, unlike the mistakes in a recipe or a spec."""


@dataclass(frozen=True)
class DataReader:
    """Reads the examples of a recipe's `[data]`.

    Args:
        data: the table.
        folder: the folder that its file names are relative to.
        place_of: returns the place in the recipe of the key of a part, for messages; by default
            there is none.
        of_decoder: whether they are for a decoder, which continues a prompt by its answer: sides of
            pairs are then kept as they are, and otherwise without the white space around them.
        chats: writes chats; None for other data.
    """

    data: Data
    folder: Path
    place_of: Callable[[str], Place | None] = lambda key: None
    of_decoder: bool = False
    chats: Chats | None = None

    def splits(self, seed: int) -> Splits:
        """Read the data in three parts.

        Duplicate pairs in the training data are removed; a separate file of held-out pairs is kept
        as it is. Lines of text are kept as they are, with their indentation, order and repetitions.
        Blank lines are kept in packed text, whose parts they separate, and otherwise left out.

        Args:
            seed: decides which examples are held out, if the table gives a number of them.

        Raises:
            TrainingError: files are missing, empty, not UTF-8, or have lines with one side missing.
                The error has the problems of all three parts, but only the first wrong lines of a
                file.
        """
        problems: list[Problem] = []
        read: list[list[Example]] = []
        for name in ("train", "valid", "test"):
            with noted(problems):
                read.append(self.part(name))
        if problems:
            raise TrainingError(problems)
        train, valid, test = read
        n_read = len(train)
        if train[0].source is not None:
            train = list(dict.fromkeys(train))
        n_held_out = [n if isinstance(n, int) else 0 for n in (self.data.test, self.data.valid)]
        larger = "test" if n_held_out[0] > n_held_out[1] else "valid"
        with placing(self.place_of(larger)):
            rest, test_taken, valid_taken = held_out(train, n_held_out, seed)
        n_duplicates = n_read - len(train)
        read_examples = (train, valid, test)
        return Splits(rest, valid or valid_taken, test or test_taken, n_duplicates, read_examples)

    def part(self, name: str) -> list[Example]:
        """Read the part `name`: `train`, before anything is taken out of it, `valid` or `test`; no
        examples of one that is taken out. Raises as `splits`."""
        stated = getattr(self.data, name)
        if isinstance(stated, int):
            return []
        with placing(self.place_of(name)):
            lines = lines_of(self.data, self.folder, stated, self.chats)
            found = _examples(*lines, as_written=self.of_decoder)
        return found if is_packed(self.data) and name != "test" else _not_blank(found)


def read_lines(path: Path) -> list[Example]:
    """Read a text, one example for each line that is not blank. Raises as `DataReader`."""
    return _not_blank(_examples(text_lines(path), path))


def _not_blank(examples: list[Example]) -> list[Example]:
    return [example for example in examples if not example.is_blank]


def place_of_label(data: Data, folder: Path, part: str, label: str) -> Place | None:
    """The place of the first line with this label in a part of the data, `train`, `valid` or
    `test`, or in the training data if the part is taken out of it; None if there is none."""
    stated = getattr(data, part)
    lines, _ = lines_of(data, folder, data.train if isinstance(stated, int) else stated)
    return next((line.place_of(label) for line in lines if label in _labels(line.stripped)), None)


def _labels(line: Line) -> Words:
    return line.target if isinstance(line.target, tuple) else (line.target,)


def _examples(lines: Iterable[Line], path: Path, *, as_written: bool = False) -> list[Example]:
    """The examples of these lines, with the white space around the sides of pairs only if they are
    to be as written. Raises TrainingError for lines with one side missing, with another number of
    labels than of words, or with lists where others have none."""
    examples: list[Example] = []
    wrong: list[Problem] = []
    lists: tuple[str, ...] | None = None
    for read in lines:
        line = read if read.source is None or as_written else read.stripped
        if line.source is not None and not any(line.sides.values()):
            continue  # there is no pair
        lists = line.lists if lists is None else lists
        if problem := _problem(line, lists):
            wrong.append(problem)
        else:
            second = cast("str | None", line.second)  # a list is a problem
            examples.append(Example(line.source, line.target, second, line.opening))
    if wrong:
        problems = wrong[:MAX_LINES]
        if left := len(wrong) - len(problems):
            same = {problem.message for problem in wrong} <= _ONE_SIDED
            what = "one side missing" if same else "something wrong"
            lines_have = "1 more line has" if left == 1 else f"{left:,} more lines have"
            problems.append(Problem(f"{lines_have} {what}", Place(str(path))))
        raise TrainingError(problems)
    if all(example.is_blank for example in examples):
        raise TrainingError("there is nothing to learn from: no lines", Place(str(path)))
    return examples


_ONE_SIDED = {f"the {side} is missing" for side in ("source", "second text", "target")}


def _problem(line: Line, lists: tuple[str, ...]) -> Problem | None:
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
    missing = next((name for name, side in line.sides.items() if side == ""), None)
    if missing is None:
        return None
    if missing != "target":
        return Problem(f"the {missing} is missing", start)
    at = line.target_at or line.source_at
    one_column = line.target_at is None and at.text and "\t" not in at.text
    hint = "a tab separates the columns" if one_column else None
    return Problem("the target is missing", at.place(max(1, len(at.text))), hint)


def _wrong_labels(line: Line, labels: Words) -> Problem | None:
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
