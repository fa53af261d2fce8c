"""The command line: what each command prints, writes and returns."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from safetensors.torch import load_file
from trials import Command, on_terminal, process

import zoo
from zoo.byte_counts import human_bytes, parse_bytes
from zoo.cli import OTHER_OPTIONS, OTHER_WORDS, cli, run
from zoo.wording import counted

SPEC = """\
format = 1
name = "tiny"
builder = "encoder_decoder"
source_vocab = 11
target_vocab = 11
share_embeddings = true
n_layers = 2
d_model = 8
n_heads = 2
d_ff = 12
head = { kind = "linear", tied = true }
"""
BAD = SPEC.replace("d_model = 8", "d_model = 9").replace("d_ff", "d_fff")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with a valid and an invalid spec, and no user's registry."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "tiny.toml").write_text(SPEC)
    (folder / "bad.toml").write_text(BAD)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


SPECS = {"tiny.toml", "bad.toml"}


# --- build ----------------------------------------------------------------------------------------


def test_build_writes_one_file_into_a_folder_of_the_models_name(
    command: Command, project: Path
) -> None:
    status, out, err = command("build", "tiny.toml")
    assert (status, err) == (0, "")
    assert files(project) == SPECS | {"tiny/model.safetensors"}
    digest = zoo.save(zoo.build("tiny.toml"), project.parent / "same")
    same = project.parent / "same" / "model.safetensors"
    tensors, others = (
        raw[8 + int.from_bytes(raw[:8], "little") :]  # after the header, which has the seed here
        for raw in (Path("tiny/model.safetensors").read_bytes(), same.read_bytes())
    )
    assert tensors == others
    parameters = sum(p.numel() for p in zoo.load("tiny").parameters())
    assert out == f"tiny: {parameters:,} parameters, seed 0\ntiny/model.safetensors\n{digest}\n"


@pytest.mark.parametrize(
    ("output", "written"),
    [
        ("out", "out/model.safetensors"),
        ("a/b/c", "a/b/c/model.safetensors"),
        ("a/mine.safetensors", "a/mine.safetensors"),
    ],
)
def test_build_writes_where_it_is_told_to(
    output: str, written: str, command: Command, project: Path
) -> None:
    status, out, _ = command("build", "tiny.toml", "-o", output)
    assert status == 0
    assert files(project) == SPECS | {written}
    assert written in out.splitlines()


def test_build_takes_the_name_of_a_model(command: Command) -> None:
    status, out, _ = command("build", "vaswani-base", "--device", "meta")
    assert status == 0
    assert out == "vaswani-base: 63,045,632 parameters, built on meta; nothing is written\n"


def test_build_json(command: Command, project: Path) -> None:
    status, out, err = command("build", "tiny.toml", "--seed", 5, "--dtype", "bfloat16", "--json")
    assert (status, err) == (0, "")
    model = zoo.build("tiny.toml", seed=5, dtype=torch.bfloat16)
    assert json.loads(out) == {
        "name": "tiny",
        "spec_digest": zoo.read_spec("tiny.toml").digest,
        "parameters": sum(p.numel() for p in model.parameters()),
        "seed": 5,
        "dtype": "bfloat16",
        "device": "cpu",
        "path": "tiny/model.safetensors",
        "content_digest": zoo.save(model, project.parent / "same"),
    }


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_build_takes_every_seed(seed: int, command: Command) -> None:
    assert command("build", "tiny.toml", "--seed", seed)[0] == 0
    built = zoo.build("tiny.toml", seed=seed).state_dict()
    model = zoo.load("tiny")
    loaded = model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in built.items())
    assert f": initial weights of seed {seed}\n" in command("load", "tiny")[1]
    zoo.save(model, "tiny")  # which may have been trained
    assert "initial weights" not in command("load", "tiny")[1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_build_takes_every_dtype(dtype: str, command: Command) -> None:
    assert command("build", "tiny.toml", "--dtype", dtype)[0] == 0
    tensors = load_file("tiny/model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {getattr(torch, dtype)}


def test_build_on_meta_writes_nothing(command: Command, project: Path) -> None:
    status, out, _ = command("build", "tiny.toml", "--device", "meta", "-o", "out", "--json")
    report = json.loads(out)
    assert status == 0
    assert (report["path"], report["content_digest"]) == (None, None)
    assert files(project) == SPECS
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", "-1"], "--seed"),
        (["--seed", str(2**64)], "--seed"),
        (["--seed", "x"], "--seed"),
        (["--dtype", "int8"], "--dtype"),
        (["--device", "nowhere"], "the device `nowhere` cannot be used"),
        (["--device", "cuda:99"], "the device `cuda:99` cannot be used"),
        (["-o", "tiny.toml"], "cannot write `tiny.toml/model.safetensors`"),
        (["--nothing"], "No such option"),
    ],
)
def test_build_refuses(options: list[str], message: str, command: Command, project: Path) -> None:
    status, out, err = command("build", "tiny.toml", *options)
    assert (status, out) == (2, "")
    assert message in err
    assert files(project) == SPECS
    assert Path("tiny.toml").read_text() == SPEC


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("onnx", "'onnx' is not 'hf'; ONNX is made in Python, by `torch.onnx.export` of"),
        (
            "GGUF",
            "'GGUF' is not 'hf'; `convert_hf_to_gguf.py` makes GGUF of what `--to hf` writes",
        ),
        ("tf", "'tf' is not 'hf'."),
    ],
)
def test_a_form_that_export_does_not_write(form: str, message: str, command: Command) -> None:
    status, out, err = command("export", "tiny", "--to", form, "-o", "out")
    assert (status, out) == (2, "")
    assert message in err


def test_build_of_a_bad_spec_writes_nothing(command: Command, project: Path) -> None:
    status, out, err = command("build", "bad.toml", "-o", "out", "--json")
    assert (status, out) == (2, "")
    assert "bad.toml:10:1: error: unknown key `d_fff`" in err
    assert files(project) == SPECS


def test_a_place_that_cannot_be_written_to_is_told_before_the_work(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[object] = []
    monkeypatch.setattr("zoo.cli.making.build", lambda *spec, **options: built.append(spec))
    Path("file").touch()
    status, _, err = command("build", "tiny.toml", "-o", "file/out")
    assert status == 2
    assert "cannot write" in err
    assert built == []


def build_until(sent: signal.Signals, folder: Path, **environment: str) -> tuple[int, str, str]:
    """Return the status and the output of a build that receives a signal while it writes."""
    for _ in range(5):  # a busy machine may let a build end before the signal is sent
        running = subprocess.Popen(
            [sys.executable, "-m", "zoo", "build", "vaswani-big", "-o", "out"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            # These tests may run as a background job, which is started with interrupts ignored.
            preexec_fn=lambda: signal.signal(sent, signal.SIG_DFL),
        )
        while running.poll() is None and not [*folder.glob("out/.zoo-*")]:
            time.sleep(0.01)
        running.send_signal(sent)
        out, err = running.communicate(timeout=300)
        if running.returncode:
            break
        shutil.rmtree(folder / "out")
    return running.returncode, out, err


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_ends_a_build_finds_nothing_of_it(sent: signal.Signals, project: Path) -> None:
    """Ended by Ctrl-C, by SIGTERM as from `timeout` and containers, or by closing the terminal."""
    status, out, err = build_until(sent, project)
    assert "interrupted" in err
    assert "Traceback" not in err
    assert (status, out) == (130, "")
    assert files(project) == SPECS
    assert not Path("out").exists()


def test_who_ends_a_command_in_an_import_finds_no_traceback(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11 makes another error of an interrupt that comes while a class is made."""

    def interrupted(name: str) -> None:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr("zoo.cli.import_module", interrupted)
    assert command("validate", "tiny.toml") == (130, "", "interrupted\n")


def test_one_of_several_processes_is_ended_at_once(project: Path) -> None:
    """torchrun ends a process that may be waiting for another one that has failed; a Python signal
    handler would wait as well."""
    assert build_until(signal.SIGTERM, project, LOCAL_RANK="0")[0] == -signal.SIGTERM


# --- validate -------------------------------------------------------------------------------------


def test_validate(command: Command) -> None:
    digest = zoo.read_spec("tiny.toml").digest
    assert command("validate", "tiny.toml") == (0, f"tiny.toml: tiny {digest}\n", "")


def test_validate_reports_every_problem_of_all(command: Command) -> None:
    status, out, err = command("validate", "bad.toml", "tiny.toml", "absent.toml", "vaswani-base")
    assert status == 2
    assert [line.split(":")[0] for line in out.splitlines()] == ["tiny.toml", "vaswani-base"]
    assert "bad.toml:10:1: error: unknown key `d_fff`" in err
    assert "`absent.toml` does not exist" in err


def test_validate_json(command: Command) -> None:
    status, out, err = command("validate", "tiny.toml", "bad.toml", "--json")
    assert status == 2
    good, bad = json.loads(out)
    found = zoo.read_spec("tiny.toml")
    assert good == {
        "spec": "tiny.toml",
        "valid": True,
        "name": "tiny",
        "spec_digest": found.digest,
        "parameters": found.n_parameters,
    }
    assert (bad["spec"], bad["valid"]) == ("bad.toml", False)
    unknown = next(one for one in bad["problems"] if "d_fff" in one["message"])
    assert (unknown["file"], unknown["line"], unknown["column"]) == ("bad.toml", 10, 1)
    assert unknown["help"] == "did you mean `d_ff`?"
    assert "bad.toml:10:1" in err


# --- show -----------------------------------------------------------------------------------------


def vaswani(d: int, f: int) -> dict[str, Any]:
    """Vaswani et al. (2017), as in the spec: projections without bias, six post-norm layers, one
    table of 37,000 tokens for source, target and head."""
    table = 37000 * d
    ffn, norm, attention = 2 * d * f + f + d, 2 * d, 4 * d * d
    layers = 6 * (attention + ffn + 2 * norm) + 6 * (2 * attention + ffn + 3 * norm)
    cache = 6 * 2 * d
    return {"unique": table + layers, "shared": 2 * table, "cache": cache, "source": cache}


SIZES = {
    "vaswani-base": vaswani(512, 2048),
    "vaswani-big": vaswani(1024, 4096),
    # Radford et al. (2019): 124M; 12 layers of 768, the head tied to a table of 50,257 tokens.
    "gpt2": {
        "unique": 124_439_808,
        "shared": 50257 * 768,
        "cache": 12 * 2 * 768,
        "source": 0,
    },
    # Touvron et al. (2023): 6.7B; 32 layers, 32 key-value heads of 128.
    "llama-2-7b": {
        "unique": 6_738_415_616,
        "shared": 0,
        "cache": 32 * 2 * 32 * 128,
        "source": 0,
    },
    # Meta (2024): 8.0B; 32 layers, 8 key-value heads of 128.
    "llama-3-8b": {
        "unique": 8_030_261_248,
        "shared": 0,
        "cache": 32 * 2 * 8 * 128,
        "source": 0,
    },
}


@pytest.mark.parametrize("model", SIZES)
def test_show_json_has_the_sizes(model: str, command: Command) -> None:
    sizes = SIZES[model]
    status, out, err = command("show", model, "--json")
    data = json.loads(out)
    assert (status, err) == (0, "")
    assert data["parameters"] == {
        "unique": sizes["unique"],
        "active": sizes["unique"],
        "shared": sizes["shared"],
    }
    assert data["bytes"] == {"float32": 4 * sizes["unique"], "bfloat16": 2 * sizes["unique"]}
    cache = {"float32": 4 * sizes["cache"], "bfloat16": 2 * sizes["cache"]}
    assert data["kv_cache_bytes_per_token"] == cache
    cache = {"float32": 4 * sizes["source"], "bfloat16": 2 * sizes["source"]}
    assert data["kv_cache_bytes_per_source_token"] == cache
    assert (data["name"], data["spec_digest"]) == (model, zoo.read_spec(model).digest)


def test_show_prints_a_tree_with_sizes(command: Command) -> None:
    status, out, _ = command("show", "vaswani-base")
    assert status == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "vaswani-base (encoder_decoder)"
    assert "parameters 63,045,632, and 37,888,000 more that are shared" in lines
    assert "size 252.2 MB float32, 126.1 MB bfloat16" in lines
    assert "kv cache 24.6 kB float32, 12.3 kB bfloat16 per token" in lines
    assert "24.6 kB float32, 12.3 kB bfloat16 per source token" in lines
    assert "├─ encoder 37,846,016 d_model 512, norm_placement post" in lines
    assert "│ ├─ self_attn 1,049,600 multi_head, 8 heads of 64, bias [], dropout 0.1" in lines
    assert "│ └─ out 18,944,000 = decoder.embed.tokens" in lines


def test_show_tensors_is_what_is_built(command: Command) -> None:
    _, out, _ = command("show", "tiny.toml", "--tensors", "--json")
    told = {one["name"]: one for one in json.loads(out)}
    state = zoo.build("tiny.toml").state_dict()
    aliases = {"encoder.embed.tokens.weight", "head.out.weight"}
    assert told.keys() == state.keys() - aliases
    assert all(one["shape"] == list(state[name].shape) for name, one in told.items())
    assert set(told["decoder.embed.tokens.weight"]["also"]) == aliases
    _, out, _ = command("show", "tiny.toml", "--tensors")
    assert "11 x 8  decoder.embed.tokens.weight  = encoder.embed.tokens.weight, head.out" in out
    assert len(out.splitlines()) == len(told)


def test_show_has_one_view_at_a_time(command: Command) -> None:
    status, _, err = command("show", "gpt2", "--resolved", "--backends")
    assert status == 2
    assert "--resolved and --backends are two views; take one" in err


def test_show_resolved(command: Command) -> None:
    status, out, _ = command("show", "tiny.toml", "--resolved")
    assert status == 0
    full = zoo.read_spec("tiny.toml").to_dict()
    assert tomllib.loads(out) == full
    assert "d_model = 8 # tiny.toml:8" in out
    assert json.loads(command("show", "tiny.toml", "--resolved", "--json")[1]) == full


def test_show_of_a_weights_file_is_that_of_its_spec(command: Command) -> None:
    command("build", "tiny.toml", "-o", "tiny")
    spec = json.loads(command("show", "tiny.toml", "--json")[1])
    for source in ("tiny", "tiny/model.safetensors"):
        shown = json.loads(command("show", source, "--json")[1])
        assert {key: shown[key] for key in spec} == spec
    assert "tiny  (encoder_decoder)" in command("show", "tiny")[1]
    assert command("show", "tiny", "--tensors")[1] == command("show", "tiny.toml", "--tensors")[1]


def test_show_of_what_is_not_there(command: Command) -> None:
    status, out, err = command("show", "vaswani-bas")
    assert (status, out) == (2, "")
    assert "did you mean `vaswani-base`?" in err


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_960, "1.0 MB"),
        (999_960_000, "1.0 GB"),
        (252_182_528, "252.2 MB"),
        (16_060_522_496, "16.1 GB"),
        (3_245_086_710_400, "3.2 TB"),
        (12_345_678_901_234_567, "12,345.7 TB"),
    ],
)
def test_human_bytes(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("5000", 5000),
        ("5e9", 5_000_000_000),
        ("500MB", 500_000_000),
        ("500 mb", 500_000_000),
        ("1.5GB", 1_500_000_000),
        ("2GiB", 2 << 30),
        ("7B", 7),
        ("1TB", 10**12),
        ("9007199254740993", 9007199254740993),  # no float64 is this number
    ],
)
def test_numbers_of_bytes_are_read(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "x",
        "1XB",
        "GB",
        "1.5",
        "0.1kiB",
        "1e999",
        "1 2",
        "9" * 400,
        "\N{FULLWIDTH DIGIT ONE}",
    ],
)
def test_what_is_no_number_of_bytes_is_told_with_examples(text: str, command: Command) -> None:
    with pytest.raises(
        ValueError, match="is not a number of bytes: write 500000000, 500MB or 2GiB"
    ):
        parse_bytes(text)
    status, out, err = command("build", "tiny.toml", f"--max-shard-bytes={text}")
    assert (status, out) == (2, "")
    assert f"'--max-shard-bytes': {text!r} is not a number of bytes" in err


def test_shards_of_a_size_with_a_unit(command: Command, project: Path) -> None:
    for option, folder in (("1kB", "one"), ("1000", "two"), ("1e3", "three")):
        assert command("build", "tiny.toml", "-o", folder, "--max-shard-bytes", option)[0] == 0
    names = files(project / "one")
    assert len(names) > 2
    assert names == files(project / "two") == files(project / "three")


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1000, "1,000 files")]
)
def test_one_thing_is_no_plural(number: int, text: str) -> None:
    assert counted(number, "file") == text


# --- list -----------------------------------------------------------------------------------------

ROOT = Path(__file__).parent.parent
IN_REGISTRY, IN_CATALOG = f"models of {ROOT / 'registry.toml'}", f"models of {ROOT / 'models'}"


def listed(out: str) -> dict[str, list[str]]:
    """Return the names below each heading."""
    found: dict[str, list[str]] = {}
    for line in filter(None, out.splitlines()):
        if line.startswith("  "):
            found[[*found][-1]].append(line.split()[0])
        else:
            found[line] = []
    return found


def test_list(command: Command) -> None:
    everything = listed(command("list")[1])
    models, components, sources = (
        listed(command("list", what)[1]) for what in ("models", "components", "sources")
    )
    assert everything == models | components | sources
    assert set(models) == {IN_REGISTRY, IN_CATALOG}
    assert {"vaswani-base", "gpt2", "llama-3-8b"} <= set(models[IN_REGISTRY])
    assert {"gpt2.openai", "bert-base.uncased"} <= set(models[IN_CATALOG])
    assert components.keys() >= {"builder", "block", "attention", "ffn", "norm", "position", "head"}
    assert {"mlp", "glu"} <= set(components["ffn"])


def test_files_of_models_are_below_the_registry_that_names_them(
    command: Command, project: Path
) -> None:
    (project / "registry.toml").write_text('format = 1\n[models]\nown = "tiny.toml"\n')
    out = command("list", "models", "own")[1] + command("list", "models", "gpt2*")[1]
    for line in out.splitlines():
        if line.startswith("models of "):
            below = Path(line.removeprefix("models of "))
            below = below.parent if below.suffix == ".toml" else below
        elif line:
            assert (below / line.split()[1]).is_file()
    assert out.startswith("models of registry.toml\n  own  tiny.toml\n")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["components", "layer_*"], {"block": ["layer_input"], "norm": ["layer_norm"]}),
        (["models", "llama-3-*b"], {IN_REGISTRY: ["llama-3-8b", "llama-3-70b"]}),
        (["vaswani-b[ai]*"], {IN_REGISTRY: ["vaswani-base", "vaswani-big"]}),
        (["mlp"], {"ffn": ["mlp"]}),
        (
            ["components", "emb*"],
            {
                "embedding": [
                    *("tokens", "normed_tokens", "layered_tokens", "vectors", "conv_frontend"),
                    "partly_layered_tokens",
                    *("waveform", "patches", "normed_patches", "spectrogram_patches"),
                    *("projected_vectors", "conv2d_frontend", "waveform_stem"),
                    *("prenormed_patches", "patch_vectors", "normed_patch_vectors"),
                    *("grid_patch_vectors", "factorized_patch_vectors"),
                    "resized_grid_patch_vectors",
                ]
            },
        ),
    ],
)
def test_list_takes_a_pattern(
    arguments: list[str], names: dict[str, Any], command: Command
) -> None:
    status, out, _ = command("list", *arguments)
    assert status == 0
    assert {slot: set(found) for slot, found in listed(out).items()} == {
        slot: set(found) for slot, found in names.items()
    }


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            ["modles"],
            "no model, component or source matches `modles`",
            "did you mean `zoo list models`?",
        ),
        (["rotery"], "no model, component or source matches", "did you mean `rotary`?"),
        (["components", "norn"], "no component matches", "did you mean `norm`?"),
        (["models", "lama-3-8*"], "no model matches", "did you mean `llama-3-8b`?"),
        (["components", "gpt2"], "no component matches", "`zoo list models gpt2` finds some"),
        (["models", "mlp"], "no model matches", "`zoo list components mlp` finds some"),
        (["models", "zzz"], "no model matches", "`zoo list models` lists all"),
    ],
)
def test_list_of_what_nothing_matches(
    arguments: list[str], message: str, hint: str, command: Command
) -> None:
    for as_json in ([], ["--json"]):
        status, out, err = command("list", *arguments, *as_json)
        assert (status, out) == (2, "")
        assert err.startswith(f"error: {message}")
        assert err.endswith(f"help: {hint}\n")


def test_list_tells_what_components_are(command: Command) -> None:
    out = command("list", "components")[1]
    assert re.search(r"^  alibi +Scores fall in proportion to the distance", out, re.MULTILINE)
    rows = json.loads(command("list", "components", "--json")[1])["components"]
    assert all(row["summary"] for row in rows)
    assert {row["target"] for row in rows}.isdisjoint(out.split())


COMMENTED = '''
raise SystemExit("a list imports nothing")

class Plain(Norm):
    eps: float = 1.0

    def layout(self):
        """Of a method."""

class Told(
    Norm, Other
):  # noqa
    r"""Centres vectors (Nobody 2020): x - mean. And more."""
class Told2(Norm):
    """Of another class."""
'''


def test_what_a_component_is_comes_from_the_source_and_imports_nothing(command: Command) -> None:
    Path("mine.py").write_text(COMMENTED)
    package = Path("mine_too/inner")
    package.mkdir(parents=True)
    Path("mine_too/__init__.py").write_text("raise SystemExit")
    (package / "__init__.py").write_text(COMMENTED)
    lines = [
        f'{name} = "{target}"\n'
        for name, target in {
            "own_told": "mine.py:Told",
            "own_plain": "mine.py:Plain",
            "own_absent": "mine.py:Absent",
            "own_gone": "nowhere.inside:Told",
            "own_package": "mine_too.inner:Told",
        }.items()
    ]
    Path("registry.toml").write_text("format = 1\n[norm]\n" + "".join(lines))
    run_in = {"env": {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path.cwd())])}}
    done = process("list", "own_*", **run_in)
    assert done.stdout.splitlines() == [
        "norm",
        "  own_absent   mine.py:Absent",
        "  own_gone     nowhere.inside:Told",
        "  own_package  Centres vectors",
        "  own_plain    mine.py:Plain",
        "  own_told     Centres vectors",
    ]


def test_list_json(command: Command) -> None:
    status, out, _ = command("list", "components", "mlp", "--json")
    assert status == 0
    (row,) = json.loads(out)["components"]
    assert (row["name"], row["slot"]) == ("mlp", "ffn")
    assert row["target"] == "zoo_components.ffn:Mlp"
    assert json.loads(command("list", "--json")[1]).keys() == {"models", "components", "sources"}


def test_list_of_something_else(command: Command) -> None:
    status, _, err = command("list", "plugins", "mlp")
    assert status == 2
    assert "'plugins' is none of 'models', 'components', 'sources'" in err


SMALL = "transformer-small.tatoeba-de-en"
PLUGIN = """
from zoo_components.ffn import Mlp

class Mine(Mlp):
    pass
"""


def test_a_further_registry(command: Command) -> None:
    Path("more").mkdir()
    Path("more/mine.py").write_text(PLUGIN)
    registry = Path("more/registry.toml")
    registry.write_text('format = 1\n[ffn]\nmine = "mine.py:Mine"\n')
    Path("mine.toml").write_text(SPEC + '\nffn = "mine"\n')
    assert command("validate", "mine.toml")[0] == 2
    assert command("--registry", registry, "validate", "mine.toml")[0] == 0
    assert listed(command("--registry", registry, "list", "mine")[1]) == {"ffn": ["mine"]}
    assert command("--registry", registry, "build", "mine.toml", "-o", "out")[0] == 0
    header = Path("out/model.safetensors").read_bytes()
    assert sha256(PLUGIN.encode()).hexdigest().encode() in header
    status, _, err = command("--registry", "absent.toml", "list")
    assert status == 2
    assert "absent.toml" in err


NORMS_IN_S = {f"plain,norm.{name}" for name in ("scale_norm", "standardized_rms_norm", "std_norm")}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("zoo sh", {"plain,show"}),
        ("zoo show vaswani-bi", {"file,vaswani-bi", "plain,vaswani-big"}),
        ("zoo show norm.s", {"file,norm.s", *NORMS_IN_S}),
        ("zoo run transformer-small.", {"file,transformer-small.", f"plain,{SMALL}"}),
        ("zoo diff gpt2 bert-base.u", {"file,bert-base.u", "plain,bert-base.uncased"}),
        ("zoo --registry absent.toml show g", {"file,g"}),
        (
            "zoo families qwen2_",
            {"plain,qwen2_audio", "plain,qwen2_moe", "plain,qwen2_vl", "plain,qwen2_5_vl"},
        ),
        ("zoo lint bert gpt_neox_", {"file,gpt_neox_", "plain,gpt_neox_japanese"}),
        ("zoo list models albert-base.", {"plain,albert-base.v2"}),
        ("zoo list model", {"plain,models"}),
        ("zoo list components norm.s", NORMS_IN_S),
        ("zoo plugin check norm.s", NORMS_IN_S),
        ("zoo plugin new bl", {"plain,block"}),
    ],
)
def test_a_shell_completes_names_of_models_and_files(
    line: str,
    told: set[str],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("_ZOO_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    with pytest.raises(SystemExit):
        run([])
    found = capsys.readouterr().out.splitlines()
    assert set(found) == told
    assert not any(one.startswith("file") for one in found[1:])  # bash drops completions before it


# --- every command --------------------------------------------------------------------------------


def commands(group: click.Group, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        one = group.get_command(context, name)
        assert one is not None
        assert one.name == name
        if isinstance(one, click.Group):
            yield from commands(one, *names, name)
        yield (*names, name), one


COMMANDS = {" ".join(names): one for names, one in commands(cli)}


def test_the_commands_are_there() -> None:
    assert COMMANDS.keys() >= {"build", "validate", "show", "list", "plugin check", "bundle make"}


@pytest.mark.parametrize("group", ["", "bundle", "plugin"])
def test_no_command_is_cut_short_in_the_list(group: str, command: Command) -> None:
    """In a terminal of 80 columns."""
    listed_commands = command(*group.split(), "--help")[1].split("Commands:\n")[1].splitlines()
    assert len(listed_commands) > 1
    for line in listed_commands:
        assert re.fullmatch(r"  \w+ +\S.*\.(?<!\.\.\.)", line), line


def test_a_command_that_is_mistyped(command: Command) -> None:
    status, _, err = command("shw", "x.toml")
    assert status == 2
    assert "No such command 'shw'. Did you mean `zoo show`?" in err
    assert "No such command 'zzz'.\n" in command("zzz")[2]
    err = command("Compare", "x.toml")[2]
    assert "'Compare'. Did you mean `zoo diff A B` or `zoo table MODEL MODEL`?" in err


def test_what_is_suggested_for_commands_of_other_programs_is_there(command: Command) -> None:
    for typed, words in OTHER_WORDS.items():
        assert not {*words.split()} & {name.split()[0] for name in COMMANDS}
        first, *rest = typed.split()
        if first.startswith("--"):
            assert command(first)[0] == 0
            continue
        name = first if first in COMMANDS else f"{first} {rest.pop(0)}"
        told = command(*name.split(), "--help")[1]
        assert f"Usage: zoo {name} [" in told
        assert all(f"{one} " in told for one in rest if one.startswith("--")), typed


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help(name: str, command: Command) -> None:
    one = COMMANDS.get(name, cli)
    for option in ("-h", "--help"):
        status, out, _ = command(*name.split(), option)
        assert status == 0
        assert f"Usage: zoo{name and ' '}{name}" in out
    assert one.help
    options = [one for one in one.params if isinstance(one, click.Option)]
    assert all(option.help for option in options)
    assert all(" ".join(option.opts) in out.replace(",", "") for option in options)


def test_version(command: Command) -> None:
    assert command("--version") == (0, f"zoo, version {zoo.__version__}\n", "")


def test_an_unknown_command(command: Command) -> None:
    status, out, err = command("biuld")
    assert (status, out) == (2, "")
    assert "biuld" in err


# --- as a process ---------------------------------------------------------------------------------


def test_statuses_and_streams_of_a_process() -> None:
    good = process("build", "tiny.toml")
    assert (good.returncode, good.stderr) == (0, "")  # no progress, without a terminal
    assert good.stdout.splitlines()[1] == "tiny/model.safetensors"
    bad = process("build", "bad.toml", "--json")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "Traceback" not in bad.stderr


@pytest.mark.parametrize("as_json", [True, False])
def test_progress_is_shown_on_a_terminal_and_on_stderr_only(as_json: bool) -> None:
    out, on_screen = on_terminal("build", "tiny.toml", *(["--json"] * as_json))
    assert b"building tiny" in on_screen
    assert "building" not in out
    assert b"sha256" not in on_screen
    if as_json:
        assert json.loads(out)["name"] == "tiny"
    else:
        assert out.splitlines()[1] == "tiny/model.safetensors"


def shell(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f'set -o pipefail; zoo() {{ {sys.executable} -m zoo "$@"; }}; {line}'],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )


def test_a_reader_that_stops_reading() -> None:
    done = shell("zoo show llama-3-8b --tensors | head -1")
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""
    gone = shell("zoo show llama-3-8b --tensors | (exec <&-; sleep 2)")
    assert gone.returncode == 1
    assert gone.stderr == ""


def test_output_that_cannot_be_written() -> None:
    done = shell("zoo list > /dev/full")
    assert done.returncode == 1
    assert done.stderr == "error: cannot write the output: No space left on device\n"
    assert shell("zoo list >&-").returncode == 0
    assert shell("zoo show absent 2>&-").returncode == 2


def test_no_folder_for_temporary_files() -> None:
    code = """import tempfile, zoo.cli, zoo.__main__
tempfile._candidate_tempdir_list = lambda: ["/proc/absent"]
zoo.cli.run = lambda arguments: tempfile.gettempdir()
zoo.__main__.main()"""
    done = shell(f"{sys.executable} -c '{code}'")
    assert done.returncode == 1
    assert done.stderr.startswith("error: No usable temporary directory found in ['/proc/absent'")


def test_a_terminal_that_has_no_such_characters() -> None:
    done = shell("zoo show tiny.toml", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "?? encoder" in done.stdout


def test_the_name_of_a_file_is_written_as_it_is() -> None:
    """Also if it is in Latin-1: a script goes on with it."""
    folder = b"\xfcber"
    for locale in ("C", "C.UTF-8"):
        done = subprocess.run(
            [sys.executable, "-m", "zoo", "build", "tiny.toml", "-o", folder],
            capture_output=True,
            check=True,
            env={**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        )
        assert os.path.exists(done.stdout.splitlines()[1])
        assert done.stdout.splitlines()[1] == folder + b"/model.safetensors"


MISTAKES: dict[str, list[str]] = {
    "bench": ["absent"],
    "build": ["bad.toml"],
    "bundle make": ["absent", "new"],
    "bundle sign": ["absent", "--key", "absent"],
    "bundle verify": ["absent"],
    "diff": ["tiny.toml", "bad.toml"],
    "export": ["absent", "--to", "hf", "-o", "new"],
    "families": ["absent*"],
    "gc": [],
    "import": ["absent"],
    "lint": ["absent", "bert"],
    "list": ["absent"],
    "load": ["absent"],
    "lock": ["absent"],
    "plugin check": ["absent"],
    "pull": ["absent"],
    "push": ["absent", "new"],
    "results": ["absent"],
    "rm": ["absent"],
    "run": ["absent", "3 4"],
    "score": ["absent"],
    "show": ["bad.toml"],
    "store": [],
    "table": ["tiny.toml", "bad.toml"],
    "train": ["absent.toml"],
    "validate": ["bad.toml", "tiny.toml", "absent.toml"],
    "verify": ["absent"],
}
"""Arguments with a mistake for each command that prints JSON."""


def test_all_commands_print_json_but_those_that_begin_something_and_one_that_does_anyway() -> None:
    alone = [name for name, one in COMMANDS.items() if not isinstance(one, click.Group)]
    assert sorted(alone) == sorted([*MISTAKES, "init", "plugin new", "schema"])
    for name in alone:
        assert any(p.name == "as_json" for p in COMMANDS[name].params) is (name in MISTAKES)


@pytest.mark.parametrize("name", MISTAKES)
def test_after_a_mistake_the_output_is_json_or_nothing(
    name: str, command: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOO_HOME", str(project / "store"))
    (project / "store" / "refs").mkdir(parents=True)
    (project / "store" / "refs" / "small.v1@0123456789abcdef.json").write_text("{")
    status, out, err = command(*name.split(), *MISTAKES[name], "--json")
    assert status == 2
    assert "error: " in err
    if out:
        json.loads(out)
    goes_on = {"lint", "pull", "rm", "store", "validate", "verify"}
    assert (out != "") is (name in goes_on)


# --- the machine ----------------------------------------------------------------------------------


LACKS = {
    "memory": (MemoryError(), "there is not enough memory"),
    "memory for a map": (
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        "there is not enough memory: [Errno 12] Cannot allocate memory",
    ),
    "memory of a GPU": (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore."),
        "there is not enough memory: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ),
    "threads": (
        RuntimeError("can't start new thread"),
        "the system starts no more threads for this process",
    ),
}


@pytest.mark.parametrize("lack", LACKS)
def test_what_the_machine_has_not_is_no_traceback(
    lack: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, told = LACKS[lack]

    def fails(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr("zoo.registry.load_registry", fails)
    status, out, err = command("list")
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {told}\n      = help: ")


def test_an_error_of_the_zoo_itself_has_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("a shape is wrong")

    monkeypatch.setattr("zoo.registry.load_registry", fails)
    with pytest.raises(RuntimeError, match="a shape is wrong"):
        run(["list"])


def test_options_of_other_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is told what stands for it here: options that the command has."""
    for command, others in OTHER_OPTIONS.items():
        made = cli.get_command(click.Context(cli), command)
        assert made is not None
        options = {option for one in made.params for option in one.opts}
        for words, told in others.items():
            assert options.isdisjoint(words.split())
            assert options.issuperset(re.findall(r"--[a-z-]+", told))
            for word in words.split():
                assert run([command, "x", word]) == 2
                assert f"Error: No such option '{word}': {told}" in capsys.readouterr().err
