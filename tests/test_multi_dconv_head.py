"""`multi_dconv_head` against its formula (So et al. 2021, arXiv:2109.08668), with torch's own
convolution, and its cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references.attention import Turn, Weights
from references.attention_cases import LENGTH, SMALL_DECODER, check_equal, made, randn
from torch import Tensor

import zoo
from zoo.cache import Cache
from zoo.errors import SpecError
from zoo.reports.flops import flops
from zoo.showing.show import summary_data
from zoo_components.multi_dconv_head import MultiDconvHead
from zoo_components.norm import NoNorm

WIDTH = 8
SPEC = SMALL_DECODER | {"position": "rotary", "attention": "multi_dconv_head"}
PADDING = torch.tensor([[0, 0, 1, 1, 1], [1, 0, 1, 1, 1]]).bool()[:, None, None]


def described(**fields: Any) -> MultiDconvHead:
    stated = {"n_heads": 2} | fields
    norm = NoNorm(kind="none", width=WIDTH)
    return MultiDconvHead(kind="multi_dconv_head", norm=norm, d_model=WIDTH, **stated)


def multi_dconv_head(
    a: MultiDconvHead,
    w: Weights,
    x: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = True,
    turn: Turn | None = None,
    bias: Tensor | None = None,
    positions: list[int] | None = None,
) -> Tensor:
    """Each sequence by itself. To a convolution, what the mask hides is 0."""
    outputs = []
    for b, rows in enumerate(x):
        length = len(rows)
        seen = torch.ones(length, dtype=torch.bool) if mask is None else mask[b, 0, 0]
        heads = []
        for name in "qkv":
            y = rows @ w[f"{name}_proj.weight"].T
            y = y + w[f"{name}_proj.bias"] if f"{name}_proj.bias" in w else y
            padded = F.pad((y * seen[:, None]).T[None], (a.kernel_size - 1, 0))
            y = F.conv1d(padded, w[f"{name}_conv.weight"], groups=WIDTH)[0].T
            of_heads = y.view(length, a.n_heads, -1).transpose(0, 1)
            if turn is not None and name != "v":
                of_heads = torch.stack(
                    [torch.stack([turn(one, i) for i, one in enumerate(h)]) for h in of_heads]
                )
            heads.append(of_heads)
        q, k, v = heads
        scores = q @ k.mT / a.head_dim**0.5
        scores = scores if bias is None else scores + bias
        hidden = ~(seen & torch.ones(length, length, dtype=torch.bool).tril())
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0)
        mixed = (weights @ v).transpose(0, 1).reshape(length, -1)
        y = mixed @ w["o_proj.weight"].T
        outputs.append(y + w["o_proj.bias"] if "o_proj.bias" in w else y)
    return torch.stack(outputs)


@pytest.mark.parametrize(
    "fields", [{}, {"bias": ("q", "o")}, {"kernel_size": 1}, {"kernel_size": LENGTH + 2}]
)
def test_the_formula(fields: dict[str, Any]) -> None:
    description, x = described(**fields), randn(2, LENGTH, WIDTH)
    check_equal(description, multi_dconv_head, [x], turned=True, causal=True)
    bias = randn(2, LENGTH, LENGTH, seed=5)
    check_equal(description, multi_dconv_head, [x], causal=True, bias=bias)
    # Of a query that sees nothing, the reference has no gradients.
    seen = PADDING.clone()
    seen[0] = True
    check_equal(description, multi_dconv_head, [x], causal=True, mask=seen)


@pytest.mark.parametrize("steps", [(1,) * LENGTH, (3, 2), (1, 4)])
@pytest.mark.parametrize("masked", [False, True])
def test_token_by_token(steps: tuple[int, ...], masked: bool) -> None:
    """With the last tokens of each convolution, also where fewer come than the kernel has."""
    module, x = made(described(kernel_size=4)), randn(2, LENGTH, WIDTH)
    mask = PADDING if masked else None
    cache, found, end = Cache(LENGTH), [], 0
    for part in x.split(steps, 1):
        end += part.shape[1]
        cache.past.append(part.shape[1], seen=None, counted=None, device=x.device)
        so_far = None if mask is None else mask[..., :end]
        found.append(module(part, mask=so_far, causal=True, cache=cache.layer(0).of("a"))[0])
    expected, _ = module(x, mask=mask, causal=True)
    torch.testing.assert_close(torch.cat(found, 1), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_as_if_it_were_not_there(side: str) -> None:
    """With biases, by which the input of a convolution is not zero at a token of zeros."""
    model = zoo.build(SPEC, dtype=torch.float64).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * randn(*parameter.shape)
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 3, 1, 1, 1]])
    mask = torch.stack([torch.arange(7) >= 0, torch.arange(7) < 4])
    if side == "left":
        ids[1], mask[1] = ids[1].roll(3), mask[1].roll(3)
    found = model(ids, target_mask=mask)[1, mask[1]]
    torch.testing.assert_close(found, model(ids[1:, mask[1]])[0], rtol=0, atol=1e-12)


def test_what_show_says() -> None:
    """The parameters, the cache, the state and the operations, in closed form."""
    spec, plain = (
        zoo.read_spec(SPEC | {"attention": kind}) for kind in ("multi_dconv_head", "multi_head")
    )
    assert spec.n_parameters == plain.n_parameters + 3 * 3 * 16 * 3  # layers, maps, width, kernel
    data = summary_data(spec)
    assert data["kv_cache_bytes_per_token"]["float32"] == 3 * 2 * 16 * 4
    assert data["state_bytes_per_sequence"] == 3 * 3 * 2 * 16 * 4  # layers, maps, tokens, width
    assert flops(spec, 50)["forward"] == flops(plain, 50)["forward"]  # a convolution is no product


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"builder": "encoder"}, "no token sees later ones in these layers"),
        ({"memory_width": 5}, "cannot attend to another: state it under `self_attn`"),
        ({"n_heads": 6}, "d_model = 16 is not divisible by n_heads = 6"),
    ],
)
def test_what_it_is_not_for(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        zoo.read_spec(SPEC | changes)


def test_masks_that_differ_by_query_are_refused() -> None:
    mask = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)
    with pytest.raises(ValueError, match="takes no mask that differs by query"):
        made(described())(randn(2, LENGTH, WIDTH), mask=mask, causal=True)
