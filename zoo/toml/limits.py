"""Limits of a TOML text: the depth of nesting and the size of integers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zoo.budget import raising
from zoo.errors import Problem

if TYPE_CHECKING:
    from zoo.document import Document

MAX_INTEGER = 2**53 - 1  # the largest that JSON readers agree on (RFC 8785, section 3.2.2.3)
INTEGER_MESSAGE = f"the integer is beyond {MAX_INTEGER:,}, the largest that every JSON reader keeps"

# The tokens that determine the depth of nesting. An unclosed string ends with its line, so that the
# scan is one pass for any text. A multi-line string may end with up to two quotes of its own before
# the three that close it. Groups are not possessive, which Python gets wrong before 3.11.5.
_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)
    | (?P<name> \"{3}(?:\\.|[^\\"]|"(?!""))*(?:\"{3,5})?
              | '{3}(?:[^']|'(?!''))*(?:'{3,5})?
              | "(?:\\.|[^"\\\n])*"?
              | '[^'\n]*+'?
              | [\w-]++)
    | (?P<dot>\.)
    | (?P<open>[\[{])
    | (?P<close>[\]}])
    | (?P<end>[=,\n])""",
    re.VERBOSE | re.DOTALL,
)


def too_deep(document: Document, text: str) -> Problem | None:
    """Return a problem at the first place where values or dotted keys are nested beyond the limit.

    The parsers take quadratic time or overflow the stack on texts far beyond it. `text` is that of
    the document, possibly with erroneous lines blanked.
    """
    depth = parts = 0
    limit = document.max_depth
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        depth = max(0, depth + (kind == "open") - (kind == "close"))
        parts = parts + 1 if kind == "dot" else parts if kind == "name" else 0
        if depth > limit or parts >= limit:
            what = "values are nested" if depth > limit else "keys are nested"
            place = document.at_offset(token.start())
            return Problem(f"{what} more than {limit} deep", place, raising("key_depth"))
    return None
