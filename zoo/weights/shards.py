"""A model in several files: the standard index of shards, and the tensors that each shard holds.

The metadata of the index, `model.safetensors.index.json`, holds the same as the header of a single
file, and the index names the shard of each tensor. The name of a shard contains a digest of the
whole model, so that shards of two versions of a model never replace each other.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from zoo.errors import Place, WeightsError
from zoo.files.of_model import WEIGHTS_INDEX
from zoo.weights.file import KEY, Header, not_whole, parse_metadata
from zoo.weights.header_json import as_object, json_object
from zoo.weights.open_file import cannot_read
from zoo.wording import quoted

Plan = Sequence[Sequence[str]]
"""The names of the tensors in each shard, in the order of their bytes."""


def plan_shards(sizes: Mapping[str, int], max_bytes: int) -> Plan:
    """Spread tensors over shards of at most `max_bytes` bytes of tensors each. A larger tensor gets
    a shard of its own.

    Args:
        sizes: the bytes of each tensor, in their order.
        max_bytes: the most bytes in a shard.
    """
    plan: list[list[str]] = [[]]
    size = 0
    for name, n_bytes in sizes.items():
        if plan[-1] and size + n_bytes > max_bytes:
            plan.append([])
            size = 0
        plan[-1].append(name)
        size += n_bytes
    return plan


def shard_names(header: Header, plan: Plan) -> list[str]:
    """The file name of each shard."""
    key = json.dumps([header.json, [list(names) for names in plan]])
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    return numbered(f"model-{digest}", len(plan))


def numbered(stem: str, count: int) -> list[str]:
    """The file names of so many shards, as `transformers` numbers them."""
    return [f"{stem}-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]


def index_bytes(header: Header, plan: Plan) -> bytes:
    """The text of the index."""
    total = sum(record.n_bytes for record in header.records.values())
    return index_of(shard_names(header, plan), plan, {"total_size": total, KEY: header.json})


def index_of(files: Sequence[str], plan: Plan, metadata: Mapping[str, object]) -> bytes:
    """The text of an index of these files."""
    weight_map = {name: file for file, names in zip(files, plan, strict=True) for name in names}
    data = {"metadata": metadata, "weight_map": weight_map}
    return (json.dumps(data, indent=2, sort_keys=True) + "\n").encode()


def parse_index(raw: bytes, place: Place) -> tuple[Header, Mapping[str, Sequence[str]]]:
    """The header that an index holds, and the names of the tensors in each of its shards.

    Raises:
        WeightsError: it is damaged, or was not written by the zoo.
    """
    try:
        data = json_object(raw, "the index")
        weight_map = as_object(data.get("weight_map"), "`weight_map`")
        told = as_object(data.get("metadata"), "`metadata`")[KEY]
    except (KeyError, ValueError):
        message = "not an index of the zoo: it has no `zoo` metadata, or is no JSON"
        help_ = "`zoo import` reads the folders of published checkpoints, `zoo build` specs"
        raise WeightsError(message, place, help_) from None
    header = parse_metadata(told, place)
    shards: dict[str, list[str]] = {}
    for name in header.names_in_file():
        shard = weight_map.get(name)
        if not isinstance(shard, str):
            raise not_whole(f"the tensor {quoted(name)} has no shard", place)
        shards.setdefault(shard, []).append(name)
    if index_bytes(header, [*shards.values()]) != raw:
        raise not_whole("the index is not what was written", place)
    return header, shards


def shards_in(folder: Path) -> list[str]:
    """The names of the shards in the index of a folder; empty if there is no index.

    Raises:
        WeightsError: the index is not the zoo's, or cannot be read.
    """
    path = folder / WEIGHTS_INDEX
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return []
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise cannot_read(error, Place(str(path))) from None
    return [*parse_index(raw, Place(str(path)))[1]]
