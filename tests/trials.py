"""Helpers for the tests of commands: what one says, the text of a small spec, the contents of a
folder, and a measure of the work of an action."""

from __future__ import annotations

import ctypes
import json
import os
import pty
import subprocess
import sys
import textwrap
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from zoo.cli import run

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., str]
"""The fixtures `command` and `refused`."""

KEYS = {
    "format": "1",
    "name": '"bad"',
    "builder": '"encoder_decoder"',
    "source_vocab": "10",
    "target_vocab": "11",
    "n_layers": "2",
    "d_model": "8",
    "n_heads": "2",
    "d_ff": "16",
}


def spec(*lines: str, without: str = "", **keys: str) -> str:
    """Return a small valid spec, with some keys replaced or left out and lines added."""
    stated = {key: value for key, value in {**KEYS, **keys}.items() if key != without}
    return "".join(f"{key} = {value}\n" for key, value in stated.items()) + "".join(
        f"{line}\n" for line in lines
    )


def write(path: Path, text: str) -> Path:
    """Write a text without its indentation, in a folder that is made for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of every file and folder below `folder`, except Python's caches."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What `zoo run` writes on stdout; it must succeed."""
    capsys.readouterr()
    assert run(["run", *arguments]) == 0
    return capsys.readouterr().out


def reported(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The result of `zoo run --json`; it must succeed."""
    return json.loads(said(capsys, *arguments, "--json"))


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own; the options are those of `subprocess.run`."""
    return subprocess.run(
        [sys.executable, "-m", "zoo", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        **{"timeout": 300, **options},
    )


def python(code: str, *arguments: str, cwd: Path | None = None) -> str:
    """Run code, which must succeed, in a process of its own, and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def on_terminal(*arguments: str, columns: int = 80) -> tuple[str, bytes]:
    """Run a command that must succeed; return its output on stdout, a pipe, and on stderr, a
    terminal."""
    shown, screen = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "zoo", *arguments],
        stdout=subprocess.PIPE,
        stderr=screen,
        env={**os.environ, "TERM": "xterm", "COLUMNS": str(columns)},
        text=True,
    )
    os.close(screen)
    on_screen = b""
    while True:
        try:
            part = os.read(shown, 4096)
        except OSError:  # the other side is closed
            break
        on_screen += part
    out, _ = running.communicate()
    os.close(shown)
    assert running.returncode == 0, on_screen.decode()
    return out, on_screen


def without_privileges() -> None:
    """Take from a child of root what lets it read and write everything (capabilities 1 and 2)."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)


@contextmanager
def other_defaults(device: str = "meta") -> Generator[None]:
    """Set other defaults of torch for a block. The device is one that every machine has; a tensor
    there has no values, so that what is made there by mistake cannot be used."""
    import torch

    torch.set_default_device(device)
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def calls(action: Callable[[], object]) -> int:
    """Return the number of function calls of an action, including functions in C."""
    count = 0

    def look(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(look)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count
