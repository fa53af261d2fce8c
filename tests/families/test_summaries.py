"""Families whose attention is to summaries of earlier tokens, beyond what all families are held to:
what they generate, and that summaries, their choice and the ids of tokens count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from breadth import one_then_slow

import zoo
from families.cases import all_cases
from families.checkpoints import make_model, save
from families.conformance import imported_case, registry

NAMES = ["deepseek_v4", "deepseek_v4.yarn"]
PROMPTS = [[5, 17, 33, 8, 61, 29, 44, 70, 12], [9, 50, 23], [77, 31, 64, 15, 42, 6], [11]]
N_NEW = 12


@torch.no_grad()
@pytest.mark.parametrize("name", one_then_slow(NAMES))
def test_generated_tokens_are_theirs(name: str, tmp_path: Path) -> None:
    """Prompts of several lengths at once give what each gives there alone."""
    theirs, ours = imported_case(name, tmp_path)
    found = zoo.generate(ours, PROMPTS, max_new_tokens=N_NEW)
    theirs.config.use_cache = True
    options = {"max_new_tokens": N_NEW, "min_new_tokens": N_NEW, "do_sample": False}
    for prompt, one in zip(PROMPTS, found, strict=True):
        ids = torch.tensor([prompt])
        expected = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), eos_token_id=-1, pad_token_id=1, **options
        )
        assert list(one.ids) == expected[0, len(prompt) :].tolist()


OTHER_VALUES: list[dict[str, object]] = [
    {"index_topk": 1},
    {"compress_rates": {"heavily_compressed_attention": 20, "compressed_sparse_attention": 2}},
    {"compress_rates": {"heavily_compressed_attention": 3, "compressed_sparse_attention": 20}},
    {"sliding_window": 2},
    {"swiglu_limit": 10.0},
    {"hc_sinkhorn_iters": 1},
    {"hc_eps": 0.1},
    {"compress_rope_theta": 20.0},
    {"rope_theta": 20.0},
    {"partial_rotary_factor": 0.125},
    {"routed_scaling_factor": 0.5},
    {"hidden_act": "gelu"},
]


@torch.no_grad()
@pytest.mark.parametrize(
    "config",
    one_then_slow(OTHER_VALUES),
    ids=str,
)
def test_each_option_counts(config: dict[str, object], tmp_path: Path) -> None:
    """With another value, the model is another one, and equal to theirs too."""
    ids, outputs = torch.tensor(PROMPTS[:1]), []
    for number, changed in enumerate(({}, config)):
        theirs, ours = imported_case("deepseek_v4", tmp_path / str(number), **changed)
        outputs.append(ours(ids))
        torch.testing.assert_close(outputs[-1], theirs(ids).logits, rtol=1e-5, atol=1e-5)
    assert (outputs[0] - outputs[1]).abs().max() > 1e-3


REFUSED = {
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "mlp_bias": True,
    "attention_bias": True,
    "scoring_func": "relu",
    "is_causal": False,
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_transformers_ignores_or_does_not_know_is_refused(key: str, tmp_path: Path) -> None:
    case = all_cases()["deepseek_v4"]
    case = replace(case, published={key: REFUSED[key]})
    save(make_model(case), case, tmp_path / "source")
    with pytest.raises(zoo.ZooError) as error:
        zoo.import_folder(tmp_path / "source", tmp_path / "imported", registry=registry())
    assert key in str(error.value)


FLAT = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
SCALED = {
    "another kind": (FLAT | {"type": "linear"}, "state rotary positions other than YaRN"),
    "another setting": (FLAT | {"mscale": 0.7}, "state rotary positions other than YaRN"),
}


@pytest.mark.parametrize(("scaling", "message"), SCALED.values(), ids=SCALED)
def test_positions_that_are_not_known_are_refused(
    scaling: dict[str, object], message: str, tmp_path: Path
) -> None:
    case = all_cases()["deepseek_v4"]
    case = replace(case, published={"rope_parameters": None, "rope_scaling": scaling})
    save(make_model(case), case, tmp_path / "source")
    with pytest.raises(zoo.ZooError, match=message):
        zoo.import_folder(tmp_path / "source", tmp_path / "imported", registry=registry())
