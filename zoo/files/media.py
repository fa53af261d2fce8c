"""Opening the files of images and sounds that a user names."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from zoo.errors import InputError
from zoo.files.endless import check_ends


@contextmanager
def open_media(source: str | os.PathLike[str] | bytes, kind: str, name: str) -> Generator[BinaryIO]:
    """Open a file, which has an end, to be read from any place.

    Args:
        source: the path of the file, or its bytes.
        kind: what it should be, for messages: `an image` or `a sound`.
        name: what names of such files look like, for messages, such as `*.wav`.

    Raises:
        InputError: there is no such file, it is empty, or it cannot be read.
    """
    if isinstance(source, bytes):
        yield _not_empty(BytesIO(source))
        return
    if not os.fspath(source):
        raise InputError(f"the path of {kind} is empty")
    path = Path(source)
    try:
        check_ends(path)
        with path.open("rb") as file:
            yield _not_empty(file if file.seekable() else BytesIO(file.read()))
    except FileNotFoundError:
        raise InputError("there is no such file") from None
    except IsADirectoryError:
        hint = f"name the files in it, as the shell does for `FOLDER/{name}`"
        raise InputError(f"this is a folder, and not {kind}", help=hint) from None
    except (OSError, ValueError) as error:  # a ValueError for a path with a null character
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _not_empty(file: BinaryIO) -> BinaryIO:
    if not file.read(1):
        raise InputError("the file is empty")
    file.seek(0)
    return file
