"""Masks of every shape, padding and causality, against attention weights computed key by key."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import zoo
from zoo_components.modules.scores import attend
from zoo_components.modules.unpadding import LONG, at_places, lengths

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 2, 4, 4, 8


def model(builder: str = "decoder", **keys: Any) -> nn.Module:
    """Build a layer without norms, whose attention sees the inputs unchanged."""
    spec = {
        "format": 1,
        "name": "masked",
        "builder": builder,
        "n_layers": 1,
        "d_model": WIDTH,
        "n_heads": HEADS,
        "d_ff": 4,
        "norm": "none",
        "position": "none",
        "head": "none",
        "init": "torch",
    }
    return zoo.build(spec | keys, dtype=torch.float64)


@torch.no_grad()
def weights(attention: nn.Module, x: Tensor, memory: Tensor, allowed: Tensor) -> Tensor:
    """Return the softmax over the keys that each query may attend to, one at a time; zeros if
    there are none."""
    q, k = attention.q_proj(x), attention.k_proj(memory)
    found = torch.zeros(allowed.shape, dtype=torch.float64)
    width = WIDTH // HEADS
    for b, h, i in torch.cartesian_prod(*map(torch.arange, allowed.shape[:3])).tolist():
        keys = [j for j in range(allowed.shape[3]) if allowed[b, h, i, j]]
        head = slice(h * width, (h + 1) * width)
        scores = [math.exp(q[b, i, head] @ k[b, j, head] / math.sqrt(width)) for j in keys]
        for j, score in zip(keys, scores, strict=True):
            found[b, h, i, j] = score / sum(scores)
    return found


SHAPES = {
    "keys": (BATCH, KEYS),
    "queries and keys": (BATCH, QUERIES, KEYS),
    "heads": (BATCH, HEADS, QUERIES, KEYS),
    "the same keys for all": (1, KEYS),
    "the same for the batch": (1, QUERIES, KEYS),
    "the same heads for the batch": (1, HEADS, QUERIES, KEYS),
    "the same for all heads": (BATCH, 1, QUERIES, KEYS),
    "the same for all queries": (BATCH, HEADS, 1, KEYS),
}


def random_mask(shape: tuple[int, ...]) -> Tensor:
    torch.manual_seed(3)
    return torch.rand(shape) < 0.5


def in_full(mask: Tensor, queries: int = QUERIES) -> Tensor:
    """Return the mask with all dimensions, (batch, heads, query, key)."""
    if mask.dim() == 2:
        mask = mask.reshape(mask.shape[0], 1, 1, -1)
    if mask.dim() == 3:
        mask = mask.reshape(mask.shape[0], 1, *mask.shape[1:])
    return mask.expand(BATCH, HEADS, queries, mask.shape[-1])


@pytest.mark.parametrize("causal", [False, True], ids=["two ways", "causal"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_self_attention(shape: tuple[int, ...], causal: bool) -> None:
    decoder = model(embedding="vectors", decoder={"causal": causal})
    x, mask = torch.randn(BATCH, QUERIES, WIDTH, dtype=torch.float64), random_mask(shape)
    allowed = in_full(mask)
    if causal:
        earlier = [[key <= query for key in range(KEYS)] for query in range(QUERIES)]
        allowed = allowed & torch.tensor(earlier)
    expected = weights(decoder.decoder.layers[0].self_attn, x, x, allowed)
    output, maps = decoder(x, target_mask=mask, return_attention=True)
    assert (maps.decoder[0] - expected).abs().max() <= 1e-12
    assert (decoder(x, target_mask=mask) - output).abs().max() <= 1e-12


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_is_left_out_in_inference_changes_no_other_token(shape: tuple[int, ...]) -> None:
    """Without gradients, tokens that a mask hides from all others need not be computed."""
    decoder = model(embedding="vectors", ffn={"kind": "mlp", "bias": True})
    x, mask = torch.randn(BATCH, QUERIES, WIDTH, dtype=torch.float64), random_mask(shape)
    expected = decoder(x, target_mask=mask)
    with torch.no_grad():
        found = decoder(x, target_mask=mask)
        whole, maps = decoder(x, target_mask=mask, return_attention=True)
    there = mask.expand(BATCH, KEYS) if mask.dim() == 2 else torch.ones(BATCH, KEYS).bool()
    assert (found - expected)[there].abs().max() <= 1e-12
    # With `return_attention`, all tokens are computed.
    assert (whole - expected).abs().max() <= 1e-12
    wanted = decoder(x, target_mask=mask, return_attention=True)[1]
    assert (maps.decoder[0] - wanted.decoder[0]).abs().max() <= 1e-12


LONG_MASK = torch.arange(LONG) < torch.tensor([[LONG], [3], [1], [40]])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "attention",
    [
        {},
        {"n_kv_heads": 1},
        {"sinks": True},
        {"softcap": 2.0},
        {"v_head_dim": 3},
        {"window": 9, "window_sides": "past"},
    ],
    ids=str,
)
def test_long_sequences_are_attended_one_by_one(attention: dict[str, Any], causal: bool) -> None:
    """A kernel with a mask would compute all that it hides."""
    kind = {"kind": "multi_head", **attention}
    decoder = model(
        embedding="vectors", position="rotary", attention=kind, decoder={"causal": causal}
    )
    x = torch.randn(*LONG_MASK.shape, WIDTH, dtype=torch.float64)
    expected = decoder(x, target_mask=LONG_MASK)
    calls: list[tuple[int, ...]] = []

    def counted(q: Tensor, *others: Tensor, **options: Any) -> Any:
        calls.append(tuple(q.shape))
        return attend(q, *others, **options)

    with torch.no_grad(), patch("zoo_components.modules.attention.attend", counted):
        found = decoder(x, target_mask=LONG_MASK)
    assert (found - expected)[LONG_MASK].abs().max() <= 1e-12
    together = "window" in attention
    assert [(shape[0], shape[2]) for shape in calls] == (
        [(4, LONG)] if together else [(1, LONG), (1, 3), (1, 1), (1, 40)]
    )
    for row, n in enumerate(LONG_MASK.sum(1).tolist()):
        alone = decoder(x[row : row + 1, :n])
        assert (found[row, :n] - alone[0]).abs().max() <= 1e-12


class Masked(nn.Module):
    """A decoder that takes its mask by position, as tracing wants it."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.decoder(x, target_mask=mask)
        return states


@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_a_traced_graph_holds_no_lengths() -> None:
    decoder = Masked(model(embedding="vectors"))
    x = torch.randn(*LONG_MASK.shape, WIDTH, dtype=torch.float64)
    other = LONG_MASK.flip(0)
    with torch.no_grad():
        traced = torch.jit.trace(decoder, (x, LONG_MASK))
        found, expected = traced(x, other), decoder(x, other)
    assert (found - expected)[other].abs().max() <= 1e-12


@pytest.mark.parametrize(
    "mask",
    [LONG_MASK.flip(1), LONG_MASK[:, : LONG - 1], LONG_MASK ^ (torch.arange(LONG) == 20)],
    ids=["padding on the left", "short", "holes"],
)
def test_other_padding_is_masked(mask: Tensor) -> None:
    assert lengths(mask[:, None, None]) is None


CONV = {"kind": "conv1d", "kernel_size": 3}


@pytest.mark.parametrize("rules", [{"ffn": CONV}, {"layers": [{"at": [1], "ffn": CONV}]}], ids=str)
def test_padding_is_computed_where_a_convolution_reads_it(rules: dict[str, Any]) -> None:
    """Also in the layers before the convolution."""
    decoder = model(n_layers=2, embedding="vectors", decoder=rules)
    x = torch.randn(BATCH, QUERIES, WIDTH, dtype=torch.float64)
    mask = torch.tensor([[True, True, False, False], [True, False, False, False]])
    expected = decoder(x, target_mask=mask)
    with torch.no_grad():
        found = decoder(x, target_mask=mask)
    assert (found - expected).abs().max() <= 1e-12


def test_a_memory_as_long_as_the_sequence_leaves_out_no_query() -> None:
    decoder = model(embedding="vectors", memory_width=5)
    x = torch.randn(BATCH, QUERIES, WIDTH, dtype=torch.float64)
    memory, mask = torch.randn(BATCH, QUERIES, 5, dtype=torch.float64), random_mask((2, QUERIES))
    expected = decoder(x, memory, memory_mask=mask)
    with torch.no_grad():
        found = decoder(x, memory, memory_mask=mask)
    assert (found - expected).abs().max() <= 1e-12


def test_nothing_is_left_out_beside_a_row_of_padding_alone() -> None:
    """With uniform weights, a query that may attend to no key attends to all of them, so that the
    tokens of such a row matter."""
    attention = {"kind": "multi_head", "masked_rows": "uniform"}
    keys = {"source_vocab": 9, "target_vocab": 9, "attention": attention}
    translator = model("encoder_decoder", **keys, norm="layer_norm")
    source, target = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), torch.tensor([[1, 2], [3, 4]])
    hidden = torch.tensor([[True, False, False, False], [False] * 4])
    with torch.no_grad():
        found = translator(source, target, source_mask=hidden)
    torch.testing.assert_close(found, translator(source, target, source_mask=hidden))


def test_a_batch_of_padding_alone() -> None:
    """A convolution of no tokens is an error in torch."""
    encoder = model("encoder", vocab=9, ffn={"kind": "conv1d", "kernel_size": 1})
    ids, hidden = torch.tensor([[1, 2]]), torch.zeros(1, 2, dtype=torch.bool)
    with torch.no_grad():
        found = encoder(ids, source_mask=hidden)
    torch.testing.assert_close(found, encoder(ids, source_mask=hidden))


def test_what_is_left_out_is_zero() -> None:
    x = torch.arange(1.0, 7.0).reshape(1, 3, 2)
    found = at_places(lambda tokens: tokens[:, :1] + 1, x, torch.tensor([0, 2]))
    assert found.tolist() == [[[2.0], [0.0], [6.0]]]


@pytest.mark.parametrize("shape", [(2, 3), (2, 4, 3), (2, 2, 4, 3), (1, 2, 4, 3)], ids=str)
def test_cross_attention(shape: tuple[int, ...]) -> None:
    decoder = model(embedding="vectors", memory_width=5)
    x = torch.randn(BATCH, QUERIES, WIDTH, dtype=torch.float64)
    memory, mask = torch.randn(BATCH, 3, 5, dtype=torch.float64), random_mask(shape)
    states: list[Tensor] = []
    attention = decoder.decoder.layers[0].cross_attn
    attention.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    output, maps = decoder(x, memory, memory_mask=mask, return_attention=True)
    expected = weights(attention, states[0], memory, in_full(mask))
    assert (maps.cross[0] - expected).abs().max() <= 1e-12
    assert (decoder(x, memory, memory_mask=mask) - output).abs().max() <= 1e-12


@pytest.mark.parametrize("shape", [None, (2, 4), (2, 2, 4, 4)], ids=str)
def test_padding_is_hidden_everywhere(shape: tuple[int, ...] | None) -> None:
    """From the encoder, from the decoder, and from the cross-attention."""
    both = model("encoder_decoder", source_vocab=9, target_vocab=9, pad_id=3)
    source = torch.tensor([[1, 2, 3, 3], [5, 3, 4, 1]])
    target = torch.tensor([[1, 7, 3, 2], [3, 2, 4, 3]])
    mask = None if shape is None else random_mask(shape)
    _, maps = both(source, target, source_mask=mask, return_attention=True)
    allowed = in_full(source != 3) if mask is None else in_full(source != 3) & in_full(mask)
    x = both.encoder.embed.tokens(source)
    expected = weights(both.encoder.layers[0].self_attn, x, x, allowed)
    assert (maps.encoder[0] - expected).abs().max() <= 1e-12
    assert torch.equal(maps.cross[0] > 0, allowed)
    causal = torch.tensor([[key <= query for key in range(4)] for query in range(4)])
    assert torch.equal(maps.decoder[0] > 0, in_full(target != 3) & causal)


@pytest.mark.parametrize("shape", [(2, 4, 4), (2, 2, 4, 4)], ids=str)
def test_a_source_mask_with_a_row_for_each_source_position(shape: tuple[int, ...]) -> None:
    """Cross-attention has a query for each target position: the message says what to pass."""
    both = model("encoder_decoder", source_vocab=9, target_vocab=9)
    source, target, mask = torch.ones(2, 4).long(), torch.ones(2, 3).long(), random_mask(shape)
    with pytest.raises(ValueError, match=r"4 source positions.*3 target positions.*`memory_mask`"):
        both(source, target, source_mask=mask)
    memory = both.encode(source, source_mask=mask)
    assert both.decode(target, memory, memory_mask=random_mask((2, 3, 4))).shape[:2] == (2, 3)
    assert both(source, torch.ones(2, 4).long(), source_mask=mask).shape[:2] == (2, 4)


def test_the_maps_of_decode_are_those_of_the_whole_model() -> None:
    both = model("encoder_decoder", source_vocab=9, target_vocab=9)
    source, target = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[5, 6, 7]])
    _, expected = both(source, target, return_attention=True)
    memory, maps = both.encode(source, return_attention=True)
    assert all(map(torch.equal, maps.encoder, expected.encoder))
    _, maps = both.decode(target, memory, return_attention=True)
    assert len(maps.decoder) == len(maps.cross) == len(both.decoder.layers)
    assert all(map(torch.equal, maps.decoder, expected.decoder))
    assert all(map(torch.equal, maps.cross, expected.cross))


@pytest.mark.parametrize("shape", [(2, 5), (3, 4), (2, 3, 4), (2, 2, 4, 5), (4,)], ids=str)
def test_a_mask_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    decoder = model(embedding="vectors")
    x = torch.randn(BATCH, QUERIES, WIDTH, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"batch 2, 4 queries and 4 keys"):
        decoder(x, target_mask=random_mask(shape))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
def test_a_mask_of_numbers_is_refused(dtype: torch.dtype) -> None:
    """A mask of -inf and 0 means the opposite of one of 0 and 1: neither is guessed."""
    decoder = model(embedding="vectors")
    x = torch.randn(BATCH, QUERIES, WIDTH, dtype=torch.float64)
    with pytest.raises(TypeError, match="a mask is boolean, True = attend"):
        decoder(x, target_mask=torch.ones(BATCH, KEYS, dtype=dtype))


@pytest.mark.parametrize("return_weights", [False, True])
def test_an_attention_by_itself_refuses_a_mask_of_numbers(return_weights: bool) -> None:
    """torch's fused kernels add it to the scores; here that would be silent."""
    attention = model(embedding="vectors").get_submodule("decoder.layers.0.self_attn")
    x = torch.randn(BATCH, QUERIES, WIDTH, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"a mask is boolean, .* not torch\.float64; compare"):
        attention(x, mask=torch.ones(QUERIES, QUERIES).double(), return_weights=return_weights)


@pytest.mark.parametrize("mask", [[[True] * KEYS] * BATCH, np.ones((BATCH, KEYS), dtype=bool)])
def test_a_mask_that_is_no_tensor_is_refused(mask: Any) -> None:
    decoder = model(embedding="vectors")
    x = torch.randn(BATCH, QUERIES, WIDTH, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"a mask is a tensor, True = attend, not a (list|ndarray)"):
        decoder(x, target_mask=mask)


def test_a_mask_without_a_batch_is_refused() -> None:
    """As torch's own modules take it: here, (batch, key) has as many dimensions."""
    decoder = model(embedding="vectors")
    x = torch.randn(BATCH, QUERIES, WIDTH, dtype=torch.float64)
    square = torch.ones(QUERIES, QUERIES, dtype=torch.bool).tril()
    with pytest.raises(ValueError, match=r"key\); one for all sequences is `mask\[None\]`$"):
        decoder(x, target_mask=square)
    torch.testing.assert_close(decoder(x, target_mask=square[None]), decoder(x))


@pytest.mark.parametrize("return_attention", [False, True], ids=["fused", "weights"])
def test_a_mask_for_other_heads_is_refused(return_attention: bool) -> None:
    decoder = model(embedding="vectors", memory_width=WIDTH)
    x = torch.randn(BATCH, QUERIES, WIDTH, dtype=torch.float64)
    asked: dict[str, Any] = {"return_attention": return_attention}
    with pytest.raises(ValueError, match=r"a mask for 3 heads does not fit attention with 2"):
        decoder(x, x, target_mask=random_mask((BATCH, 3, QUERIES, KEYS)), **asked)
    with pytest.raises(ValueError, match=r"a mask for 3 heads does not fit attention with 2"):
        decoder(x, x, memory_mask=random_mask((1, 3, 1, KEYS)), **asked)
