"""Families in bfloat16, where what is rounded, and when, is a part of the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

import zoo
from families.cases import Case, all_cases
from families.checkpoints import make_model, save
from families.conformance import registry
from families.inputs import make_inputs
from families.outputs import our_outputs, taken, their_outputs
from zoo import import_folder


def theirs(
    case: Case, folder: Path, attention: str, dtype: torch.dtype = torch.bfloat16
) -> PreTrainedModel:
    """What transformers loads."""
    cls = getattr(transformers, case.model_class)
    return cls.from_pretrained(folder, attn_implementation=attention, dtype=dtype).eval()


def ours(folder: Path, output: Path) -> nn.Module:
    import_folder(folder, output, registry=registry())
    return zoo.load(output, registry=registry()).eval()


def norms(model: nn.Module) -> dict[bytes, nn.Module]:
    """The norms of a model, by the bytes of their weights, which are random."""
    found: dict[bytes, nn.Module] = {}
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if "norm" in type(module).__name__.lower() and isinstance(weight, Tensor):
            found[weight.detach().view(torch.uint8).numpy().tobytes()] = module
    return found


@pytest.mark.parametrize(
    "name",
    [
        *("afmoe", "beam", "bert", "flint", "gemma2", "gpt_oss", "llama", "longt5", "mt5"),
        *("olmo2", "qwen3", "switch_transformers", "t5", "umt5"),
    ],
)
def test_norms_round_where_those_of_transformers_do(name: str, tmp_path: Path) -> None:
    case = all_cases()[name]
    save(make_model(case).bfloat16(), case, tmp_path / "original")
    expected = norms(theirs(case, tmp_path / "original", "eager"))
    found = norms(ours(tmp_path / "original", tmp_path / "imported"))
    assert len(expected) > 2
    assert found.keys() == expected.keys()
    for weight, norm in expected.items():
        x = torch.randn(64, len(weight) // 2, generator=torch.manual_seed(0)).bfloat16()
        assert torch.equal(found[weight](x), norm(x))


@pytest.mark.parametrize(
    "name",
    ["bart", "bert", "deepseek_v3", "gemma", "gemma3_text", "gpt_neox", "llama", "phi3", "qwen3"],
)
@torch.no_grad()
def test_logits_differ_by_less_than_what_rounding_costs(name: str, tmp_path: Path) -> None:
    """On the machines that we know they are the same, bit by bit."""
    case = all_cases()[name]
    save(make_model(case).bfloat16(), case, tmp_path / "original")
    model = theirs(case, tmp_path / "original", "sdpa")  # which the zoo's attention calls, too
    exact = theirs(case, tmp_path / "original", "sdpa", torch.float32)
    given, *_ = make_inputs(case, model.config, taken(model))
    expected = their_outputs(model, case, given)
    found = our_outputs(ours(tmp_path / "original", tmp_path / "imported"), case, given, expected)
    truth = their_outputs(exact, case, given)["output"]
    cost = (expected["output"] - truth).abs().mean()
    assert cost > 1e-3
    assert (found["output"] - expected["output"]).abs().mean() < cost / 4
