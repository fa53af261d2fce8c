"""Numbers of bytes, as people read and write them."""

from __future__ import annotations

import re

_NUMBER = re.compile(
    r"(\d{1,30})(?:\.(\d{1,30}))?(?:e(\d{1,2}))? ?(?:([kmgt]?)(i?)b)?", re.ASCII | re.IGNORECASE
)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def human_bytes(count: int) -> str:
    """Format a number of bytes with a decimal unit: 252.2 MB."""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:  # larger sizes would be rounded to 1000.0
            return f"{size:.1f} {unit}"
    return f"{size / 1000:,.1f} TB"


def parse_bytes(text: str) -> int:
    """Parse a number of bytes: plain (`5000000`, `5e6`), or with a decimal (`5MB`) or a binary unit
    (`2GiB`).

    Raises:
        ValueError: the text is not a number of bytes, or not a whole number of at least 1.
    """
    found = _NUMBER.fullmatch(text.strip())
    if found is not None:
        whole, part, exponent, unit, binary = found.groups(default="")
        # In whole numbers: every command would pay for the import of `fractions`.
        power: int = (1024 if binary else 1000) ** _POWERS[unit.lower()]
        tens: int = 10 ** int(exponent or 0)
        tenths: int = 10 ** len(part)
        count, rest = divmod(int(whole + part) * tens * power, tenths)
        if count >= 1 and not rest:
            return count
    raise ValueError(f"{text!r} is not a number of bytes: write 500000000, 500MB or 2GiB")
