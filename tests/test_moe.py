"""Mixtures of experts against a token-by-token reference in float64."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from breadth import one_then_slow
from processors import taken_for
from pydantic import ValidationError
from random_values import randomize
from torch import nn
from torch.profiler import ProfilerActivity, profile

import zoo
from zoo_components.modules import experts
from zoo_components.modules.experts import grouped_linear, grouped_outer
from zoo_components.modules.moe import load_balancing_loss
from zoo_components.moe import MixtureOfExperts, Router
from zoo_components.norm import NoNorm

D_MODEL, D_FF, N_EXPERTS = 6, 5, 8
Tensors = Mapping[str, torch.Tensor]


def described(
    router: Mapping[str, Any] | None = None,
    *,
    top_k: int = 2,
    n_experts: int = N_EXPERTS,
    **values: Any,
) -> MixtureOfExperts:
    return MixtureOfExperts(
        kind="moe",
        d_model=D_MODEL,
        norm=NoNorm(kind="none", width=D_MODEL),
        n_experts=n_experts,
        top_k=top_k,
        router=Router(d_model=D_MODEL, n_experts=n_experts, top_k=top_k, **(router or {})),
        **({"d_ff": D_FF} | values),
    )


def randomised(moe: MixtureOfExperts, seed: int = 0) -> nn.Module:
    return randomize(moe.build().double(), seed=seed)


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, D_MODEL, generator=random, dtype=torch.float64)


# --- the mathematics, one token at a time ---------------------------------------------------------


def choose(moe: MixtureOfExperts, merit: list[float]) -> list[int]:
    router = moe.router
    if router.top_groups == router.n_groups:
        return sorted(range(moe.n_experts), key=lambda e: -merit[e])[: moe.top_k]
    each = moe.n_experts // router.n_groups
    groups = [list(range(g * each, (g + 1) * each)) for g in range(router.n_groups)]
    worth = {"max": 1, "top2": 2}[router.group_score]

    def score(group: list[int]) -> float:
        return sum(sorted((merit[e] for e in group), reverse=True)[:worth])

    best = sorted(groups, key=score, reverse=True)[: router.top_groups]
    return sorted((e for group in best for e in group), key=lambda e: -merit[e])[: moe.top_k]


def sparsemixer(logits: torch.Tensor, chosen: list[int], threshold: float) -> list[torch.Tensor]:
    weights = []
    for number, expert in enumerate(chosen):
        top = logits[expert].item()
        near = [
            e
            for e, logit in enumerate(logits.tolist())
            if e not in chosen[:number] and (top - logit) / max(abs(logit), top) <= 2 * threshold
        ]
        weights.append(logits[expert].exp() / sum(logits[e].exp() for e in near))
    return weights


def route(
    moe: MixtureOfExperts, x: torch.Tensor, t: Tensors
) -> tuple[list[int], list[torch.Tensor]]:
    router = moe.router
    logits = t["router.weight"] @ x
    if router.bias:
        logits = logits + t["router.bias"]
    if router.softcap is not None:
        logits = router.softcap * torch.tanh(logits / router.softcap)
    over_all = {
        "softmax": logits.exp() / logits.exp().sum(),
        "sparsemixer": logits.exp() / logits.exp().sum(),
        "sigmoid": 1 / (1 + (-logits).exp()),
    }.get(router.score)
    merit = logits if over_all is None else over_all
    if router.correction_bias:
        merit = merit + t["router.correction_bias"]
    chosen = choose(moe, merit.tolist())
    if router.score == "sparsemixer":
        assert router.threshold is not None
        weights = sparsemixer(logits, chosen, router.threshold)
    elif router.score == "topk_softmax":
        total = sum(logits[e].exp() for e in chosen)
        weights = [logits[e].exp() / total for e in chosen]
    elif router.score == "topk_sigmoid":
        weights = [1 / (1 + (-logits[e]).exp()) for e in chosen]
    else:
        assert over_all is not None
        weights = [over_all[e] for e in chosen]
    if router.normalize:
        p = router.normalize_order
        size: Any = sum(w**p for w in weights) ** (1 / p)  # type: ignore[operator]
        size = size + router.normalize_eps
        if size.item() < router.normalize_min:  # type: ignore[operator]
            size = router.normalize_min
        weights = [w / size for w in weights]
    return chosen, [w * router.scale for w in weights]


def feed(moe: MixtureOfExperts, x: torch.Tensor, t: Tensors) -> torch.Tensor:
    """One expert; `t` has its tensors by their own names."""

    def affine(name: str, x: torch.Tensor) -> torch.Tensor:
        y = t[f"{name}.weight"] @ x
        return y + t[f"{name}.bias"] if moe.bias else y

    def activation(x: torch.Tensor) -> torch.Tensor:
        if moe.activation == "prelu":
            return torch.where(x > 0, x, t["activation.weight"] * x)
        rate = {"silu": 1.0, "gelu_quick": 1.702}.get(moe.activation)
        return x.clamp(min=0) if rate is None else x / (1 + (-rate * x).exp())

    up = affine("up_proj", x)
    if moe.expert == "mlp":
        return affine("down_proj", activation(up))
    gate = affine("gate_proj", x)
    if moe.expert == "clamped_glu":
        assert moe.limit is not None
        gate, up = gate.clamp(max=moe.limit), up.clamp(-moe.limit, moe.limit) + 1
    return affine("down_proj", activation(gate) * up)


def mixture(moe: MixtureOfExperts, x: torch.Tensor, t: Tensors) -> torch.Tensor:
    rows = []
    for row in x.reshape(-1, D_MODEL):
        read = row
        if moe.d_latent is not None:
            read = t["in_proj.weight"] @ row + (t["in_proj.bias"] if moe.bias else 0)
        y = torch.zeros(moe.d_latent or D_MODEL, dtype=x.dtype)
        for expert, weight in zip(*route(moe, row, t), strict=True):
            inside = {
                name.removeprefix("experts."): value if "activation" in name else value[expert]
                for name, value in t.items()
                if name.startswith("experts.")
            }
            if moe.weighted == "inputs":
                y = y + feed(moe, weight * read, inside)
            else:
                y = y + weight * feed(moe, read, inside)
        if moe.d_latent is not None:
            y = t["out_proj.weight"] @ y + (t["out_proj.bias"] if moe.bias else 0)
        if moe.shared_d_ff is not None:
            inside = {n.removeprefix("shared."): v for n, v in t.items() if n.startswith("shared.")}
            shared = feed(moe, row, inside)
            if moe.shared_gate:
                shared = shared / (1 + (-(t["shared_gate.weight"] @ row)).exp())
            y = (y + shared) / 2 if moe.shared_average else y + shared
        rows.append(y)
    return torch.stack(rows).view_as(x)


MIXTURES: dict[str, MixtureOfExperts] = {
    "softmax": described(),
    "one expert": described(n_experts=1, top_k=1),
    "top 1, plain": described(top_k=1, expert="mlp", activation="relu", bias=False),
    "all experts": described(top_k=N_EXPERTS),
    "sigmoid, normalized": described({"score": "sigmoid", "normalize": True}, top_k=3),
    "order 2": described({"normalize": True, "normalize_order": 2.0}, top_k=3),
    "eps and scale": described({"normalize": True, "normalize_eps": 0.5, "scale": 2.5}),
    "least divisor": described({"score": "sigmoid", "normalize": True, "normalize_min": 1.9}),
    "topk_softmax": described({"score": "topk_softmax", "bias": True}, top_k=3),
    "topk_sigmoid": described({"score": "topk_sigmoid", "correction_bias": True}, top_k=3),
    "correction bias": described({"score": "sigmoid", "correction_bias": True}, top_k=3),
    "corrected softmax": described({"correction_bias": True}, top_k=2),
    "best of groups": described({"n_groups": 4, "top_groups": 2}, top_k=3),
    "best two of groups": described(
        {
            "score": "sigmoid",
            "n_groups": 2,
            "top_groups": 1,
            "group_score": "top2",
            "correction_bias": True,
        },
        top_k=3,
    ),
    "softcap": described({"score": "sigmoid", "softcap": 1.5, "bias": True}),
    "sparsemixer": described({"score": "sparsemixer", "threshold": 0.4}, top_k=3),
    "prelu, without biases": described(activation="prelu", bias=False),
    "clamped": described(expert="clamped_glu", activation="gelu_quick", limit=0.7),
    "weighted inputs": described({"score": "sigmoid"}, weighted="inputs"),
    "shared": described(shared_d_ff=7),
    "gated shared": described(shared_d_ff=7, shared_gate=True, bias=False),
    "averaged shared": described(shared_d_ff=7, shared_average=True, expert="mlp", top_k=3),
    "latent": described(d_latent=3),
    "latent, shared": described(d_latent=3, shared_d_ff=7, expert="mlp", bias=False, top_k=3),
    "latent, weighted inputs": described({"score": "sigmoid"}, d_latent=3, weighted="inputs"),
}
each_mixture = pytest.mark.parametrize("moe", MIXTURES.values(), ids=list(MIXTURES))


@each_mixture
def test_output_and_gradients_are_those_of_the_formula(moe: MixtureOfExperts) -> None:
    module = randomised(moe)
    x = tokens(3, 7).requires_grad_()
    y, expected = module(x), mixture(moe, x, module.state_dict(keep_vars=True))
    torch.testing.assert_close(y, expected, rtol=1e-11, atol=1e-11)
    weights = torch.randn_like(y)
    wanted = [x, *module.parameters()]
    found = torch.autograd.grad((y * weights).sum(), wanted, materialize_grads=True)
    true = torch.autograd.grad((expected * weights).sum(), wanted, materialize_grads=True)
    names = ["x", *(name for name, _ in module.named_parameters())]
    for name, ours, theirs in zip(names, found, true, strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )


@each_mixture
def test_layout_is_what_is_built(moe: MixtureOfExperts) -> None:
    module = moe.build()
    layout = dict(moe.layout().tensors())
    assert {name: tensor.shape for name, tensor in layout.items()} == {
        name: tuple(tensor.shape) for name, tensor in module.state_dict().items()
    }
    parameters = {name for name, _ in module.named_parameters()}
    assert parameters == {name for name, tensor in layout.items() if not tensor.buffer}
    assert moe.layout().n_parameters == sum(p.numel() for p in module.parameters())
    roles = {name: tensor.role for name, tensor in layout.items()}
    last = (
        ("down_proj.weight",)
        if moe.d_latent is None
        else ("out_proj.weight", "shared.down_proj.weight")
    )
    assert {n for n, role in roles.items() if role == "residual"} == {
        n for n in roles if n.endswith(last)
    }
    for name, tensor in layout.items():
        if tensor.role == "constant":
            continue
        *_, module_name, _ = f".{name}".split(".")
        shared = name.startswith("shared.")
        hidden, width = (7, D_MODEL) if shared else (D_FF, moe.d_latent or D_MODEL)
        fans = {
            "router": (D_MODEL, moe.n_experts),
            "shared_gate": (D_MODEL, 1),
            "in_proj": (D_MODEL, moe.d_latent),
            "out_proj": (moe.d_latent, D_MODEL),
            "down_proj": (hidden, width),
        }.get(module_name, (width, hidden))
        assert (tensor.fan_in, tensor.fan_out) == fans, name


def test_names_are_the_canonical_ones() -> None:
    moe = described({"bias": True, "correction_bias": True}, shared_d_ff=7, shared_gate=True)
    maps = [f"{m}_proj.{t}" for m in ("gate", "up", "down") for t in ("weight", "bias")]
    assert {name for name, _ in moe.layout().tensors()} == {
        "router.weight",
        "router.bias",
        "router.correction_bias",
        "shared_gate.weight",
        *(f"experts.{name}" for name in maps),
        *(f"shared.{name}" for name in maps),
    }
    assert moe.layout().find("experts.up_proj.weight").shape == (N_EXPERTS, D_FF, D_MODEL)
    assert moe.layout().label == "2 of 8 experts, glu silu, d_ff 5, shared 7"


# --- only the chosen experts are computed ---------------------------------------------------------


def test_experts_that_are_not_chosen_are_not_touched() -> None:
    module = randomised(described())
    x = tokens(4)
    chosen = set(module.router(x)[1].flatten().tolist())
    assert 1 < len(chosen) < N_EXPERTS
    y = module(x)
    with torch.no_grad():
        for parameter in module.experts.parameters():
            for expert in set(range(N_EXPERTS)) - chosen:
                parameter[expert] = torch.nan
    torch.testing.assert_close(module(x), y, rtol=0, atol=0)


@pytest.mark.parametrize("expert", ["glu", "mlp"])
def test_what_works_on_one_token_is_what_gets_a_gradient_from_it(expert: str) -> None:
    moe = described(expert=expert, n_experts=6, top_k=2, shared_d_ff=3)
    module = randomised(moe)
    module(tokens(1)).square().sum().backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    n_active = moe.layout().n_parameters - moe.layout().n_idle
    assert sum(int(gradient.count_nonzero()) for gradient in gradients) == n_active


def test_active_parameters_are_the_published_ones() -> None:
    """12.9B of Mixtral 8x7B (its announcement), 37B of DeepSeek-V3 (its abstract)."""
    assert round(zoo.read_spec("mixtral-8x7b").n_active / 1e8) == 129
    assert zoo.read_spec("deepseek-v3").n_active // 10**9 == 37
    assert zoo.read_spec("gpt2").n_active == zoo.read_spec("gpt2").n_parameters


def test_products_are_those_of_the_chosen_experts() -> None:
    n_experts, top_k, n_tokens, d_ff = 16, 3, 40, 11
    module = randomised(described(n_experts=n_experts, top_k=top_k, d_ff=d_ff, bias=False))
    x = tokens(n_tokens).requires_grad_()

    def flops(run: Any) -> int:
        with profile(
            activities=[ProfilerActivity.CPU], record_shapes=True, with_flops=True
        ) as found:
            run()
        products = ("aten::mm", "aten::addmm", "aten::bmm")
        return sum(event.flops for event in found.key_averages() if event.key in products)

    router = 2 * n_tokens * D_MODEL * n_experts
    experts = 3 * 2 * n_tokens * top_k * D_MODEL * d_ff
    assert flops(lambda: module(x)) == router + experts
    y = module(x).sum()
    assert flops(y.backward) == 2 * (router + experts)


def test_each_call_gives_the_same_bits() -> None:
    module = randomised(described({"score": "sigmoid"}, top_k=3)).float()
    x = tokens(5, 9).float().requires_grad_()

    def run() -> list[torch.Tensor]:
        y = module(x)
        return [y, *torch.autograd.grad(y.square().sum(), [x, *module.parameters()])]

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 1, 3), (0,), (2, 0)])
def test_any_number_of_tokens(shape: tuple[int, ...]) -> None:
    module = randomised(described(shared_d_ff=7, shared_gate=True))
    x = tokens(*shape)
    y = module(x)
    assert y.shape == x.shape
    each = [module(row) for row in x.reshape(-1, D_MODEL)]
    expected = torch.stack(each).view_as(x) if each else x
    torch.testing.assert_close(y, expected)
    y.sum().backward()


# --- the routers' bias, losses, dtypes, compilers -------------------------------------------------


@pytest.mark.parametrize(
    ("group_score", "correction", "expected"),
    [("max", 0.0, [0, 3]), ("top2", 0.0, [4, 5]), ("max", -5.0, [0, 3]), ("top2", -5.0, [4, 5])],
)
def test_groups_are_chosen_by_their_best_or_their_best_two(
    group_score: str, correction: float, expected: list[int]
) -> None:
    router = Router(
        d_model=8,
        n_experts=8,
        top_k=2,
        score="sigmoid",
        correction_bias=True,
        n_groups=2,
        top_groups=1,
        group_score=group_score,  # type: ignore[arg-type]
    ).build()
    with torch.no_grad():
        router.weight.copy_(torch.eye(8))  # so that the logits are the token
        router.correction_bias.fill_(correction)  # below 0, experts of closed groups stay closed
    _, chosen, _ = router(torch.tensor([[3.0, -9.0, -9.0, -8.0, 2.0, 1.0, -9.0, -9.0]]))
    assert chosen.tolist() == [expected]


def test_correction_bias_moves_the_choice_and_not_the_weights() -> None:
    module = randomised(described({"score": "sigmoid", "correction_bias": True}))
    assert "router.correction_bias" not in dict(module.named_parameters())
    assert "router.correction_bias" in module.state_dict()
    x = tokens(5)
    with torch.no_grad():
        module.router.correction_bias.zero_()
        module.router.correction_bias[3] = 100.0
    weights, chosen, scores = module.router(x)
    assert (chosen == 3).any(-1).all()
    torch.testing.assert_close(weights, scores.gather(-1, chosen))


def test_load_balancing_loss_is_that_of_published_models() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    for top_k in (1, 2, 3):
        moe = described(top_k=top_k, auxiliary_loss=0.25)
        module = randomised(moe).float()
        x = tokens(3, 50).float()
        module(x)
        logits = x.reshape(-1, D_MODEL) @ module.router.weight.T
        theirs = load_balancing_loss_func((logits,), N_EXPERTS, top_k)
        # The reference counts a token once for each of its choices.
        torch.testing.assert_close(module.auxiliary_loss, 0.25 * theirs / top_k)


@pytest.mark.parametrize("top_k", [1, 3])
def test_padding_has_no_part_in_the_load_balancing_loss(top_k: int) -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    module = randomised(described(top_k=top_k, auxiliary_loss=0.25)).float()
    x = tokens(3, 50).float()
    lengths = torch.tensor([50, 17, 1])
    mask = torch.arange(50) < lengths[:, None]
    y = module(x, mask=mask)
    logits = x.reshape(-1, D_MODEL) @ module.router.weight.T
    theirs = load_balancing_loss_func((logits,), N_EXPERTS, top_k, attention_mask=mask)
    torch.testing.assert_close(module.auxiliary_loss, 0.25 * theirs / top_k)
    found = module.auxiliary_loss
    assert torch.equal(module(x), y)  # nothing else depends on the mask
    module(x[mask])
    torch.testing.assert_close(module.auxiliary_loss, found)
    module(x, mask=torch.zeros(1, 50, dtype=torch.bool))
    assert module.auxiliary_loss.item() == 0.0


@pytest.mark.parametrize("arrangement", ["sequential", "parallel"])
def test_a_stack_tells_its_experts_what_is_padding(arrangement: str) -> None:
    """By the `pad_id` of the spec, or by the mask of the call."""
    spec = (
        'format = 1\nname = "m"\nbuilder = "decoder"\nvocab = 20\nn_layers = 2\nd_model = 8\n'
        f'n_heads = 2\nd_ff = 12\n[decoder.block]\narrangement = "{arrangement}"\n'
        'ffn = { kind = "moe", n_experts = 4, top_k = 2, auxiliary_loss = 0.1 }\n'
    )
    ids = torch.randint(1, 20, (1, 7), generator=torch.Generator().manual_seed(0))
    padded = torch.cat([ids, torch.zeros_like(ids)], 1)
    model = zoo.build(spec, dtype=torch.float64).train()
    model(ids)
    expected = zoo.auxiliary_loss(model)
    model(padded)
    assert zoo.auxiliary_loss(model) != expected
    model(padded, target_mask=padded != 0)
    torch.testing.assert_close(zoo.auxiliary_loss(model), expected)
    with torch.no_grad():  # where padding is not computed
        model(padded, target_mask=padded != 0)
    torch.testing.assert_close(zoo.auxiliary_loss(model), expected)
    model = zoo.build(f"pad_id = 0\n{spec}", dtype=torch.float64).train()
    model(padded)
    torch.testing.assert_close(zoo.auxiliary_loss(model), expected)


def test_load_balancing_loss_is_one_at_balance_and_grows_to_the_number_of_experts() -> None:
    even = load_balancing_loss(torch.full((8, 4), 0.3), torch.arange(8)[:, None] % 4)
    assert even.item() == 1.0
    one = torch.tensor([[0.0, 0.7, 0.0, 0.0]]).expand(8, 4)
    assert load_balancing_loss(one, torch.ones(8, 1, dtype=torch.int64)).item() == 4.0


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "topk_softmax"])
def test_load_balancing_loss_evens_the_load_out(score: str) -> None:
    module = randomised(described({"score": score}, auxiliary_loss=1.0)).float()
    x = tokens(500).float() + 2.0
    optimizer = torch.optim.Adam([module.router.weight], lr=0.05)

    def largest_share() -> float:
        chosen = module.router(x)[1].flatten()
        return torch.bincount(chosen, minlength=N_EXPERTS).max().item() / len(chosen)

    before = largest_share()
    for _ in range(100):
        module(x)
        optimizer.zero_grad()
        zoo.auxiliary_loss(module).backward()
        optimizer.step()
    assert before > 0.25
    assert largest_share() < 0.17


def test_auxiliary_loss_is_of_training_and_sums_over_modules() -> None:
    first, second, silent = (
        randomised(described(auxiliary_loss=c), seed) for seed, c in enumerate((0.5, 2.0, 0.0))
    )
    model = nn.Sequential(first, second, silent)
    assert zoo.auxiliary_loss(model).item() == 0.0
    x = tokens(20)
    model(x)
    assert silent.auxiliary_loss is None

    def expected(module: nn.Module, x: torch.Tensor, coefficient: float) -> torch.Tensor:
        shares = (x @ module.router.weight.T).softmax(-1)
        counts = torch.bincount(shares.topk(2).indices.flatten(), minlength=N_EXPERTS)
        return coefficient * N_EXPERTS * (counts / (2 * len(x)) * shares.mean(0)).sum()

    total = expected(first, x, 0.5) + expected(second, first(x), 2.0)
    torch.testing.assert_close(zoo.auxiliary_loss(model), total)
    with torch.no_grad():
        in_training = model(x)
    assert torch.equal(model.eval()(x), in_training)
    assert first.auxiliary_loss is None
    assert zoo.auxiliary_loss(model).item() == 0.0


def test_a_model_can_be_copied_after_a_training_step() -> None:
    module = randomised(described(auxiliary_loss=1.0))
    x = tokens(20)
    y = module(x)
    twin = copy.deepcopy(module)
    assert twin.auxiliary_loss is None
    assert module.auxiliary_loss is not None
    assert torch.equal(twin(x), y)


def test_a_compiler_sees_one_graph() -> None:
    moe = described(
        {
            "score": "sigmoid",
            "normalize": True,
            "correction_bias": True,
            "n_groups": 4,
            "top_groups": 2,
        },
        auxiliary_loss=0.1,
        shared_d_ff=7,
    )
    module = randomised(moe)
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend="aot_eager")
    for n_tokens in (9, 4):
        x = tokens(n_tokens)
        results = []
        for run in (module, compiled):
            inputs = x.clone().requires_grad_()
            y = run(inputs)
            (y.square().sum() + zoo.auxiliary_loss(run)).backward()
            results.append([y, inputs.grad, *(p.grad for p in run.parameters())])
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("moe", "compiled"),
    [
        *(pytest.param(moe, False, id=name) for name, moe in MIXTURES.items()),
        *one_then_slow(
            pytest.param(moe, True, id=f"{name}, compiled") for name, moe in MIXTURES.items()
        ),
    ],
)
@torch.no_grad()
def test_few_rows_need_no_counts(
    moe: MixtureOfExperts, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU would wait for the number of rows of each expert."""
    module, x = randomised(moe).eval(), tokens(2)
    expected = module(x)
    torch.compiler.reset()
    monkeypatch.setattr(experts, "grouped_linear", None)
    monkeypatch.setattr(experts, "copies", lambda x: not compiled)
    run = torch.compile(module, fullgraph=True, backend="aot_eager") if compiled else module
    torch.testing.assert_close(run(x), expected, rtol=0, atol=1e-12)


def test_many_rows_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, chosen = torch.ones(3, 2, 2, dtype=torch.float64), torch.tensor([0, 0, 1, 2])
    x = torch.tensor([[1.0, 2.0]] * 4, dtype=torch.float64)
    monkeypatch.setattr(experts, "copies", lambda x: True)
    monkeypatch.setattr(experts, "COPIED", 4 * 4 * 8)  # bytes, of four matrices of four numbers
    assert experts.row_by_row(x, weight, chosen) is None  # they would be kept for gradients
    with torch.no_grad():
        found = experts.row_by_row(x, weight, chosen)
        assert found is not None
        assert found.tolist() == [[3.0, 3.0]] * 4
        assert experts.row_by_row(x.repeat(2, 1), weight, chosen.repeat(2)) is None
        monkeypatch.undo()
        assert experts.row_by_row(x, weight, chosen) is None  # on a CPU nothing waits


def test_grouped_operators_keep_their_promises() -> None:
    random = torch.Generator().manual_seed(0)
    ends = torch.tensor([2, 2, 5, 9])

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64, requires_grad=True)

    x, y, weight = draw(9, 3), draw(9, 4), draw(4, 5, 3)
    for operator, inputs in ((grouped_linear, (x, weight)), (grouped_outer, (x, y))):
        torch.library.opcheck(operator, (*inputs, ends))
        assert torch.autograd.gradcheck(lambda a, b, f=operator: f(a, b, ends), inputs)
        assert torch.autograd.gradgradcheck(lambda a, b, f=operator: f(a, b, ends), inputs)


@pytest.mark.parametrize(
    ("width", "enabled", "fast"), [(256, True, True), (255, True, False), (256, False, False)]
)
def test_large_experts_are_computed_by_onednn(
    width: int, enabled: bool, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same products, and the same gradients: three experts have rows. On processors of Intel's,
    few rows would be MKL's."""
    taken_for(monkeypatch, intel=False)
    random = torch.Generator().manual_seed(0)
    ends = torch.tensor([2, 2, 5, 9])
    x = torch.randn(9, width, generator=random)
    weight = torch.randn(4, 256, width, generator=random) / 16
    found = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
    wanted = [tensor.double().detach().requires_grad_() for tensor in found]
    with (
        torch.backends.mkldnn.flags(enabled=enabled),
        profile(activities=[ProfilerActivity.CPU]) as run,
    ):
        y = grouped_linear(*found, ends)
        y.square().sum().backward()
    true = torch.cat(
        [rows @ w.T for rows, w in zip(wanted[0].split([2, 0, 3, 4]), wanted[1], strict=True)]
    )
    true.square().sum().backward()
    for one, other in ((y, true), *((a.grad, b.grad) for a, b in zip(found, wanted, strict=True))):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-4)
    names = [event.name for event in run.events()]
    assert names.count("mkldnn::_linear_pointwise") == (6 if fast else 0)


def test_low_precision_routes_in_float32() -> None:
    moe = described({"score": "sigmoid", "normalize": True}, top_k=2, shared_d_ff=7)
    wide = randomised(moe).bfloat16().double()
    low = copy.deepcopy(wide).bfloat16()
    x = tokens(200).bfloat16()
    weights, chosen, _ = low.router(x)
    wide_weights, wide_chosen, _ = wide.router(x.double())
    assert weights.dtype == torch.float32
    assert torch.equal(chosen, wide_chosen)
    torch.testing.assert_close(weights.double(), wide_weights, rtol=1e-6, atol=1e-6)
    y = low(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), wide(x.double()), rtol=0.03, atol=0.15)


def test_autocast_leaves_the_routing_in_float32() -> None:
    """In bfloat16, close scores would be equal, and another expert would be chosen."""
    router = randomised(described({"bias": True}, top_k=2)).float().router
    x = tokens(400).float()
    with torch.autocast("cpu", torch.bfloat16):
        found = router(x)
    for one, other in zip(found, router(x), strict=True):
        assert torch.equal(one, other)


def test_autocast_computes_the_experts_in_low_precision() -> None:
    module = randomised(described(auxiliary_loss=0.1)).float()
    x = tokens(30).float().requires_grad_()
    seen: list[torch.dtype] = []
    module.experts.activation.register_forward_hook(lambda *call: seen.append(call[2].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x)
        (y.float().square().sum() + zoo.auxiliary_loss(module)).backward()
    assert seen == [torch.bfloat16]
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in module.parameters())


def test_dropout_is_inside_the_experts() -> None:
    moe = described(n_experts=1, top_k=1, expert="mlp", activation="relu", bias=False, dropout=0.25)
    module = moe.model_copy(update={"d_ff": 400}).build()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(1.0)
    y = module(torch.ones(60, D_MODEL))
    # One expert of weight 1: each output is the sum of 400 sixes, each kept with probability 0.75.
    torch.testing.assert_close(y, y[:, :1].expand_as(y))
    kept = y[:, 0] / (D_MODEL / 0.75)
    assert kept.mean().item() == pytest.approx(300, abs=8)
    assert 4 < kept.std().item() < 15
    torch.testing.assert_close(module.eval()(torch.ones(2, D_MODEL))[0, 0].item(), 2400.0)


# --- what cannot be -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("router", "top_k", "message"),
    [
        ({}, 9, "top_k = 9 experts cannot be chosen from n_experts = 8"),
        ({"n_groups": 3}, 2, "n_experts = 8 is not divisible by n_groups = 3"),
        ({"n_groups": 2, "top_groups": 3}, 2, "top_groups = 3 cannot be chosen from n_groups = 2"),
        ({"n_groups": 4, "top_groups": 1}, 3, "cannot be chosen from top_groups = 1 groups of 2"),
        (
            {"n_groups": 8, "top_groups": 4, "group_score": "top2"},
            2,
            "needs groups of two experts or more",
        ),
        ({"threshold": 0.1}, 2, 'goes with `score = "sparsemixer"`, not `score = "softmax"`'),
        ({"normalize_order": 1.0}, 2, "goes with `normalize = true`, not `normalize = false`"),
        ({"normalize_eps": 1e-20}, 2, "goes with `normalize = true`"),
        ({"normalize_min": 1e-12}, 2, "goes with `normalize = true`"),
        ({"normalize": True, "normalize_eps": -1.0}, 2, "greater than or equal to 0"),
    ],
)
def test_routers_that_cannot_be(router: dict[str, Any], top_k: int, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        described(router, top_k=top_k)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shared_gate": True}, "`shared_gate` speaks of a shared expert"),
        ({"shared_average": True}, "`shared_average` speaks of a shared expert"),
        (
            {"limit": 7.0},
            'goes with `expert = "clamped_glu"` or `expert = "clipped_glu"`, not `expert = "glu"`',
        ),
        ({"auxiliary_loss": -0.1}, "greater than or equal to 0"),
        ({"slope": 0.1}, 'goes with `activation = "prelu"`, not `activation = "silu"`'),
    ],
)
def test_mixtures_that_cannot_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        described(**values)
    assert message in str(caught.value)


def test_settings_are_part_of_a_spec_only_where_they_count() -> None:
    plain = described().dump()
    assert "limit" not in plain
    idle = {"threshold", "normalize_order", "normalize_eps", "normalize_min", "group_score"}
    assert not idle & set(plain["router"])
    full = described({"score": "sparsemixer", "normalize": True}, expert="clamped_glu").dump()
    assert full["limit"] == 7.0
    router = full["router"]
    assert (router["threshold"], router["normalize_order"]) == (0.01, 1.0)
    assert (router["normalize_eps"], router["normalize_min"]) == (0.0, 0.0)
    grouped = described({"n_groups": 4, "top_groups": 2}).router
    assert grouped.group_score == "max"
