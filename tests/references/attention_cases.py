"""Small attention descriptions with random tensors, and their comparison with a reference."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from random_values import randomize
from torch import Tensor, nn

from references import attention as reference
from zoo_components.attention import MultiHead
from zoo_components.differential import Differential
from zoo_components.latent import Latent
from zoo_components.linear_attention import Linear
from zoo_components.norm import LayerNorm, NoNorm, RmsNorm
from zoo_components.sparse_latent import SharedSparseLatent, SparseLatent

LENGTH = 5
HEAD = 4
SMALL_DECODER: dict[str, Any] = {
    "format": 1,
    "name": "small",
    "builder": "decoder",
    "vocab": 11,
    "n_layers": 3,
    "d_model": 16,
    "n_heads": 4,
    "d_ff": 8,
}


def chunks_of(module: ModuleType) -> Any:
    """Return a fixture by which chunks are shorter than the sequence, and one is longer."""

    @pytest.fixture(params=[2, 64], name="chunk")
    def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "CHUNK", request.param)

    return chunk


def rms(width: int = HEAD) -> RmsNorm:
    return RmsNorm(kind="rms_norm", width=width, eps=1e-3)


def layer_norm(width: int = HEAD) -> LayerNorm:
    return LayerNorm(kind="layer_norm", width=width, eps=1e-3)


FEATURES = ("q_temperature", "qk_norm", "window", "output_gate")


def counting(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without those of features that are off."""
    stated = {feature: fields.get(feature, "none") for feature in FEATURES}
    off = [feature for feature, value in stated.items() if getattr(value, "kind", value) == "none"]
    return {k: v for k, v in fields.items() if not k.startswith(tuple(f"{f}_" for f in off))}


def described(**fields: Any) -> MultiHead:
    stated = {"d_model": 6, "n_heads": 4, "n_kv_heads": 2, "head_dim": HEAD} | fields
    norm = NoNorm(kind="none", width=stated["d_model"])
    return MultiHead(kind="multi_head", norm=norm, **stated)


SMALL_LATENT: dict[str, Any] = {
    "d_model": 6,
    "n_heads": 3,
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 4,
    "v_head_dim": 2,
}


def described_latent(**fields: Any) -> Latent:
    stated = SMALL_LATENT | fields
    return Latent(kind="latent", norm=NoNorm(kind="none", width=6), **stated)


def described_sparse_latent(**fields: Any) -> SparseLatent:
    stated = SMALL_LATENT | {"index_n_heads": 2, "index_head_dim": 6, "index_topk": 2} | fields
    return SparseLatent(kind="sparse_latent", norm=NoNorm(kind="none", width=6), **stated)


def described_shared_sparse_latent(**fields: Any) -> SharedSparseLatent:
    stated = SMALL_LATENT | fields
    norm = NoNorm(kind="none", width=6)
    return SharedSparseLatent(kind="shared_sparse_latent", norm=norm, **stated)


def described_differential(**fields: Any) -> Differential:
    stated = {"d_model": 6, "n_heads": 4, "head_dim": HEAD} | fields
    return Differential(kind="differential", norm=NoNorm(kind="none", width=6), **stated)


def described_linear(**fields: Any) -> Linear:
    stated = {"d_model": 6, "n_heads": 3, "head_dim": HEAD} | fields
    return Linear(kind="linear", norm=NoNorm(kind="none", width=6), **stated)


def made(description: Any, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Build the module in evaluation mode, with random values in all tensors."""
    return randomize(description.build().to(dtype).eval(), 0.6, seed=7)


def randn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_mask(*shape: int, seed: int = 2) -> Tensor:
    """A random boolean mask with one query that may not attend to any key."""
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) > 0.4
    mask[0, ..., 1, :] = False
    return mask


def rotation(positions: Tensor) -> Callable[[Tensor], Tensor]:
    """`reference.turned`, for (..., length, width)."""

    def turn(x: Tensor) -> Tensor:
        angles = positions[:, None] / 10.0 ** torch.arange(x.shape[-1] // 2, dtype=torch.float64)
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    return turn


def check_equal(
    description: Any,
    statement: Callable[..., Tensor],
    inputs: list[Tensor],
    *,
    turned: bool = False,
    positions: list[int] | None = None,
    **arguments: Any,
) -> None:
    """Check that module and reference agree to 1e-12: outputs, and gradients of inputs and
    parameters."""
    module = made(description)
    leaves = [x.clone().requires_grad_() for x in inputs]
    at = torch.arange(inputs[0].shape[1]) if positions is None else torch.tensor(positions)
    ours, _ = module(
        *leaves,
        rotation=rotation(at) if turned else None,
        positions=None if positions is None else at,
        **arguments,
    )
    tensors = dict(module.named_parameters())
    turn = reference.turned if turned else None
    theirs = statement(description, tensors, *leaves, turn=turn, positions=positions, **arguments)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    wanted = [*leaves, *tensors.values()]
    weight = randn(*ours.shape, seed=3)
    found = [
        torch.autograd.grad((y * weight).sum(), wanted, allow_unused=True, materialize_grads=True)
        for y in (ours, theirs)
    ]
    largest = max(gradient.abs().max() for gradient in found[1])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a / largest, b / largest, rtol=0, atol=1e-12)
