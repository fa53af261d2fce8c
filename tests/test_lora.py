"""Low-rank updates that a recipe trains: `[lora]`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import training_tasks as tasks
from breadth import one_then_slow
from ranks import Ranks
from safetensors import safe_open
from torch import nn
from torch.func import functional_call
from toy_encoders import CLASSES, RECIPE_OF_CLASSES, write_encoder
from toy_encoders import RECIPE as ENCODER_RECIPE
from toy_training import MODEL, RECIPE, write_toy

import zoo
from zoo.cli import run
from zoo.linear import Linear
from zoo.training.low_rank import add_updates
from zoo.training.tables import Lora

pytestmark = pytest.mark.usefixtures("without_pictures")

TABLE = """
[lora]
weights = ["*_attn.[qv]_proj.weight", "decoder.*.up_proj.weight"]
rank = 3
alpha = 6.0
dropout = 0.1
"""
TUNING = (
    RECIPE.replace('"model.toml"', '"first"')
    .replace('kind = "bpe"', 'kind = "of_model"')
    .replace("average = 2\n", "")
    + TABLE
)
LATENT = {
    "kind": "latent",
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2,
    "v_head_dim": 4,
}


def is_adapted(name: str) -> bool:
    """Whether `TABLE` means this name."""
    ends = ("_attn.q_proj.weight", "_attn.v_proj.weight")
    return name.endswith(ends) or (name.startswith("decoder") and name.endswith("up_proj.weight"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained model, in `first`, its data and a recipe that tunes it."""
    folder = tmp_path_factory.mktemp("lora")
    zoo.train(write_toy(folder), output=folder / "first")
    (folder / "recipe.toml").write_text(TUNING)
    return folder


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return zoo.load(folder).state_dict()


@pytest.mark.parametrize("processes", one_then_slow([1, 2]))
def test_only_low_rank_updates_are_learned(
    trained: Path, tmp_path: Path, processes: int, request: pytest.FixtureRequest
) -> None:
    output = tmp_path / "run"
    path = trained / "recipe.toml"
    if processes == 1:
        zoo.train(path, output=output)
    else:
        request.getfixturevalue("two")(tasks.trained, path.parent, output)
    before, after = tensors(trained / "first"), tensors(output)
    assert before.keys() == after.keys()
    for name, tensor in after.items():
        change = (tensor - before[name]).double()
        if is_adapted(name):
            values = torch.linalg.svdvals(change)
            assert values[0] > 1e-3
            assert values[2] > 1e-5 > values[3]  # of rank 3
        else:
            assert not change.any(), name
    told = json.loads((output / "metrics.json").read_text())
    spec = zoo.read_spec(MODEL)
    assert told["frozen_parameters"] == told["parameters"] == spec.n_parameters
    shapes = [tensor.shape for name, tensor in spec.tensors.items() if is_adapted(name)]
    assert told["lora_parameters"] == 3 * sum(map(sum, shapes)) > 0
    first, *_, last = (line["valid_loss"] for line in told["history"] if "valid_loss" in line)
    assert last < first


def test_a_run_goes_on_bit_by_bit(trained: Path, tmp_path: Path) -> None:
    path = trained / "parts.toml"
    path.write_text(TUNING)
    zoo.train(path, output=tmp_path / "whole")
    path.write_text(TUNING.replace("steps = 12", "steps = 8"))
    zoo.train(path, output=tmp_path / "parts")
    path.write_text(TUNING)
    zoo.train(path, output=tmp_path / "parts", resume=True)
    whole, parts = tensors(tmp_path / "whole"), tensors(tmp_path / "parts")
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())
    path.write_text(TUNING.replace("alpha = 6.0", "alpha = 7.0"))
    with pytest.raises(zoo.TrainingError, match=r"`lora.alpha` was 6.0 when the run began"):
        zoo.train(path, output=tmp_path / "parts", resume=True)
    path.write_text(TUNING.replace(TABLE, ""))
    with pytest.raises(zoo.TrainingError, match=r"`lora.rank` was 3 when the run began"):
        zoo.train(path, output=tmp_path / "parts", resume=True)


def test_layers_that_are_computed_again_learn_the_same(trained: Path, tmp_path: Path) -> None:
    path = trained / "again.toml"
    zoo.train(trained / "recipe.toml", output=tmp_path / "once")
    path.write_text(TUNING.replace("log_every", "recompute = true\nlog_every"))
    zoo.train(path, output=tmp_path / "again")
    once, again = tensors(tmp_path / "once"), tensors(tmp_path / "again")
    assert all(torch.equal(tensor, again[name]) for name, tensor in once.items())


def test_checkpoints_hold_the_factors_alone(trained: Path, tmp_path: Path) -> None:
    """And the optimiser's two means of each."""
    zoo.train(trained / "recipe.toml", output=tmp_path / "run")
    (file,) = (tmp_path / "run" / "checkpoints" / "step-00000012").glob("*.safetensors")
    with safe_open(file, "pt") as kept:
        names = set(kept.keys())
    paths = [name.removesuffix(".weight") for name in zoo.read_spec(MODEL).tensors]
    factors = {f"{path}.lora_{x}" for path in paths if is_adapted(f"{path}.weight") for x in "ab"}
    assert {name for name in names if not name.startswith(("state.", "param_groups."))} == factors
    assert {name for name in names if name.startswith("state.") and not name.endswith(".step")} == {
        f"state.{name}.{mean}" for name in factors for mean in ("exp_avg", "exp_avg_sq")
    }


def small_model(**changes: Any) -> zoo.Transformer:
    spec = {
        "format": 1,
        "name": "small",
        "builder": "decoder",
        "vocab": 50,
        "n_layers": 2,
        "d_model": 16,
        "n_heads": 4,
        "n_kv_heads": 2,
        "d_ff": 32,
        "head": {"kind": "linear", "tied": True},
    }
    stated = {key: value for key, value in {**spec, **changes}.items() if value is not None}
    return zoo.build(stated, seed=3).double()


def adapted(model: zoo.Transformer, ends: tuple[str, ...]) -> list[str]:
    """Give weights updates, with a B that is not 0; return their names."""
    names = [name for name in model.spec.tensors if name.endswith(ends)]
    add_updates(model, names, Lora(weights=("-",), rank=3, alpha=6.0), seed=1)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)
            if name.endswith("lora_b"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    return names


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"decoder": {"share_layers": True}},
        {"attention": LATENT, "n_kv_heads": None},
        {"ffn": {"kind": "glu"}},
    ],
    ids=["plain", "shared", "latent", "glu"],
)
def test_outputs_and_gradients_are_those_of_the_sum(changes: dict[str, Any]) -> None:
    """W + (alpha / r) B A as the weight, in float64."""
    plain, model = small_model(**changes), small_model(**changes)
    names = adapted(model, ("proj.weight",))
    assert len(names) >= 4
    found = dict(model.named_parameters())
    sums, factors = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for name in names:
        path = name.removesuffix(".weight")
        a, b = (found[f"{path}.lora_{x}"].detach().clone().requires_grad_() for x in "ab")
        factors |= {f"{path}.lora_a": a, f"{path}.lora_b": b}
        sums[name] = plain.get_parameter(name).detach() + 6.0 / 3 * (b @ a)
    ids = torch.randint(50, (2, 7), generator=torch.Generator().manual_seed(5))
    expected, got = functional_call(plain, sums, (ids,)), model(ids)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    expected.square().sum().backward()
    got.square().sum().backward()
    for name, factor in factors.items():
        assert factor.grad is not None
        torch.testing.assert_close(found[name].grad, factor.grad, rtol=1e-9, atol=1e-9)
    assert all(parameter.grad is None for name, parameter in found.items() if name not in factors)
    assert all(bool(factor.grad.any()) for factor in factors.values() if factor.grad is not None)


def test_a_compiled_model_learns_the_same() -> None:
    model = small_model()
    names = adapted(model, ("q_proj.weight", "up_proj.weight"))
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    compiled: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    gradients = []
    for called in (model, compiled):
        called(ids).square().sum().backward()
        gradients.append([model.get_parameter(f"{n[:-7]}.lora_a").grad.clone() for n in names])
        model.zero_grad()
    torch.testing.assert_close(*gradients)
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids), model(ids))


def test_dropout_is_before_a_and_in_training_alone() -> None:
    torch.manual_seed(0)
    map_ = Linear(4, 3, bias=False)
    model = nn.Module()
    model.add_module("map", map_)
    add_updates(model, ["map.weight"], Lora(weights=("-",), rank=2, alpha=2.0, dropout=0.5), seed=0)
    map_.lora_b.data.normal_()
    x = torch.randn(1000, 4)
    whole = x @ map_.updated().T
    torch.testing.assert_close(model.eval().map(x), whole)
    model.train()
    torch.manual_seed(7)
    got = model.map(x)
    torch.manual_seed(7)
    kept = torch.nn.functional.dropout(x, 0.5)
    expected = x @ map_.weight.T + kept @ map_.lora_a.T @ map_.lora_b.T
    torch.testing.assert_close(got, expected)


def test_a_starts_as_that_of_peft(trained: Path) -> None:
    """Kaiming's uniform numbers with a = sqrt(5): within 1 / sqrt(in_features); B is 0."""
    model = zoo.load(trained / "first")
    name = "encoder.layers.0.ffn.down_proj.weight"
    add_updates(model, [name], Lora(weights=("-",), rank=64), seed=0)
    down = model.get_submodule("encoder.layers.0.ffn.down_proj")
    bound = down.in_features**-0.5
    assert 0.97 * bound < down.lora_a.abs().max() <= bound
    assert down.lora_a.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert not down.lora_b.any()
    assert torch.equal(down.updated(), down.weight)


def test_weights_that_are_not_of_one_linear_map() -> None:
    """A map that is not the zoo's, which knows no low-rank updates, and a weight that two share."""
    model = small_model(position={"kind": "fire"})
    lora = Lora(weights=("-",))
    with pytest.raises(zoo.TrainingError, match=r"the weight of an `nn.Linear`\n.* leave it"):
        add_updates(model, ["decoder.rel_bias.up_proj.weight"], lora, seed=0)
    first, second = (layer.self_attn.q_proj for layer in model.decoder.layers)
    second.weight = first.weight
    with pytest.raises(zoo.TrainingError, match="is not the weight of one linear map alone"):
        add_updates(model, ["decoder.layers.0.self_attn.q_proj.weight"], lora, seed=0)


def test_a_new_head_is_trained_beside_the_updates(project: Path, two: Ranks) -> None:
    zoo.train(write_encoder(project, ENCODER_RECIPE), output="filler")
    table = '[lora]\nweights = ["*.q_proj.weight"]\n'
    recipe = RECIPE_OF_CLASSES.replace(
        '"model.toml"', '"model.toml"\nweights = "filler"\nnew = ["head.*"]'
    )
    path = write_encoder(project, f"{recipe}\n{table}", CLASSES.replace("0.1", "0.0"))
    alone = zoo.train(path, output="alone")
    before, after = tensors(Path("filler")), tensors(Path("alone"))
    new = zoo.build("model.toml", seed=0).state_dict()
    for name, tensor in after.items():
        learned = name.startswith("head.") or name.endswith(".q_proj.weight")
        start = new if name.startswith("head.") else before
        assert torch.equal(tensor, start[name]) != learned, name
    two(tasks.trained, project, "two")
    told = json.loads(Path("two/metrics.json").read_text())
    assert alone is not None
    assert told["valid_loss"] == pytest.approx(alone["valid_loss"], rel=1e-5)
    path.write_text(f"{recipe}\n{table.replace('*.q_proj', 'head.dense')}")
    with pytest.raises(zoo.TrainingError, match=r"`head.dense.weight`, which begins anew"):
        zoo.train(path, output="none")


@pytest.mark.parametrize(
    ("old", "new", "message", "at"),
    [
        ('weights = ["', 'weights = ["x.*", "', "`x.*` is the name of no weight of toy", 31),
        ("*_attn.[qv]_proj.weight", "*_norm.*", "which is no matrix of a linear map", 31),
        ("*_attn.[qv]_proj.weight", "*tokens.weight", "which is no matrix of a linear map", 31),
        ("*_attn.[qv]_proj.weight", "head.out.weight", "which is no matrix of a linear map", 31),
        ("clip_norm", 'frozen = ["encoder.*"]\nclip_norm', "all weights that it does not name", 25),
        ("clip_norm", "average = 2\nclip_norm", "no product of this rank", 25),
        ("clip_norm", "shard = true\nclip_norm", "weights are not sharded", 25),
        ('"adamw"', '"muon"', "Muon is for matrices of layers", 14),
        ('"first"', '"model.toml"', "`[lora]` adapts the weights of a saved model", 30),
        ("rank = 3", "rank = 0", "rank", 32),
        ("rank = 3", "ranks = 3", "unknown key `ranks`", 32),
        ("alpha = 6.0", "alpha = 0.0", "alpha", 33),
    ],
)
def test_what_is_refused(
    trained: Path, old: str, new: str, message: str, at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before training, as by `zoo validate`."""
    path = trained / "refused.toml"
    assert TUNING.count(old) == 1
    path.write_text(TUNING.replace(old, new))
    assert run(["validate", str(path)]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert f"refused.toml:{at}:" in told
