"""One step of training, against its formulas: the loss, the learning rate, the update."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import training_tasks as tasks
from breadth import slow
from torch import nn, optim
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR
from toy_training import MODEL, PAIRS, RECIPE, write_toy
from transformers import get_wsd_schedule

import zoo
from zoo.purpose import Generation
from zoo.training.batches import Row, batches, n_labels
from zoo.training.example import Example
from zoo.training.loss import summed_loss
from zoo.training.optimization import make_optimizer, set_learning_rate, share_of_peak
from zoo.training.optimizer_tables import (
    Adam,
    AdamW,
    Constant,
    Cosine,
    InverseSqrt,
    Linear,
    Muon,
    Schedule,
    Sgd,
    WarmupStableDecay,
)
from zoo.training.recipe_tokens import learn_tokens
from zoo.training.tables import Bpe
from zoo.training.text_objective import TextObjective
from zoo.training.tokens import Tokens, read_tokens

CPU = torch.device("cpu")
EXAMPLES = [Example(*pair) for pair in PAIRS]


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    sides = Generation(target_vocab=300, source_vocab=300, has_source=True)
    return learn_tokens(Bpe(), EXAMPLES, sides)


@torch.no_grad()
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("pad_id", ["pad_id = 0", ""], ids=["pad_id", "no pad_id"])
def test_the_loss_of_a_batch_is_that_of_its_rows(
    tokens: Tokens, smoothing: float, pad_id: str
) -> None:
    """The sum over tokens of -sum(q log p), where q is 1 - s + s / V at the token and s / V
    elsewhere (Szegedy et al. 2015, section 7); padding is not counted."""
    spec = MODEL.replace("pad_id = 0", pad_id)
    model = zoo.build(spec, dtype=torch.float64).eval()
    examples = [*EXAMPLES[:3], Example("ein", "a b c d e f"), Example("x y z x y z x y z", "a")]
    objective = TextObjective(tokens, 99)
    rows = objective.encode(examples)
    assert len({len(row.target) for row in rows}) > 1
    expected = 0.0
    for row in rows:
        assert row.source is not None
        inputs = torch.tensor([row.target[:-1]])
        logits: Any = model(torch.tensor([list(row.source)]), inputs)
        log_p = logits[0] - logits[0].exp().sum(-1, keepdim=True).log()
        for place, label in enumerate(row.target[1:]):
            q = torch.full((300,), smoothing / 300, dtype=torch.float64)
            q[label] += 1 - smoothing
            expected -= float(q @ log_p[place])
    batch = objective.collate(rows, CPU)
    found = summed_loss(model, batch, label_smoothing=smoothing)
    assert float(found) == pytest.approx(expected, rel=1e-12)
    texts = tokens.encode_targets([example.target for example in examples])
    assert [[*row.target] for row in rows] == [[tokens.bos, *ids, tokens.eos] for ids in texts]
    assert n_labels(rows) == sum(len(ids) + 1 for ids in texts)


@pytest.mark.parametrize(
    ("pad_id", "processes", "shard"),
    [
        pytest.param("pad_id = 0", 1, "false", id="pad_id"),
        pytest.param("", 1, "false", id="no pad_id"),
        slow(pytest.param("", 2, "false", id="two processes")),
        slow(pytest.param("pad_id = 0", 2, "true", id="shards")),
    ],
)
def test_the_load_of_experts_is_balanced(
    tmp_path: Path, pad_id: str, processes: int, shard: str, request: pytest.FixtureRequest
) -> None:
    """One step of gradient descent on the cross-entropy and the auxiliary loss, in plain PyTorch,
    row by row, so that there is no padding; the log has the cross-entropy."""
    moe = 'ffn = { kind = "moe", n_experts = 4, top_k = 2, auxiliary_loss = 0.5 }'
    spec = f"{MODEL.replace('dropout = 0.1', '').replace('pad_id = 0', pad_id)}\n{moe}"
    recipe = re.sub(r"(steps|log_every) = .*", r"\1 = 1", RECIPE)
    recipe = re.sub(r"(label_smoothing|clip_norm|valid|average) = .*", "", recipe)
    recipe = re.sub(r"\[schedule\][^[]*", '[schedule]\nkind = "constant"\n', recipe)
    recipe = recipe.replace('"adamw"', '"sgd"').replace("lr = 1e-2", "lr = 0.5")
    recipe = recipe.replace("batch_tokens = 300", f"batch_tokens = 100_000\nshard = {shard}")
    path, output = write_toy(tmp_path, recipe, spec), tmp_path / "run"
    if processes == 1:
        zoo.train(path, output=output)
    else:
        request.getfixturevalue("two")(tasks.trained, path.parent, output)
    told = json.loads((output / "metrics.json").read_text())
    trained = zoo.load(output).state_dict()

    model = zoo.build(spec, seed=0).train()
    sides = Generation(target_vocab=300, source_vocab=300, has_source=True)
    tokens = read_tokens(output, Bpe(), sides)
    objective = TextObjective(tokens, 256)
    rows = objective.encode(EXAMPLES)
    assert len({len(row.target) for row in rows}) > 1
    (order,) = batches(rows, tokens=100_000, seed=0, epoch=0)
    total = loss = torch.zeros(())
    for process in range(processes):
        mine = [rows[place] for place in order[process::processes]]
        cross_entropy, balance = row_by_row(model, mine, tokens)
        loss = loss + cross_entropy
        total = total + cross_entropy + 0.5 * balance * n_labels(mine)
    (total / n_labels(rows)).backward()
    assert told["loss"] == pytest.approx(loss.item() / n_labels(rows), rel=1e-5)
    for name, weight in model.named_parameters():
        expected = weight.detach() - 0.5 * weight.grad
        torch.testing.assert_close(trained[name], expected, rtol=1e-5, atol=1e-5, msg=name)


def row_by_row(
    model: nn.Module, rows: Sequence[Row], tokens: Tokens
) -> tuple[torch.Tensor, torch.Tensor]:
    """The summed cross-entropy of these rows, each alone, and the balance of their experts
    (Fedus et al. 2021, equations 4 to 6) over all their tokens, summed over the layers."""
    routed: dict[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    routers = [model.encoder.layers[0].ffn.router, model.decoder.layers[0].ffn.router]
    hooks = [
        router.register_forward_hook(
            lambda router, _, found: routed.setdefault(router, []).append(found[1:])
        )
        for router in routers
    ]
    each = [TextObjective(tokens, 99).collate([row], CPU) for row in rows]
    loss = sum(summed_loss(model, batch, label_smoothing=0.0) for batch in each)
    for hook in hooks:
        hook.remove()
    balance = torch.zeros(())
    for calls in routed.values():
        chosen, scores = (torch.cat(parts) for parts in zip(*calls, strict=True))
        counts = torch.bincount(chosen.flatten(), minlength=4)
        balance = balance + 4 * (counts / counts.sum() * scores.mean(0)).sum()
    return loss, balance


def test_each_side_is_filled_up_with_its_own_padding(tokens: Tokens) -> None:
    rows = [Row([5, 6, 7], [1, 8, 2]), Row([9], [1, 10, 11, 2])]
    objective = TextObjective(replace(tokens, source_pad=3, pad=4), 99)
    batch = objective.collate(rows, CPU)
    assert batch.source is not None
    assert [side.tolist() for side in batch.source] == [
        [[5, 6, 7], [9, 3, 3]],
        [[True, True, True], [True, False, False]],
    ]
    assert batch.inputs.tolist() == [[1, 8, 4], [1, 10, 11]]
    assert batch.target_mask is not None
    assert batch.target_mask.tolist() == [[True, True, False], [True, True, True]]
    assert objective.collate([rows[0]], CPU).target_mask is None
    assert batch.labels.tolist() == [[8, 2, -100], [10, 11, 2]]


@pytest.mark.parametrize("step", [1, 17, 400, 401, 5000])
def test_the_schedule_of_the_paper(step: int) -> None:
    """lrate = d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5) (Vaswani et al. 2017,
    equation 3)."""
    d_model, warmup = 512, 400
    peak = d_model**-0.5 * warmup**-0.5
    expected = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
    found = peak * share_of_peak(InverseSqrt(warmup=warmup), step, 9999)
    assert found == pytest.approx(expected, rel=1e-12)


FALLS: dict[str, tuple[Schedule, Callable[[Any, int], Any]]] = {
    "constant": (Constant(), lambda sgd, n: ConstantLR(sgd, factor=1.0)),
    "linear": (Linear(), lambda sgd, n: LinearLR(sgd, 1.0, 0.0, total_iters=n)),
    "linear to": (Linear(final=0.2), lambda sgd, n: LinearLR(sgd, 1.0, 0.2, total_iters=n)),
    "cosine": (Cosine(), CosineAnnealingLR),
    "cosine to": (Cosine(final=0.5), lambda sgd, n: CosineAnnealingLR(sgd, n, eta_min=0.5)),
    "warmup, stable, decay": (
        WarmupStableDecay(decay=40),
        lambda sgd, n: get_wsd_schedule(sgd, 0, 40, n, decay_type="linear"),
    ),
    "by a root": (
        WarmupStableDecay(decay=40, shape="sqrt", final=0.2),
        lambda sgd, n: get_wsd_schedule(sgd, 0, 40, n, decay_type="1-sqrt", min_lr_ratio=0.2),
    ),
}


@pytest.mark.parametrize("warmup", [0, 10])
@pytest.mark.parametrize("name", FALLS)
def test_schedules_are_those_of_others_to_the_last_step(name: str, warmup: int) -> None:
    schedule, theirs = FALLS[name]
    schedule = schedule.model_copy(update={"warmup": warmup})
    sgd = optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, expected = theirs(sgd, 100), [(step + 1) / 10 for step in range(warmup)]
    for _ in range(100):
        expected.append(sgd.param_groups[0]["lr"])
        sgd.step()
        scheduler.step()
    steps = len(expected)
    found = [share_of_peak(schedule, step, steps) for step in range(1, steps + 1)]
    assert found == pytest.approx(expected, abs=1e-12)
    assert min(found) > 0  # no step is computed in vain
    # A run that ends with the warm-up reaches the peak.
    assert share_of_peak(schedule.model_copy(update={"warmup": 110}), 110, 110) == 1.0


@pytest.mark.parametrize("schedule", [Linear(), Cosine(), WarmupStableDecay(decay=1)])
def test_a_single_step_has_the_rate_of_the_recipe(schedule: Schedule) -> None:
    assert share_of_peak(schedule, 1, 1) == 1.0


@pytest.mark.parametrize(
    ("table", "optimizer", "fields"),
    [
        (Adam, optim.Adam, {"betas": (0.5, 0.8), "eps": 0.3, "weight_decay": 0.2}),
        (AdamW, optim.AdamW, {"betas": (0.5, 0.8), "eps": 0.3, "weight_decay": 0.2}),
        (Sgd, optim.SGD, {"momentum": 0.7, "weight_decay": 0.2}),
    ],
)
def test_what_a_table_says_is_what_the_optimizer_does(
    table: Any, optimizer: Any, fields: dict[str, Any]
) -> None:
    theirs, ours = (zoo.build(MODEL, dtype=torch.float64) for _ in range(2))
    pairs = (
        (theirs, optimizer(theirs.parameters(), lr=0.1, **fields)),
        (ours, make_optimizer(table(lr=0.1, **fields), ours)),
    )
    for model, updates in pairs:
        for factor in (1.0, -2.0, 0.5):
            for parameter in model.parameters():
                parameter.grad = factor * torch.ones_like(parameter)
            updates.step()
    for name, parameter in theirs.named_parameters():
        if parameter.dim() >= 2:  # AdamW of a recipe decays no others
            torch.testing.assert_close(ours.get_parameter(name), parameter, rtol=0, atol=1e-12)


def test_muon_steps_are_nearly_orthogonal_and_of_the_size_of_adamws() -> None:
    """Jordan et al. 2024, with the scale of Liu et al. 2025, section 2.2: matrices of the layers.
    All others are those of a twin that AdamW trains with the same gradients."""
    model, twin = zoo.build(MODEL), zoo.build(MODEL)
    table = {"lr": 0.1, "weight_decay": 0.5}
    pairs = [
        (model, make_optimizer(Muon(momentum=0.8, **table), model)),
        (twin, make_optimizer(AdamW(**table), twin)),
    ]
    of_layers = {name for name in model.state_dict() if re.search(r"(_proj)\.weight$", name)}
    assert len(of_layers) == 3 * 4 + 2 * 2  # of three attentions and two networks
    means = {name: torch.zeros((), dtype=torch.float64) for name in of_layers}
    start = {name: model.get_parameter(name).detach().double() for name in of_layers}
    expected = dict(start)
    for step in range(3):
        for trained, optimizer in pairs:
            random = torch.Generator().manual_seed(step)
            for parameter in trained.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=random)
            optimizer.step()
        for name in of_layers:
            grad = model.get_parameter(name).grad.double()
            means[name] = 0.8 * means[name] + 0.2 * grad
            ahead = 0.8 * means[name] + 0.2 * grad
            size = 0.2 * max(grad.shape) ** 0.5
            expected[name] = 0.95 * expected[name] - 0.1 * size * nearly_orthogonal(ahead)
    for name, parameter in model.named_parameters():
        if name in of_layers:
            off = (parameter - expected[name]).norm() / (expected[name] - start[name]).norm()
            assert off < 0.03, name  # torch's iteration is in bfloat16
        else:
            torch.testing.assert_close(parameter, twin.get_parameter(name), rtol=0, atol=0)


def nearly_orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """What five steps of the iteration of Jordan et al. make of a matrix, by its singular values,
    each of which goes through the polynomial by itself."""
    u, s, vh = torch.linalg.svd(matrix / matrix.norm(), full_matrices=False)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u * s @ vh


def test_muon_leaves_tables_and_experts_to_adamw() -> None:
    layers = 'ffn = { kind = "moe", n_experts = 3, top_k = 2 }\nposition = "t5_buckets"'
    model = zoo.build(f"{MODEL.replace(', tied = true', '')}\n{layers}")
    assert model.head.out.weight.dim() == 2  # nor is it of a layer
    optimizer = make_optimizer(Muon(lr=0.1), model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [{names[p] for p in group["params"]} for group in optimizer.param_groups]
    maps = {name for name in names.values() if re.search(r"(_proj|router)\.weight$", name)}
    experts = {name for name in maps if ".experts." in name}
    assert len(experts) == 6
    assert groups[0] == maps - experts
    assert set.union(*groups) == set(names.values())
    assert sum(map(len, groups)) == len(names)
    set_learning_rate(optimizer, 0.3)
    assert {group["lr"] for part in optimizer.parts for group in part.param_groups} == {0.3}


def test_biases_and_norms_do_not_decay() -> None:
    """Nor do those of experts and heads, which are stacked."""
    stacked = """
        ffn = { kind = "moe", n_experts = 3, top_k = 2, expert = "mlp", bias = true }
        self_attn = { qk_norm = "rms_norm", qk_norm_scope = "per_head" }
        position = "t5_buckets"
    """
    model = zoo.build(f"{MODEL}{stacked}")
    table = AdamW(lr=0.1, weight_decay=0.5)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = make_optimizer(table, model)
    set_learning_rate(optimizer, 0.2)
    optimizer.step()
    assert {group["lr"] for group in optimizer.param_groups} == {0.2}
    for name, parameter in model.named_parameters():
        decays = "norm" not in name and not name.endswith(".bias")
        factor = 1 - 0.2 * 0.5 if decays else 1.0
        torch.testing.assert_close(parameter, before[name] * factor)
    kept = {
        name.rpartition("layers.0.")[2] for name in before if model.get_parameter(name).dim() > 1
    }
    assert {"ffn.experts.up_proj.bias", "self_attn.q_norm.weight"} <= kept
