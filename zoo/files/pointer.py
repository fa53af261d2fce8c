"""Files that only say where their bytes are, as a clone without Git LFS holds them."""

from __future__ import annotations

from zoo.errors import Place, WeightsError

_BEGIN = b"version https://git-lfs"
START = len(_BEGIN)
"""The number of bytes that tell."""


def check_is_whole(start: bytes, place: Place) -> None:
    """Raise `WeightsError` if a file begins as a pointer does."""
    if start.startswith(_BEGIN):
        message = "a pointer of Git LFS is in the place of the file"
        hint = "`git lfs pull` in the clone that it is from fetches the file itself"
        raise WeightsError(message, place, hint)
