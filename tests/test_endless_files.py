"""Named pipes and devices in the place of files are refused, and not waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import zoo
from zoo.cli import run
from zoo.showing.full_form import to_toml

PIPE = "it is a named pipe, not a regular file"
DECODER = {
    "format": 1,
    "name": "small",
    "builder": "decoder",
    "vocab": 9,
    "n_layers": 1,
    "d_model": 8,
    "n_heads": 1,
    "d_ff": 8,
}
COMMANDS = [
    ("validate", "FILE"),
    ("show", "FILE"),
    ("build", "FILE"),
    ("diff", "FILE", "FILE"),
    ("train", "FILE"),
    ("lock", "FILE"),
    ("--registry", "FILE", "list"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_named_pipe(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipe.toml"
    os.mkfifo(path)
    assert run([str(path) if word == "FILE" else word for word in command]) == 2
    assert f"`{path}` cannot be read: {PIPE}" in capsys.readouterr().err


def test_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    assert run(["show", str(tmp_path / "zero.toml")]) == 2
    assert "it is a device, not a regular file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json"])
def test_a_named_pipe_in_the_folder_of_a_model(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / name)
    commands = {"config.json": ["import", str(tmp_path)]}
    if name != "config.json":
        zoo.save(zoo.build(DECODER), tmp_path)
    assert run(commands.get(name, ["run", str(tmp_path), "1 2"])) == 2
    assert PIPE in capsys.readouterr().err


@pytest.mark.parametrize("way", ["cat {0} | {1} show /dev/stdin", "{1} show <(sleep 0.2; cat {0})"])
def test_what_the_shell_passes_is_read(way: str, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(to_toml(DECODER))
    command = way.format(tmp_path / "tiny.toml", f"{sys.executable} -m zoo")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "small" in done.stdout
