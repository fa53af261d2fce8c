"""The folder of a run: no other run gets into it, what a killed one leaves is cleared away, and a
checkpoint that does not say where its run was is refused. And what a launcher states of training is
no part of a run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from breadth import one_then_slow
from forked import forked, forked_command
from toy_training import MODEL, RECIPE, command, write_toy
from trials import without_privileges

import zoo
from zoo.training import lock, train
from zoo.training.checkpoint_state import checkpoints
from zoo.training.loop import Loop

pytestmark = pytest.mark.usefixtures("without_pictures")

SHORT = RECIPE.replace("steps = 12", "steps = 8")
BEST = SHORT.replace("average = 2", 'keep = "best"')


def killed(calls: int) -> None:
    """Train until the n-th time that the names in the folder `out` are about to change."""

    def ends(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal calls
        if event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir") and "out" in str(arguments):
            calls -= 1
            if calls == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(ends)
    zoo.train("recipe.toml", output="out")


@pytest.mark.parametrize("resume", one_then_slow([False, True]))
def test_no_other_run_gets_into_the_folder(project: Path, resume: bool) -> None:
    """Not from another process, and not from this one."""
    path = write_toy(project, SHORT)
    told: list[str] = []
    learn = train.Run.learn

    def disturbed(self: Any, **options: Any) -> None:
        with pytest.raises(zoo.ZooError) as raised:
            zoo.train(path, output="out", resume=resume)
        told.append(str(raised.value))
        status, _, said = forked_command("train", path, "-o", "out", *["--resume"] * resume)
        assert status == 2
        told.append(said)
        learn(self, **options)

    with patch.object(train.Run, "learn", disturbed):
        report = zoo.train(path, output="out")
    assert len(told) == 2
    for error in told:
        assert ("another run trains in `out`" if resume else "`--resume` goes on") in error
    assert report == {**(zoo.train(path, output="alone") or {}), "path": report and report["path"]}
    assert not [path for path in Path("out").iterdir() if path.name.startswith(".")]


def test_a_folder_that_a_run_has_left_is_locked_again(project: Path) -> None:
    """Whoever has opened the file of a run that ends gets no lock with it."""
    folder = project / "out"
    first = lock._locked(folder)
    first.__enter__()
    flock = lock._lock

    def meanwhile(descriptor: int) -> None:
        if (folder / "ended").exists():
            return flock(descriptor)
        (folder / "ended").touch()
        first.__exit__(None, None, None)  # which removes the file that is open here
        return flock(descriptor)

    with (
        patch.object(lock, "_lock", meanwhile),
        lock._locked(folder),
        pytest.raises(zoo.ZooError, match="another run trains in"),
        lock._locked(folder),
    ):
        raise AssertionError
    assert [path.name for path in folder.iterdir()] == ["ended"]


def test_a_file_system_without_locks(project: Path) -> None:
    with (
        patch("fcntl.flock", side_effect=OSError(95, "Operation not supported")),
        lock._locked(project / "a" / "b"),
        lock._locked(project / "a" / "b"),
    ):
        pass
    assert not (project / "a").exists()  # which was made for the lock


def test_a_run_may_be_killed_at_any_time(project: Path) -> None:
    """Whatever it was about to do in its folder: the next one goes on, and clears it away."""
    path = write_toy(project, SHORT)
    whole = zoo.train(path, output="whole")
    assert whole is not None
    found: list[str] = []
    for calls in (2, 9, 13):
        assert forked(killed, calls) == -signal.SIGKILL
        found += [path.name for path in Path("out").rglob(".*")]
        resumed = zoo.train(path, output="out", resume=True)
        assert resumed is not None
        assert resumed["content_digest"] == whole["content_digest"]
        assert not list(Path("out").rglob(".*"))
        shutil.rmtree("out")
    kinds = {name.partition("-")[0] for name in found}
    assert kinds == {".zoo", ".step"}  # both kinds of what is not complete were left


def test_a_new_run_reads_no_tokenizer_of_one_that_was_killed(project: Path) -> None:
    """Neither the second one, which it has none of, nor a configuration beside it."""
    model = MODEL.replace("300", "290")
    write_toy(project, SHORT.replace('kind = "bpe"', 'kind = "bpe"\nshared = false'), model)
    assert forked(killed, 9) == -signal.SIGKILL
    assert Path("out/tokenizer_target.json").exists()
    Path("out/tokenizer_config.json").write_text("{}")
    path = write_toy(project, SHORT, model)
    resumed, whole = zoo.train(path, output="out", resume=True), zoo.train(path, output="whole")
    assert resumed is not None
    assert whole is not None
    assert resumed["content_digest"] == whole["content_digest"]
    assert {one.name for one in Path("out").iterdir()} == {
        one.name for one in Path("whole").iterdir()
    }


def _last(folder: str) -> Path:
    return checkpoints(Path(folder) / "checkpoints")[-1] / "state.json"


LINE = {"step": 8, "loss": 1.0, "learning_rate": 1.0, "tokens_per_second": 1.0}


@pytest.mark.parametrize(
    "changed",
    [
        *({"step": step} for step in ("8", None, -1, 4, 12, 8.5, [8], 10**400)),
        *({"history": lines} for lines in ([], None, {}, "x", [1], [{}], [{"step": 8}])),
        {"history": [{**LINE, "valid_loss": "low"}]},
        {"history": [{**LINE, "step": 9}]},
        *({"best": line} for line in ("x", {}, [1], 3, {"step": 8}, {**LINE, "loss": -1.0})),
        {"step": 4, "history": [{**LINE, "step": 4}], "best": None},
    ],
)
def test_a_state_that_does_not_say_where_the_run_was(
    shared_run: Callable[[], Path], changed: dict[str, Any]
) -> None:
    path = shared_run()
    state = _last("out")
    state.write_text(json.dumps(json.loads(state.read_text()) | changed))
    with pytest.raises(zoo.TrainingError, match=r"step-00000008` cannot be read: its state\.json"):
        zoo.train(path, output="out", resume=True)


def test_a_state_of_no_run(shared_run: Callable[[], Path]) -> None:
    path = shared_run()
    state = _last("out")
    told = json.loads(state.read_text())
    state.write_text(json.dumps(told | {"run": dict.fromkeys(told["run"], 1)}))
    with pytest.raises(zoo.TrainingError, match="of another version of the zoo"):
        zoo.train(path, output="out", resume=True)


@pytest.fixture(scope="module")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    zoo.train(write_toy(folder, BEST), output=folder / "out")
    return folder


@pytest.fixture
def shared_run(run_once: Path, project: Path) -> Callable[[], Path]:
    """Return a function that copies a finished run into the working directory, and returns the path
    of its recipe."""

    def copied() -> Path:
        shutil.copytree(run_once, project, dirs_exist_ok=True)
        return project / "recipe.toml"

    return copied


def test_the_best_checkpoint_is_missed_before_training_goes_on(project: Path) -> None:
    rising = BEST.replace("lr = 1e-2", "lr = 3.0").replace("every = 4", "every = 1")
    path = write_toy(project, rising.replace("inverse_sqrt", "constant"))
    report = zoo.train(path, output="out")
    assert report is not None
    assert report["best_step"] < 8
    shutil.rmtree(Path("out") / "checkpoints" / f"step-{report['best_step']:08}")
    with pytest.raises(zoo.TrainingError, match=r"the best checkpoint so far, .* is missing"):
        zoo.train(path, output="out", resume=True)


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
@pytest.mark.parametrize(("closed", "mode"), [(".", 0o600), ("checkpoints", 0o300)])
def test_checkpoints_that_may_not_be_read_are_not_taken_for_none(
    closed: str, mode: int, project: Path
) -> None:
    """Of a run that has not ended, which would begin anew."""
    path = write_toy(project, SHORT)
    zoo.train(path, output="out")
    for name in ("model.safetensors", "metrics.json"):
        Path("out", name).unlink()
    Path("out", closed).chmod(mode)
    try:
        done = subprocess.run(
            command("train", path, "-o", "out", "--resume"),
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=without_privileges,
        )
    finally:
        Path("out", closed).chmod(0o755)
    assert done.returncode == 2
    assert done.stderr == "error: `out/checkpoints` cannot be read: Permission denied\n"


def test_an_old_checkpoint_that_cannot_be_removed_is_told(project: Path) -> None:
    """The new one is complete by then, and the run goes on from it."""
    path = write_toy(project, SHORT.replace("average = 2", ""))
    whole = zoo.train(path, output="whole")
    remove = shutil.rmtree

    def opened(path: Path) -> None:
        if path.name == "step-00000004":  # as of a file that is open elsewhere, on a network's disk
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        remove(path)

    told = r"the old checkpoint `out/checkpoints/step-00000004` cannot be removed: Directory not em"
    with patch("shutil.rmtree", opened), pytest.raises(zoo.TrainingError, match=told):
        zoo.train(path, output="out")
    with patch.object(Loop, "update", side_effect=AssertionError):
        resumed = zoo.train(path, output="out", resume=True)
    assert whole is not None
    assert resumed is not None
    assert resumed["content_digest"] == whole["content_digest"]


def test_a_file_is_no_folder_to_resume_in(project: Path) -> None:
    path = write_toy(project, SHORT)
    with pytest.raises(zoo.ZooError, match=r"recipe\.toml` is there already, and a file"):
        zoo.train(path, output=path, resume=True)


def test_the_recipe_decides_and_not_the_configuration_of_accelerate(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`accelerate launch` sets these from its options, or from the file of `accelerate config`."""
    path = write_toy(project, SHORT)
    whole = zoo.train(path, output="whole")
    assert whole is not None
    launched = {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
        "ACCELERATE_DYNAMO_BACKEND": "EAGER",
    }
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    status, told, err = forked_command("train", path, "-o", "out", "--json")
    assert status == 0, err
    assert json.loads(told)["content_digest"] == whole["content_digest"]


def test_accelerate_is_not_to_divide_the_model(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_toy(project, SHORT)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(zoo.TrainingError, match=r"`ACCELERATE_USE_FSDP` is true(.|\n)*`shard = tr"):
        zoo.train(path, output="out")
    assert not Path("out").exists()
