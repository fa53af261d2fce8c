"""No key of a configuration that counts is ignored: each is changed, one at a time, and where the
zoo makes of it what it makes without the change, so does transformers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers.activations import ACT2FN

from families.cases import Case, all_cases
from families.checkpoints import load, read_config, write_config
from families.conformance import TOLERANCE, make_truth, registry, run
from zoo.errors import ZooError
from zoo.families.registered import Families
from zoo.families.spec import family_spec
from zoo.families.unread import check_read
from zoo.json_files import read_json

KeyPath = tuple[str, ...]
FAMILIES = Families(registry())
LEFT_OUT = {"mask_ratio", "rescale_prenorm_residual", "use_cache"}
"""What is hidden from a model in pretraining; how its weights begin, where transformers rescales
those that it loads, too; and whether a target is one that grows, without a causal mask in FSMT."""


def changes(table: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """The path of each switch, fraction and activation in a configuration and its inner tables,
    with another value."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from changes(value, (*path, key))
        elif key in LEFT_OUT:
            continue
        elif isinstance(value, bool):
            yield (*path, key), not value
        elif isinstance(value, float):
            yield (*path, key), 2 * value + 0.25
        elif isinstance(value, str) and value in ACT2FN:
            yield (*path, key), "relu" if value != "relu" else "silu"


def changed(config: Mapping[str, Any], path: KeyPath, value: Any) -> dict[str, Any]:
    """A configuration with another value at a path."""
    copy: dict[str, Any] = deepcopy(dict(config))
    table = copy
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    return copy


def digest(folder: Path, tensors: frozenset[str]) -> str | None:
    """The digest of the spec of a folder's configuration; None if it is refused."""
    file = read_json(folder / "config.json")
    try:
        scope = FAMILIES.scope(FAMILIES.family_of(file), file, tensors)
        spec = family_spec(scope, "tiny", registry())
        check_read(scope, FAMILIES)
    except ZooError:
        return None
    return spec.digest


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name) for name, case in all_cases().items() if "." not in name]
)
def test_what_is_not_read_changes_nothing(case: Case, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    truth = make_truth(case, tmp_path / "original")
    with safe_open(truth.folder / "model.safetensors", "pt") as file:
        tensors = frozenset(file.keys())
    config, own = read_config(truth.folder), digest(truth.folder, tensors)
    folder = tmp_path / "changed"
    folder.mkdir()
    shutil.copy(truth.folder / "model.safetensors", folder)
    ignored = []
    for path, value in changes(config):
        write_config(folder, changed(config, path, value))
        if digest(folder, tensors) != own:
            continue
        try:
            theirs = run(load(case, folder), case, truth.inputs)
        except (ValueError, RuntimeError, KeyError, AttributeError, TypeError):
            continue  # transformers refuses it, or reads other tensors
        for given, outputs in truth.outputs.items():
            for name, expected in outputs.items():
                found = theirs[given].get(name)
                if found is None or not torch.allclose(
                    found, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
                ):
                    ignored.append(f"{'.'.join(path)}: {given}, {name}")
    assert ignored == []
