"""The tensors of a published checkpoint: one safetensors file, or shards and their index."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, cast

from zoo.errors import Place, Problem, WeightsError
from zoo.files.formats import HEAD, format_of
from zoo.files.hints import listed
from zoo.files.of_model import WEIGHTS, WEIGHTS_INDEX
from zoo.files.pointer import START, check_is_whole
from zoo.json_files import read_json
from zoo.weights.file import ITEM_BYTES, MAX_JSON_BYTES, not_whole
from zoo.weights.header_json import read_entries
from zoo.weights.open_file import cannot_read
from zoo.wording import did_you_mean, quoted

_ITEM_BYTES = {**ITEM_BYTES, "I32": 4, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
"""The bytes per element of what is read, as it is or to make floats of it."""

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
_OTHERS = ("*.safetensors", "*.gguf")


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a checkpoint: its file, its dtype as safetensors names it, its shape, and the
    offset and the number of its bytes in the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    n_bytes: int


def check_folder(folder: Path, hint: str) -> None:
    """Raise `WeightsError` if there is no such folder."""
    if not os.path.isdir(folder):
        message = "this is not a folder" if os.path.exists(folder) else "there is no such folder"
        if os.path.isfile(folder) and (foreign := format_of(_head(folder))):
            message, hint = f"{message}, but {foreign.name}", foreign.help
        raise WeightsError(message, Place(str(folder)), hint)


def _head(path: Path) -> bytes:
    """The first bytes of a file; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(HEAD)
    except OSError:
        return b""


def find_tensors(folder: Path) -> dict[str, Stored]:
    """Return every tensor of a checkpoint, by name. Only headers are read.

    Raises:
        WeightsError: there are no weights, or they are damaged; the index names a file that is
            missing or outside the folder, or a tensor that its file does not hold.
    """
    if (folder / WEIGHTS).is_file():  # takes precedence over an index, as in transformers
        return tensors_of(folder / WEIGHTS)
    if (folder / WEIGHTS_INDEX).is_file():
        return _indexed(folder)
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise WeightsError(
            f"the weights are in {quoted(pickles[0])}, which is not read: such a file can run "
            "code when it is opened",
            Place(str(folder)),
            help="ask for the weights as safetensors, or convert them where you trust them",
        )
    others = sorted(Path(path.name) for pattern in _OTHERS for path in folder.glob(pattern))
    hint = None
    if others:
        hint = (
            f"there is {listed(others)}; read are {WEIGHTS}, and the shards that "
            f"{WEIGHTS_INDEX} names"
        )
    raise WeightsError(f"there is no {WEIGHTS}", Place(str(folder)), hint)


def _indexed(folder: Path) -> dict[str, Stored]:
    index = read_json(folder / WEIGHTS_INDEX)
    files: Any = index.data.get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        message = "`weight_map` must map tensors to files"
        raise WeightsError(message, index.place("weight_map"))
    weight_map = cast("dict[str, str]", files)
    problems: list[Problem] = []
    found: dict[str, dict[str, Stored]] = {}
    first_keys = {name: key for key, name in reversed(weight_map.items())}
    for name, key in sorted(first_keys.items()):
        inside = PurePosixPath(name).name == name and name.endswith(".safetensors")
        if not inside:
            message = f"{quoted(name)} is not the name of a .safetensors file in this folder"
            problems.append(Problem(message, index.place("weight_map", key)))
        elif not os.path.isfile(folder / name):  # Path.is_file raises for a name too long
            there = [path.name for path in folder.glob("*.safetensors")]
            none = None if there else "there is no .safetensors file in the folder"
            near = did_you_mean(name, there, none)
            message = f"the index names {quoted(name)}, which is missing"
            problems.append(Problem(message, index.place("weight_map", key), near))
        else:
            found[name] = tensors_of(folder / name)
    for key, name in weight_map.items():
        if name in found and key not in found[name]:
            message = f"the index has the tensor `{key}` in {quoted(name)}, which does not hold it"
            problems.append(Problem(message, index.place("weight_map", key)))
    for name, tensors in found.items():
        for key in sorted(tensors.keys() - weight_map.keys()):
            message = f"{quoted(name)} holds the tensor `{key}`, of which the index says nothing"
            problems.append(Problem(message, Place(str(folder / name))))
    if problems:
        raise WeightsError(problems)
    return {key: found[name][key] for key, name in weight_map.items()}


def tensors_of(path: Path) -> dict[str, Stored]:
    """Return every tensor of one safetensors file, by name. Raises `WeightsError` if it is
    damaged."""
    place = Place(str(path))
    try:
        return _entries(path)
    except OSError as error:
        raise cannot_read(error, place) from None
    except ValueError as error:
        raise not_whole(str(error), place) from None


def _entries(path: Path) -> dict[str, Stored]:
    """Return the tensors in the header of a safetensors file.

    Raises `ValueError` if the header is malformed, or if the tensors do not fill the file without
    gaps, and `WeightsError` for a pointer.
    """
    with path.open("rb") as file:
        check_is_whole(file.read(START), Place(str(path)))
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_JSON_BYTES:
            raise ValueError(f"its header would be {length:,} bytes long")
        _, entries = read_entries(file.read(length))
        size = file.seek(0, os.SEEK_END)
    found: dict[str, Stored] = {}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1][2:]):
        n_bytes = entry.end - entry.start
        if entry.dtype in _ITEM_BYTES:
            n_bytes = prod(entry.shape) * _ITEM_BYTES[entry.dtype]
        found[name] = Stored(path, entry.dtype, entry.shape, 8 + length + entry.start, n_bytes)
        if entry.start != end or entry.end != end + n_bytes:
            raise ValueError(f"{quoted(name)} is not where its bytes can be")
        end = entry.end
    if size != 8 + length + end:
        raise ValueError(f"{size:,} bytes long, while its header tells of {8 + length + end:,}")
    return found
