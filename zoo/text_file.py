"""Text to a file, whole or not at all."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from zoo.errors import Problem, ZooError


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text. A file that was there is replaced at once, and kept if writing fails.

    Raises:
        ZooError: the file cannot be written.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise ZooError(
            Problem(
                f"cannot write {str(path)!r}: {error.strerror}", help="what was there is untouched"
            )
        ) from None
