"""Licences: expressions of SPDX, and the words of hubs."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from zoo.errors import Problem
from zoo.wording import nearest, quoted

_NO_STATEMENT = ("NOASSERTION", "NONE")
_OWN = re.compile(r"(DocumentRef-[A-Za-z0-9.-]+:)?LicenseRef-[A-Za-z0-9.-]+")
_OTHERS = "other terms are `LicenseRef-NAME` or `other`"
_LONGEST = 1000
_SYMBOLS = {"AND": "&", "OR": "&", "WITH": "w", "(": "(", ")": ")"}


class _Names(NamedTuple):
    """Names in lower case, each with its spelling."""

    licenses: dict[str, str]
    exceptions: dict[str, str]


def license_problem(stated: str) -> Problem | None:
    """The problem of a stated licence in which a word is no licence, or whose words are no
    expression; None if there is none.

    Args:
        stated: a word of a hub (`apache-2.0`, `other`), or an expression of SPDX, with names in any
            case (`MIT OR Apache-2.0`, `LicenseRef-Mine`).
    """
    if not stated.isprintable():
        return Problem(f"{quoted(stated)} is no licence: it is on one line")
    if len(stated) > _LONGEST:
        message = f"{quoted(stated)} has more than {_LONGEST:,} characters, too many for a licence"
        return Problem(message, help=_OTHERS)
    known = _known()
    symbols = ""
    for word in re.findall(r"[()]|[^\s()]+", stated):
        name = word.lower()
        if word in _SYMBOLS:
            symbols += _SYMBOLS[word]
        elif name in known.exceptions:
            symbols += "e"
        elif (
            name in known.licenses
            or name.removesuffix("+") in known.licenses
            or word in _NO_STATEMENT
            or _OWN.fullmatch(word)
        ):
            symbols += "l"
        else:
            near = nearest(word, [*known.licenses.values(), *known.exceptions.values()])
            hint = f"did you mean `{near}`? If not: {_OTHERS}" if near else _OTHERS
            return Problem(f"{quoted(word)} is no licence that SPDX or the hub names", help=hint)
    if not _is_expression(symbols):
        hint = (
            "AND or OR is between two licences, WITH between a licence and an exception, as in "
            "`MIT OR (Apache-2.0 WITH LLVM-exception)`"
        )
        return Problem(f"{quoted(stated)} is not a valid licence expression", help=hint)
    return None


def _is_expression(symbols: str) -> bool:
    """Whether symbols of licences (l), exceptions (e) and operators are an expression of SPDX
    (https://spdx.github.io/spdx-spec/v2.3/SPDX-license-expressions). What is one by itself is
    replaced by x, from the inside out."""
    reduced, before = re.sub("lwe|l", "x", symbols), ""
    while reduced != before:
        before, reduced = reduced, re.sub(r"x&x|\(x\)", "x", reduced)
    return reduced == "x"


@cache
def _known() -> _Names:
    text = Path(__file__).with_name("licenses.txt").read_text("utf-8")
    _, identifiers, exceptions, words = text.split("\n# ")
    return _Names(_names_in(identifiers) | _names_in(words), _names_in(exceptions))


def _names_in(section: str) -> dict[str, str]:
    _, *names = section.split("\n")  # the first line is its title
    return {name.lower(): name for name in names if name}
