"""Shared fixtures: a folder to work in, and commands that must fail with a proper error."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import HealthCheck, settings
from ranks import Ranks, ranks
from trials import Command, Refused, contents

from zoo.cli import run
from zoo.store.files import Store

# The tests are of the zoo as it is, whatever the settings, plugins and terminal of who runs them.
for name in [*os.environ]:
    if name.startswith(("ZOO_", "HF_")) or name.upper().endswith(("COLUMNS", "_COLOR", "_PROXY")):
        del os.environ[name]
NO_SETTINGS = TemporaryDirectory()
os.environ["XDG_CONFIG_HOME"] = NO_SETTINGS.name

# On a busy machine, every example is slow. And the examples are the same in every run: a change is
# judged by what it does, not by what happens to be drawn.
settings.register_profile(
    "zoo", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("zoo")

# Python looks for cycles after every 700 new objects, which takes a third of the time of collecting
# the tests. Between modules, `_freeze` looks too.
gc.set_threshold(50_000)

# With Python 3.13.0, torch warns of a fault of that version whenever it compiles.
if sys.version_info[:3] == (3, 13, 0):
    message = "Guards may run slower on Python 3.13.0. Consider upgrading to Python 3.13.1+."
    os.environ["PYTHONWARNINGS"] = f"ignore:{message}:RuntimeWarning"  # for the commands' processes


@pytest.fixture(scope="module", autouse=True)
def _freeze() -> None:
    """Keep the collector of garbage from what stays anyway, such as torch's modules and the tests:
    going through it took a quarter of the suite's time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Draw the same numbers in every run, whichever tests a worker ran before."""
    torch.default_generator.manual_seed(0)  # without the stack that manual_seed keeps for GPUs


@pytest.fixture
def without_cycles_found() -> Iterator[None]:
    """Python looks for no cycles meanwhile, as it may not for many generations."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration folder, which is empty."""
    folder = tmp_path / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder


@pytest.fixture
def project(tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, without a user's registry."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def store(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store of the working directory's user, which is empty."""
    monkeypatch.setenv("ZOO_HOME", str(tmp_path / "home"))
    return Store(tmp_path / "home")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs a command and returns its exit status, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture(scope="module")
def kit_processes() -> Iterator[None]:
    """The checks of plugins in a module share the processes that they try specs in, since starting
    them takes longer than most checks."""
    from zoo.plugin_kit import check

    with (
        check.in_processes() as cut,
        check.with_other_hashes() as other,
        pytest.MonkeyPatch.context() as m,
    ):
        m.setattr(check, "in_processes", lambda: nullcontext(cut))
        m.setattr(check, "with_other_hashes", lambda: nullcontext(other))
        yield


@pytest.fixture(scope="module")
def without_pictures() -> Iterator[None]:
    """Runs in this process do not draw their losses, which takes a third of the time of a short
    run."""
    from zoo.training import run as of_recipe

    with pytest.MonkeyPatch.context() as m:
        m.setattr(of_recipe, "plot_losses", lambda *_: None)
        yield


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two processes that are connected. They stay where the last test that used them was."""
    with ranks(2, tmp_path_factory.mktemp("ranks")) as pool:
        yield pool


@pytest.fixture
def refused(project: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Return a function that runs a command, which must fail as for a user's mistake (status 2,
    nothing on stdout, no traceback, nothing written), and returns its message."""

    def check(*arguments: str) -> str:
        before = contents(project)
        capsys.readouterr()
        assert run(arguments) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert "Traceback" not in output.err
        assert contents(project) == before
        return output.err

    return check


def pytest_unconfigure() -> None:
    NO_SETTINGS.cleanup()
