"""`zoo.results` and `zoo results`: runs of training in one table and one plot."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from pathlib import Path

import pytest
from toy_training import PAIRS, RECIPE, write_toy
from trials import python

import zoo
from zoo.cli import run
from zoo.errors import InputError, TrainingError
from zoo.files.of_model import RECIPE as RECIPE_FILE
from zoo.reports.results import TrainingRun, by_seed

SPEC = """\
format = 1
name = "toy"
builder = "decoder"
vocab = 270
n_layers = 1
d_model = 16
n_heads = 2
d_ff = 32
position = "rotary"
"""
SHORT = RECIPE.replace("steps = 12", "steps = 2").replace(
    'kind = "tsv"\ntrain = "toy.tsv"\nvalid = 4',
    'kind = "text"\ntrain = "toy.txt"\nvalid = 4\ntest = 4',
)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs: two learning rates, each with two seeds."""
    folder = tmp_path_factory.mktemp("sweep")
    recipe = write_toy(folder, SHORT, SPEC)
    (folder / "toy.txt").write_text("".join(f"{target}\n" for _, target in PAIRS))
    for lr in ("1e-2", "2e-2"):
        for seed in (0, 1):
            text = recipe.read_text().replace("1e-2", lr).replace('"toy"', f'"lr-{lr}"')
            again = folder / "again.toml"
            again.write_text(f"seed = {seed}\n{text}".replace("[data]", "[data]\nseed = 5"))
            zoo.train(again, output=folder / f"{lr}-{seed}")
    return folder


@pytest.fixture
def runs(sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Copies of these runs in the working directory."""
    monkeypatch.chdir(tmp_path)
    names = sorted(path.name for path in sweep.iterdir() if path.is_dir())
    return [Path(shutil.copytree(sweep / name, name)) for name in names]


def metrics_of(folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "metrics.json").read_text())
    return found


def test_a_row_for_each_run(runs: list[Path]) -> None:
    rows = zoo.results(runs)
    keys = ["folder", "name", "seed", "lr", "parameters", "ended", "steps", "loss", "valid_loss"]
    keys += ["test_loss", "perplexity", "bits_per_byte"]
    assert [list(row) for row in rows] == [keys] * 4
    assert [(row["folder"], row["name"], row["seed"], row["lr"]) for row in rows] == [
        ("1e-2-0", "lr-1e-2", 0, 1e-2),
        ("1e-2-1", "lr-1e-2", 1, 1e-2),
        ("2e-2-0", "lr-2e-2", 0, 2e-2),
        ("2e-2-1", "lr-2e-2", 1, 2e-2),
    ]
    for row, folder in zip(rows, runs, strict=True):
        measured = metrics_of(folder)
        assert row["ended"]
        for key in keys[6:]:
            assert row[key] == measured[key]
    for one in (str(runs[0]), runs[0]):
        with pytest.raises(InputError, match="`runs` is a list, of one folder too"):
            zoo.results(one)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a run is the path of its folder, not int"):
        zoo.results([5])  # type: ignore[list-item]


def test_runs_with_several_seeds_share_a_line(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["results", *map(str, runs)]) == 0
    told = capsys.readouterr()
    assert not told.err  # the same data and tokenizers
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in told.out.splitlines())
    assert lines["name"].split() == ["lr-1e-2", "lr-2e-2"]
    assert re.split(r"  +", lines["seeds"]) == ["0, 1", "0, 1"]
    assert lines["lr"].split() == ["0.01", "0.02"]
    losses = [metrics_of(folder)["test_loss"] for folder in runs]
    expected = [
        f"{(a + b) / 2:.4f} ± {abs(a - b) / 2**0.5:.4f}" for a, b in (losses[:2], losses[2:])
    ]
    assert re.split(r"  +", lines["test_loss"]) == expected
    perplexities = [metrics_of(folder)["perplexity"] for folder in runs]
    expected = [
        f"{(a + b) / 2:.2f} ± {abs(a - b) / 2**0.5:.2f}"
        for a, b in (perplexities[:2], perplexities[2:])
    ]
    assert re.split(r"  +", lines["perplexity"]) == expected
    assert lines["steps"].split() == ["2", "2"]
    assert statistics.stdev(losses[:2]) > 0


def test_two_runs_of_one_seed_are_told_to_share_a_line(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Or a deviation of 0 would be one of a single run."""
    shutil.copytree(runs[0], "again")
    assert run(["results", str(runs[0]), "again"]) == 0
    told = capsys.readouterr().out.splitlines()
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in told)
    assert lines["seeds"] == "0, 0"
    assert lines["test_loss"].endswith(" ± 0.0000")


@pytest.mark.parametrize(("second", "told"), [(2, []), (3, ["seed"]), (1, ["seeds"])])
def test_seeds_are_told_where_they_differ(
    runs: list[Path], capsys: pytest.CaptureFixture[str], second: int, told: list[str]
) -> None:
    assert run(["results", str(runs[0]), str(runs[second])]) == 0
    words = capsys.readouterr().out.split()
    assert [word for word in words if word in ("seed", "seeds")] == told


def test_a_measure_that_a_run_does_not_have_is_empty(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The correlation of a model that says the same of all texts is null."""
    for folder, found in ((runs[0], None), (runs[2], 0.5)):
        (folder / "metrics.json").write_text(json.dumps(metrics_of(folder) | {"pearson": found}))
    assert [row["pearson"] for row in zoo.results([runs[0], runs[2]])] == [None, 0.5]
    for folder, expected in ((runs[0], ["pearson"]), (runs[2], ["pearson", "0.5000"])):
        assert run(["results", str(folder), str(runs[3])]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split() for line in lines if line.startswith("pearson")] == [expected]


def test_runs_of_other_models_share_no_line(runs: list[Path]) -> None:
    """Also where their recipes are the same: the spec was changed between the runs. They have the
    same name, so that their folders are told."""
    two = [TrainingRun.of(folder) for folder in runs[:2]]
    assert {name: len(group) for name, group in by_seed(two).items()} == {"lr-1e-2": 2}
    zoo.save(zoo.build(SPEC.replace("rotary", "alibi").replace("toy", "lr-1e-2")), runs[1])
    two = [TrainingRun.of(folder) for folder in runs[:2]]
    assert {name: len(group) for name, group in by_seed(two).items()} == {"1e-2-0": 1, "1e-2-1": 1}


def test_runs_of_other_data_share_no_line(
    sweep: Path, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the files have the same names, as on another machine."""
    shutil.copy(sweep / "model.toml", "model.toml")
    lines = (sweep / "toy.txt").read_text()
    recipe = (runs[0] / RECIPE_FILE).read_text()
    for name, text in (("same", lines), ("other", f"{lines}One more.\n")):
        Path(name).mkdir()
        (Path(name) / "toy.txt").write_text(text)
        Path("seed.toml").write_text(recipe.replace("seed = 0", "seed = 2"))
        zoo.train("seed.toml", data=name, output=Path(name) / "run")
    capsys.readouterr()
    assert run(["results", *map(str, runs[:2]), "same/run"]) == 0
    assert "0, 1, 2" in (told := capsys.readouterr()).out
    assert not told.err
    assert run(["results", *map(str, runs[:2]), "other/run"]) == 0
    assert "0, 1, 2" not in (told := capsys.readouterr()).out
    assert "the runs have read different data" in told.err


def test_a_run_that_is_named_twice_counts_once(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be a further seed, and would make the deviation less."""
    assert run(["results", *map(str, runs[:2])]) == 0
    once = capsys.readouterr().out
    assert run(["results", *map(str, runs[:2]), str(runs[0].absolute())]) == 0
    assert capsys.readouterr().out == once
    assert len(zoo.results([runs[0], f"./{runs[0]}"])) == 1


def test_a_run_that_has_not_ended(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Its last checkpoint counts, also where it was ended before and made longer."""
    stopped, longer, begun = runs[:3]
    (stopped / "metrics.json").unlink()
    found = metrics_of(longer) | {"steps": 1}
    (longer / "metrics.json").write_text(json.dumps(found))
    for path in begun.iterdir():
        if path.name != RECIPE_FILE:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    rows = zoo.results(runs)
    assert [row["ended"] for row in rows] == [False, False, False, True]
    assert [row["steps"] for row in rows] == [2, 2, 0, 2]
    last = found["history"][-1]  # type: ignore[index]
    assert (rows[1]["loss"], rows[1]["valid_loss"]) == (last["loss"], last["valid_loss"])
    assert (rows[1]["test_loss"], rows[1]["parameters"]) == (None, None)
    assert rows[2]["loss"] is None
    assert run(["results", *map(str, runs), "--svg", "losses.svg"]) == 0
    assert "2, not ended" in (told := capsys.readouterr().out)
    assert "0, not ended" in told


def test_a_run_that_was_made_longer_has_not_ended_without_a_checkpoint(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """But one that `patience` has ended has, after however many steps."""
    recipe = runs[0] / RECIPE_FILE
    recipe.write_text(recipe.read_text().replace("steps = 2", "steps = 90"))
    (row,) = zoo.results(runs[:1])
    assert (row["ended"], row["steps"]) == (False, 2)
    assert "test_loss" not in row
    assert run(["results", str(runs[0])]) == 0
    assert "2, not ended" in capsys.readouterr().out
    text = recipe.read_text().replace("average = 2", 'keep = "best"\npatience = 1')
    recipe.write_text(text)
    for _ in range(2):
        (row,) = zoo.results(runs[:1])
        assert (row["ended"], row["steps"]) == (True, 2)
        shutil.rmtree(runs[0] / "checkpoints", ignore_errors=True)  # as who needs the disk does


def test_what_makes_losses_hard_to_compare_is_told(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in runs[:2]:
        recipe = folder / RECIPE_FILE
        text = recipe.read_text().replace("\nseed = 5", "").replace("valid = 4", "valid = 0")
        recipe.write_text(text)
    assert run(["results", *map(str, runs[:2])]) == 0
    assert "held out differs with the seed" in capsys.readouterr().err
    (runs[2] / "tokenizer.json").write_text("{}")
    assert run(["results", *map(str, runs[2:])]) == 0
    assert "different tokenizers" in (told := capsys.readouterr().err)
    assert "held out" not in told
    # One by a file, and two by a seed of 0 in `[data]`, whatever that of the run is.
    changes = ("test = 4", 'test = "toy.txt"'), ("seed = 5", "seed = 0"), ("seed = 5", "seed = 0")
    for folder, change in zip(runs[1:], changes, strict=True):
        recipe = folder / RECIPE_FILE
        recipe.write_text(recipe.read_text().replace(*change))
    for some in (runs[1:3], runs[2:]):
        assert run(["results", *map(str, some)]) == 0
        assert "held out" not in capsys.readouterr().err


def test_one_plot_of_all_runs(runs: list[Path]) -> None:
    """With the name of each line of the table once; the same runs make the same bytes."""
    for path in ("one.svg", "two.svg"):
        assert run(["results", *map(str, runs), "--svg", path]) == 0
    drawn = Path("one.svg").read_text()
    assert drawn == Path("two.svg").read_text()
    assert [drawn.count(f">{name}<") for name in ("lr-1e-2", "lr-2e-2")] == [1, 1]
    assert "loss on held-out data" in drawn
    metrics = metrics_of(runs[0])
    for record in metrics["history"]:  # type: ignore[attr-defined]
        record.pop("valid_loss", None)
    (runs[0] / "metrics.json").write_text(json.dumps(metrics))
    assert run(["results", *map(str, runs), "--svg", "one.svg"]) == 0
    assert "loss of training" in Path("one.svg").read_text()


def test_what_is_no_run(runs: list[Path]) -> None:
    Path("stray").mkdir()
    with pytest.raises(TrainingError, match=r"`stray` is no folder of a run: it has no recipe"):
        zoo.results([runs[0], "stray"])
    with pytest.raises(TrainingError, match="is no folder of a run"):
        zoo.results(["x" * 300])  # a name that no file system has
    with pytest.raises(TrainingError, match=rf"name the runs in it: {runs[0].parent}/\*"):
        zoo.results([runs[0].parent])
    for damaged in ("{", "[" * 99999, '{"steps": 1, "loss": NaN, "history": []}'):
        (runs[0] / "metrics.json").write_text(damaged)
        with pytest.raises(TrainingError, match=r"metrics\.json: error: it cannot be read: "):
            zoo.results(runs)
    (runs[0] / "metrics.json").write_text('{"steps": 1}')
    with pytest.raises(TrainingError, match="these are no measurements of a run"):
        zoo.results(runs)
    (runs[0] / "metrics.json").unlink()
    shutil.rmtree(runs[0] / "checkpoints")
    with pytest.raises(TrainingError, match=r"`1e-2-0` holds a model, and no metrics\.json"):
        zoo.results(runs)


def test_results_are_told_without_torch(runs: list[Path]) -> None:
    code = (
        "import sys; from zoo.cli import run; "
        f"assert run(['results', {str(runs[0])!r}]) == 0; assert 'torch' not in sys.modules"
    )
    python(code)
