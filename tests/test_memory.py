"""The memory that a process can have, and models that do not fit into it."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

import pytest
import torch
from trials import Command, process

import zoo
from zoo.machine.memory_limit import memory_limit

MEMINFO = "MemTotal:       1000 kB\nMemFree:         10 kB\nSwapTotal:       200 kB\n"
KB = 1024
UNLIMITED = str(2**63 - 4096)

MACHINES: dict[str, tuple[dict[str, str], int | None]] = {
    "no cgroup": ({}, 1200 * KB),
    "no limit": ({"memory.max": "max\n", "memory.swap.max": "max\n"}, 1200 * KB),
    "a limit": ({"a/b/memory.max": f"{300 * KB}\n"}, 500 * KB),
    "no swap": ({"a/b/memory.max": f"{300 * KB}\n", "a/b/memory.swap.max": "0\n"}, 300 * KB),
    "more swap than there is": (
        {"a/b/memory.max": f"{300 * KB}\n", "a/b/memory.swap.max": f"{900 * KB}\n"},
        500 * KB,
    ),
    "a limit around it": (
        {"a/memory.max": f"{100 * KB}\n", "a/b/memory.max": f"{400 * KB}\n"},
        300 * KB,
    ),
    "a limit of another": ({"a/c/memory.max": f"{100 * KB}\n"}, 1200 * KB),
    "a container": ({"memory.max": f"{400 * KB}\n"}, 600 * KB),
    "version 1": ({"memory/a/b/memory.limit_in_bytes": f"{300 * KB}\n"}, 500 * KB),
    "version 1 with swap": (
        {
            "memory/a/b/memory.limit_in_bytes": f"{300 * KB}\n",
            "memory/a/b/memory.memsw.limit_in_bytes": f"{350 * KB}\n",
        },
        350 * KB,
    ),
    "version 1, unlimited": ({"memory/memory.limit_in_bytes": f"{UNLIMITED}\n"}, 1200 * KB),
}


@pytest.mark.parametrize(("files", "expected"), MACHINES.values(), ids=MACHINES)
def test_what_a_process_can_have(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    (tmp_path / "proc/self/cgroup").write_text("4:cpu,memory:/a/b\n1:cpuset:/x\n0::/a/b\n")
    for name, content in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert memory_limit(tmp_path) == expected


def test_a_machine_that_does_not_tell(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="only Linux tells")
def test_the_limit_of_this_machine_is_at_most_its_memory() -> None:
    machine = resource.getpagesize() * int(
        subprocess.run(["getconf", "_PHYS_PAGES"], capture_output=True, check=True).stdout
    )
    limit = memory_limit()
    assert limit is not None
    swaps = Path("/proc/swaps").read_text().splitlines()[1:]
    assert 1 << 28 < limit <= machine + 1024 * sum(int(line.split()[2]) for line in swaps)


LARGE = """\
format = 1
name = "large"
builder = "decoder"
vocab = 1000
n_layers = 1000
d_model = 8192
n_heads = 64
d_ff = 32768
"""
"""Tensors of at most 1 GB, each of which can be allocated, and 3.2 TB in all."""


def test_a_model_larger_than_the_memory_is_refused_before_any_of_it_is_made(
    project: Path, command: Command
) -> None:
    (project / "large.toml").write_text(LARGE)

    def spare_this_machine() -> None:  # in case it is not refused
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))

    done = process("build", "large.toml", preexec_fn=spare_this_machine)
    assert (done.returncode, done.stdout) == (2, "")
    assert "large does not fit into memory: its tensors are 3,2" in done.stderr
    assert f"and there are {memory_limit():,} with swap" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in project.iterdir()] == ["large.toml"]
    assert command("build", "large.toml", "--device", "meta")[0] == 0


def test_every_byte_of_a_model_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed tables take memory as well. The memory of this machine cannot be filled to the last
    byte, so its size is passed."""
    sizes = {"vocab": 11, "n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 16}
    table = {"kind": "sinusoidal", "max_length": 100}
    spec = {"format": 1, "name": "tiny", "builder": "decoder", **sizes, "position": table}
    n_bytes = 2 * (zoo.read_spec(spec).n_parameters + 100 * 8)
    monkeypatch.setattr("zoo.building.memory_limit", lambda: n_bytes)
    zoo.build(spec, dtype=torch.bfloat16)
    monkeypatch.setattr("zoo.building.memory_limit", lambda: n_bytes - 1)
    with pytest.raises(zoo.ZooError, match=f"are {n_bytes:,} bytes, and there are {n_bytes - 1:,}"):
        zoo.build(spec, dtype=torch.bfloat16)
