"""Help texts for errors: suggest files if a command was given a folder or a wrong path."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from zoo.files.of_model import CONFIG, RECIPE, WEIGHTS, WEIGHTS_INDEX
from zoo.files.of_training import CHECKPOINTS
from zoo.wording import did_you_mean, nearest, quoted, typed

_MOST = 4
"""The most names that are listed."""
_REGISTRY = "registry.toml"
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*(@\w[\w.-]*)?", re.ASCII)


def inside(folder: Path) -> str:
    """Return a help text that lists the specs, recipes and weights in a folder, including folders
    with weights; if there are none, its contents."""
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        return f"the folder cannot be read: {error.strerror}"
    if not paths:
        return "the folder is empty"
    has_weights = folder / WEIGHTS in paths or folder / WEIGHTS_INDEX in paths
    if has_weights and folder / CONFIG not in paths:
        return of_saved(folder)
    if {folder / RECIPE, folder / CHECKPOINTS} <= {*paths}:
        going_on = f"`zoo train RECIPE -o {typed(folder)} --resume` goes on with it"
        return f"the training in it has not ended; {going_on}"
    if not has_weights and (found := [path for path in paths if _is_meant(path)]):
        return f"name what is meant: {listed(found)}"
    if folder / CONFIG in paths:
        return f"`zoo import {typed(folder)}` makes a model of a published checkpoint"
    held = [Path(path.name) for path in paths]
    return f"there is no spec (.toml) and no .safetensors in it, but {listed(held)}"


def of_saved(path: Path) -> str:
    """Return a help text on how to get the spec of weights, for what takes no weights."""
    shown = f"`zoo show {typed(path)} --resolved` prints their spec"
    shown += ", which in Python is `zoo.load(...).spec`"
    return f"{quoted(path, 200)} holds weights; if the zoo has saved them, {shown}"


def neighbours(path: Path) -> list[str]:
    """Return the candidates for a missing path: the specs, recipes and models beside it."""
    try:
        return [str(other) for other in path.parent.iterdir() if _is_meant(other)]
    except (OSError, ValueError):
        return []


def of_no_model(name: str, known: Collection[str]) -> str:
    """Return a help text for what is neither a file nor one of the known names of models: how to
    read an address, or what may be a repository, and the nearest name."""
    if "://" in name:
        return f"`zoo import {typed(name)}` makes a model of a published checkpoint"
    if any(sign in name for sign in "*?["):
        return f"a pattern is for `zoo list models {typed(name)}`, which lists the names that fit"
    others = did_you_mean(name, known, "`zoo list models` lists the models")
    return f"{of_repository(name)}; {others}" if _REPOSITORY.fullmatch(name) else others


def of_repository(name: str) -> str:
    """Return a help text on how to read the repository of this name; if it cannot be the name of
    one, any."""
    found = name if _REPOSITORY.fullmatch(name) else "owner/name"
    return f"`zoo import hf://{found}` reads a repository of the Hugging Face hub"


def near(path: Path) -> str:
    """Return a help text for a missing weights file: the most similar name beside it, or the
    contents of its folder."""
    if os.path.isdir(path):
        return inside(path)
    if not os.path.isdir(path.parent):
        return f"there is no folder {quoted(path.parent, 200)}"
    beside = filter(os.path.isfile, path.parent.glob("*.safetensors"))
    others = {other.name: other for other in beside}
    if other := nearest(path.name, others):
        return f"did you mean {quoted(others[other], 200)}?"
    return inside(path.parent)


def listed(paths: Sequence[Path]) -> str:
    """Return paths for messages, quoted; of many, the first ones and how many more there are."""
    more = f" and {len(paths) - _MOST} more" if len(paths) > _MOST else ""
    return ", ".join(quoted(path, 200) for path in paths[:_MOST]) + more


def _is_meant(path: Path) -> bool:
    if path.suffix.lower() in (".toml", ".safetensors"):
        return os.path.isfile(path) and path.name != _REGISTRY
    return any(os.path.isfile(path / name) for name in (WEIGHTS, WEIGHTS_INDEX))
