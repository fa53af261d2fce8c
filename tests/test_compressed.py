"""`shared_kv`, `heavily_compressed` and `compressed_sparse` against statements for one query, one
head and one token at a time."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from references.attention_cases import made, randn
from torch import Tensor

import zoo
from zoo.cache import Cache
from zoo.component import Component
from zoo.errors import SpecError
from zoo.position import Rotation
from zoo.reports.table import cache_bytes
from zoo.showing.show import summary_data, summary_text
from zoo_components.compressed import CompressedSparse, HeavilyCompressed, SharedKeyValue
from zoo_components.norm import NoNorm, RmsNorm

D, LENGTH, EPS = 6, 11, 1e-3
NOPE, ROPE, HEADS, Q_RANK, GROUPS, RANK, WINDOW = 3, 4, 4, 5, 2, 3, 3
WIDTH = NOPE + ROPE
SHARED: dict[str, Any] = {
    "d_model": D,
    "n_heads": HEADS,
    "q_lora_rank": Q_RANK,
    "nope_head_dim": NOPE,
    "rope_head_dim": ROPE,
    "window": WINDOW,
    "o_groups": GROUPS,
    "o_lora_rank": RANK,
    "latent_norm": RmsNorm(kind="rms_norm", width=WIDTH, eps=EPS),
    "q_norm": RmsNorm(kind="rms_norm", width=WIDTH, eps=EPS, weight=False),
    "norm": NoNorm(kind="none", width=D),
}
INDEX: dict[str, Any] = {"index_n_heads": 3, "index_head_dim": 5, "index_topk": 2}
Weights = dict[str, Tensor]


def shared(**fields: Any) -> SharedKeyValue:
    return SharedKeyValue(kind="shared_kv", **SHARED | fields)


def heavily(rate: int = 3, **fields: Any) -> HeavilyCompressed:
    return HeavilyCompressed(kind="heavily_compressed", compress_rate=rate, **SHARED | fields)


def sparse(rate: int = 2, **fields: Any) -> CompressedSparse:
    return CompressedSparse(kind="compressed_sparse", compress_rate=rate, **SHARED | INDEX | fields)


DESCRIPTIONS: dict[str, Component] = {
    "shared": shared(),
    "a window of one": shared(window=1),
    "all is rotated": shared(
        nope_head_dim=0,
        latent_norm=RmsNorm(kind="rms_norm", width=ROPE, eps=EPS),
        q_norm=RmsNorm(kind="rms_norm", width=ROPE, eps=EPS, weight=False),
    ),
    "scaled": shared(scale=0.9),
    "heavily": heavily(),
    "each token": heavily(1),
    "one summary": heavily(11),
    "no summary": heavily(12),
    "sparse": sparse(),
    "sparse, each token": sparse(1),
    "sparse, of four": sparse(4, index_topk=1),
    "sparse, all": sparse(index_topk=64),
}


def turn(v: Tensor, angle: float) -> Tensor:
    """Pairs of neighbours of the last ROPE numbers, turned: the k-th by angle / 3**k."""
    v = v.clone()
    first = len(v) - ROPE
    for k in range(ROPE // 2):
        c, s = math.cos(angle / 3**k), math.sin(angle / 3**k)
        a, b = v[first + 2 * k].clone(), v[first + 2 * k + 1].clone()
        v[first + 2 * k], v[first + 2 * k + 1] = c * a - s * b, s * a + c * b
    return v


def rotations(positions: Tensor) -> Rotation:
    """The same of a batch, as position schemes make it."""
    k = torch.arange(ROPE // 2, dtype=torch.float64)
    angles = (positions[..., None] / 3**k).unsqueeze(-3)

    def rotated(x: Tensor) -> Tensor:
        a, b = x[..., ::2], x[..., 1::2]
        c, s = angles.cos(), angles.sin()
        return torch.stack([c * a - s * b, s * a + c * b], -1).flatten(-2)

    return rotated


def rms(x: Tensor, weight: Tensor | float) -> Tensor:
    return weight * x / (x.square().mean() + EPS).sqrt()


def summary(w: Weights, name: str, row: list[Tensor], at: int, rate: int, two: bool) -> Tensor:
    """The summary number `at` of the tokens of a row (equations 9 to 12, or 20 to 23)."""
    width = w[f"{name}.norm.weight"].numel()
    terms = []
    for part, window in ((0, at - 1), (1, at)) if two else ((0, at),):
        for j in range(rate):
            if window >= 0:
                token, columns = row[window * rate + j], slice(part * width, (part + 1) * width)
                gate = w[f"{name}.gate_proj.weight"][columns] @ token
                gate = gate + w[f"{name}.position_bias"][j, columns]
                terms.append((gate, w[f"{name}.kv_proj.weight"][columns] @ token))
    total = sum(gate.exp() for gate, _ in terms)
    mean = sum(gate.exp() * value for gate, value in terms) / total
    return rms(torch.as_tensor(mean), w[f"{name}.norm.weight"])


def chosen_summaries(a: Any, w: Weights, row: list[Tensor], t: int) -> list[int]:
    """Those that the indexer chooses for the token t, the best first."""
    best = sorted(range((t + 1) // a.compress_rate), key=lambda s: -index_score(a, w, row, t, s))
    return best[: a.index_topk]


def index_score(a: Any, w: Weights, row: list[Tensor], t: int, s: int) -> float:
    """The score of the summary s for the token t (equations 13 to 16), at positions 0, 1, ...."""
    key = turn(summary(w, "indexer.compressor", row, s, a.compress_rate, True), s * a.compress_rate)
    latent = rms(w["q_a_proj.weight"] @ row[t], w["q_a_norm.weight"])
    queries = (w["indexer.q_proj.weight"] @ latent).view(a.index_n_heads, a.index_head_dim)
    weights = w["indexer.weights_proj.weight"] @ row[t]
    scale = (a.index_n_heads * a.index_head_dim) ** -0.5
    return sum(
        (scale * weight * torch.relu(turn(q, t) @ key)).item()
        for weight, q in zip(weights, queries, strict=True)
    )


def reference(a: Any, w: Weights, x: Tensor) -> Tensor:
    """The attention of each row of x, at positions 0, 1, ...."""
    return torch.stack(
        [torch.stack([output(a, w, list(row), t) for t in range(len(row))]) for row in x]
    )


def output(a: Any, w: Weights, row: list[Tensor], t: int) -> Tensor:
    """That of the token t of a row."""
    near = range(max(0, t + 1 - a.window), t + 1)
    keys = [turn(rms(w["kv_proj.weight"] @ row[j], w["kv_norm.weight"]), j) for j in near]
    if isinstance(a, HeavilyCompressed):
        rate, two = a.compress_rate, isinstance(a, CompressedSparse)
        seen = chosen_summaries(a, w, row, t) if two else list(range((t + 1) // rate))
        keys += [turn(summary(w, "compressor", row, s, rate, two), s * rate) for s in seen]
    latent = rms(w["q_a_proj.weight"] @ row[t], w["q_a_norm.weight"])
    heads = []
    for query, sink in zip(
        (w["q_b_proj.weight"] @ latent).view(a.n_heads, -1), w["sinks"], strict=True
    ):
        q = turn(rms(query, 1.0), t)
        exps = [(a.scale * q @ key).exp() for key in keys]
        total = sum(exps) + sink.exp()
        mixed = sum(e * key for e, key in zip(exps, keys, strict=True)) / total
        heads.append(turn(torch.as_tensor(mixed), -t))
    groups = torch.cat(heads).view(a.o_groups, -1)
    maps = w["o_a_proj.weight"].view(a.o_groups, a.o_lora_rank, -1)
    inner = torch.cat([m @ group for m, group in zip(maps, groups, strict=True)])
    return w["o_b_proj.weight"] @ inner


def weights_of(module: Any) -> Weights:
    return {name: tensor.detach() for name, tensor in module.named_parameters()}


@pytest.mark.parametrize("name", DESCRIPTIONS)
@torch.no_grad()
def test_statement(name: str) -> None:
    description: Any = DESCRIPTIONS[name]
    module, x = made(description), randn(2, LENGTH, D)
    found, weights = module(  # positions are 0, 1, ... where none are given
        x, rotation=rotations(torch.arange(LENGTH)), rotations=rotations, return_weights=True
    )
    expected = reference(description, weights_of(module), x)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    rate = getattr(description, "compress_rate", math.inf)
    assert weights.shape == (2, HEADS, LENGTH, LENGTH + math.ceil(LENGTH / rate))
    assert (weights.sum(-1) < 1).all()  # the sinks have the rest


# --- what a mask hides ----------------------------------------------------------------------------

WITH_SUMMARIES = {"heavily": heavily(2), "sparse": sparse(2), "sparse, of four": sparse(4)}
HIDDEN = {
    "on the left": [0, 1, 2],
    "on the right": [8, 9, 10],
    "in between": [1, 4, 5, 9],
    "all but one": [i for i in range(LENGTH) if i != 6],
}


def run(module: Any, x: Tensor, positions: Tensor, **given: Any) -> Tensor:
    options = {"rotation": rotations(positions), "rotations": rotations, "positions": positions}
    output: Tensor = module(x, **options | given)[0]
    return output


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("description", WITH_SUMMARIES.values(), ids=WITH_SUMMARIES)
@torch.no_grad()
def test_hidden_tokens_are_in_no_summary(description: Component, hidden: list[int]) -> None:
    """The others get what they get alone, wherever their positions begin: distances alone count."""
    window = LENGTH  # windows count places, padding included
    module, x = made(description), randn(2, LENGTH, D)
    module.window = window
    real = [i for i in range(LENGTH) if i not in hidden]
    mask = torch.ones(2, 1, 1, LENGTH, dtype=torch.bool)
    mask[1, ..., hidden] = False
    positions = torch.arange(LENGTH).repeat(2, 1) + 3
    positions[1, real] = torch.arange(len(real)) + 7
    positions[1, hidden] = -1
    found = run(module, x, positions, mask=mask)
    alone = run(module, x[1:, real], torch.arange(len(real)))
    torch.testing.assert_close(found[1:, real], alone, rtol=1e-11, atol=1e-11)
    whole = run(module, x[:1], torch.arange(LENGTH))
    torch.testing.assert_close(found[:1], whole, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("sizes", [(1,) * LENGTH, (4, 1, 3, 3), (7, 4), (2, 9)])
@pytest.mark.parametrize("description", WITH_SUMMARIES.values(), ids=WITH_SUMMARIES)
@torch.no_grad()
def test_hidden_tokens_come_between_with_a_cache(
    description: Component, sizes: tuple[int, ...]
) -> None:
    """Rows finish their summaries at different steps."""
    module, x = made(description), randn(3, LENGTH, D)
    module.window = LENGTH
    seen = torch.ones(3, LENGTH, dtype=torch.bool)
    seen[1, [0, 1, 2, 6]] = False
    seen[2, [0, 5, 7, 8, 10]] = False
    cache, found, at = Cache(LENGTH), [], 0
    for n in sizes:
        now = slice(at, at + n)
        positions = cache.past.append(n, seen=seen[:, now], counted=seen[:, now], device=x.device)
        kept = cache.layer(0).of("self_attn")
        given = {"mask": cache.past.mask, "cache": kept}
        found.append(run(module, x[:, now], positions, **given))
        at += n
    output = torch.cat(found, 1)
    for row, real in enumerate(seen):
        alone = run(module, x[row : row + 1, real], torch.arange(int(real.sum())))
        torch.testing.assert_close(output[row : row + 1, real], alone, rtol=1e-11, atol=1e-11)


def test_masks_that_differ_by_query_are_for_tokens_alone() -> None:
    mask = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)
    mask[:, :, 4, 3] = False
    x = randn(2, LENGTH, D)
    _, weights = made(shared())(x, mask=mask, return_weights=True)
    assert (weights[:, :, 4, 3] == 0).all()
    for description in (heavily(), sparse()):
        with pytest.raises(ValueError, match="takes no mask that differs by query"):
            made(description)(x, mask=mask)


@torch.no_grad()
def test_a_step_reads_each_summary_once_and_no_token_beyond_the_window() -> None:
    """What a step computes with grows by one summary for every so many tokens."""
    module, kept = made(heavily(4)), Cache(64).layer(0).of("self_attn")
    seen: list[int] = []

    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, f: Any, _: Any, given: Any = (), options: Any = None) -> Any:
            sizes = [t.numel() for t in given if isinstance(t, Tensor)]
            seen.append(max(sizes, default=0))
            return f(*given, **options or {})

    largest = []
    for at in range(64):
        positions = kept.past.append(1, seen=None, counted=None, device=torch.device("cpu"))
        seen.clear()
        with Counting():
            run(module, randn(1, 1, D, seed=at), positions, cache=kept)
        largest.append(max(seen))
    assert largest[63] <= HEADS * WIDTH * (WINDOW + 64 // 4)
    buffers = [t.numel() for t in kept._buffers]
    assert kept.n_bytes == 8 * (sum(buffers) + 16 * WIDTH + 2 * WIDTH + 1)


# --- the choice of summaries ----------------------------------------------------------------------


@torch.no_grad()
def test_of_equal_scores_the_first_summaries_are_chosen() -> None:
    module = made(sparse(2, index_topk=2))
    module.indexer.weights_proj.weight.zero_()
    _, weights = module(randn(1, LENGTH, D), return_weights=True)
    chosen = (weights[0, :, :, LENGTH:] > 0).any(0)
    expected = [[s < min((t + 1) // 2, 2) for s in range(chosen.shape[1])] for t in range(LENGTH)]
    assert chosen.tolist() == expected


@pytest.mark.parametrize("topk", [2, 64])
def test_the_loss_of_the_indexer(topk: int) -> None:
    """KL(p || softmax(I)) of what each token chose, in the mean of those that had a choice; also
    where all is chosen."""
    description = sparse(2, index_topk=topk, auxiliary_loss=0.3)
    module, x = made(description).train(), randn(2, LENGTH, D)
    mask = torch.ones(2, 1, 1, LENGTH, dtype=torch.bool)
    mask[1, ..., 8:] = False
    positions = torch.arange(LENGTH)
    run(module, x, positions, mask=mask)
    loss, w = module.auxiliary_loss, weights_of(module)
    assert loss is not None
    options = {"rotation": rotations(positions), "rotations": rotations, "positions": positions}
    _, weights = deepcopy(module).eval()(x, **options, return_weights=True)
    losses = []
    for b, n in ((0, LENGTH), (1, 8)):
        row = list(x[b])
        for t in range(1, n):
            chosen = chosen_summaries(description, w, row, t)
            scores = [index_score(description, w, row, t, s) for s in chosen]
            q = torch.tensor(scores, dtype=torch.float64).softmax(0)
            p = weights[b, :, t, [LENGTH + s for s in chosen]].detach().sum(0)
            p = p / p.sum()
            losses.append((p * (p / q).log()).sum())
    expected = 0.3 * torch.stack(losses).mean()
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-11, atol=1e-11)
    loss.backward()
    learned = {name for name, p in module.named_parameters() if p.grad is not None}
    assert learned == {name for name in w if name.startswith("indexer.")}
    module.eval()
    run(module, x, positions)
    assert module.auxiliary_loss is None


# --- in specs -------------------------------------------------------------------------------------


def spec(**values: Any) -> dict[str, Any]:
    kind = {
        k: v
        for k, v in (SHARED | INDEX).items()
        if isinstance(v, int) and k not in ("d_model", "n_heads")
    }
    attention = {"kind": "compressed_sparse", "compress_rate": 4, **kind}
    sizes = {"vocab": 11, "n_layers": 2, "d_model": D, "n_heads": HEADS, "d_ff": 8}
    base = {"format": 1, "name": "small", "builder": "decoder", "position": "rotary"}
    return {**base, **sizes, "attention": attention, **values}


def test_what_generation_keeps_is_told() -> None:
    summary = summary_data(zoo.read_spec(spec()))
    text = summary_text(summary)
    assert "  kv cache    56 B float32, 28 B bfloat16 per token, only up to 3 tokens\n" in text
    assert "              96 B float32, 48 B bfloat16 for every 4 tokens\n" in text
    assert "4 over 1 head of 7, window 3," in text
    state = 2 * 4 * (4 * WIDTH + 4 * 5 + 1)
    assert summary["state_bytes_per_sequence"] == state
    assert cache_bytes(summary, 10) == 3 * 28 + 3 * 48 + state


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "narrow heads": (
        {"attention": {**spec()["attention"], "index_head_dim": 3}},
        "the indexer rotates rope_head_dim = 4 numbers of each head, which index_head_dim = 3 does",
    ),
    "groups": (
        {"attention": {**spec()["attention"], "o_groups": 3}},
        "n_heads = 4 is not divisible by o_groups = 3",
    ),
    "a bias": ({"position": "alibi"}, "add a bias to the scores, and the self-attention takes"),
    "several coordinates": (
        {
            "attention": {**spec()["attention"], "rope_head_dim": 6, "index_head_dim": 6},
            "position": {"kind": "rotary_multimodal", "sections": [1, 1, 1]},
        },
        "go by several coordinates, and the self-attention knows positions alone",
    ),
    "an encoder": ({"builder": "encoder", "head": "linear"}, "no token sees later ones in these"),
}


@pytest.mark.parametrize(("values", "message"), WRONG.values(), ids=WRONG)
def test_wrong(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        zoo.read_spec(spec(**values))
    assert message in str(error.value)
