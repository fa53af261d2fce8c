"""The names of licences: SPDX's identifiers, and the words of hubs."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from zoo.errors import Problem, nearest, quoted

_OPERATORS = ("AND", "OR", "WITH")
_NO_STATEMENT = ("NOASSERTION", "NONE")
_OWN = re.compile(r"(DocumentRef-[A-Za-z0-9.-]+:)?LicenseRef-[A-Za-z0-9.-]+")


def unknown_license(stated: str) -> Problem | None:
    """The problem of a stated licence in which a word is no licence; None if all are.

    Args:
        stated: a word of a hub (`apache-2.0`, `other`), or an expression of SPDX, in any case
            (`MIT OR Apache-2.0`, `LicenseRef-Mine`).
    """
    words = re.sub(r"[()]", " ", stated).split()
    known = _known()
    for word in words:
        is_name = word.lower() in known or word.lower().removesuffix("+") in known
        if not (is_name or word in _OPERATORS or word in _NO_STATEMENT or _OWN.fullmatch(word)):
            near = nearest(word, known.values())
            others = "other terms are `LicenseRef-NAME` or `other`"
            hint = f"did you mean `{near}`? If not: {others}" if near else others
            return Problem(f"{quoted(word)} is no licence that SPDX or the hub names", help=hint)
    return None


@cache
def _known() -> dict[str, str]:
    """Each name by its lower case."""
    lines = Path(__file__).with_name("licenses.txt").read_text("utf-8").splitlines()
    return {line.lower(): line for line in lines if line and not line.startswith("#")}
