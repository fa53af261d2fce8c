"""Hybrids, whose mixers with a state stand between layers of attention, or beside it in a layer:
read from checkpoints of `transformers`, they compute the same in float64, token by token, and with
padding on any side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from breadth import slow
from families.cases import all_cases
from families.checkpoints import make_model, save
from families.inputs import N_SPECIAL, N_TOKENS
from transformers import AutoModelForCausalLM

import zoo
from zoo import import_folder
from zoo.cache import Cache

HYBRIDS = [
    "lfm2",
    "lfm2.biased",
    "qwen3_next",
    "qwen3_next.published",
    "kimi_linear",
    "minimax",
    "bamba",
    "bamba.biased",
    "bamba.bounded",
    "granitemoehybrid",
    "falcon_h1",
    "falcon_h1.normed",
    "falcon_h1.normed_before_gate",
    "recurrent_gemma",
    "recurrent_gemma.wide",
    "falcon_mamba",
    "jamba",
    "mamba",
    "mamba2",
    "nemotron_h",
    "nemotron_h.latent",
    "xlstm",
    "zamba",
    "zamba2",
    "rwkv",
    "rwkv.wide",
]
LENGTH = 70  # more than a chunk
BATCH = 3


# What the variants of a model state is held by the tests of each mixer, too.
@pytest.fixture(scope="module", params=[slow(name) if "." in name else name for name in HYBRIDS])
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of `transformers`, and beside it the model that is read from it."""
    case, folder = all_cases()[name], tmp_path_factory.mktemp("hybrid")
    save(make_model(case), case, folder / "original")
    import_folder(folder / "original", folder / "imported", name="tiny")
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> zoo.Transformer:
    return zoo.load(folder / "imported", dtype=torch.float64).eval()


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    random = torch.Generator().manual_seed(3)
    return torch.randint(N_SPECIAL, N_TOKENS, (BATCH, LENGTH), generator=random)


@torch.no_grad()
def test_of_transformers(
    folder: Path, model: zoo.Transformer, ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, where `transformers` is kept from rounding norms and states to float32; its
    softmaxes and angles still are in float32."""
    theirs = AutoModelForCausalLM.from_pretrained(
        folder / "original", dtype=torch.float64, experts_implementation="eager"
    )
    narrow, cast, typed = torch.Tensor.float, torch.Tensor.to, torch.Tensor.type

    def stays(x: torch.Tensor, wanted: object) -> bool:
        return x.dtype == torch.float64 and wanted == torch.float32

    def to(x: torch.Tensor, *given: Any, **options: Any) -> torch.Tensor:
        return x if given and stays(x, given[0]) else cast(x, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "to", to)
        patched.setattr(torch.Tensor, "type", lambda x, t: x if stays(x, t) else typed(x, t))
        patched.setattr(
            torch.Tensor, "float", lambda x: x if stays(x, torch.float32) else narrow(x)
        )
        expected = theirs.eval()(ids).logits
    torch.testing.assert_close(model(ids), expected, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    "steps",
    [(LENGTH - 4, 1, 1, 2), (*(1,) * 20, LENGTH - 20), (3, 66, 1), slow((1,) * LENGTH)],
)
def test_token_by_token(model: zoo.Transformer, ids: torch.Tensor, steps: tuple[int, ...]) -> None:
    cache, states = Cache(LENGTH), []
    for part in ids.split(steps, 1):
        states.append(model.decode(part, cache=cache))
    torch.testing.assert_close(torch.cat(states, 1), model.decode(ids), rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(model: zoo.Transformer, ids: torch.Tensor, side: str) -> None:
    """Each text of a batch is computed as if it were alone, the next tokens too. With a cache,
    padding is on the left alone."""
    n_padding = torch.tensor([0, 5, LENGTH - 2])
    at = torch.arange(LENGTH)
    left = at >= n_padding[:, None]
    mask = left if side == "left" else left.flip(1)
    padded = torch.where(mask, ids, 1)
    found = [model.decode(padded, target_mask=mask)]
    if side == "left":
        cache = Cache(LENGTH)
        n = LENGTH - 1
        first = model.decode(padded[:, :n], target_mask=mask[:, :n], cache=cache)
        last = model.decode(padded[:, n:], target_mask=mask[:, n:], cache=cache)
        found.append(torch.cat([first, last], 1))
    for row in range(BATCH):
        alone = model.decode(ids[row : row + 1, mask[row]])[0]
        for states in found:
            torch.testing.assert_close(states[row, mask[row]], alone, rtol=0, atol=1e-10)


def test_generation(model: zoo.Transformer) -> None:
    """With beams, whose states are reordered, of prompts of several lengths."""
    prompts = [[9, 7, 14, 9, 12, 30, 31, 32], [8], [15, 15, 16]]
    found, anew = (
        zoo.generate(model, prompts, max_new_tokens=5, method=zoo.Beam(size=3), cache=cache)
        for cache in (True, False)
    )
    assert [one.ids for one in found] == [one.ids for one in anew]
    assert [one.score for one in found] == pytest.approx([o.score for o in anew], abs=1e-10)
