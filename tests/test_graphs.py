"""Export of a whole model as a graph, for runtimes without the zoo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from breadth import slow
from torch import nn

import zoo
from zoo.transformer import Transformer
from zoo_components.modules.heads import PerHeadNorm

SIZES = {"format": 1, "name": "m", "n_layers": 2, "d_model": 16, "n_heads": 4, "d_ff": 24}
NORMS = ("layer_norm", "scale_norm", "std_norm")
"""Beside the one of them that `make test` takes."""
STATES = (
    "gated_delta",
    "kimi_delta",
    "mamba",
    "lightning",
    "mlstm",
    "rg_lru",
    "parallel_hybrid",
    "two_mixers",
)
"""Beside the attention with a state that `make test` takes."""
LONG = 140
"""More tokens than two chunks of an attention with a state."""
KINDS: dict[str, dict[str, Any]] = {
    "decoder": {"builder": "decoder", "vocab": 50, "position": "rotary"},
    "grouped": {
        "builder": "decoder",
        "vocab": 50,
        "attention": {"kind": "multi_head", "n_kv_heads": 2},
    },
    "shared_keys": {
        "builder": "decoder",
        "vocab": 50,
        "position": "rotary",
        "decoder": {"layers": [{"last": 1, "self_attn": "cross_layer"}]},
    },
    "encoder": {"builder": "encoder", "vocab": 50, "head": "mlm"},
    "pair": {"builder": "encoder_decoder", "source_vocab": 50, "target_vocab": 50},
    **{
        f"{norm}_of_each_head": {
            "builder": "decoder",
            "vocab": 50,
            "attention": {"kind": "multi_head", "qk_norm": norm, "qk_norm_scope": "per_head"},
        }
        for norm in ("rms_norm", *NORMS)
    },
    **{
        kind: {"builder": "decoder", "vocab": 50, "position": "none", "attention": kind}
        for kind in ("linear", "mamba2", *STATES)
        if kind not in ("mamba", "two_mixers")
    },
    "mamba": {
        "builder": "decoder",
        "vocab": 50,
        "position": "none",
        "decoder": {"layers": [{"at": [0], "attention": "mamba"}]},
    },
    "two_mixers": {
        "builder": "decoder",
        "vocab": 50,
        "position": "none",
        "decoder": {"layers": [{"at": [0], "block": "two_mixers", "attention": "time_mixing"}]},
    },
    "captioner": {
        "builder": "encoder_decoder",
        "target_vocab": 50,
        "encoder": {"embedding": {"kind": "patches", "image_size": 6, "patch_size": 2}},
    },
}


@pytest.fixture(params=[slow(kind) if kind.startswith(NORMS + STATES) else kind for kind in KINDS])
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Transformer:
    """Return a model whose linear maps are all computed by oneDNN, as in models of real sizes."""
    monkeypatch.setattr("zoo.linear.LARGE", 1)
    return zoo.build({**SIZES, **KINDS[request.param], "name": request.param}).eval()


def inputs(model: Transformer, batch: int, length: int) -> tuple[torch.Tensor, ...]:
    ids = torch.arange(batch * length).view(batch, length) % 49 + 1
    if model.spec.name == "captioner":
        random = torch.Generator().manual_seed(batch)
        return torch.randn(batch, 3, 6, 6, generator=random), ids
    return (ids,) * (2 if model.spec.model.kind == "encoder_decoder" else 1)


@torch.no_grad()
def test_exported(model: Transformer) -> None:
    example = inputs(model, 2, 7)
    # All sizes but those of an image.
    any_sizes = tuple(
        dict.fromkeys(range(2) if one.dim() == 2 else [0], torch.export.Dim.DYNAMIC)
        for one in example
    )
    program = torch.export.export(model, example, dynamic_shapes=any_sizes)
    for ids in (example, inputs(model, 3, 11), inputs(model, 2, LONG)):
        torch.testing.assert_close(program.module()(*ids), model(*ids), rtol=0, atol=1e-4)


@pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning"
)
@torch.no_grad()
def test_traced(model: Transformer) -> None:
    traced = torch.jit.trace(model, inputs(model, 2, 7))
    for ids in (inputs(model, 2, 7), inputs(model, 3, 11), inputs(model, 2, LONG)):
        torch.testing.assert_close(traced(*ids), model(*ids), rtol=0, atol=1e-4)


class PlainSoftmax(torch.fx.Interpreter):
    """Runs a graph as ONNX Runtime does, where attention whose bias hides all keys is NaN."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is not torch.ops.aten.scaled_dot_product_attention.default:
            return super().call_function(target, args, kwargs)
        q, k, v, bias = args
        return (q @ k.transpose(-1, -2) * kwargs["scale"] + bias).softmax(-1) @ v


@torch.no_grad()
def test_padding_on_the_left_beside_a_bias() -> None:
    """There, a token of padding sees no key at all."""
    model = zoo.build({**SIZES, **KINDS["decoder"], "position": "alibi"}).double().eval()
    (ids,) = inputs(model, 2, 7)
    mask = torch.arange(7) >= torch.tensor([[3], [0]])
    graph = torch.export.export(model, (ids,), {"target_mask": mask}).module()
    assert isinstance(graph, torch.fx.GraphModule)
    found, expected = PlainSoftmax(graph).run(ids, mask), model(ids, target_mask=mask)
    torch.testing.assert_close(found[mask], expected[mask], rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@torch.no_grad()
def test_norm_that_is_called_for_each_head() -> None:
    """As one of a plugin may be."""
    norm = PerHeadNorm(nn.LayerNorm(4), n_heads=2, broadcasts=False)
    for tensor in norm.parameters():
        tensor.normal_()
    x, longer = torch.randn(3, 2, 5, 4), torch.randn(4, 2, 7, 4)
    sizes = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC}
    program = torch.export.export(norm, (x,), dynamic_shapes=(sizes,))
    for graph in (program.module(), torch.jit.trace(norm, x)):
        torch.testing.assert_close(graph(longer), norm(longer), rtol=0, atol=1e-6)
