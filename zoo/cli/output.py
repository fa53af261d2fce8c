"""What a command prints: its report as text, or as JSON for other programs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def print_report(
    as_json: bool, data: Any, text: Callable[[Any], str], *, one_of_several: bool = False
) -> None:
    """Print `data` as indented JSON, as one line of it if it is one of several, or what `text`
    makes of it."""
    if as_json:
        import json

        sys.stdout.write(json.dumps(data, indent=None if one_of_several else 2) + "\n")
    else:
        sys.stdout.write(text(data) + "\n")
