"""Adapters of low rank (LoRA: Hu et al. 2021, arXiv:2106.09685) in the format of PEFT: what is in
their two files."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from zoo.errors import Place, Problem, WeightsError
from zoo.families.checkpoint import Stored, check_folder, tensors_of
from zoo.families.origin import OfAdapter
from zoo.files.of_model import ADAPTER_CONFIG, COMPANIONS
from zoo.json_files import JsonFile, read_json
from zoo.weights.dtypes import FLOATS
from zoo.weights.open_file import cannot_read
from zoo.wording import quoted

WEIGHTS = "adapter_model.safetensors"
FILES = (ADAPTER_CONFIG, WEIGHTS, *COMPANIONS)
"""The files of an adapter, and those beside it that are imported with it."""

_READ = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "init_lora_weights")
_INERT = (
    "peft_type",
    "peft_version",
    "task_type",
    "auto_mapping",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "lora_dropout",
    "runtime_config",
    # Which modules are adapted is seen by the names of the tensors, and how their weights are
    # stored is known by the family.
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "modules_to_save",
    "bias",
    "fan_in_fan_out",
    # Unused without what they belong to.
    "megatron_core",
    "qalora_group_size",
    "eva_config",
)
"""Keys that say nothing of the values of weights, beside those that are read."""
_STARTS = (True, False, "gaussian", "eva", "orthogonal")
"""How factors may have begun. In other ways, such as PiSSA's, they begin as a part of the weights,
which is subtracted from these."""
_NAME = re.compile(r"\^?\w+(?:\\?\.\w+)*\$?")
"""The regular expressions of PEFT that are plain names, of one module or more."""
_PREFIX = "base_model.model."
_FACTOR = re.compile(r"(?P<path>.+)\.lora_(?P<table>embedding_)?(?P<which>[AB])(\.weight)?")
_WRAPPED = re.compile(r"\.(base_layer|modules_to_save(\.default)?)(?=\.)")
"""What PEFT adds to the names of tensors that it holds besides factors."""


class Factors(NamedTuple):
    """A, (rank, in), and B, (out, rank), of one module. `of_table` is whether it is a table, of
    which B A is added to the transpose."""

    a: Stored
    b: Stored
    of_table: bool


@dataclass(frozen=True)
class Adapter:
    """An adapter, before its tensors are read.

    Args:
        file: its adapter_config.json.
        factors: by the path of the module.
        values: the tensors that stand in the place of those of the checkpoint, by name.
    """

    file: JsonFile
    factors: Mapping[str, Factors]
    values: Mapping[str, Stored]

    @property
    def path(self) -> Path:
        """The file of the tensors."""
        return self.file.path.with_name(WEIGHTS)

    def recorded(self) -> OfAdapter:
        """What is recorded of it. Raises `WeightsError` if the file of the tensors cannot be
        read."""
        try:
            with self.path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise cannot_read(error, Place(str(self.path))) from None
        return OfAdapter(config=self.file.text, sha256=sha256)

    def scale(self, path: str, rank: int) -> float:
        """The factor of B A for the module `path`: alpha / rank, or alpha / sqrt(rank)."""
        data = self.file.data
        patterns: Mapping[str, float] = data.get("alpha_pattern") or {}
        meant = (alpha for pattern, alpha in patterns.items() if _means(pattern, path))
        alpha = next(meant, data["lora_alpha"])
        return float(alpha / (math.sqrt(rank) if data.get("use_rslora") else rank))


def read_adapter(folder: Path) -> Adapter:
    """Read the configuration of an adapter, and the names of its tensors.

    Raises:
        WeightsError: it is damaged, or changes weights in another way than LoRA.
    """
    check_folder(folder, f"an adapter is a folder with {ADAPTER_CONFIG} and {WEIGHTS}")
    file = read_json(folder / ADAPTER_CONFIG)
    if problems := [*_problems_of(file)]:
        raise WeightsError(problems)
    if not (folder / WEIGHTS).is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        message = f"there is no {WEIGHTS}"
        hint = "a pickle is not read, since opening it can run code: ask for safetensors"
        raise WeightsError(message, Place(str(folder)), hint if pickled else None)
    tensors = tensors_of(folder / WEIGHTS)
    return Adapter(file, *_sorted_out(tensors, file))


def _sorted_out(
    tensors: Mapping[str, Stored], file: JsonFile
) -> tuple[dict[str, Factors], dict[str, Stored]]:
    """The factors and the values of an adapter. Raises as `read_adapter`."""
    halves: dict[str, dict[str, Stored]] = {}
    tables: dict[str, bool] = {}
    values: dict[str, Stored] = {}
    for name, tensor in tensors.items():
        place = Place(str(tensor.path))
        if tensor.dtype not in FLOATS:
            raise WeightsError(f"`{name}` is {tensor.dtype}, which is not read", place)
        own = name.removeprefix(_PREFIX)
        if found := _FACTOR.fullmatch(own):
            halves.setdefault(found["path"], {})[found["which"]] = tensor
            tables[found["path"]] = bool(found["table"])
        else:
            values[_WRAPPED.sub("", own)] = tensor
    ranks = {file.data["r"], *(file.data.get("rank_pattern") or {}).values()}
    factors: dict[str, Factors] = {}
    for path, pair in halves.items():
        shapes = {which: tensor.shape for which, tensor in pair.items()}
        a, b = shapes.get("A", ()), shapes.get("B", ())
        place = Place(str(file.path.with_name(WEIGHTS)))
        if len(a) != 2 or len(b) != 2 or a[0] != b[1]:
            told = " and ".join(f"{which} {list(shape)}" for which, shape in shapes.items())
            raise WeightsError(f"of `{path}`, there is {told}: no matrices B A", place)
        if a[0] not in ranks:
            message = f"`{path}` is of rank {a[0]}, which {ADAPTER_CONFIG} does not state"
            raise WeightsError(message, place)
        factors[path] = Factors(pair["A"], pair["B"], tables[path])
    return factors, values


def _problems_of(file: JsonFile) -> Iterator[Problem]:
    data = file.data
    if (kind := data.get("peft_type")) != "LORA":
        message = f"an adapter of the type {quoted(str(kind))} is not read"
        yield Problem(message, file.place("peft_type"), "merge it by PEFT: `merge_and_unload()`")
        return
    for key in ("r", "lora_alpha"):
        if not _is_positive(data.get(key)):
            yield Problem(f"`{key}` is no positive number", file.place(key))
    for key in ("rank_pattern", "alpha_pattern"):
        patterns = data.get(key) or {}
        if not isinstance(patterns, dict):
            yield Problem(f"`{key}` is no table", file.place(key))
            continue
        for pattern, value in patterns.items():
            if not _is_positive(value):
                yield Problem(f"{quoted(pattern)} is no positive number", file.place(key, pattern))
            if not _NAME.fullmatch(pattern):
                message = f"{quoted(pattern)} is a regular expression, and only names are read"
                yield Problem(message, file.place(key, pattern))
    if (start := data.get("init_lora_weights", True)) not in _STARTS:
        message = f"factors that begin by {quoted(str(start))} are of changed weights"
        hint = "save the adapter by PEFT with `path_initial_model_for_weight_conversion`"
        yield Problem(message, file.place("init_lora_weights"), hint)
    if data.get("bias", "none") not in ("none", "all", "lora_only"):
        yield Problem(f"`bias` is {quoted(str(data['bias']))}", file.place("bias"))
    for key, value in data.items():
        if value and key not in (*_READ, *_INERT):
            message = f"`{key}` is stated, and what it changes is not read"
            yield Problem(message, file.place(key), "merge it by PEFT: `merge_and_unload()`")


def _is_positive(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < 1e30  # type: ignore[operator]


def _means(pattern: str, path: str) -> bool:
    """Whether a pattern, which is a plain name, means a module: by its whole path or its end."""
    name = pattern.removeprefix("^").removesuffix("$").replace("\\.", ".")
    return path == name or (not pattern.startswith("^") and path.endswith(f".{name}"))
