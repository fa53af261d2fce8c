"""Families whose attention chooses keys by an indexer, beyond what all families are held to: what
they generate, of prompts of several lengths, and that the choice is theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import zoo
from families.conformance import imported_case

NAMES = ["deepseek_v32", "glm_moe_dsa", "glm_moe_dsa.shared"]
PROMPTS = [[5, 17, 33, 8, 61, 29, 44, 70, 12], [9, 50, 23], [77, 31, 64, 15, 42, 6]]
"""Of which the first and the last are longer than the three keys that a query attends to."""
N_NEW = 8


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_generated_tokens_are_theirs(name: str, tmp_path: Path) -> None:
    theirs, ours = imported_case(name, tmp_path)
    found = zoo.generate(ours, PROMPTS, max_new_tokens=N_NEW)
    width = max(map(len, PROMPTS))
    ids = torch.tensor([[1] * (width - len(row)) + row for row in PROMPTS])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in PROMPTS])
    options = {"max_new_tokens": N_NEW, "min_new_tokens": N_NEW, "do_sample": False}
    theirs.config.use_cache = True
    expected = theirs.generate(ids, attention_mask=mask, eos_token_id=-1, **options)
    assert [list(one.ids) for one in found] == expected[:, width:].tolist()


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_the_choice_matters(name: str, tmp_path: Path) -> None:
    """With as many keys as there are, the model is another one, and equal to theirs too."""
    ids = torch.tensor(PROMPTS[:1])
    outputs = []
    for topk in (3, 64):
        theirs, ours = imported_case(name, tmp_path / str(topk), index_topk=topk)
        outputs.append(ours(ids))
        torch.testing.assert_close(outputs[-1], theirs(ids).logits, rtol=1e-5, atol=1e-5)
    assert (outputs[0] - outputs[1]).abs().max() > 0.01
