"""Operations of torch on modules, applied to models: functional calls, `vmap`, `to_empty`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, vmap

import zoo
from zoo.transformer import Transformer

VARIANTS: dict[str, dict[str, Any]] = {
    "sinusoidal": {},
    "rotary": {"position": "rotary"},
    "padding": {"pad_id": 0},
    "norm_of_each_head": {
        "attention": {"kind": "multi_head", "qk_norm": "layer_norm", "qk_norm_scope": "per_head"}
    },
    "window": {"position": "alibi", "attention": {"kind": "multi_head", "window": 2}},
}
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
IDS = torch.tensor([[3, 7, 4, 9], [8, 4, 0, 0], [5, 0, 0, 0]])


def built(name: str, **options: Any) -> Transformer:
    sizes = {"vocab": 11, "n_layers": 2, "d_model": 8, "n_heads": 2, "d_ff": 8}
    spec = {"format": 1, "name": "m", "builder": "decoder", **sizes, **VARIANTS[name]}
    return zoo.build(spec, dtype=torch.float64, **options).eval()


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_of_each_row(name: str) -> None:
    model = built(name)
    values = dict(model.named_parameters())
    buffers = dict(model.named_buffers())

    def loss(values: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = functional_call(model, (values, buffers), (row[None],))
        return found.square().mean()

    found = vmap(grad(loss), (None, 0))(values, IDS)
    for number, row in enumerate(IDS):
        model.zero_grad()
        model(row[None]).square().mean().backward()
        for key, parameter in values.items():
            torch.testing.assert_close(found[key][number], parameter.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_rows_with_padding_under_vmap(name: str) -> None:
    """Under vmap, values of a mask cannot be read, so padding cannot be left out."""
    model, mask = built(name), IDS != 0
    found = vmap(lambda row, seen: model(row[None], target_mask=seen[None])[0])(IDS, mask)
    expected = model(IDS, target_mask=mask)
    torch.testing.assert_close(found[mask], expected[mask], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_values_that_are_loaded_into_a_model_without(name: str) -> None:
    """The table of positions is not in the state dict."""
    model = built(name)
    torch.use_deterministic_algorithms(True)  # fills uninitialised memory with NaN
    try:
        empty = built(name, device="meta").to_empty(device="cpu")
    finally:
        torch.use_deterministic_algorithms(False)
    empty.load_state_dict(model.state_dict())
    assert torch.equal(empty(IDS), model(IDS))
