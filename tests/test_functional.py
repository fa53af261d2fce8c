"""Operations of torch on modules, applied to models: functional calls, `vmap`, `to_empty`."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.func import functional_call, grad, jvp, vmap

import zoo
from zoo.transformer import Transformer
from zoo.weights.held_tensors import differences_from_spec

VARIANTS: dict[str, dict[str, Any]] = {
    "sinusoidal": {},
    "rotary": {"position": "rotary"},
    "padding": {"pad_id": 0},
    "norm_of_each_head": {
        "attention": {"kind": "multi_head", "qk_norm": "layer_norm", "qk_norm_scope": "per_head"}
    },
    "tied": {"position": "rotary", "head": {"kind": "linear", "tied": True}},
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


@torch.no_grad()
def test_tied_parameters_stay_one() -> None:
    """torch makes a parameter of each name where one gets memory, loses it, or is assigned."""
    model = built("tied")
    others = [built("tied", device="meta") for _ in range(2)]
    others[0].to_empty(device="cpu").load_state_dict(model.state_dict())
    others[1].load_state_dict(model.state_dict(), assign=True)
    for other in (*others, built("tied").to("meta")):
        head, embedding = "head.out.weight", "decoder.embed.tokens.weight"
        assert other.get_parameter(head) is other.get_parameter(embedding)
    for other in others:
        assert torch.equal(other(IDS), model(IDS))
        assert not differences_from_spec(other)


@torch.no_grad()
def test_an_ensemble_under_vmap() -> None:
    """As in PyTorch's tutorial: a model without values gets those of each member."""
    members = [built("tied"), built("tied", seed=1)]
    values = torch.func.stack_module_state(members)
    base = built("tied").to("meta")
    found = vmap(lambda values, buffers: functional_call(base, (values, buffers), (IDS,)))(*values)
    for number, member in enumerate(members):
        torch.testing.assert_close(found[number], member(IDS), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_forward_derivatives_with_the_backend_math(name: str) -> None:
    """The derivative along a direction is the product of the direction and the gradient."""
    model = built(name)
    values = {key: value.detach() for key, value in model.named_parameters()}
    along = {key: torch.randn_like(value) for key, value in values.items()}

    def loss(values: dict[str, torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = functional_call(model, values, (IDS[:1],))
        return found.square().mean()

    with zoo.attention_backend("math"):
        _, derivative = jvp(loss, (values,), (along,))
    expected = sum((grad(loss)(values)[key] * along[key]).sum() for key in values)
    torch.testing.assert_close(derivative, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("builder", ["decoder", "encoder_decoder"])
def test_activation_checkpointing_of_layers(builder: str) -> None:
    sizes = {"n_layers": 2, "d_model": 8, "n_heads": 2, "d_ff": 8}
    vocab = {"vocab": 11} if builder == "decoder" else {"source_vocab": 11, "target_vocab": 11}
    spec = {"format": 1, "name": "m", "builder": builder, **sizes, **vocab}
    inputs = (IDS,) if builder == "decoder" else (IDS, IDS)
    model, other = (zoo.build(spec, dtype=torch.float64) for _ in range(2))
    layers = [module for module in other.modules() if isinstance(module, nn.ModuleList)]
    apply_activation_checkpointing(
        other,
        checkpoint_wrapper_fn=partial(
            checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT
        ),
        check_fn=lambda module: any(module in list(every) for every in layers),
    )
    for each in (model, other):
        each(*inputs).square().mean().backward()
    wrapped = {
        key.replace("_checkpoint_wrapped_module.", ""): value
        for key, value in other.named_parameters()
    }
    assert any("wrapped" in key for key, _ in other.named_parameters())
    for key, value in model.named_parameters():
        torch.testing.assert_close(wrapped[key].grad, value.grad, rtol=0, atol=1e-12)


def test_a_graph_of_fx_is_that_of_export() -> None:
    model = built("sinusoidal")
    with pytest.raises(TypeError):
        torch.fx.symbolic_trace(model)
    graph = torch.export.export(model, (IDS,)).module()
    assert isinstance(graph, torch.fx.GraphModule)
    assert torch.equal(graph(IDS), model(IDS))
