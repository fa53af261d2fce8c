"""The same spec and seed give the same bytes, on every machine and in every process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import zoo

# A table of more than a million elements, which several threads fill.
SPEC = """
format = 1
name = "t"
builder = "encoder_decoder"
source_vocab = 4200
target_vocab = 300
n_layers = 1
d_model = 256
n_heads = 4
d_ff = 300
norm_placement = "post"
init = "{init}"
"""
CASES = ("xavier float32", *(f"normal {t}" for t in ("float32", "bfloat16", "float16", "float64")))

SAVE = """
import sys, torch, zoo
from hashlib import sha256
from pathlib import Path

spec = Path(sys.argv[1]).read_text()
for case in sys.argv[2:]:
    init, dtype = case.split()
    model = zoo.build(spec.format(init=init), seed=7, dtype=getattr(torch, dtype))
    content = zoo.save(model, "m.safetensors")
    print(sha256(Path("m.safetensors").read_bytes()).hexdigest(), content)
"""

ENVIRONMENTS = {
    "two threads": {"OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "2", "TZ": "Asia/Kathmandu"},
    "one thread, no vector instructions": {
        "OMP_NUM_THREADS": "1",
        "ATEN_CPU_CAPABILITY": "default",
        "PYTHONHASHSEED": "1",
        "LC_ALL": "C",
        "HOME": "/nowhere",
    },
}


def test_the_files_are_the_same_in_every_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "argv", ["-c", "../spec.toml", *CASES])
    exec(SAVE, {})
    here = capsys.readouterr().out
    told: dict[str, str] = {}
    for name, variables in ENVIRONMENTS.items():
        folder = tmp_path / name
        folder.mkdir()
        told[name] = subprocess.run(
            [sys.executable, "-c", SAVE, "../spec.toml", *CASES],
            cwd=folder,
            env={**os.environ, "XDG_CONFIG_HOME": str(folder), **variables},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert len(here.splitlines()) == len(CASES)
    assert len({*here.split()}) == 2 * len(CASES)
    assert {name: text for name, text in told.items() if text != here} == {}


# --- golden digests -------------------------------------------------------------------------------

TINY = """
format = 1
name = "t"
n_layers = 2
d_model = 8
n_heads = 2
"""
ENCODER_DECODER = TINY + (
    'd_ff = 12\nbuilder = "encoder_decoder"\nsource_vocab = 11\ntarget_vocab = 13\n'
    'norm_placement = "post"\n'
)
DECODER = TINY + (
    'd_ff = 12\nbuilder = "decoder"\nvocab = 11\nnorm = "rms_norm"\nffn = "glu"\n'
    'position = "rotary"\n'
    'init = "normal"\nhead = { kind = "linear", tied = true }\n'
)
ENCODER = TINY + (
    'builder = "encoder"\nvocab = 11\nnorm = "batch_norm"\nhead = "none"\n'
    'ffn = { kind = "residual_stack", expansion_factor = 2.0 }\n'
    'position = { kind = "learned", max_length = 9 }\n'
)
BIG_SEED = 2**64 - 1

# If one of these changes, a spec and a seed no longer give the same model as before. That must be a
# new init with a new name, never a change of `zoo.init.v1`.
GOLDEN = {
    (
        ENCODER_DECODER,
        0,
        "float32",
    ): "655fe77bf93ccf22c1a08af0d47223778c82d68dd492794d4c21c6c9ae9ac75d",
    (
        ENCODER_DECODER,
        BIG_SEED,
        "float32",
    ): "4fc02b11e1863cb2a6c127e3daf3bd53eb5b8ea9d24b32114803d18fbeefb205",
    (
        ENCODER_DECODER,
        0,
        "bfloat16",
    ): "a8b2f6c2449d2017a566985ed01a77bc54a2049db23e6a514a5346f84a0b603a",
    (
        ENCODER_DECODER,
        0,
        "float16",
    ): "d03ee5719a8461e132467d23fabc91be99e9028e9843634ca273b84d7d4ac3f1",
    (
        ENCODER_DECODER,
        0,
        "float64",
    ): "1c61f8ec5c9786fce3da9546e83720679a083232de68a2da53f58e0887542156",
    (DECODER, 0, "float32"): "9b5b333d66770cba259dc56d2e3505c6001c9c770f80c9efeb1a05e1b2b9ae77",
    (DECODER, 1, "bfloat16"): "0b5d6694d91dd72895033980ed3ff6e29d522ad78f327c001e1b9d30bf3806e9",
    (ENCODER, 0, "float32"): "cc86e0e5250ea4954424f3b39b755b5d356f186831e25434bf316bfa1fb0180b",
    (
        "vaswani-base",
        0,
        "float32",
    ): "346666ea479e12cff0140cc24aab11c8589a6c435dc21c79777d141c2eb1049e",
}


@pytest.mark.parametrize(("spec", "seed", "dtype"), GOLDEN)
def test_golden_digests(spec: str, seed: int, dtype: str, tmp_path: Path) -> None:
    model = zoo.build(spec, seed=seed, dtype=getattr(torch, dtype))
    assert zoo.save(model, tmp_path) == "sha256:" + GOLDEN[spec, seed, dtype]


# --- what makes no difference ---------------------------------------------------------------------


def stored(model: torch.nn.Module) -> dict[str, bytes]:
    return {
        name: tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, tensor in model.state_dict().items()
    }


@pytest.mark.parametrize("spec", [ENCODER_DECODER, DECODER, ENCODER])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_dtype_is_a_cast_of_float32(spec: str, dtype: torch.dtype) -> None:
    assert stored(zoo.build(spec, dtype=dtype)) == stored(zoo.build(spec).to(dtype))


def test_torch_s_random_state_makes_no_difference() -> None:
    before = stored(zoo.build(DECODER))
    torch.manual_seed(12)
    torch.rand(3)
    assert stored(zoo.build(DECODER)) == before


def test_torch_s_defaults_make_no_difference() -> None:
    before = stored(zoo.build(ENCODER))
    torch.set_default_dtype(torch.float64)
    try:
        assert stored(zoo.build(ENCODER)) == before
        with torch.device("meta"), torch.inference_mode():
            assert stored(zoo.build(ENCODER)) == before
    finally:
        torch.set_default_dtype(torch.float32)


def test_two_saves_are_the_same_file(tmp_path: Path) -> None:
    model = zoo.build(ENCODER)
    zoo.save(model, tmp_path / "a")
    zoo.save(model, tmp_path / "b")
    zoo.save(zoo.build(ENCODER), tmp_path / "c")
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert len({sha256(file).hexdigest() for file in files}) == 1


def test_the_seed_and_the_name_make_every_difference() -> None:
    """All random tensors differ: no stream is used twice."""
    drawn = [
        bytes
        for seed in (0, 1, 2**32, 2**63)
        for name, bytes in stored(zoo.build(DECODER, seed=seed)).items()
        if "norm" not in name and "bias" not in name and name != "head.out.weight"
    ]
    assert len(drawn) == 4 * (1 + 2 * 7)
    assert len({bytes[:16] for bytes in drawn}) == len(drawn)


def test_the_order_of_the_keys_makes_no_difference() -> None:
    data = zoo.read_spec(ENCODER_DECODER).to_dict()
    assert stored(zoo.build(reversed_keys(data))) == stored(zoo.build(data))


def reversed_keys(data: dict[str, Any]) -> dict[str, Any]:
    return {
        key: reversed_keys(value) if isinstance(value, dict) else value
        for key, value in reversed(data.items())
    }


STACK = st.fixed_dictionaries(
    {"n_layers": st.integers(1, 3)},
    optional={
        "final_norm": st.booleans(),
        "norm_placement": st.sampled_from(["pre", "post", "sandwich", "post_branch"]),
        "norm": st.sampled_from(["layer_norm", "rms_norm", "std_norm", "batch_norm", "none"]),
        "position": st.sampled_from(
            ["none", "sinusoidal", "rotary", {"kind": "learned", "max_length": 5}]
        ),
        "share_layers": st.booleans(),
    },
)
CHANGES = st.fixed_dictionaries(
    {
        "encoder": STACK,
        "decoder": STACK,
        "ffn": st.sampled_from(
            [
                {"kind": "mlp", "d_ff": 32},
                {"kind": "glu", "d_ff": 32},
                {"kind": "conv1d", "d_ff": 32, "kernel_size": 3},
                {"kind": "residual_stack", "expansion_factor": 4.0},
            ]
        ),
        "attention": st.fixed_dictionaries(
            {
                "kind": st.just("multi_head"),
                "bias": st.lists(st.sampled_from("qkvo"), unique=True),
                "n_kv_heads": st.sampled_from([1, 2, 4]),
            }
        ),
        "embedding": st.fixed_dictionaries(
            {"kind": st.just("tokens"), "norm": st.sampled_from(["none", "layer_norm"])}
        ),
        "head": st.fixed_dictionaries(
            {"kind": st.just("linear"), "tied": st.booleans(), "bias": st.booleans()}
        ),
        "share_embeddings": st.booleans(),
    }
)
BASE = {
    "format": 1,
    "name": "t",
    "builder": "encoder_decoder",
    "source_vocab": 7,
    "target_vocab": 7,
    "d_model": 8,
    "n_heads": 4,
}


@settings(max_examples=50)
@given(one=CHANGES, other=CHANGES, init=st.sampled_from(["xavier", "normal"]))
def test_no_component_changes_a_tensor_of_another(
    one: dict[str, Any], other: dict[str, Any], init: str
) -> None:
    """Two models that differ in any of these ways have the same bytes in all tensors of the same
    name and shape, since each tensor has a stream of its own."""
    a, b = (zoo.build({**BASE, **changes, "init": init}) for changes in (one, other))
    shapes = [{n: t.shape for n, t in model.state_dict().items()} for model in (a, b)]
    common = {name for name, shape in shapes[0].items() if shapes[1].get(name) == shape}
    # A tied tensor has the initial values of its stored name.
    common -= {*a.spec.ties, *b.spec.ties}
    assert "decoder.embed.tokens.weight" in common
    values = stored(a), stored(b)
    assert {name for name in common if values[0][name] != values[1][name]} == set()


def test_the_header_of_a_file_says_nothing_of_the_torch_that_made_it(tmp_path: Path) -> None:
    zoo.save(zoo.build(ENCODER), tmp_path)
    raw = (tmp_path / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    provenance = json.loads(header["__metadata__"]["zoo"])["provenance"]
    assert provenance.keys() == {"zoo", "plugins"}
    assert all(origin == f"zoo {zoo.__version__}" for origin in provenance["plugins"].values())
