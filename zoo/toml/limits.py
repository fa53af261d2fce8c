"""What a TOML text may not exceed: how deep it nests, and how large its integers are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zoo.budget import raising
from zoo.errors import Problem

if TYPE_CHECKING:
    from zoo.document import Document

MAX_INTEGER = 2**53 - 1  # the largest that JSON readers agree on (RFC 8785, section 3.2.2.3)
INTEGER_MESSAGE = f"the integer is beyond {MAX_INTEGER:,}, the largest that every JSON reader keeps"

# What decides how deep a text nests. Strings end where their line does if they are not closed, so
# that the scan is one pass whatever the text is. Those of several lines may end with quotes of
# their own, two at most, before the three that close them.
_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)
    | (?P<name> \"{3}(?:\\.|[^\\"]|"(?!""))*+(?:\"{3,5})?
              | '{3}(?:[^']|'(?!''))*+(?:'{3,5})?
              | "(?:\\.|[^"\\\n])*+"?
              | '[^'\n]*+'?
              | [\w-]++)
    | (?P<dot>\.)
    | (?P<open>[\[{])
    | (?P<close>[\]}])
    | (?P<end>[=,\n])""",
    re.VERBOSE | re.DOTALL,
)


def too_deep(document: Document, text: str) -> Problem | None:
    """The first place where values nest, or a key has parts, beyond the limit. The parsers take
    quadratic time or overflow the stack on what is far beyond. `text` is the document's, or what
    is left of it without errors."""
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
