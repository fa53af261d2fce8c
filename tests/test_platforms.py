"""Systems other than Linux, which these tests imitate: macOS has less and refuses more, Windows is
refused."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from small_specs import TINY

import zoo
from zoo.weights import open_file

SPEC = """
format = 1
name = "tiny"
builder = "decoder"
vocab = 100
n_layers = 1
d_model = 1024
n_heads = 8
d_ff = 512
"""
"""Of more than 256 KiB in a tensor, which Linux keeps in huge pages."""
MACOS = r"""
import ctypes, errno, os, stat, sys, sysconfig
from pathlib import Path

import torch

sysconfig.get_config_vars()  # as torch, these are those of Linux
sys.platform = "darwin"
errno.ENOTSUP, errno.EOPNOTSUPP = 45, 102  # which are one on Linux
for name in ("sched_getaffinity", "posix_fadvise", "memfd_create"):
    delattr(os, name)


class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("malloc_trim", "madvise"):
            raise AttributeError(name)
        return super().__getattr__(name)


def refuses(event, arguments):
    if event == "open" and str(arguments[0]).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", arguments[0])


def fails(*arguments):
    raise OSError(errno.ENOTSUP, "Operation not supported")


def fsync(descriptor, of_file=os.fsync):
    of_file(descriptor) if stat.S_ISREG(os.fstat(descriptor).st_mode) else fails()


ctypes.CDLL = Library
sys.addaudithook(refuses)

import fcntl

os.fsync, os.link, fcntl.flock = fsync, fails, fails

from zoo.benching.memory import meter_of
from zoo.cli import run
from zoo.machine.memory_limit import memory_limit
from zoo.training.lock import _locked

for line in sys.stdin.read().splitlines():
    assert run(line.split()) == 0, line
assert meter_of(torch.device("cpu")) is memory_limit() is None
with _locked(Path("run")):
    pass
"""
"""Runs commands with what macOS has, on a disk that has no links or locks, and syncs no folders."""


def test_what_only_linux_has_is_not_needed(project: Path) -> None:
    Path("tiny.toml").write_text(SPEC)
    lines = [
        "build tiny.toml -o tiny",
        "load tiny",
        "push tiny shared -o models/tiny.v1.toml --license MIT",
        "pull tiny.v1",
        "rm tiny.v1",
        "gc",
    ]
    Path("models").mkdir()
    Path("registry.toml").write_text('format = 1\ncatalog = "models"\n')
    done = subprocess.run(
        [sys.executable, "-c", MACOS],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        env={**os.environ, "ZOO_HOME": "store"},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_a_call_of_the_system_is_given_no_more_than_it_takes(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS refuses to read 2 GiB at once; here, it is 100 bytes."""
    read: Callable[..., int] = os.preadv

    def preadv(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        if sum(map(len, buffers)) > 100:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return read(descriptor, buffers, offset)

    model = zoo.build(TINY)
    zoo.save(model, "tiny.safetensors")
    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(open_file, "AT_ONCE", 100)
    loaded = zoo.load("tiny.safetensors").state_dict()
    assert max(tensor.nbytes for tensor in loaded.values()) > 100
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in model.state_dict().items())


def test_windows_is_refused_at_the_door() -> None:
    code = "import sys; sys.platform = 'win32'; import zoo"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = "ImportError: the zoo runs on Linux and macOS; on Windows, install it in WSL"
    assert done.stderr.splitlines()[-1] == last
