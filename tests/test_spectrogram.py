"""Patches of spectrograms (Audio Spectrogram Transformer: Gong et al. 2021, arXiv:2104.01778)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import zoo
from zoo.errors import SpecError

PATCHES = {
    "kind": "spectrogram_patches",
    "n_features": 5,
    "n_frames": 8,
    "patch_size": 3,
    "feature_stride": 2,
    "frame_stride": 3,
}
SPEC: dict[str, Any] = {
    "format": 1,
    "name": "small",
    "builder": "encoder",
    "n_layers": 1,
    "d_model": 8,
    "n_heads": 2,
    "d_ff": 8,
    "embedding": PATCHES,
    "position": {"kind": "learned", "max_length": 6},
    "head": "none",
}


@torch.no_grad()
def test_patches_go_from_low_to_high_and_then_along_time() -> None:
    embed = zoo.build(SPEC, dtype=torch.float64).encoder.embed
    x = torch.randn(2, 8, 5, dtype=torch.float64)
    weight = embed.patches.weight.view(8, 3, 3)  # (d_model, features, frames)
    vectors = [embed.class_token.expand(2, 8), embed.distillation_token.expand(2, 8)]
    for feature in (0, 2):
        for frame in (0, 3):
            patch = x[:, frame : frame + 3, feature : feature + 3]
            vectors.append(torch.einsum("btf,dft->bd", patch, weight) + embed.patches.bias)
    expected = torch.stack(vectors, 1) + embed.positions.weight
    torch.testing.assert_close(embed(x, torch.arange(6)), expected, rtol=0, atol=1e-12)


def test_without_a_distillation_token() -> None:
    embedding = PATCHES | {"distillation_token": False}
    position = {"kind": "learned", "max_length": 5}
    model = zoo.build(SPEC | {"embedding": embedding, "position": position})
    assert isinstance(model.encoder.embed.class_token, nn.Parameter)
    assert model(torch.zeros(1, 8, 5)).shape == (1, 5, 8)


def test_another_number_of_frames_is_refused() -> None:
    with pytest.raises(ValueError, match="takes spectrograms of 8 frames, not 7: pad or cut"):
        zoo.build(SPEC)(torch.zeros(1, 7, 5))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"embedding": PATCHES | {"patch_size": 6}}, "larger than n_features = 5"),
        ({"embedding": PATCHES | {"n_frames": 2}}, "larger than n_frames = 2"),
        ({"position": {"kind": "learned", "max_length": 5}}, "becomes 6 vectors with positions"),
    ],
)
def test_sizes_that_do_not_fit(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        zoo.read_spec(SPEC | changes)
