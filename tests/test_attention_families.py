"""The attention of published families against the modules of `transformers`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from references.attention_families import (
    D_MODEL,
    EPS,
    FAMILIES,
    HEAD,
    HEADS,
    KV_HEADS,
    Family,
    layer_norm,
)
from torch import Tensor, nn

from zoo_components.attention import MultiHead
from zoo_components.latent import Latent
from zoo_components.norm import NoNorm

LENGTH = 11


def theirs(family: Family, **sizes: Any) -> nn.Module:
    """Return their module with random tensors."""
    folder, prefix = family.module
    package = f"transformers.models.{folder}"
    config_class = getattr(import_module(f"{package}.configuration_{folder}"), f"{prefix}Config")
    config = config_class(num_hidden_layers=1, **sizes | family.config)
    config._attn_implementation = "eager"
    cls = getattr(import_module(f"{package}.modeling_{folder}"), f"{prefix}Attention")
    module = family.build(cls, config)
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=generator)
    return module.eval()


def same_weights(ours: nn.Module, other: nn.Module, names: dict[str, str]) -> nn.Module:
    """Return our module with their tensors. Fails unless `names` maps them one to one."""
    tensors = dict(other.named_parameters())
    renamed = {}
    for name in ours.state_dict():
        first, _, rest = name.partition(".")
        renamed[name] = tensors.pop(f"{names.get(first, first)}.{rest}".rstrip("."))
    assert not tensors
    ours.load_state_dict(renamed)
    return ours.eval()


def angles(positions: Tensor, width: int) -> Tensor:
    """(length, width / 2)."""
    return positions[:, None] / 100.0 ** (torch.arange(0, width, 2) / width)


def rotation(pairs: str, angle: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that rotates the first pairs of (..., length, width), one per angle."""

    def turn(x: Tensor) -> Tensor:
        x, rest = x[..., : 2 * angle.shape[-1]], x[..., 2 * angle.shape[-1] :]
        halves = x.unflatten(-1, (2, -1)).transpose(-1, -2)
        paired = (halves if pairs == "half" else x.unflatten(-1, (-1, 2))).contiguous()
        turned = torch.view_as_complex(paired) * torch.polar(torch.ones_like(angle), angle)
        out = torch.view_as_real(turned)
        out = (out.transpose(-1, -2) if pairs == "half" else out).flatten(-2)
        return torch.cat([out, rest], -1)

    return turn


def their_rotation(family: Family, angle: Tensor) -> Any:
    """Return the second argument of their `forward`."""
    if family.pairs is None:
        return None
    if family.module[0] == "llama4":
        return torch.polar(torch.ones_like(angle), angle).expand(2, *angle.shape)
    if family.module[0] == "gpt_oss":
        repeated = angle
    elif family.pairs == "interleaved" and family.module[0] != "deepseek_v3":
        repeated = angle.repeat_interleave(2, -1)
    else:
        repeated = torch.cat([angle, angle], -1)
    return tuple(f(repeated).expand(2, *repeated.shape) for f in (torch.cos, torch.sin))


def check_agreement(family: Family, ours: nn.Module, other: nn.Module, rotated: int) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, LENGTH, other.o_proj.out_features, generator=generator)
    ids = torch.arange(LENGTH)
    positions = family.first + ids
    angle = angles(positions, rotated)
    seen = family.mask(torch.tensor(0), torch.tensor(0), ids[:, None], ids[None, :])
    added = torch.where(seen, 0.0, torch.finfo(torch.float32).min).expand(2, 1, LENGTH, LENGTH)
    arguments = family.extra(positions.expand(2, LENGTH))
    expected = other(
        hidden_states=x,
        position_embeddings=their_rotation(family, angle),
        attention_mask=added,
        **arguments,
    )[0]
    turn = None if family.pairs is None else rotation(family.pairs, angle)
    found, _ = ours(x, rotation=turn, causal=True, positions=positions)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_family(family: Family) -> None:
    sizes = {
        "hidden_size": D_MODEL,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
    }
    other = theirs(family, **sizes)
    stated = {"d_model": D_MODEL, "n_heads": HEADS, "n_kv_heads": KV_HEADS, "head_dim": HEAD}
    norm = NoNorm(kind="none", width=D_MODEL)
    stated |= {"bias": False} | family.fields
    ours = MultiHead(kind="multi_head", norm=norm, **stated).build()
    check_agreement(family, same_weights(ours, other, family.names), other, HEAD)


@pytest.mark.parametrize("rank", [None, 7])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("pairs", ["half", "interleaved"])
def test_deepseek_v3(rank: int | None, bias: bool, pairs: str) -> None:
    sizes = {
        "kv_lora_rank": 10,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 5,
    }
    config = {
        "q_lora_rank": rank,
        "attention_bias": bias and rank is not None,
        "rope_interleave": pairs == "interleaved",
    }
    names = {
        "q_a_norm": "q_a_layernorm",
        "kv_a_norm": "kv_a_layernorm",
        "kv_a_proj": "kv_a_proj_with_mqa",
    }
    family = Family(("deepseek_v3", "DeepseekV3"), config | sizes, {}, names, pairs)
    other = theirs(
        family, hidden_size=D_MODEL, num_attention_heads=HEADS, num_key_value_heads=HEADS
    )
    norm = NoNorm(kind="none", width=D_MODEL)
    ours = Latent(
        kind="latent",
        d_model=D_MODEL,
        n_heads=HEADS,
        norm=norm,
        q_lora_rank="none" if rank is None else rank,
        bias=config["attention_bias"],
        **sizes,
    ).build()
    check_agreement(family, same_weights(ours, other, names), other, 4)


def test_stablelm() -> None:
    """StableLM has a norm module for each head, and a partial rotation."""
    config = {
        "qk_layernorm": True,
        "layer_norm_eps": EPS,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
        },
    }
    family = Family(("stablelm", "StableLm"), config, {})
    width = HEADS * HEAD
    other = theirs(
        family, hidden_size=width, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS
    )
    tensors = {n: p for n, p in other.named_parameters() if "layernorm" not in n}
    for which in "qk":
        norms = other.get_submodule(f"{which}_layernorm").norms
        tensors[f"{which}_norm.weight"] = torch.stack([norm.weight for norm in norms])
    ours = MultiHead(
        kind="multi_head",
        d_model=width,
        n_heads=HEADS,
        n_kv_heads=KV_HEADS,
        norm=NoNorm(kind="none", width=width),
        bias=False,
        qk_norm=layer_norm(),
        qk_norm_scope="per_head",
    ).build()
    ours.load_state_dict(tensors)
    check_agreement(family, ours, other, HEAD // 2)
