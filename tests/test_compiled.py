"""Layers under `torch.compile`: one graph for all layers and, while generating, for all steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from breadth import one_then_slow, slow
from processors import taken_for
from torch import nn

import zoo
from zoo.linear import Linear
from zoo.transformer import Transformer

N_LAYERS, N_NEW = 3, 24
PROMPTS = [[5, 6, 7], [8, 9, 3, 4]]
DECODER = {"builder": "decoder", "vocab": 20}
PAIR = {"builder": "encoder_decoder", "source_vocab": 20, "target_vocab": 20}
LATENT = {"kind": "latent", "kv_lora_rank": 6, "q_lora_rank": "none", "qk_nope_head_dim": 4}
SPECS: dict[str, dict[str, Any]] = {
    "rotary": {**DECODER, "position": "rotary", "n_kv_heads": 2},
    "buckets": {**DECODER, "position": {"kind": "t5_buckets", "n_buckets": 8, "max_distance": 6}},
    "window": {**DECODER, "attention": {"kind": "multi_head", "window": 5}},
    "latent": {
        **DECODER,
        "position": "rotary",
        "attention": {**LATENT, "qk_rope_head_dim": 4, "v_head_dim": 4},
    },
    "shared_keys": {
        **DECODER,
        "position": "rotary",
        "decoder": {"layers": [{"last": 2, "self_attn": "cross_layer"}]},
    },
    "pair": PAIR,
}


def built(spec: dict[str, Any]) -> Transformer:
    sizes = {"n_layers": N_LAYERS, "d_model": 16, "n_heads": 4, "d_ff": 24}
    return zoo.build({"format": 1, "name": "m", **sizes, **spec})


class Graphs:
    """A backend that compiles nothing and counts the graphs that it gets."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        self.count += 1
        return graph.forward

    def compile(self, layers: nn.Module) -> None:
        """Compile each layer as one graph; a graph break is an error."""
        torch.compiler.reset()
        for layer in layers.children():
            layer.compile(backend=self, fullgraph=True)


@pytest.mark.parametrize(
    "name", [slow(name) if name in ("buckets", "window", "shared_keys") else name for name in SPECS]
)
@pytest.mark.parametrize("rows", one_then_slow([len(PROMPTS), None, 1]))
def test_generating(name: str, rows: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.linear.LARGE", 1)
    model = built(SPECS[name])
    if rows is not None:
        zoo.arrange_weights(model, rows=rows)
    start = 1 if name == "pair" else None
    expected = zoo.generate(model, PROMPTS, max_new_tokens=N_NEW, start=start)
    graphs = Graphs()
    graphs.compile(model.decoder.layers)
    found = zoo.generate(model, PROMPTS, max_new_tokens=N_NEW, start=start)
    assert [one.ids for one in found] == [one.ids for one in expected]
    # One graph for the first tokens, one for the next, one for any length; not one for each step.
    # For each kind of layer.
    kinds = {type(layer.self_attn) for layer in model.decoder.layers}
    assert 2 <= graphs.count <= 6 * len(kinds)


@torch._dynamo.config.patch(recompile_limit=32)  # type: ignore[no-untyped-call]
@pytest.mark.parametrize("name", one_then_slow(SPECS))
def test_another_length_needs_no_graph_of_its_own(name: str) -> None:
    """Nor another number of texts: a text alone, several, and several of different lengths do."""
    model = built(SPECS[name])
    start = 1 if name == "pair" else None
    torch.compiler.reset()
    graphs = Graphs()
    for layer in model.decoder.layers:
        layer.compile(backend=graphs, fullgraph=True, dynamic=True)
    long, short = list(range(2, 15)), list(range(2, 13))  # of no length that is a width too
    for prompts, others in (
        ([long], [short]),
        ([long] * 7, [short] * 9),
        ([long, short] * 4, [short, long[1:]] * 5),
    ):
        zoo.generate(model, prompts, max_new_tokens=9, start=start)
        at_once = graphs.count
        zoo.generate(model, others, max_new_tokens=17, start=start)
        assert graphs.count == at_once


@pytest.mark.parametrize(
    ("shape", "bias"),
    [((6,), True), ((1, 6), False), ((1, 1, 6), True), ((2, 6), True), ((1, 3, 6), False)],
)
@pytest.mark.parametrize(
    ("dtype", "intel"),
    [
        (torch.float64, False),
        (torch.float32, False),
        (torch.bfloat16, False),
        (torch.float32, True),
        (torch.bfloat16, True),
    ],
)
def test_one_row_is_a_sum(
    intel: bool,
    shape: tuple[int, ...],
    bias: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compilers call MKL for a product, but make a loop of a sum, except where MKL is as fast: in
    float32 on processors of Intel's."""
    taken_for(monkeypatch, intel=intel)
    is_sum = math.prod(shape) == 6 and not (intel and dtype == torch.float32)
    torch.manual_seed(0)
    linear, x = Linear(6, 5, bias=bias).to(dtype), torch.randn(shape).to(dtype)
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        graphs.append(graph.code)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(linear, backend=backend, fullgraph=True)
    with torch.no_grad():
        found = compiled(x)
    wide = [None if t is None else t.detach().double() for t in (x, linear.weight, linear.bias)]
    expected = nn.functional.linear(*wide)
    tolerance = {torch.float64: 1e-15, torch.float32: 1e-6, torch.bfloat16: 2**-8}[dtype]
    assert (found.dtype, found.shape) == (dtype, expected.shape)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    if is_sum and dtype == torch.bfloat16:  # added in float32, and rounded once
        assert torch.equal(found, expected.to(dtype))
    assert [".sum(" in code for code in graphs] == [is_sum]
    assert ["linear(" in code for code in graphs] == [not is_sum]
    compiled(x)  # with gradients, which a sum would keep all of its products for
    assert ".sum(" not in graphs[1]
    with torch.no_grad():
        assert "linear" in str(torch.export.export(linear, (x,)).graph)


def test_learning() -> None:
    """The same gradients, in float64."""
    model = built(PAIR).double()
    ids = torch.tensor(PROMPTS[1:])

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(ids, ids).square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected = gradients()
    graphs = Graphs()
    for stack in (model.encoder, model.decoder):
        graphs.compile(stack.layers)
    torch.testing.assert_close(gradients(), expected, rtol=0, atol=1e-12)
    assert graphs.count == 2
