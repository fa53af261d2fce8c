"""Weights that a recipe leaves as they are: `frozen` in `[training]`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import training_tasks as tasks
from breadth import slow
from toy_training import MODEL, RECIPE, write_toy

import zoo
from zoo.cli import run
from zoo.training.frozen import frozen_weights
from zoo.training.optimization import make_optimizer
from zoo.training.optimizer_tables import Adam, AdamW, Sgd
from zoo.training.recipe import read_recipe

pytestmark = pytest.mark.usefixtures("without_pictures")

ENCODER = '["encoder.layers.*", "decoder.layers.[0-3].*_attn.*", "*.bias"]'


def frozen(recipe: str, patterns: str) -> str:
    return recipe.replace("steps = 12", f"steps = 12\nfrozen = {patterns}")


def is_frozen(name: str) -> bool:
    """Whether `ENCODER` means this name."""
    layer = name.startswith("encoder.layers.")
    return layer or "decoder.layers.0.self_attn" in name or "cross_attn" in name or "bias" in name


def initial(saved: Path | None = None) -> dict[str, torch.Tensor]:
    return (zoo.build(MODEL, seed=0) if saved is None else zoo.load(saved)).state_dict()


@pytest.mark.parametrize(
    ("processes", "shard"),
    [
        pytest.param(1, "false", id="one"),
        slow(pytest.param(2, "false", id="two")),
        slow(pytest.param(2, "true", id="shards")),
    ],
)
def test_frozen_weights_stay_and_the_others_learn(
    tmp_path: Path, processes: int, shard: str, request: pytest.FixtureRequest
) -> None:
    recipe = frozen(RECIPE, f"{ENCODER}\nshard = {shard}").replace("average = 2", "average = 3")
    path, output = write_toy(tmp_path, recipe), tmp_path / "run"
    if processes == 1:
        zoo.train(path, output=output)
    else:
        request.getfixturevalue("two")(tasks.trained, path.parent, output)
    before, after = initial(), zoo.load(output).state_dict()
    same = {name for name, tensor in after.items() if torch.equal(tensor, before[name])}
    assert same == {name for name in after if is_frozen(name)}
    told = json.loads((output / "metrics.json").read_text())
    tensors = zoo.read_spec(MODEL).tensors
    sizes = [tensor.size for name, tensor in tensors.items() if is_frozen(name)]
    assert told["frozen_parameters"] == sum(sizes) > 0


def test_the_command_tells_how_many_are_frozen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_toy(tmp_path, frozen(RECIPE, '["*embed.tokens*"]'))
    assert run(["train", str(path), "-o", str(tmp_path / "run")]) == 0
    n = zoo.read_spec(MODEL).n_parameters
    told = capsys.readouterr()
    assert f"toy: {n:,} parameters, {300 * 16:,} of them frozen, 12 steps (" in told.out


def test_a_run_with_frozen_weights_goes_on_bit_by_bit(tmp_path: Path) -> None:
    recipe = frozen(RECIPE, ENCODER)
    path = write_toy(tmp_path, recipe)
    zoo.train(path, output=tmp_path / "whole")
    path.write_text(recipe.replace("steps = 12", "steps = 8"))
    zoo.train(path, output=tmp_path / "parts")
    path.write_text(recipe)
    zoo.train(path, output=tmp_path / "parts", resume=True)
    whole, parts = initial(tmp_path / "whole"), initial(tmp_path / "parts")
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())
    path.write_text(recipe.replace("*.bias", "*_norm.*").replace("steps = 12", "steps = 13"))
    with pytest.raises(zoo.TrainingError, match="is of another recipe"):
        zoo.train(path, output=tmp_path / "parts", resume=True)


def test_the_weights_of_a_saved_model_are_frozen_too(tmp_path: Path) -> None:
    path = write_toy(tmp_path)
    zoo.train(path, output=tmp_path / "first")
    again = frozen(RECIPE, '["encoder.*"]').replace('"model.toml"', '"first"')
    path.write_text(again.replace('kind = "bpe"', 'kind = "of_model"'))
    zoo.train(path, output=tmp_path / "second")
    before, after = initial(tmp_path / "first"), initial(tmp_path / "second")
    same = {name for name, tensor in after.items() if torch.equal(tensor, before[name])}
    tied = {"decoder.embed.tokens.weight", "head.out.weight"} & after.keys()  # to the encoder's
    assert same == {name for name in after if name.startswith("encoder.")} | tied


def test_a_tied_weight_is_frozen_by_each_of_its_names(tmp_path: Path) -> None:
    for name in ("decoder.embed.tokens", "encoder.embed.tokens", "head.out"):
        recipe = read_recipe(write_toy(tmp_path, frozen(RECIPE, f'["{name}.weight"]')))
        found = frozen_weights(recipe, zoo.read_spec(MODEL))
        assert found == {"decoder.embed.tokens.weight"}


@pytest.mark.parametrize("table", [Adam, AdamW, Sgd])
def test_frozen_weights_neither_decay_nor_have_state(table: Any) -> None:
    model = zoo.build(MODEL)
    model.encoder.requires_grad_(False)
    for _ in range(2):
        optimizer = make_optimizer(table(lr=0.1, weight_decay=0.5), model)
        groups = [group["params"] for group in optimizer.param_groups]
        learned = {parameter for parameter in model.parameters() if parameter.requires_grad}
        assert {parameter for group in groups for parameter in group} == learned
        assert all(groups)  # no checkpoint can hold an empty one
        for parameter in learned:
            parameter.requires_grad_(parameter.dim() >= 2)


@pytest.mark.parametrize(
    ("patterns", "message", "column", "hint"),
    [
        ('["*.bias", "encodr.*"]', "`encodr.*` is the name of no weight of toy", 21, "encoder.*"),
        ('["encoder.layers"]', "`encoder.layers` is the name of no", 11, "encoder.layers.*"),
        ('["12"]', "`12` is the name of no", 11, "`*` stands for any text"),
        ('["head.logits_bias"]', "`head.logits_bias` is the name of no", 11, ""),  # a buffer
        ('["*"]', "all weights are frozen, and none is left to train", 10, ""),
        ('["encoder.*", "decoder.*"]', "all weights are frozen", 10, ""),
    ],
)
def test_what_freezes_nothing_or_all_is_refused_before_training(
    tmp_path: Path, patterns: str, message: str, column: int, hint: str
) -> None:
    recipe = frozen(RECIPE, patterns)
    path = write_toy(
        tmp_path, recipe, MODEL.replace("tied = true", "tied = true, logits_bias = true")
    )
    with pytest.raises(zoo.TrainingError) as caught:
        zoo.train(path, output=tmp_path / "run")
    (problem,) = caught.value.problems
    assert problem.message.startswith(message)
    line = recipe[: recipe.index("frozen")].count("\n") + 1
    assert problem.place is not None
    assert (problem.place.line, problem.place.column) == (line, column)
    assert hint in (problem.help or "")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", ['"encoder.*"', "[1]", "{}"])
def test_names_are_a_list_of_strings(tmp_path: Path, value: str) -> None:
    with pytest.raises(zoo.SpecError, match="`frozen` must be"):
        zoo.train(write_toy(tmp_path, frozen(RECIPE, value)), output=tmp_path / "run")
