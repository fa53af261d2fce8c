"""Folders of sentence-transformers: `modules.json` lists the modules that follow the Transformer.

They may be a pooling, one or two dense layers and a normalisation, in this order. They become the
model's head; the vocabulary has the kind of the head and its names of poolings and activations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from zoo.errors import Place, WeightsError
from zoo.families.checkpoint import Stored, find_tensors
from zoo.families.family import Rule
from zoo.families.vocabulary import SentenceWords
from zoo.files.of_model import CONFIG, LIST_OF_MODULES
from zoo.json_files import JsonFile, json_value, read_bytes, read_json
from zoo.wording import quoted

_PREFIX = "sentence_transformers."
_MODE = "pooling_mode_"
_FOLDER = re.compile(r"\w[\w-]*")  # as `zoo.families.origin` requires it


@dataclass(frozen=True)
class SentenceHead:
    """The modules after a Transformer: the spec of the head, its tensors, and the files that
    describe it."""

    spec: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tensors: Mapping[str, Stored] = field(default_factory=dict[str, Stored])
    files: tuple[str, ...] = ()


def find_sentence_head(folder: Path, words: SentenceWords) -> SentenceHead:
    """Read `modules.json`; without such a file, nothing follows the Transformer.

    Raises:
        WeightsError: it is malformed, or its modules are unknown or in another order.
    """
    path = folder / LIST_OF_MODULES
    if not path.is_file():
        return SentenceHead()
    modules = _modules(path)
    head: dict[str, Any] = {"kind": words.kind, "normalize": False}
    tensors: dict[str, Stored] = {}
    files = [LIST_OF_MODULES]
    for name, where in modules[1:]:
        if name == "Normalize":
            head["normalize"] = True
            continue
        config = read_json(folder / where / CONFIG)
        files.append(f"{where}/{CONFIG}")
        if name == "Pooling":
            head["pooling"] = _pooling(config, words)
        else:
            head = _with_dense(head, config, words)
            found = find_tensors(folder / where)
            tensors |= {f"{where}/{key}": tensor for key, tensor in found.items()}
    return SentenceHead(head, tensors, tuple(files))


def dense_rules(keys: Iterable[str]) -> dict[str, Rule]:
    """Return the rules for the tensors of dense layers, each in a folder of its own, in the order
    of `_by_number`."""
    folders = sorted({key.partition("/")[0] for key in keys if "/" in key}, key=_by_number)
    names = ("hidden", "dense")[2 - len(folders) :]
    return {
        f"dense_{folder}": Rule(hf=f"{folder}/linear.{{w}}", zoo=f"head.{name}.{{w}}")
        for folder, name in zip(folders, names, strict=True)
    }


def _by_number(folder: str) -> tuple[int, str]:
    """Sort the folders of modules, such as `2_Dense`, as sentence-transformers numbers them."""
    number = folder.partition("_")[0]
    return int(number) if number.isdecimal() else 0, folder


def _modules(path: Path) -> list[tuple[str, str]]:
    """Return the kind and the folder of each module."""
    place = Place(str(path))
    try:
        listed = json_value(path, read_bytes(path))
        modules = [(str(m["type"]), str(m["path"])) for m in cast("list[dict[str, Any]]", listed)]
    except (TypeError, KeyError) as error:
        raise WeightsError(f"no list of modules: {error}", place) from None
    kinds = [kind.removeprefix(_PREFIX).rpartition(".")[2] for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling", *rest] for rest in _ENDS):
        order = ", ".join(quoted(kind) for kind in kinds)
        hint = (
            "a Transformer, a Pooling, and perhaps one or two Dense and a Normalize, in this order"
        )
        raise WeightsError(f"these modules are not supported: {order}", place, hint)
    if modules[0][1]:
        message = f"the Transformer is in {quoted(modules[0][1])}, not beside this file"
        raise WeightsError(message, place)
    if wrong := [where for _, where in modules[1:] if not _FOLDER.fullmatch(where)]:
        message = f"{quoted(wrong[0])} is not the name of a folder beside this file"
        raise WeightsError(message, place)
    folders = [where for kind, (_, where) in zip(kinds, modules, strict=True) if kind == "Dense"]
    if folders != sorted(set(folders), key=_by_number):
        message = f"{quoted(folders[1])} must have a higher number than {quoted(folders[0])}"
        raise WeightsError(message, place)
    return [(kind, where) for kind, (_, where) in zip(kinds, modules, strict=True)]


_ENDS = [[*n * ["Dense"], *end] for n in range(3) for end in ([], ["Normalize"])]


def _pooling(config: JsonFile, words: SentenceWords) -> str:
    stated = config.data.get("pooling_mode")
    modes = [stated] if isinstance(stated, str) else []
    modes += [
        key.removeprefix(_MODE).removesuffix("_tokens").removesuffix("_token")
        for key, value in config.data.items()
        if key.startswith(_MODE) and value is True
    ]
    if len(modes) != 1 or modes[0] not in words.pooling:
        named = ", ".join(map(quoted, modes)) or "none"
        message = f"one way of pooling is supported, not {named}"
        hint = f"one of these: {', '.join(sorted(words.pooling))}"
        raise WeightsError(message, Place(str(config.path)), hint)
    return words.pooling[modes[0]]


def _with_dense(head: Mapping[str, Any], config: JsonFile, words: SentenceWords) -> dict[str, Any]:
    """The spec of a head with one more dense layer."""
    added = _dense(config, words)
    if "d_out" not in head:
        return {**head, **added}
    if head["activation"] != "none":
        message = "the dense layer before this one has an activation, which is not supported"
        raise WeightsError(message, Place(str(config.path)))
    if head["dense_bias"] != added["dense_bias"]:
        message = "of two dense layers, both must have a bias or none"
        raise WeightsError(message, config.place("bias"))
    return {**head, **added, "d_hidden": head["d_out"]}


def _dense(config: JsonFile, words: SentenceWords) -> dict[str, Any]:
    activation = str(config.data.get("activation_function"))
    width = config.data.get("out_features")
    if activation not in words.activations:
        message = f"the activation {quoted(activation)} is not known"
        raise WeightsError(message, config.place("activation_function"))
    if type(width) is not int:
        message = "`out_features` must be an integer"
        raise WeightsError(message, config.place("out_features"))
    return {
        "d_out": width,
        "activation": words.activations[activation],
        "dense_bias": config.data.get("bias", True) is not False,
    }
