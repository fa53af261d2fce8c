"""Checkpoints that bitsandbytes quantized are imported as the floats that it makes of them.

`golden/bitsandbytes.safetensors` has both, made with version 0.50.2 by
`tools/make_bitsandbytes_case.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import zoo
from zoo.families.quantized import tensor as quantized

GOLDEN = Path(__file__).parent / "golden" / "bitsandbytes.safetensors"
VARIANTS = ("nf4", "fp4", "nf4 stored as bfloat16", "int8")
DOWN = "model.layers.0.mlp.down_proj.weight"
STATE = f"{DOWN}.quant_state.bitsandbytes__nf4"
Tensors = dict[str, torch.Tensor]


def case(variant: str, folder: Path) -> tuple[Tensors, Tensors]:
    """Write the config.json of a checkpoint; return its tensors, and the floats they stand for."""
    tensors = load_file(GOLDEN)
    with safe_open(GOLDEN, "pt") as file:
        metadata = file.metadata()
    found, floats = (
        {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
        for start in (f"{variant}/", f"{variant}: floats/")
    )
    config = json.loads(metadata["config"])
    config["quantization_config"] = json.loads(metadata["stated"])[variant]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    kept = {n: t for n, t in found.items() if t.is_floating_point() and n.count("weight.") == 0}
    return found, {**{n: t for n, t in kept.items() if not n.endswith("SCB")}, **floats}


def put(tensors: Tensors, folder: Path) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("chunk", [quantized.CHUNK, 40])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_floats_of_bitsandbytes(
    variant: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit. Blocks end within rows; the last one of 16 x 25 numbers is smaller."""
    monkeypatch.setattr(quantized, "CHUNK", chunk)
    tensors, expected = case(variant, tmp_path / "source")
    put(tensors, tmp_path / "source")
    zoo.import_folder(tmp_path / "source", tmp_path / "imported")
    zoo.export_folder(tmp_path / "imported", tmp_path / "exported")
    found = load_file(tmp_path / "exported" / "model.safetensors")
    assert found.keys() == expected.keys()
    assert len([name for name in expected if name.endswith("proj.weight")]) == 7
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_the_dtype_of_the_description_counts(tmp_path: Path) -> None:
    """Each number is the scale of its block times the number of its code, rounded once."""
    tensors, _ = case("fp4", tmp_path / "source")
    state = DOWN + ".quant_state.bitsandbytes__fp4"
    tensors[state] = described(tensors[state], dtype="float32")
    put(tensors, tmp_path / "source")
    zoo.import_folder(tmp_path / "source", tmp_path / "imported")
    codes = [code for byte in tensors[DOWN].flatten().tolist() for code in (byte >> 4, byte & 15)]
    scales, table = tensors[f"{DOWN}.absmax"], tensors[f"{DOWN}.quant_map"]
    expected = torch.stack([table[code] * scales[i // 64] for i, code in enumerate(codes)])
    model = zoo.load(tmp_path / "imported")
    found = model.get_parameter("decoder.layers.0.ffn.down_proj.weight")
    assert found.dtype == torch.float32
    assert torch.equal(found, expected.view(16, 25))


def described(state: torch.Tensor, **changes: object) -> torch.Tensor:
    """A description with changed values, or without those that are None."""
    found = {**json.loads(bytes(state.tolist())), **changes}
    text = json.dumps({name: value for name, value in found.items() if value is not None})
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def changed(**changes: object) -> Callable[[Tensors], object]:
    return lambda t: t.update({STATE: described(t[STATE], **changes)})


def set_to(name: str, tensor: torch.Tensor) -> Callable[[Tensors], object]:
    return lambda t: t.update({name: tensor})


NOT_DESCRIBED = f"`{STATE}` does not describe numbers of 4 bits"

WRONG: dict[str, tuple[str, Callable[[Tensors], object], str]] = {
    "no numbers": ("nf4", lambda t: t.pop(DOWN), f"there is no tensor `{DOWN}`"),
    "no scales": (
        "nf4",
        lambda t: t.pop(f"{DOWN}.absmax"),
        f"there is no tensor `{DOWN}.absmax`, to which `{STATE}` belongs",
    ),
    "no nested scales": (
        "nf4",
        lambda t: t.pop(f"{DOWN}.nested_absmax"),
        f"there is no tensor `{DOWN}.nested_absmax`, to which `{STATE}` belongs",
    ),
    "another shape": (
        "nf4",
        changed(shape=[16, 26]),
        f"the numbers of `{DOWN}` hold 200 bytes, not the 208 of [16, 26]",
    ),
    "other blocks": (
        "nf4",
        changed(blocksize=128),
        f"the numbers of `{DOWN} (scales)` hold 7 bytes, not the 4 of [4]",
    ),
    "other nested blocks": (
        "nf4",
        changed(nested_blocksize=4),
        f"the scales of `{DOWN} (scales)` are [1]; for 1 x 7 in blocks of 1 x 4 they are [2]",
    ),
    "scales that are not nested": (
        "nf4",
        changed(nested_blocksize=None),
        f"has no rule for the tensor `{DOWN}.nested_absmax`",
    ),
    "a larger table": (
        "nf4",
        set_to(f"{DOWN}.quant_map", torch.zeros(17)),
        f"the table of `{DOWN}` is F32 [17], not F32 [16]",
    ),
    "a small nested table": (
        "nf4",
        set_to(f"{DOWN}.nested_quant_map", torch.zeros(16)),
        f"the table of `{DOWN} (scales)` is F32 [16], not F32 [256]",
    ),
    "a table of another dtype": (
        "nf4",
        set_to(f"{DOWN}.quant_map", torch.zeros(16, dtype=torch.bfloat16)),
        f"the table of `{DOWN}` is BF16 [16], not F32 [16]",
    ),
    "no size of a block": ("nf4", changed(blocksize=None), f"{NOT_DESCRIBED}, `blocksize`: "),
    "a size that is text": ("nf4", changed(blocksize="64"), f"{NOT_DESCRIBED}, `blocksize`: "),
    "a size of 0": ("nf4", changed(shape=[16, 0]), f"{NOT_DESCRIBED}, `shape`, `1`: "),
    "no sizes": ("nf4", changed(shape=[]), f"{NOT_DESCRIBED}, `shape`: "),
    "an unknown dtype": ("nf4", changed(dtype="float8"), f"{NOT_DESCRIBED}, `dtype`: "),
    "an offset that is no number": (
        "nf4",
        changed(nested_offset=float("nan")),
        f"{NOT_DESCRIBED}, `nested_offset`: ",
    ),
    "no JSON": (
        "nf4",
        set_to(STATE, torch.zeros(9, dtype=torch.uint8)),
        f"{NOT_DESCRIBED}: ",
    ),
    "a long description": (
        "nf4",
        set_to(STATE, torch.zeros(5000, dtype=torch.uint8)),
        f"`{STATE}` is U8 [5000], and no description of numbers",
    ),
    "a description of floats": (
        "nf4",
        set_to(STATE, torch.zeros(9)),
        f"`{STATE}` is F32 [9], and no description of numbers",
    ),
    "an order for a GPU": (
        "int8",
        set_to("model.layers.0.mlp.down_proj.weight_format", torch.tensor(1, dtype=torch.uint8)),
        f"are quantized by `bitsandbytes`, with `{DOWN}` in an order for certain GPUs",
    ),
    "8 bits without a matrix": (
        "int8",
        set_to(DOWN, torch.zeros(9, dtype=torch.int8)),
        f"`{DOWN}` is [9], which is no matrix",
    ),
    "too few scales of rows": (
        "int8",
        set_to("model.layers.0.mlp.down_proj.SCB", torch.ones(8)),
        f"the scales of `{DOWN}` are [8]; for 16 x 25 in blocks of 1 x 25 they are [16, 1]",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit(wrong: str, tmp_path: Path) -> None:
    variant, change, message = WRONG[wrong]
    tensors, _ = case(variant, tmp_path / "source")
    change(tensors)
    put(tensors, tmp_path / "source")
    with pytest.raises(zoo.WeightsError) as error:
        zoo.import_folder(tmp_path / "source", tmp_path / "output")
    told: Any = str(error.value)
    assert message in told
    assert told.startswith(str(tmp_path / "source"))
    assert not (tmp_path / "output").exists()
