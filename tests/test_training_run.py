"""Whole runs of a recipe: their results, which neither a crash nor the number of processes
changes."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import resource
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tomllib
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import training_tasks as tasks
from breadth import one_then_slow, slow
from ranks import Ranks
from safetensors import safe_open
from tokenizers import Tokenizer
from toy_training import MODEL, PAIRS, RECIPE, in_processes, write_toy
from trials import Refused

import zoo
from zoo.cli import run
from zoo.store.files import Store
from zoo.training.batches import Row
from zoo.training.checkpoint_state import checkpoints
from zoo.training.data import DataReader
from zoo.training.data_tables import Text, Tsv
from zoo.training.loop import Loop
from zoo.training.plot import plot_losses
from zoo.training.recipe import read_recipe
from zoo.training.recipe_data import find_data

pytestmark = pytest.mark.usefixtures("without_pictures")

Toy = Callable[..., dict[str, Any]]


@pytest.fixture
def toy(tmp_path: Path, config: Path) -> Toy:
    """Return a function that trains the toy into the folder `out` and returns its metrics."""

    def run(out: str = "out", recipe: str = RECIPE, model: str = MODEL, **options: Any) -> Any:
        path = write_toy(tmp_path, recipe, model)
        return zoo.train(path, output=tmp_path / out, **options)

    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy's files, and those of an uninterrupted run in the folder `whole`."""
    folder = tmp_path_factory.mktemp("whole")
    zoo.train(write_toy(folder), output=folder / "whole")
    return folder


@pytest.fixture
def digest(whole: Path, tmp_path: Path) -> str:
    """The digest of the weights of an uninterrupted run, which is in the folder `whole`."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    return str(json.loads((whole / "whole" / "metrics.json").read_text())["content_digest"])


@pytest.fixture
def ended(whole: Path, tmp_path: Path) -> Path:
    """The folder `out` of a run that has ended."""
    return Path(shutil.copytree(whole / "whole", tmp_path / "out"))


def test_what_a_run_leaves(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.training.run.plot_losses", plot_losses)
    recipe = RECIPE.replace("warmup = 4", "warmup = 100").replace(
        "valid = 4", "valid = 4\ntest = 8"
    )
    recipe = recipe.replace("steps = 12", "steps = 200").replace("every = 4", "every = 100")
    recipe = recipe.replace("valid_every = 6", "valid_every = 30")
    recipe = recipe.replace("log_every = 2", "log_every = 10").replace("label_smoothing = 0.1", "")
    report = toy(recipe=recipe, model=MODEL.replace("0.1", "0.0").replace("16", "32"))
    folder = tmp_path / "out"
    kept = json.loads((folder / "metrics.json").read_text())
    assert {key: kept[key] for key in report} == report
    assert kept["examples"] == {"train": 52, "valid": 4, "test": 8}
    logged, measured = {*range(10, 201, 10)}, {*range(30, 201, 30), 200}
    assert [record["step"] for record in kept["history"]] == sorted(logged | measured)
    assert {record["step"] for record in kept["history"] if "valid_loss" in record} == measured
    picture = (folder / "loss.svg").read_text()
    assert "<svg" in picture
    assert "cross-entropy, nats" in picture
    assert (folder / "recipe.toml").read_text() == recipe
    model = zoo.load(folder)
    assert model.spec == zoo.read_spec(tmp_path / "model.toml")
    # The model and its tokenizer work together, using only the files in the folder.
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = json.loads((folder / "generation_config.json").read_text())
    sources = [tokenizer.encode(source).ids for source, _ in PAIRS]
    found = zoo.generate(
        model,
        sources,
        max_new_tokens=30,
        eos=ids["eos_token_id"],
        start=ids["decoder_start_token_id"],
    )
    right = [tokenizer.decode(one.ids) == pair[1] for one, pair in zip(found, PAIRS, strict=True)]
    assert sum(right) > 0.9 * len(PAIRS)
    assert report["bleu"] > 70
    again = zoo.score(folder, data=tmp_path)
    assert again == {key: report[key] for key in ("bleu", "signature", "pairs")}
    assert again["pairs"] == 8


def test_references_of_two_characters_for_a_letter_and_its_accent(toy: Toy, tmp_path: Path) -> None:
    """A learned tokenizer writes one."""
    write_toy(tmp_path)
    german = unicodedata.normalize("NFD", "der Hüne hört die späte Flöte")
    (tmp_path / "accents.tsv").write_text(f"the giant hears the late flute\t{german}\n", "utf-8")
    recipe = RECIPE.replace("toy.tsv", "accents.tsv").replace("valid = 4", 'test = "accents.tsv"')
    recipe = recipe.replace("steps = 12", "steps = 60").replace("average = 2", "")
    recipe = recipe.replace("every = 4", "every = 60").replace("label_smoothing = 0.1", "")
    recipe = recipe.replace("inverse_sqrt", "constant")
    model = MODEL.replace("dropout = 0.1", "")
    assert toy(recipe=recipe, model=model)["bleu"] == pytest.approx(100)


def test_a_resumed_run_has_the_same_weights(toy: Toy, digest: str) -> None:
    toy(recipe=RECIPE.replace("steps = 12", "steps = 7"))
    assert toy(resume=True)["content_digest"] == digest
    assert toy(resume=True)["content_digest"] == digest  # no steps remain


def test_a_resumed_run_has_the_same_weights_with_muon(toy: Toy) -> None:
    muon = RECIPE.replace('"adamw"', '"muon"')
    digest = toy("whole", recipe=muon)["content_digest"]
    toy(recipe=muon.replace("steps = 12", "steps = 7"))
    assert toy(recipe=muon, resume=True)["content_digest"] == digest


def test_a_disk_that_cannot_sync_folders(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert toy()["steps"] == 12


def test_a_resumed_run_has_the_same_log(toy: Toy, tmp_path: Path) -> None:
    """Also if a checkpoint is between two of its lines."""
    recipe = RECIPE.replace("log_every = 2", "log_every = 3").replace("steps = 12", "steps = 8")
    toy("whole", recipe=recipe)
    out = shutil.copytree(tmp_path / "whole", tmp_path / "out")
    shutil.rmtree(checkpoints(out / "checkpoints")[-1])
    toy(recipe=recipe, resume=True)
    assert history(out) == history(tmp_path / "whole")


def test_each_epoch_has_another_order_and_each_step_another_dropout(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So has each process. The logged loss is the mean per token since the last log point."""
    seen: list[Row] = []
    seeds: set[int] = set()
    losses: list[tuple[float, int]] = []
    update = Loop.update

    def noted(self: Loop, batch: Sequence[Row], step: int) -> torch.Tensor:
        seen.extend(batch)
        total = update(self, batch, step)
        seeds.add(torch.initial_seed())
        losses.append((float(total), sum(len(row.target) - 1 for row in batch)))
        with patch.object(type(self.learner.accelerator), "process_index", 1):
            self.seed(step)
        seeds.add(torch.initial_seed())
        return total

    monkeypatch.setattr(Loop, "update", noted)
    toy()
    n_rows = len(PAIRS) - 4
    first, second = seen[:n_rows], seen[n_rows : 2 * n_rows]
    assert sorted(first) == sorted(second)
    assert first != second
    assert len(losses) == 12
    assert len(seeds) == 2 * 12
    for record in json.loads((tmp_path / "out" / "metrics.json").read_text())["history"]:
        totals, counts = zip(*losses[record["step"] - 2 : record["step"]], strict=True)
        assert record["loss"] == pytest.approx(sum(totals) / sum(counts))


def test_the_seed_decides(toy: Toy, digest: str) -> None:
    assert toy("again")["content_digest"] == digest
    other = RECIPE.replace('"model.toml"', '"model.toml"\nseed = 1')
    assert toy("other", recipe=other)["content_digest"] != digest


def test_labels_are_smoothed(toy: Toy, digest: str) -> None:
    plain = RECIPE.replace("label_smoothing = 0.1\n", "")
    assert toy("plain", recipe=plain)["content_digest"] != digest


ENDED = """\
import os, sys
from zoo.__main__ import main
from zoo.training.progress import Lines


def advance(lines, step):
    if step == 9:
        os.kill(os.getpid(), sent)


sent = int(sys.argv.pop(1))
Lines.advance = advance
main()
"""
"""Runs a command that trains, with a signal after its ninth step."""


@pytest.mark.parametrize(
    ("sent", "status"),
    [(signal.SIGKILL, -signal.SIGKILL), slow(pytest.param(signal.SIGINT, 130))],
)
def test_a_killed_run_goes_on(
    sent: signal.Signals, status: int, toy: Toy, digest: str, tmp_path: Path
) -> None:
    """It is killed after its second checkpoint; or interrupted, which prints how to continue."""
    arguments = ["train", tmp_path / "recipe.toml", "-o", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, "-c", ENDED, str(int(sent)), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        capture_output=True,
        text=True,
        check=False,
        # These tests may run as a background job, which is started with interrupts ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.returncode == status, done.stderr
    assert ("with `--resume`" in done.stderr) == (sent == signal.SIGINT)
    assert "Traceback" not in done.stderr
    folder = tmp_path / "out" / "checkpoints"
    assert checkpoints(folder)
    assert not (tmp_path / "out" / "model.safetensors").exists()
    with pytest.raises(
        zoo.WeightsError, match=r"has not ended; `zoo train .*/out'? --resume` goes"
    ):
        zoo.load(tmp_path / "out")
    (folder / ".step-00000099.tmp").mkdir()  # as if it had been killed while writing it
    assert toy(resume=True)["content_digest"] == digest
    assert not list(folder.glob(".*"))


def test_a_full_disk_leaves_the_last_checkpoint(
    toy: Toy, digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy(recipe=RECIPE.replace("steps = 12", "steps = 4"))
    folder = tmp_path / "out" / "checkpoints"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
    try:
        with pytest.raises(zoo.TrainingError, match="File too large"):
            toy(resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert toy(resume=True)["content_digest"] == digest


def test_a_checkpoint_is_on_disk_before_it_has_its_name(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a crash could leave the name with half of the bytes."""
    synced: list[int] = []
    sync, rename = os.fsync, Path.rename
    folder = tmp_path / "out" / "checkpoints"

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    def name(self: Path, target: Path) -> Path:
        if target.parent == folder:
            assert {path.stat().st_ino for path in (self, *self.iterdir())} <= set(synced)
            synced.clear()
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", name)
    toy(recipe=RECIPE.replace("steps = 12", "steps = 4"))
    assert checkpoints(folder)
    assert folder.stat().st_ino in synced  # the name, too


def test_a_damaged_checkpoint_is_told(toy: Toy, ended: Path) -> None:
    (file,) = checkpoints(ended / "checkpoints")[-1].glob("*.safetensors")
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(zoo.TrainingError, match=r"step-00000012` cannot be read"):
        toy(resume=True)
    for state in ("[]", '{"step": 12}', "{"):
        (file.parent / "state.json").write_text(state)
        with pytest.raises(zoo.TrainingError, match=r"step-00000012` cannot be read"):
            toy(resume=True)


def test_checkpoints_are_in_the_order_of_their_steps(tmp_path: Path) -> None:
    steps = (2, 99_999_999, 100_000_000, 1_000_000_000)
    for step in reversed(steps):
        (tmp_path / f"step-{step:08}").mkdir()
    (tmp_path / "step-3").mkdir()  # not the zoo's
    assert [int(path.name.removeprefix("step-")) for path in checkpoints(tmp_path)] == [*steps]


@pytest.mark.usefixtures("ended")
def test_another_run_is_not_gone_on_with(toy: Toy, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "toy.tsv").write_text("".join(f"{a}\t{b}!\n" for a, b in PAIRS))
    recipe = RECIPE.replace("lr = 1e-2", "lr = 2e-2").replace("clip_norm = 1.0\n", "")
    with pytest.raises(zoo.TrainingError, match="of another recipe") as caught:
        toy(resume=True, recipe=recipe.replace("valid = 4", "valid = 4\nheader = true"))
    for told in (
        "recipe.toml:16:6: note: `optimizer.lr` was 0.01 when the run began, and is 0.02 now\n"
        "   16 | lr = 2e-2",
        "recipe.toml:9:10: note: `data.header` was false when the run began, and is true now\n",
        "recipe.toml:22:2: note: `training.clip_norm` was 1.0 when the run began, and is not "
        "stated now\n",
    ):
        assert told in str(caught.value)
    assert str(caught.value).count("note: ") == 3
    with pytest.raises(
        zoo.TrainingError, match=r"recipe.toml:3:9: .* is of another model\n"
    ) as caught:
        toy(resume=True, model=MODEL.replace("dropout = 0.1", "dropout = 0.2"))
    assert len(caught.value.problems) == 1
    (tmp_path / "moved.toml").write_text(MODEL.replace("dropout = 0.1", "dropout = 0.2"))
    moved = RECIPE.replace("model.toml", "moved.toml")
    with pytest.raises(zoo.TrainingError, match=r"recipe.toml:3:9: .* another model\n") as caught:
        toy(resume=True, recipe=moved)
    assert len(caught.value.problems) == 1
    assert 'note: `model` was "model.toml" when the run began, and is "mov' in str(caught.value)
    with pytest.raises(zoo.TrainingError, match="of another recipe\n") as caught:
        toy(resume=True, recipe=moved.replace("lr = 1e-2", "lr = 2e-2"))
    assert len(caught.value.problems) == 2
    assert str(caught.value).count("help: only ") == 1
    with pytest.raises(
        zoo.TrainingError, match=r"recipe.toml:5:2: .* is of other data\n"
    ) as caught:
        toy(resume=True, data=other)
    assert len(caught.value.problems) == 1
    longer = RECIPE.replace("steps = 12", "steps = 14") + "[evaluation]\nbeam = 1\n"
    assert toy(resume=True, recipe=longer)["steps"] == 14
    assert (tmp_path / "out" / "recipe.toml").read_text() == longer
    with pytest.raises(zoo.TrainingError, match="of 14 steps, more than `steps = 12`") as caught:
        toy(resume=True)
    assert "recipe.toml:22:9: error: " in str(caught.value)
    assert (tmp_path / "out" / "recipe.toml").read_text() == longer


def test_what_decides_nothing_may_change(toy: Toy) -> None:
    """Defaults that are written out, and when what is measured, told and kept."""
    toy(recipe=RECIPE.replace("steps = 12", "steps = 4"))
    recipe = RECIPE.replace("valid = 4", "valid = 4\nheader = false\nsource = 1")
    recipe = recipe.replace("lr = 1e-2", "lr = 0.01\nbetas = [0.9, 0.98]").replace(
        "every = ", "every = 1"
    )
    recipe = recipe.replace("average = 2", "average = 2\naccumulate = 1")
    assert toy(resume=True, recipe=recipe)["steps"] == 12
    toy("parts", recipe=RECIPE.replace("steps = 12", "steps = 4"))
    parts = RECIPE.replace("average = 2", "average = 2\naccumulate = 3")
    assert toy("parts", resume=True, recipe=parts)["steps"] == 12


def test_what_the_result_is_called_and_stored_in_may_change(
    toy: Toy, whole: Path, ended: Path, tmp_path: Path
) -> None:
    """And where the same model and data are, and what is measured: a finished run is then only told
    anew."""
    recipe = RECIPE.replace('name = "toy"', 'name = "bier"\ndtype = "float16"')
    recipe = recipe.replace("toy.tsv", "bier.tsv").replace(
        "valid = 4", 'valid = 4\ntest = "test.tsv"'
    )
    recipe = recipe.replace("model.toml", "bier.toml")
    write_toy(tmp_path)
    shutil.copy(tmp_path / "toy.tsv", tmp_path / "bier.tsv")
    shutil.copy(tmp_path / "model.toml", tmp_path / "bier.toml")
    (tmp_path / "test.tsv").write_text("ein Hund ist alt\ta dog is old\n")
    with patch.object(Loop, "update", side_effect=AssertionError):
        again = toy(resume=True, recipe=recipe)
    assert (again["name"], again["examples"]["test"]) == ("bier", 1)
    assert "bleu" in again
    half, full = (zoo.load(folder).state_dict() for folder in (ended, whole / "whole"))
    for name, tensor in full.items():
        assert torch.equal(half[name], tensor.half())


@pytest.mark.slow
def test_a_run_may_be_sharded_from_a_checkpoint_on(toy: Toy, tmp_path: Path, two: Ranks) -> None:
    lean = MODEL.replace("dropout = 0.1", "dropout = 0.0")
    recipe = RECIPE.replace("lr = 1e-2", "lr = 1e-2\neps = 1e-3")
    alone = toy("alone", recipe=recipe, model=lean)
    toy("more", recipe=recipe.replace("steps = 12", "steps = 4"), model=lean)
    write_toy(tmp_path, recipe.replace("steps = 12", "steps = 12\nshard = true"), lean)
    folder = tmp_path / "more"
    two(partial(tasks.trained, resume=True), tmp_path, folder)
    more = json.loads((folder / "metrics.json").read_text())
    assert (more["processes"], more["steps"]) == (2, 12)
    assert more["valid_loss"] == pytest.approx(alone["valid_loss"], rel=1e-5)


def test_a_default_that_has_changed_is_told(toy: Toy, ended: Path) -> None:
    """As if the run had begun with a zoo that had another default."""
    path = checkpoints(ended / "checkpoints")[-1] / "state.json"
    state = json.loads(path.read_text())
    state["run"]["recipe"]["optimizer.eps"] = 1e-8
    path.write_text(json.dumps(state))
    with pytest.raises(zoo.TrainingError, match=r"`optimizer.eps` was 1e-08 .*, and is 1e-09 now"):
        toy(resume=True)


def test_a_checkpoint_of_an_earlier_zoo_is_told(toy: Toy, ended: Path) -> None:
    path = checkpoints(ended / "checkpoints")[-1] / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"run": "4f" * 32}))
    with pytest.raises(zoo.TrainingError, match="is of another version of the zoo") as caught:
        toy(resume=True)
    assert "help: begin anew with another `-o`" in str(caught.value)


def test_resuming_where_no_checkpoint_is(toy: Toy, digest: str, tmp_path: Path) -> None:
    """Files of a run that ended before its first checkpoint, here with another tokenizer, do not
    affect the new run; an existing model is not overwritten."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    out.mkdir()
    for name in ("tokenizer.json", "generation_config.json"):
        text = (whole / name).read_text()
        (out / name).write_text(text.replace('"merges"', '"merge_list"'))
    assert toy(resume=True)["content_digest"] == digest
    shutil.rmtree(out / "checkpoints")
    with pytest.raises(zoo.ZooError, match="a model, and no checkpoint to go on from"):
        toy(resume=True, recipe=RECIPE.replace("lr = 1e-2", "lr = 2e-2"))
    assert zoo.save(zoo.load(out), tmp_path / "same") == digest


def test_parts_of_a_batch_make_the_same_update(toy: Toy, tmp_path: Path) -> None:
    lean = MODEL.replace("dropout = 0.1", "dropout = 0.0")
    losses = []
    for accumulate in (1, 3, 1000):
        recipe = RECIPE.replace("steps = 12", f"steps = 12\naccumulate = {accumulate}")
        toy(f"parts-{accumulate}", recipe=recipe.replace("1e-2", "1e-3"), model=lean)
        losses.append(history(tmp_path / f"parts-{accumulate}"))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)


def test_gradients_are_cut_to_their_norm(toy: Toy, tmp_path: Path) -> None:
    """So the length of the first step of SGD is that norm times the learning rate, which is a
    quarter of its peak in a warm-up of 4."""
    recipe = RECIPE.replace("adamw", "sgd").replace("lr = 1e-2", "lr = 2.0")
    recipe = recipe.replace("steps = 12", "steps = 1").replace("clip_norm = 1.0", "clip_norm = 0.1")
    toy(recipe=recipe)
    trained = dict(zoo.load(tmp_path / "out").named_parameters())
    moved = [
        float((trained[name] - parameter).detach().double().square().sum())
        for name, parameter in zoo.build(MODEL).named_parameters()
    ]
    assert sum(moved) ** 0.5 == pytest.approx(0.1 * 2.0 / 4, rel=1e-3)


def history(folder: Path) -> dict[str, float]:
    """Return the losses in the log of a folder."""
    records = json.loads((folder / "metrics.json").read_text())["history"]
    return {
        f"{key} {record['step']}": record[key]
        for record in records
        for key in ("loss", "valid_loss")
        if key in record
    }


@pytest.mark.parametrize("shard", one_then_slow(["true", "false"]))
def test_two_processes_learn_the_same_as_one(toy: Toy, tmp_path: Path, shard: str) -> None:
    lean = MODEL.replace("dropout = 0.1", "dropout = 0.0")
    # With a large eps, gradients that are zero up to rounding change nothing.
    recipe = RECIPE.replace("lr = 1e-2", "lr = 1e-2\neps = 1e-3")
    recipe = recipe.replace("steps = 12", f"steps = 12\nshard = {shard}\naccumulate = 2")
    # So few rows in a batch that a part of it may have none.
    recipe = recipe.replace("batch_tokens = 300", "batch_tokens = 40")
    alone = toy("alone", recipe=recipe, model=lean)
    said = in_processes(
        "train", tmp_path / "recipe.toml", "-o", tmp_path / "two", processes=2, timeout=300
    )
    assert said.count("step 12/12") == 1  # only one of the two reports
    assert json.loads((tmp_path / "two" / "metrics.json").read_text())["processes"] == 2
    assert history(tmp_path / "two") == pytest.approx(history(tmp_path / "alone"), rel=1e-5)
    one, two = zoo.load(tmp_path / "alone"), zoo.load(tmp_path / "two")
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(two.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)
    assert two.encoder.embed.tokens.weight is two.decoder.embed.tokens.weight
    assert two.head.out.weight is two.decoder.embed.tokens.weight
    # Each process has written its own shard: half of the sharded weights.
    shapes: dict[str, list[list[int]]] = {}
    for file in sorted(checkpoints(tmp_path / "two" / "checkpoints")[-1].glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                shapes.setdefault(name, []).append(tensors.get_slice(name).get_shape())
    table = "decoder.embed.tokens.weight"
    assert shapes[table] == ([[150, 16]] * 2 if shard == "true" else [[300, 16]])
    assert "encoder.embed.tokens.weight" not in shapes
    # One process can continue from the checkpoint of two.
    for path in (tmp_path / "two").iterdir():
        if path.name in ("model.safetensors", "metrics.json"):
            path.unlink()
    shutil.rmtree(checkpoints(tmp_path / "two" / "checkpoints")[-1])
    again = toy("two", recipe=recipe, model=lean, resume=True)
    assert history(tmp_path / "two") == pytest.approx(history(tmp_path / "alone"), rel=1e-5)
    assert again["valid_loss"] == pytest.approx(alone["valid_loss"], rel=1e-5)


@pytest.mark.slow
def test_muon_takes_shards(toy: Toy, tmp_path: Path, two: Ranks) -> None:
    """Its iteration is in bfloat16, so losses agree to less than those of other optimisers."""
    lean = MODEL.replace("dropout = 0.1", "dropout = 0.0")
    recipe = RECIPE.replace('"adamw"', '"muon"').replace("steps = 12", "steps = 12\nshard = true")
    toy("alone", recipe=recipe, model=lean)
    two(tasks.trained, tmp_path, "two")
    assert history(tmp_path / "two") == pytest.approx(history(tmp_path / "alone"), rel=1e-4)


@pytest.mark.slow
def test_shards_are_measured_with_the_running_statistics_that_are_saved(
    tmp_path: Path, two: Ranks
) -> None:
    """Each process has statistics of its own rows, and those of the first are saved."""
    model = MODEL.replace("dropout = 0.1", 'dropout = 0.0\nnorm = "batch_norm"')
    write_toy(tmp_path, RECIPE.replace("average = 2", 'keep = "best"\nshard = true'), model)
    two(tasks.trained, tmp_path, "out")
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    measured = history(tmp_path / "out")[f"valid_loss {metrics['best_step']}"]
    assert metrics["valid_loss"] == pytest.approx(measured, rel=1e-6)


def test_what_one_process_refuses_all_refuse(tmp_path: Path, two: Ranks) -> None:
    """Only the first process learns the tokenizer, which here has another size than the model's;
    no process waits for one that has given up."""
    write_toy(tmp_path, RECIPE, MODEL.replace("_vocab = 300", "_vocab = 3000"))
    for told in two(tasks.refused, tmp_path):
        assert "the model's vocabulary is 3,000" in told
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"data": "other"}, "data"),
        slow(pytest.param({"data": ".", "resume": True}, "`resume`")),
    ],
)
def test_processes_that_were_not_given_the_same_are_refused(
    tmp_path: Path, two: Ranks, options: dict[str, Any], told: str
) -> None:
    """They would learn from batches that are neither of one nor of the other, or wait for ever."""
    write_toy(tmp_path)
    (tmp_path / "other").mkdir()
    lines = (tmp_path / "toy.tsv").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "other" / "toy.tsv").write_text("".join(lines[:-1]), "utf-8")
    message = (
        f"error: not all processes have the same {told}: that of process 1 is not that of process 0"
        "\n      = help: give every machine the same files, and every process the same command line"
    )
    assert two(tasks.refused, tmp_path, [{"data": "."}, options]) == [message] * 2
    assert not (tmp_path / "out").exists()


def test_every_failure_of_the_first_process_is_one_of_all(two: Ranks) -> None:
    """Also of a kind that the zoo does not know; otherwise the other would wait for it for ever."""
    both = "WeightsError a.txt:3: error: one\n      = help: help\nerror: two"
    assert two(tasks.failures) == [
        ["ValueError a bug", both],
        ["ZooError error: another process has failed: ValueError: a bug", both],
    ]


def test_the_held_out_loss_is_that_of_the_saved_model(toy: Toy, tmp_path: Path) -> None:
    """Without dropout and smoothing, over the tokens of the held-out sentences, which are more than
    one batch."""
    recipe = RECIPE.replace("valid = 4", "valid = 20")
    report = toy(recipe=recipe.replace("batch_tokens = 300", "batch_tokens = 60"))
    model = zoo.load(tmp_path / "out").eval()
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    losses = []
    for source, target, *_ in DataReader(Tsv(train="toy.tsv", valid=20), tmp_path).splits(0).valid:
        begin, *labels = tokenizer.encode(f"<s>{target}").ids
        inputs = torch.tensor([[begin, *labels[:-1]]])
        with torch.no_grad():
            scores = model(torch.tensor([tokenizer.encode(source).ids]), inputs)[0].log_softmax(-1)
        losses += [-float(row[label]) for row, label in zip(scores, labels, strict=True)]
    assert report["valid_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_the_result_is_the_mean_of_the_last_checkpoints(toy: Toy, tmp_path: Path) -> None:
    toy()
    kept = []
    for path in checkpoints(tmp_path / "out" / "checkpoints"):
        (file,) = path.glob("*.safetensors")
        with safe_open(file, "pt") as tensors:
            kept.append(tensors.get_tensor("encoder.norm.weight").double())
    assert len(kept) == 2  # of three
    mean = torch.stack(kept).mean(0)
    found = zoo.load(tmp_path / "out").encoder.norm.weight.double()
    torch.testing.assert_close(found, mean, rtol=1e-6, atol=0)
    assert not torch.equal(kept[0], kept[1])


def test_training_goes_on_from_a_saved_model(toy: Toy, tmp_path: Path) -> None:
    toy("first")
    recipe = RECIPE.replace('"model.toml"', '"first"').replace('kind = "bpe"', 'kind = "of_model"')
    recipe = recipe.replace("lr = 1e-2", "lr = 1e-9").replace("steps = 12", "steps = 1")
    toy("second", recipe=recipe)
    first, second = zoo.load(tmp_path / "first"), zoo.load(tmp_path / "second")
    for name, tensor in first.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], tensor, rtol=0, atol=1e-8)
    files = [tmp_path / name / "tokenizer.json" for name in ("first", "second")]
    assert files[0].read_text() == files[1].read_text()


def test_a_model_that_was_trained_further_says_where_it_is_from(toy: Toy, tmp_path: Path) -> None:
    toy("first")
    first = zoo.load(tmp_path / "first")
    assert first.origin is None
    first.origin = {"family": "a family", "config": "{}"}  # as written by an import
    zoo.save(first, tmp_path / "first")
    recipe = RECIPE.replace('"model.toml"', '"first"').replace('kind = "bpe"', 'kind = "of_model"')
    toy("second", recipe=recipe)
    origin = zoo.load(tmp_path / "second").origin
    assert origin is not None
    assert sorted(origin.pop("files")) == ["generation_config.json", "tokenizer.json"]
    assert origin == first.origin


def test_training_goes_on_from_a_named_model(toy: Toy, store: Store, tmp_path: Path) -> None:
    first = zoo.load("beer-de-en")  # which pulls it into the store
    recipe = RECIPE.replace("model.toml", "beer-de-en").replace("valid = 4\n", "")
    recipe = recipe.replace('"bpe"', '"of_model"\npad = "P"\nbos = "S"\neos = "E"')
    recipe = recipe.replace("lr = 1e-2", "lr = 1e-9").replace("steps = 12", "steps = 1")
    (tmp_path / "beer").mkdir()
    (tmp_path / "beer" / "toy.tsv").write_text("ich mochte ein bier\ti want a beer\n")
    toy("second", recipe=recipe, data=tmp_path / "beer")
    second = zoo.load(tmp_path / "second")
    for name, tensor in first.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], tensor, rtol=0, atol=1e-8)


def test_what_a_run_leaves_can_be_made_again(
    toy: Toy, digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what is in a bundle, which stays as it is."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run(["bundle", "make", "../whole", "bundle", "--license", "mit"]) == 0
    before = sorted(path.name for path in Path("bundle").iterdir())
    with pytest.raises(zoo.TrainingError, match=r"no spec `model\.toml`") as caught:
        zoo.train("bundle/recipe.toml", output="run", data=tmp_path)
    commands = (
        "mkdir again && cp bundle/recipe.toml again && "
        "zoo show bundle --resolved > again/model.toml"
    )
    assert f"holds it: `{commands}`" in str(caught.value)
    zoo_here = f"{shlex.quote(sys.executable)} -m zoo"
    subprocess.run(commands.replace("zoo", zoo_here, 1), shell=True, check=True)
    made = zoo.train("again/recipe.toml", output="run", data=tmp_path)
    assert made is not None
    assert made["content_digest"] == digest
    assert sorted(path.name for path in Path("bundle").iterdir()) == before
    # A file of this name in the working directory may be another model.
    Path("model.toml").write_text(Path("again/model.toml").read_text())
    assert zoo.train("bundle/recipe.toml", output="same", data=tmp_path) is not None
    Path("model.toml").write_text(MODEL.replace("d_ff = 32", "d_ff = 64"))
    with pytest.raises(zoo.TrainingError, match="another model than that which is beside") as other:
        zoo.train("bundle/recipe.toml", output="other", data=tmp_path)
    assert f"holds it: `{commands}`" in str(other.value)
    assert not Path("other").exists()


def test_packed_text(toy: Toy, tmp_path: Path) -> None:
    """Sequences are full, the run resumes bit by bit, and test lines are measured one by one."""
    (tmp_path / "text.txt").write_text("".join(f"{target}\n" for _, target in PAIRS))
    recipe = RECIPE.replace('kind = "tsv"', 'kind = "text"\npacked = true\ntest = 3')
    recipe = recipe.replace("toy.tsv", "text.txt").replace("= 300", "= 300\nmax_length = 16")
    model = (
        'format = 1\nname = "lm"\nbuilder = "decoder"\nvocab = 280\nn_layers = 1\n'
        "d_model = 16\nn_heads = 2\nd_ff = 32\ndropout = 0.1\n"
    )
    whole = toy("whole", recipe=recipe, model=model)
    toy("parts", recipe=recipe.replace("steps = 12", "steps = 8"), model=model)
    resumed = toy("parts", recipe=recipe, model=model, resume=True)
    assert resumed["content_digest"] == whole["content_digest"]
    tokenizer = Tokenizer.from_file(str(tmp_path / "whole" / "tokenizer.json"))
    lines = DataReader(Text(train="text.txt", valid=4, test=3), tmp_path).splits(0).train
    found = tokenizer.encode_batch([line.target for line in lines], add_special_tokens=False)
    n_tokens = sum(len(line.ids) + 2 for line in found)
    assert whole["examples"]["train"] == math.ceil((n_tokens - 1) / 16)
    assert whole["examples"]["test"] == 3
    assert whole["perplexity"] == pytest.approx(math.exp(whole["test_loss"]), rel=1e-5)


def test_a_model_that_continues_text(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(f"{target}\n" for _, target in PAIRS))
    recipe = RECIPE.replace('"tsv"', '"text"').replace("toy.tsv", "text.txt")
    model = (
        'format = 1\nname = "lm"\nbuilder = "decoder"\nvocab = 290\nn_layers = 1\n'
        'd_model = 16\nn_heads = 2\nd_ff = 32\nposition = "rotary"\n'
    )
    report = toy(recipe=recipe.replace("steps = 12", "steps = 60"), model=model)
    assert report["valid_loss"] < 2.5 < toy("short", recipe=recipe, model=model)["valid_loss"]


def test_what_of_a_recipe_comes_otherwise_is_told_once(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_toy(tmp_path, RECIPE.replace("warmup = 4", "warmup = 13") + "max_length = 40\n")
    recipe = path.read_text().replace("average = 2", "average = 9")
    path.write_text(recipe)
    with (tmp_path / "toy.tsv").open("a") as file:
        file.writelines(f"{'x y ' * 40}{number}\tlong\n" for number in range(1200))
    found = zoo.train(path, output=tmp_path / "out")
    assert found is not None
    # With 4 of 1,264 held out, some of which are long.
    left_out = found["left_out"]
    assert sum(left_out.values()) == 1200
    assert found["examples"]["train"] + left_out["train"] == 1260
    told = capsys.readouterr().err.splitlines()
    count = f"{left_out['train']:,}"
    assert (
        told.count(f"train: {count} of 1,260 pairs are left out, as longer than max_length = 40")
        == 1
    )
    assert told.count("average = 9: the run has 3 checkpoints, and all count") == 1
    assert told.count("warmup = 13: the learning rate does not reach its peak in 12 steps") == 1


def test_pairs_that_are_too_long_to_be_learned_are_translated_all_the_same(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by `zoo score`, which truncates them."""
    recipe = RECIPE.replace("valid = 4", 'test = "test.tsv"') + "max_length = 40\n"
    path = write_toy(tmp_path, recipe)
    (tmp_path / "test.tsv").write_text("".join(f"{'x y ' * n}\tlong\n" for n in (40, 50, 60)))
    found = zoo.train(path, output=tmp_path / "out")
    assert found is not None
    assert (found["examples"]["test"], "test_loss" in found, found["pairs"]) == (0, False, 3)
    measured = zoo.score(tmp_path / "out", data=tmp_path)
    assert measured == {key: found[key] for key in ("bleu", "signature", "pairs")}
    told = "test: 3 of 3 pairs are left out of the loss, and truncated for BLEU, as longer than"
    assert told in capsys.readouterr().err


def test_special_tokens_that_texts_spell_out_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_toy(tmp_path, RECIPE.replace("valid = 4", ""))
    with (tmp_path / "toy.tsv").open("a") as file:
        file.write("ein <s>Haus</s>\ta house\nein Buch\ta <pad>\nein <Bier>\ta beer\n")
    zoo.train(path, output=tmp_path / "out")
    told = [line for line in capsys.readouterr().err.splitlines() if "spell" in line]
    assert told == [
        "train: 2 of 67 examples spell out a special token, such as `<s>`, which is read as the "
        "token and not as text"
    ]


def test_a_recipe_is_a_file_text_or_data(digest: str, tmp_path: Path, project: Path) -> None:
    """Files are then looked for in the working directory, and the folder has the recipe as a file,
    by which the run goes on."""
    path = write_toy(project, RECIPE.replace("valid = 4", "valid = 4\ntest = 0"))
    data = tomllib.loads(RECIPE)
    data["training"]["frozen"] = ()
    data["data"]["test"] = 0
    for name, recipe in {"text": RECIPE, "data": data, "path": str(path)}.items():
        made = zoo.train(recipe, output=name)
        assert made is not None
        assert made["content_digest"] == digest
    written = tomllib.loads(Path("data/recipe.toml").read_text())
    assert written == {**data, "training": {**data["training"], "frozen": []}}
    made = zoo.train({**data, "optimizer": {**data["optimizer"]}}, output="path", resume=True)
    assert made is not None
    unstated = {**data, "training": {**data["training"], "clip_norm": None, "steps": 1}}
    assert zoo.train(unstated, output="unstated") is not None
    assert "clip_norm" not in Path("unstated/recipe.toml").read_text()


def test_mistakes_in_text_and_data(project: Path) -> None:
    write_toy(project)
    data = tomllib.loads(RECIPE)
    data["training"]["stepps"] = data["training"].pop("steps")
    with pytest.raises(zoo.SpecError, match=r"<data>: training.stepps: error: unknown key"):
        zoo.train(data)
    with pytest.raises(zoo.SpecError, match=r"<text>:22:1: error: unknown key `stepps`"):
        zoo.train(RECIPE.replace("steps", "stepps"))
    with pytest.raises(zoo.SpecError, match="this is the spec of a model, and no recipe"):
        zoo.train(MODEL)
    with pytest.raises(TypeError, match=r"^a recipe is the path of a TOML file, TOML text or a di"):
        zoo.train(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("lr", ["1e-9", "100.0"])
def test_a_loss_that_does_not_fall_is_told(
    lr: str, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compared with ln 300 = 5.70. With too high a rate, the loss rises, but stays a number."""
    toy(recipe=RECIPE.replace("lr = 1e-2", f"lr = {lr}"))
    assert (
        "if all 300 tokens were equally likely it would be 5.70: the model has learned nothing"
        in (capsys.readouterr().err)
    )
    toy("good")
    assert "nothing" not in capsys.readouterr().err


def test_what_is_measured_on_and_learned_from_too_is_told(tmp_path: Path) -> None:
    """A source with its own translation, one with another, and a new one."""
    (source, target), (other, _) = PAIRS[:2]
    rows = f"{source}\t{target}\n{other}\tanother\nneu\tnew\n"
    (tmp_path / "valid.tsv").write_text(rows, "utf-8")

    def told(held_out: str) -> list[str]:
        path = write_toy(tmp_path, RECIPE.replace("valid = 4", held_out))
        return list(find_data(read_recipe(path), tmp_path, None, None).notes())

    assert told('valid = "valid.tsv"\ntest = "toy.tsv"') == [
        "valid: 2 of 3 pairs have a source that is learned from too",
        "test: 64 of 64 pairs have a source that is learned from too",
    ]
    assert told("valid = 4\ntest = 4") == []


def test_duplicate_pairs_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    path = write_toy(tmp_path)
    with (tmp_path / "toy.tsv").open("a", encoding="utf-8") as file:
        file.writelines(f"{source}\t{target}\n" for source, target in [*PAIRS[:3], PAIRS[0]])
    zoo.train(path, output=tmp_path / "out")
    assert capsys.readouterr().err.count("train: left out 4 duplicate pairs\n") == 1


def test_the_dtype_of_the_result(toy: Toy, whole: Path, tmp_path: Path) -> None:
    toy("half", recipe=RECIPE.replace("[data]", 'dtype = "float16"\n[data]', 1))
    full, half = (zoo.load(folder).state_dict() for folder in (whole / "whole", tmp_path / "half"))
    assert {tensor.dtype for tensor in half.values()} == {torch.float16}
    for name, tensor in full.items():
        assert torch.equal(half[name], tensor.half())


def test_a_value_that_the_dtype_of_the_result_cannot_hold(
    tmp_path: Path, config: Path, refused: Refused
) -> None:
    """The steps that were done are not lost."""
    path = write_toy(tmp_path, model=MODEL + 'position = { kind = "learned", max_length = 300 }')
    table = "encoder.embed.positions.weight"
    model = zoo.build(tmp_path / "model.toml")
    with torch.no_grad():
        model.get_parameter(table)[-1, :2] = 1e6  # no text is so long
    zoo.save(model, tmp_path / "large")
    recipe = RECIPE.replace('model = "model.toml"', 'model = "large"\ndtype = "float16"')
    path.write_text(recipe)
    told = refused("train", str(path), "-o", str(tmp_path / "out"))
    assert f"error: 2 values of `{table}` would be infinite in float16\n" in told
    path.write_text(recipe.replace("float16", "bfloat16"))
    zoo.train(path, output=tmp_path / "out", resume=True)
    assert zoo.load(tmp_path / "out").get_parameter(table).max() > 9e5


def test_arithmetic_in_bfloat16(toy: Toy, tmp_path: Path) -> None:
    recipe = RECIPE.replace("lr = 1e-2", "lr = 1e-3")
    toy("full", recipe=recipe)
    toy("mixed", recipe=recipe.replace("steps", 'precision = "bfloat16"\nsteps'))
    full, mixed = history(tmp_path / "full"), history(tmp_path / "mixed")
    assert mixed != full
    assert mixed == pytest.approx(full, rel=0.02)


@pytest.mark.parametrize(
    ("every", "decay", "told", "n_kept"),
    [
        (("log", 1), "1e30", "the loss is nan at step 2", 0),
        (("checkpoint", 1), "1e30", "some weights are no longer numbers at step 1", 0),
        (("checkpoint", 1), "1.0", "the loss is nan at step 2", 1),
    ],
)
def test_a_run_that_diverges_ends(
    toy: Toy, tmp_path: Path, every: tuple[str, int], decay: str, told: str, n_kept: int
) -> None:
    """At the next line of the log, or at the next checkpoint, which is not written."""
    recipe = RECIPE.replace('"adamw"', '"sgd"')
    recipe = recipe.replace("lr = 1e-2", f"lr = 1e30\nweight_decay = {decay}")
    recipe = recipe.replace("clip_norm = 1.0\n", "").replace("valid = 4\n", "")
    for name, steps in {"log": 50, "checkpoint": 50, **dict([every])}.items():
        recipe = re.sub(rf"{name}_every = \d+", f"{name}_every = {steps}", recipe)
    with pytest.raises(zoo.TrainingError, match=rf"(?s){told}.*lower the learning rate") as caught:
        toy(recipe=recipe)
    assert not (tmp_path / "out" / "model.safetensors").exists()
    kept = checkpoints(tmp_path / "out" / "checkpoints")
    assert len(kept) == n_kept
    before = "; the last checkpoint, of step 1, is from before" if n_kept else ""
    assert str(caught.value).endswith("state `clip_norm`" + before)
    for path in kept:
        with safe_open(next(path.glob("*.safetensors")), "pt") as tensors:
            assert all(tensors.get_tensor(name).isfinite().all() for name in tensors.keys())  # noqa: SIM118


@pytest.mark.parametrize("part", ["valid", "test"])
def test_a_last_step_that_ruins_the_model_is_told(toy: Toy, tmp_path: Path, part: str) -> None:
    """Its weights are finite, and its loss was computed before it."""
    recipe = RECIPE.replace('"adamw"', '"sgd"').replace("lr = 1e-2", "lr = 1e25")
    recipe = recipe.replace("clip_norm = 1.0\n", "").replace("valid = 4", f"{part} = 4")
    recipe = recipe.replace("steps = 12", "steps = 1").replace("warmup = 4", "warmup = 1")
    with pytest.raises(zoo.TrainingError) as caught:
        toy(recipe=recipe)
    assert "error: the loss on held-out data is nan at step 1" in str(caught.value)
    assert str(caught.value).endswith("or state `clip_norm`")  # no checkpoint is from before
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_missing_package_is_told(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(zoo.TrainingError, match=r"zoo\[train\]"):
        toy()
