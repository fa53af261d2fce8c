"""Published checkpoints whose weights are quantized are imported as the floats they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from trials import Command

import zoo
from zoo.families.checkpoint import find_tensors
from zoo.families.quantized import tensor as quantized
from zoo.families.quantized.dequantized import dequantized
from zoo.json_files import read_json
from zoo.weights.open_file import OpenFile
from zoo.weights.reader import read_header

Tensors = dict[str, torch.Tensor]

LLAMA: dict[str, Any] = {
    "vocab_size": 19,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "eos_token_id": None,
    "bos_token_id": None,
}
GPT_OSS: dict[str, Any] = {
    "vocab_size": 19,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "eos_token_id": None,
    "pad_token_id": None,
}
IDS = torch.tensor([[5, 9, 3, 14, 7]])
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [5, 7]}


@pytest.fixture(params=["whole", "in chunks"], autouse=True)
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in chunks":
        monkeypatch.setattr(quantized, "CHUNK", 40)  # one to five rows


def llama(folder: Path) -> Tensors:
    """Save a tiny Llama in bfloat16; return its tensors."""
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**LLAMA)).bfloat16().save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def put(folder: Path, tensors: Tensors, stated: object) -> None:
    """Replace the tensors of a checkpoint, and state how they are quantized."""
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    data = {**json.loads(path.read_text()), "quantization_config": stated}
    path.write_text(json.dumps(data, indent=2))


def come_back(folder: Path) -> Tensors:
    """Import a checkpoint and export it again; return the tensors of the export."""
    zoo.import_folder(folder, folder.parent / "imported")
    zoo.export_folder(folder.parent / "imported", folder.parent / "exported")
    return load_file(folder.parent / "exported" / "model.safetensors")


def are_equal(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def maps(tensors: Tensors) -> list[str]:
    """The names of the linear maps of layers."""
    return [name for name in tensors if name.endswith("proj.weight")]


def by_element(rows: int, columns: int, value: Callable[[int, int], float]) -> torch.Tensor:
    """A matrix of bfloat16 by a formula for each element."""
    values = [[value(row, column) for column in range(columns)] for row in range(rows)]
    return torch.tensor(values, dtype=torch.float64).bfloat16()


# --- floats of 8 bits ---------------------------------------------------------------------------


def in_fp8(tensors: Tensors, grid: Callable[[int, int], tuple[int, ...]]) -> Tensors:
    """Quantize the maps, with random scales."""
    found = dict(tensors)
    for name in maps(tensors):
        rows, columns = tensors[name].shape
        found[name] = (50 * tensors[name].float()).to(torch.float8_e4m3fn)
        found[f"{name}_scale_inv"] = 0.02 * (0.5 + torch.rand(grid(rows, columns)))
    return found


def test_fp8_by_blocks(tmp_path: Path) -> None:
    """The last blocks of rows and columns are smaller."""
    tensors = llama(tmp_path / "source")
    small = in_fp8(tensors, lambda rows, columns: (-(-rows // 5), -(-columns // 7)))
    put(tmp_path / "source", small, FP8)
    for name in maps(tensors):
        numbers, scales = (small[key].double().tolist() for key in (name, f"{name}_scale_inv"))
        tensors[name] = by_element(
            *small[name].shape, lambda r, c, n=numbers, s=scales: n[r][c] * s[r // 5][c // 7]
        )
    are_equal(come_back(tmp_path / "source"), tensors)


@pytest.mark.parametrize("size", [None, [5, 7]])
def test_fp8_with_one_scale(tmp_path: Path, size: list[int] | None) -> None:
    """Scales of activations are not of the weights."""
    tensors = llama(tmp_path / "source")
    small = in_fp8(tensors, lambda rows, columns: ())
    scales = {f"{name.removesuffix('weight')}activation_scale" for name in maps(tensors)}
    added = {name: torch.ones(()) for name in scales}
    put(tmp_path / "source", small | added, {**FP8, "weight_block_size": size})
    for name in maps(tensors):
        one = float(small[f"{name}_scale_inv"])
        tensors[name] = (small[name].double() * one).bfloat16()
    are_equal(come_back(tmp_path / "source"), tensors)


def test_fp8_as_autofp8_names_it(tmp_path: Path) -> None:
    """`weight_scale` in the place of `weight_scale_inv`, and scales of activations and caches."""
    tensors = llama(tmp_path / "source")
    small = in_fp8(tensors, lambda rows, columns: (1,) if rows == 24 else ())
    small = {name.removesuffix("_inv"): tensor for name, tensor in small.items()}
    attn = "model.layers.0.self_attn"
    unused = ("q_proj.input_scale", "k_proj.output_scale", "k_scale", "v_scale", "kv_scale")
    added = {f"{attn}.{name}": torch.ones(1) for name in unused}
    stated = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
    put(tmp_path / "source", small | added, stated)
    for name in maps(tensors):
        one = float(small[f"{name}_scale"])
        tensors[name] = (small[name].double() * one).bfloat16()
    are_equal(come_back(tmp_path / "source"), tensors)


def test_scales_that_are_exponents(tmp_path: Path) -> None:
    """DeepSeek-V3.1 has scales that are powers of 2, of 8 bits: 127 is 1."""
    tensors = llama(tmp_path / "source")
    small = in_fp8(tensors, lambda rows, columns: (-(-rows // 5), -(-columns // 7)))
    exponents: Tensors = {}
    for name in maps(tensors):
        key = f"{name}_scale_inv"
        exponents[name] = torch.randint(-9, -3, small[key].shape)
        small[key] = (exponents[name] + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
    put(tmp_path / "source", small, {**FP8, "scale_fmt": "ue8m0"})
    for name in maps(tensors):
        numbers, by_two = small[name].double().tolist(), exponents[name].tolist()
        tensors[name] = by_element(
            *small[name].shape, lambda r, c, n=numbers, e=by_two: n[r][c] * 2.0 ** e[r // 5][c // 7]
        )
    are_equal(come_back(tmp_path / "source"), tensors)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_floats_are_of_the_dtype_that_is_stated(tmp_path: Path, dtype: str) -> None:
    tensors = llama(tmp_path / "source")
    put(tmp_path / "source", in_fp8(tensors, lambda rows, columns: ()), FP8)
    path = tmp_path / "source" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "dtype": dtype}))
    found = come_back(tmp_path / "source")
    assert {str(found[name].dtype) for name in maps(tensors)} == {f"torch.{dtype}"}


# --- floats of 4 bits ---------------------------------------------------------------------------


def in_mxfp4(tensors: Tensors) -> Tensors:
    """Put random floats of 4 bits in the place of experts."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, n_in, n_out = tensor.shape
            bytes_ = torch.randint(0, 256, (experts, n_out, n_in // 32, 16))
            found[f"{name}_blocks"] = bytes_.to(torch.uint8)
            exponents = torch.randint(118, 124, (experts, n_out, n_in // 32))
            found[f"{name}_scales"] = exponents.to(torch.uint8)
        else:
            found[name] = tensor
    return found


def gpt_oss(folder: Path) -> tuple[GptOssForCausalLM, Tensors]:
    """Save a tiny gpt-oss with experts in MXFP4; return it with the floats of `transformers`."""
    torch.manual_seed(0)
    model = GptOssForCausalLM(GptOssConfig(**GPT_OSS)).bfloat16().eval()
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    small = in_mxfp4(tensors)
    put(folder, small, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    for name in tensors:
        if f"{name}_blocks" in small:
            packed = small[f"{name}_blocks"], small[f"{name}_scales"]
            tensors[name] = convert_moe_packed_tensors(*packed).contiguous()
    model.load_state_dict(tensors)
    return model, tensors


@torch.no_grad()
def test_mxfp4(tmp_path: Path) -> None:
    theirs, tensors = gpt_oss(tmp_path / "source")
    are_equal(come_back(tmp_path / "source"), tensors)
    ours = zoo.load(tmp_path / "imported", dtype="float32").eval()
    found = ours(IDS)
    torch.testing.assert_close(found, theirs.float()(IDS).logits, rtol=0, atol=1e-5)


def test_floats_of_4_bits_one_by_one(tmp_path: Path) -> None:
    """The sixteen values of the standard, in each half of a byte."""
    gpt_oss(tmp_path / "source")
    name = "model.layers.0.mlp.experts.down_proj"
    small = load_file(tmp_path / "source" / "model.safetensors")
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    found = come_back(tmp_path / "source")[name].double()
    blocks, scales = small[f"{name}_blocks"], small[f"{name}_scales"]
    for expert, row, column in [(0, 0, 0), (1, 5, 1), (2, 63, 31), (2, 17, 30)]:
        byte = int(blocks[expert, row, column // 32, column % 32 // 2])
        half = byte >> 4 if column % 2 else byte & 15
        sign = -1.0 if half & 8 else 1.0
        power = 2.0 ** (int(scales[expert, row, column // 32]) - 127)
        assert found[expert, column, row] == sign * values[half & 7] * power


# --- compressed-tensors -------------------------------------------------------------------------


def words(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack each row of numbers, the first in the lowest bits of a word of 32, with 2 ** (bits - 1)
    added."""
    each = 32 // bits
    rows: list[list[int]] = []
    for row in numbers.tolist():
        shifted = [int(number) + 2 ** (bits - 1) for number in row]
        shifted += [0] * (-len(shifted) % each)
        cuts = [shifted[start : start + each] for start in range(0, len(shifted), each)]
        found = [sum(one << (bits * place) for place, one in enumerate(cut)) for cut in cuts]
        rows.append([word - 2**32 if word >= 2**31 else word for word in found])
    return torch.tensor(rows, dtype=torch.int32)


def grid_of(how: dict[str, Any], rows: int, columns: int) -> tuple[int, int]:
    """How many scales there are: rows and columns of blocks."""
    match how["strategy"]:
        case "tensor":
            return 1, 1
        case "channel":
            return rows, 1
        case "group":
            return rows, columns // how["group_size"]
        case _:
            height, width = how["block_structure"]
            return -(-rows // height), -(-columns // width)


HOW = {
    "tensor": {"strategy": "tensor"},
    "channel": {"strategy": "channel"},
    "group": {"strategy": "group", "group_size": 8},
    "block": {"strategy": "block", "block_structure": [5, 7]},
}
FORMS = {
    "float": ("float-quantized", "tensor", 8, False),
    "float by rows": ("float-quantized", "channel", 8, False),
    "float by blocks": ("float-quantized", "block", 8, False),
    "int": ("int-quantized", "channel", 8, False),
    "int with zero points": ("int-quantized", "channel", 8, True),
    "int, naive": ("naive-quantized", "group", 8, True),
    "4 bits": ("pack-quantized", "group", 4, False),
    "4 bits with zero points": ("pack-quantized", "group", 4, True),
    "8 bits": ("pack-quantized", "channel", 8, False),
    "8 bits with zero points": ("pack-quantized", "group", 8, True),
}


def compressed(folder: Path, form: str) -> tuple[Tensors, Tensors]:
    """Save a tiny Llama as compressed-tensors does; return what is stored, and the floats by the
    formula scale * (number - zero point) for each element."""
    layout, strategy, bits, with_zeros = FORMS[form]
    tensors = llama(folder)
    stored: Tensors = {name: t for name, t in tensors.items() if name not in maps(tensors)}
    for name in maps(tensors):
        rows, columns = tensors[name].shape
        down, across = grid_of(HOW[strategy], rows, columns)
        height, width = -(-rows // down), -(-columns // across)
        if strategy == "block":
            height, width = 5, 7
        scales = (0.01 * (0.5 + torch.rand(down, across))).bfloat16()
        most = 2 ** (bits - 1)
        zeros = torch.randint(-most, most, (down, across)) if with_zeros else None
        if layout == "float-quantized":
            stored[name] = numbers = (50 * tensors[name].float()).to(torch.float8_e4m3fn)
        else:
            numbers = torch.randint(-most, most, (rows, columns))
            if layout == "pack-quantized":
                stored[f"{name}_packed"] = words(numbers, bits)
                stored[f"{name}_shape"] = torch.tensor([rows, columns])
            else:
                stored[name] = numbers.to(torch.int8)
        stored[f"{name}_scale"] = scales.view(-1) if strategy == "tensor" else scales
        if zeros is not None and layout == "pack-quantized":
            stored[f"{name}_zero_point"] = words(zeros.T, bits).T
        elif zeros is not None:
            stored[f"{name}_zero_point"] = zeros.to(torch.int8)
        stored[f"{name.removesuffix('weight')}input_scale"] = torch.ones(1)
        whole = torch.zeros(down, across) if zeros is None else zeros
        exact, of, from_ = (t.double().tolist() for t in (numbers, scales, whole))
        tensors[name] = by_element(
            rows,
            columns,
            lambda r, c, n=exact, s=of, z=from_, h=height, w=width: (
                s[r // h][c // w] * (n[r][c] - z[r // h][c // w])
            ),
        )
    put(folder, stored, stated_for(form))
    return stored, tensors


def stated_for(form: str) -> dict[str, Any]:
    layout, strategy, bits, with_zeros = FORMS[form]
    weights = {"num_bits": bits, "symmetric": not with_zeros, **HOW[strategy]}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


@pytest.mark.parametrize("form", FORMS)
def test_compressed_tensors(tmp_path: Path, form: str) -> None:
    _, tensors = compressed(tmp_path / "source", form)
    are_equal(come_back(tmp_path / "source"), tensors)


def by_index(tensors: Tensors) -> None:
    """Store numbers of 4 bits as if their columns had been quantized in the opposite order."""
    for name in [name for name in tensors if name.endswith(".weight_scale")]:
        base = name.removesuffix("_scale")
        n_columns = int(tensors[f"{base}_shape"][1])
        tensors[f"{base}_g_idx"] = (torch.arange(n_columns).flip(0) // 8).int()
        tensors[name] = tensors[name].flip(1)
        if f"{base}_zero_point" in tensors:
            tensors[f"{base}_zero_point"] = tensors[f"{base}_zero_point"].flip(1)


@pytest.mark.parametrize("form", ["4 bits", "4 bits with zero points"])
def test_columns_of_groups_that_are_not_in_order(tmp_path: Path, form: str) -> None:
    """As `actorder = "group"` of llm-compressor stores them; -1 stands for columns in order."""
    stored, tensors = compressed(tmp_path / "source", form)
    plain = dict(stored)
    by_index(stored)
    put(tmp_path / "source", stored, stated_for(form))
    are_equal(come_back(tmp_path / "source"), tensors)
    plain.update({k: torch.full_like(t, -1) for k, t in stored.items() if k.endswith("_g_idx")})
    put(tmp_path / "source", plain, stated_for(form))
    zoo.import_folder(tmp_path / "source", tmp_path / "ordered")
    first, second = (zoo.load(tmp_path / name).state_dict() for name in ("imported", "ordered"))
    are_equal(dict(first), dict(second))


def test_what_says_that_nothing_else_is_done(tmp_path: Path) -> None:
    stored, tensors = compressed(tmp_path / "source", "4 bits")
    nothing = {"sparsity_config": {"format": "dense"}, "transform_config": {}}
    put(tmp_path / "source", stored, {**stated_for("4 bits"), **nothing})
    are_equal(come_back(tmp_path / "source"), tensors)


# --- AWQ and GPTQ -------------------------------------------------------------------------------

GROUP = 8


def in_groups(folder: Path, how: str, *, by_index: bool = False) -> tuple[Tensors, Tensors]:
    """Save a tiny Llama with matrices (in, out) of small numbers and groups of inputs; return what
    is stored, and the floats by the formula for each element."""
    bits = 8 if how == "gptq8" else 4
    each, most = 32 // bits, 2**bits
    tensors = llama(folder)
    stored: Tensors = {name: t for name, t in tensors.items() if name not in maps(tensors)}
    for name in maps(tensors):
        n_out, n_in = tensors[name].shape
        numbers = torch.randint(0, most, (n_in, n_out))
        zeros = torch.randint(0, most, (n_in // GROUP, n_out))
        zeros[0, :2] = torch.tensor([0, most - 1])
        scales = (0.01 * (0.5 + torch.rand(n_in // GROUP, n_out))).bfloat16()
        group = torch.arange(n_in) // GROUP
        if by_index:
            group = group[torch.randperm(n_in)]
        half, base = most // 2, name.removesuffix("weight")
        if how == "awq":
            # Of eight columns, the first four bits hold the first, the next the third, and so on.
            order = [0, 2, 4, 6, 1, 3, 5, 7]
            columns = torch.arange(n_out).view(-1, 8)[:, order].flatten()
            stored[f"{base}qweight"] = words(numbers[:, columns] - half, bits)
            stored[f"{base}qzeros"] = words(zeros[:, columns] - half, bits)
        else:
            # GPTQModel subtracts one from each by a subtraction from the word that holds them.
            lower = 0 if how == "gptq_v2" else sum(1 << at for at in range(0, 32, bits))
            stored[f"{base}qweight"] = words(numbers.T - half, bits).T
            stored[f"{base}qzeros"] = words(zeros - half, bits) - lower
            stored[f"{base}g_idx"] = group.to(torch.int32)
        assert stored[f"{base}qzeros"].shape[1] == n_out // each
        stored[f"{base}scales"] = scales
        whole, exact, from_, of = (t.tolist() for t in (numbers, scales.double(), zeros, group))
        tensors[name] = by_element(
            n_out,
            n_in,
            lambda o, i, n=whole, s=exact, z=from_, g=of: s[g[i]][o] * (n[i][o] - z[g[i]][o]),
        )
    put(folder, stored, grouped(how))
    return stored, tensors


def grouped(how: str) -> dict[str, Any]:
    if how == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
    bits = 8 if how == "gptq8" else 4
    stated = {"quant_method": "gptq", "bits": bits, "group_size": GROUP}
    return stated | ({"checkpoint_format": "gptq_v2"} if how == "gptq_v2" else {})


@pytest.mark.parametrize("how", ["awq", "gptq", "gptq8", "gptq_v2"])
def test_groups_of_inputs(tmp_path: Path, how: str) -> None:
    _, tensors = in_groups(tmp_path / "source", how)
    are_equal(come_back(tmp_path / "source"), tensors)


def test_groups_that_are_not_in_order(tmp_path: Path) -> None:
    """GPTQ with `desc_act` quantizes the inputs in the order of their importance."""
    _, tensors = in_groups(tmp_path / "source", "gptq", by_index=True)
    are_equal(come_back(tmp_path / "source"), tensors)


class _Made(TorchDispatchMode):
    """Counts the numbers that all operations make."""

    n = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        self.n += made.numel() if isinstance(made, torch.Tensor) and not func.is_view else 0
        return made


@pytest.mark.parametrize("how", ["awq", "gptq"])
def test_floats_are_made_once(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In more chunks there are no more operations for each number."""
    monkeypatch.setitem(LLAMA, "intermediate_size", 512)
    in_groups(tmp_path / "source", how)
    found = find_tensors(tmp_path / "source")
    tensors, _ = dequantized(found, read_json(tmp_path / "source" / "config.json"))
    wide = tensors[f"{FIRST_MAP.replace('down', 'up')}.weight"]
    assert isinstance(wide, quantized.Quantized)
    made: list[int] = []
    with ExitStack() as stack:
        opened = OpenFile.open(wide.path, stack)
        for chunk in (1 << 20, 512):  # all 16 x 512 at once, and 32 columns of 16
            monkeypatch.setattr(quantized, "CHUNK", chunk)
            with _Made() as count:
                parts = [len(part) for part in wide.steps(lambda t, to: opened.read(to, t.start))]
            assert len(parts) == 16 * 512 // min(chunk, 16 * 512)
            assert sum(parts) == wide.n_bytes
            made.append(count.n)
    assert made[1] < 1.5 * made[0]


FIRST_MAP = "model.layers.0.mlp.down_proj"  # from 24 to 16
WRONG_GROUPS: dict[str, tuple[str, Callable[[Tensors, dict[str, Any]], object], str]] = {
    "bits": (
        "gptq",
        lambda t, c: c.update(bits=3),
        "the weights are quantized by `gptq` in another form, which is not read",
    ),
    "bits that are no integer": (
        "gptq",
        lambda t, c: c.update(bits=4.0),
        "the weights are quantized by `gptq` in another form, which is not read",
    ),
    "version": (
        "awq",
        lambda t, c: c.update(version="gemv"),
        "the weights are quantized by `awq` in another form, which is not read",
    ),
    "group size": (
        "awq",
        lambda t, c: c.update(group_size=0),
        "`group_size` must be the number of inputs with one scale, or -1, not 0",
    ),
    "another group size": (
        "gptq",
        lambda t, c: c.update(group_size=12),
        "in blocks of 12 x 1 they are [2, 16]",
    ),
    "zero points": (
        "awq",
        lambda t, c: t.pop(f"{FIRST_MAP}.qzeros"),
        f"there is no tensor `{FIRST_MAP}.qzeros`, to which `{FIRST_MAP}.qweight` belongs",
    ),
    "fewer zero points": (
        "awq",
        lambda t, c: t.update({f"{FIRST_MAP}.qzeros": torch.zeros(3, 1, dtype=torch.int32)}),
        f"the zero points of `{FIRST_MAP}.weight` are [3, 1], not [3, 2]",
    ),
    "no matrix": (
        "awq",
        lambda t, c: t.update({f"{FIRST_MAP}.qweight": torch.zeros(8, dtype=torch.int32)}),
        f"`{FIRST_MAP}.qweight` is [8], which is no matrix",
    ),
    "a group too many": (
        "gptq",
        lambda t, c: t[f"{FIRST_MAP}.g_idx"].fill_(3),
        "an input of quantized weights is of a group that has no scale",
    ),
    "fewer groups": (
        "gptq",
        lambda t, c: t.update({f"{FIRST_MAP}.g_idx": torch.zeros(3, dtype=torch.int32)}),
        f"the groups of `{FIRST_MAP}.weight` are I32 [3], not I32 [24]",
    ),
    "exchanged scales": (
        "awq",
        lambda t, c: t.update({f"{FIRST_MAP}.scales": t[f"{FIRST_MAP}.scales"].T}),
        f"the scales of `{FIRST_MAP}.weight` are [16, 3]; for 24 x 16",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_GROUPS)
def test_groups_that_do_not_fit(tmp_path: Path, wrong: str) -> None:
    how, change, message = WRONG_GROUPS[wrong]
    tensors, _ = in_groups(tmp_path / "source", how)
    stated = grouped(how)
    change(tensors, stated)
    put(tmp_path / "source", tensors, stated)
    assert message in refused(tmp_path)


# --- what is told -------------------------------------------------------------------------------


def test_it_is_told_and_recorded(tmp_path: Path, command: Command) -> None:
    small = in_fp8(llama(tmp_path / "source"), lambda rows, columns: ())
    put(tmp_path / "source", small, FP8)
    _, out, _ = command("import", tmp_path / "source", "-o", tmp_path / "a")
    told = "quantized weights (fp8) as the floats that they stand for, in bfloat16"
    assert told in out.splitlines()
    _, out, _ = command("import", tmp_path / "source", "-o", tmp_path / "b", "--json")
    assert json.loads(out)["quantization"] == "fp8"
    assert (
        read_header(tmp_path / "a" / "model.safetensors").provenance["origin"]["quantization"]
        == "fp8"
    )


def test_an_export_is_of_floats(tmp_path: Path) -> None:
    """Its configuration says nothing of numbers that are not there."""
    small = in_fp8(llama(tmp_path / "source"), lambda rows, columns: ())
    put(tmp_path / "source", small, FP8)
    come_back(tmp_path / "source")
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "exported", dtype=torch.float32)
    ours = zoo.load(tmp_path / "imported", dtype="float32")
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS), theirs(IDS).logits, rtol=0, atol=1e-5)


def test_a_checkpoint_of_floats_says_nothing(tmp_path: Path) -> None:
    llama(tmp_path / "source")
    come_back(tmp_path / "source")
    origin = read_header(tmp_path / "imported" / "model.safetensors").provenance["origin"]
    assert "quantization" not in origin


# --- what is refused ----------------------------------------------------------------------------

Change = Callable[[Tensors, dict[str, Any]], object]
FIRST = "model.layers.0.mlp.down_proj.weight"

WRONG: dict[str, tuple[str, Change, str]] = {
    "method": (
        "4 bits",
        lambda t, c: c.update(quant_method="aqlm"),
        "the weights are quantized by `aqlm`, which is not read",
    ),
    "no method": (
        "4 bits",
        lambda t, c: c.pop("quant_method"),
        "the weights are quantized, which is not read",
    ),
    "form": (
        "4 bits",
        lambda t, c: c.update(format="marlin-24"),
        "by `compressed-tensors` in the form `marlin-24`, which is not read",
    ),
    "sparse": (
        "4 bits",
        lambda t, c: c.update(sparsity_config={"format": "sparse-24-bitmask"}),
        "the weights have a `sparsity_config`, which is not read",
    ),
    "strategy": (
        "4 bits",
        lambda t, c: c["config_groups"]["group_0"]["weights"].update(strategy="token"),
        "the weights have scales by `token`, which is not read",
    ),
    "no groups": (
        "4 bits",
        lambda t, c: c.pop("config_groups"),
        "`config_groups` must say how the weights are quantized",
    ),
    "group size": (
        "4 bits",
        lambda t, c: c["config_groups"]["group_0"]["weights"].update(group_size=6),
        "in blocks of 1 x 6 they are [16, 4]",
    ),
    "no shape": (
        "4 bits",
        lambda t, c: t.pop(f"{FIRST}_shape"),
        f"there is no tensor `{FIRST}_shape`, to which `{FIRST}_packed` belongs",
    ),
    "another shape": (
        "4 bits",
        lambda t, c: t.update({f"{FIRST}_shape": torch.tensor([16, 40])}),
        "is [16, 3], which does not hold [16, 40]",
    ),
    "a shape of floats": (
        "4 bits",
        lambda t, c: t.update({f"{FIRST}_shape": torch.tensor([16.0, 24.0])}),
        f"`{FIRST}_shape` is no list of sizes",
    ),
    "zero points": (
        "4 bits with zero points",
        lambda t, c: t.update({f"{FIRST}_zero_point": torch.zeros(3, 3, dtype=torch.int32)}),
        f"the zero points of `{FIRST}` are [3, 3], not [2, 3]",
    ),
    "groups of fewer columns": (
        "4 bits",
        lambda t, c: t.update({f"{FIRST}_g_idx": torch.zeros(16, dtype=torch.int32)}),
        f"the groups of `{FIRST}` are I32 [16], not I32 [24]",
    ),
    "a group too many": (
        "4 bits",
        lambda t, c: t.update({f"{FIRST}_g_idx": torch.full((24,), 3, dtype=torch.int32)}),
        "an input of quantized weights is of a group that has no scale",
    ),
    "zero points of floats": (
        "int with zero points",
        lambda t, c: t.update({f"{FIRST}_zero_point": torch.zeros(16, 1)}),
        f"the zero points of `{FIRST}` are F32, not I8",
    ),
    "weight": (
        "float",
        lambda t, c: t.pop(FIRST),
        f"there is no tensor `{FIRST}`, to which `{FIRST}_scale` belongs",
    ),
    "floats": (
        "float",
        lambda t, c: t.update({FIRST: t[FIRST].bfloat16()}),
        f"the numbers of `{FIRST}` are BF16, not F8_E4M3",
    ),
    "scales": (
        "float",
        lambda t, c: t.update({f"{FIRST}_scale": torch.ones(1, dtype=torch.int64)}),
        f"the scales of `{FIRST}` are I64, which is not read",
    ),
    "twice": (
        "4 bits",
        lambda t, c: t.update({FIRST: torch.zeros(16, 24)}),
        f"the tensor `{FIRST}` is there beside its quantized numbers",
    ),
    "a scale is missing": (
        "float",
        lambda t, c: t.pop(f"{FIRST}_scale"),
        f"the tensor `{FIRST}` is F8_E4M3, which is not stored",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit(tmp_path: Path, wrong: str) -> None:
    form, change, message = WRONG[wrong]
    tensors, _ = compressed(tmp_path / "source", form)
    stated = stated_for(form)
    change(tensors, stated)
    put(tmp_path / "source", tensors, stated)
    assert message in refused(tmp_path)


def refused(folder: Path) -> str:
    with pytest.raises(zoo.WeightsError) as error:
        zoo.import_folder(folder / "source", folder / "output")
    assert not (folder / "output").exists()
    assert str(error.value).startswith(str(folder / "source"))
    return str(error.value)


@pytest.mark.parametrize("size", [[5], "all", [5, 0], [5.0, 7]])
def test_a_block_that_is_none(tmp_path: Path, size: object) -> None:
    tensors = in_fp8(llama(tmp_path / "source"), lambda rows, columns: (rows, columns))
    put(tmp_path / "source", tensors, {**FP8, "weight_block_size": size})
    assert "`weight_block_size` must be two numbers of rows and columns" in refused(tmp_path)


def test_blocks_of_another_size(tmp_path: Path) -> None:
    tensors = in_fp8(llama(tmp_path / "source"), lambda rows, columns: (rows // 4, columns // 4))
    put(tmp_path / "source", tensors, FP8)
    told = refused(tmp_path)
    assert (
        f"the scales of `{FIRST}` are [4, 6]; for 16 x 24 in blocks of 5 x 7 they are [4, 4]"
        in told
    )
    assert told.count("error:") == len(maps(tensors))


def test_blocks_of_mxfp4_that_are_none(tmp_path: Path) -> None:
    gpt_oss(tmp_path / "source")
    tensors = load_file(tmp_path / "source" / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_blocks"
    tensors[name] = tensors[name][..., :8]
    put(tmp_path / "source", tensors, {"quant_method": "mxfp4"})
    assert f"`{name}` is [3, 64, 1, 8], not (..., rows, blocks, 16)" in refused(tmp_path)


def test_integers_are_no_floats_of_8_bits(tmp_path: Path) -> None:
    """Checkpoints say `fp8` of floats of 4 bits too, in bytes of two."""
    tensors = in_fp8(llama(tmp_path / "source"), lambda rows, columns: ())
    tensors[FIRST] = tensors[FIRST].view(torch.int8)
    put(tmp_path / "source", tensors, FP8)
    assert f"the numbers of `{FIRST}` are I8, not F8_E4M3" in refused(tmp_path)


def test_a_damaged_file(tmp_path: Path) -> None:
    put(tmp_path / "source", in_fp8(llama(tmp_path / "source"), lambda rows, columns: ()), FP8)
    path = tmp_path / "source" / "model.safetensors"
    data = path.read_bytes()
    assert data.count(b'"F8_E4M3","shape":[16,24]') > 1
    path.write_bytes(data.replace(b'"F8_E4M3","shape":[16,24]', b'"F8_E4M3","shape":[16,25]', 1))
    assert "is not where its bytes can be" in refused(tmp_path)


def test_floats_beside_a_statement_stay_as_they_are(tmp_path: Path) -> None:
    tensors = llama(tmp_path / "source")
    put(tmp_path / "source", tensors, FP8)
    are_equal(come_back(tmp_path / "source"), tensors)
    origin = read_header(tmp_path / "imported" / "model.safetensors").provenance["origin"]
    assert "quantization" not in origin
