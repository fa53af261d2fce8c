"""Find all syntax errors of a TOML text; tomllib alone stops at the first."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from typing import TYPE_CHECKING

from zoo.errors import Problem, SpecError, in_order
from zoo.toml.limits import INTEGER_MESSAGE, too_deep
from zoo.toml.places import Duplicate, find_places
from zoo.wording import dotted, quoted

if TYPE_CHECKING:
    from zoo.document import Document

MAX_SYNTAX_ERRORS = 20
SEVERAL = 3
"""The number of syntax errors from which it is asked whether a text is meant as TOML."""
_TWICE = re.compile("Cannot|Duplicate")  # how tomllib's messages about duplicate keys begin
_DIGITS = re.compile(r"(?<![0-9_])[0-9_]{4300,}")  # more digits than Python converts to an integer
_CURLY = ("\u2018", "\u2019", "\u201c", "\u201d")
_NO_KEY = "invalid initial character for a key part"
_STATEMENT = re.compile(r"""[\w"'.\s-]+=|\[[^()]*\]\s*(#|$)""")
_YAML = re.compile(r"\s*([\w-]+): +(?=\S)")
_AT = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def read_around_errors(document: Document) -> None:
    """Read a document whose text has syntax errors into `document.data`.

    Duplicate keys are added to `document.problems` and do not raise by themselves.

    Raises:
        SpecError: the text has other syntax errors. It lists all of them and the duplicate keys;
            of a text that is JSON, or no TOML at all, it says only that.
    """
    text = document.text or ""
    if text.lstrip().startswith("{"):
        hint = "in Python, `zoo.read_spec(json.load(file)).to_toml()` makes TOML of a spec"
        if '"model_type"' in text:
            hint = "`zoo import` reads the folder of a config.json"
        raise SpecError("not TOML, but JSON", document.at(1, 1), hint)
    broken: list[Problem] = []
    while len(broken) < MAX_SYNTAX_ERRORS:
        # Blanking the line of an unclosed string may uncover nested values that it hid.
        if problem := too_deep(document, text):
            broken.append(problem)
            break
        try:
            document.data = tomllib.loads(text)
            break
        except tomllib.TOMLDecodeError as error:
            if _TWICE.match(str(error)) and (found := find_places(text)).duplicates:
                document.problems += [_duplicate_problem(document, d) for d in found.duplicates]
                text = found.text_without_duplicates
                continue
            problem, line = _syntax_problem(document, str(error))
            if problem in broken:
                break
            broken.append(problem)
            lines = text.split("\n")
            # Blank the line to find the next error. Stop at the head of a table: without it, its
            # keys would belong to the table before.
            written = lines[line - 1].strip() if line is not None else ""
            if line is None or not written or written.startswith("["):
                break
            lines[line - 1] = " " * len(lines[line - 1])  # other positions stay valid
            text = "\n".join(lines)
        except ValueError:
            digits = _DIGITS.search(text)
            place = document.at_offset(digits.start() if digits else 0)
            broken.append(Problem(INTEGER_MESSAGE, place))
            break
    if broken and _is_of_another_format(document, broken):
        hint = "TOML consists of lines such as `n_layers = 6`, and of heads such as `[decoder]`"
        first = min(problem.place.line or 1 for problem in broken if problem.place)
        raise SpecError("this is not TOML", document.at(first, 1), hint)
    if broken:
        raise SpecError(in_order([*document.problems, *broken]))


def _is_of_another_format(document: Document, broken: list[Problem]) -> bool:
    """Return whether a text with these errors is prose, code or another format, and not TOML with
    mistakes: most of its lines are neither `key = ...` nor a head."""
    stripped = map(str.strip, (document.text or "").split("\n"))
    lines = [line for line in stripped if line and not line.startswith("#")]
    statements = [line for line in lines if _STATEMENT.match(line)]
    return len(broken) >= SEVERAL and 2 * len(statements) < len(lines)


def _duplicate_problem(document: Document, duplicate: Duplicate) -> Problem:
    name = quoted(dotted(duplicate.path))
    message, hint = f"{name} is written twice", "keep one of the two"
    if duplicate.outer:
        outer = quoted(dotted(duplicate.outer))
        message = f"{name} adds to {outer}, which is complete"
        hint = "write it where the other keys are"
    first = ("first written here", document.at(*duplicate.first))
    return Problem(message, document.at(*duplicate.span), hint, (first,))


def _syntax_problem(document: Document, message: str) -> tuple[Problem, int | None]:
    """Convert a message of tomllib to a problem and the line to blank; None if none should be."""
    found = _AT.search(message)
    what = _AT.sub("", message)
    what = what[:1].lower() + what[1:]
    if found is None or found[1] is None:
        place = document.at_offset(len((document.text or "").rstrip()))
        return Problem(f"not TOML: {what}", place), None
    line, column = int(found[1]), int(found[2])
    place = document.at(line, column)
    quote = place.quote or ""
    before, rest = quote[: column - 1], quote[column - 1 :]
    hint = _character_hint(rest[:1])
    goes_on = what == "unclosed array" or (what == "invalid value" and _STATEMENT.match(rest))
    if goes_on and not before.strip():
        hint = "the array above needs a `,` or its `]` before this line"
        # The lines that follow would be reported as if they stood in the array.
        return Problem("not TOML: unclosed array", place, hint), None
    if what == "invalid value":
        hint = hint or _value_hint(rest)
    elif "{" in quote and what == _NO_KEY and rest.strip()[:1] in ("", "#"):
        hint = "write it on one line, or its keys below a `[head]`"
        # The lines of the inline table would be reported as if they stood alone.
        return Problem("not TOML: the inline table is not closed on its line", place, hint), None
    elif key := _YAML.match(quote):
        hint = hint or f"a key and its value have `=` between them: `{key[1]} = ...`"
    elif what == "illegal character '\\n'":
        what = "the string is not closed on its line"
    return Problem(f"not TOML: {what}", place, hint), line


def _character_hint(character: str) -> str | None:
    """Return a hint for a curly quote or another character that is allowed only between quotes."""
    if character in _CURLY:
        return 'write straight quotes: `"`'
    if character and not character.isascii() and character.isprintable():
        name = unicodedata.name(character, "a character of no name")
        return f"this is U+{ord(character):04X}, {name.lower()}; it can stand between quotes only"
    return None


def _value_hint(rest: str) -> str | None:
    word = re.match(r"[A-Za-z_][\w./-]*|\.\d+", rest)
    if word is None:
        return None
    if word[0].lower() in ("true", "false"):
        return f"write `{word[0].lower()}`"
    if word[0].lower() in ("null", "none", "nil"):
        return 'TOML has no null: leave the key out, or write `"none"`'
    return f"write `0{word[0]}`" if word[0][0] == "." else f'text is quoted: `"{word[0]}"`'
