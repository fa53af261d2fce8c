"""The type of the `format` that files state whose tables pydantic reads."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator
from pydantic_core import PydanticKnownError


def _integer(written: object) -> object:
    """Refuse what only equals 1 in Python: `true` and `1.0`."""
    if type(written) is int:
        return written
    raise PydanticKnownError("literal_error", {"expected": "1"})


Format = Annotated[Literal[1], BeforeValidator(_integer)]
"""The integer 1."""
