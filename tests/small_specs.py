"""The example specs in small sizes, so that a test can build all of them quickly, and models of
such specs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from random_values import add_noise

import zoo

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").rglob("*.toml"))

WIDTH, HEADS, LAYERS, VOCAB = 32, 2, 2, 23
SIZES = {
    "d_model": WIDTH,
    "d_embed": WIDTH,
    "output_width": WIDTH,
    "memory_width": WIDTH,
    "d_out": WIDTH,
    "n_heads": HEADS,
    "head_dim": WIDTH // HEADS,
    "v_head_dim": WIDTH // HEADS,
    "d_ff": 24,
    "n_layers": LAYERS,
    "vocab": VOCAB,
    "source_vocab": VOCAB,
    "target_vocab": VOCAB,
    "text_vocab": VOCAB,
    "max_length": 12,
    "image_size": 6,
    "patch_size": 2,
}
TINY = {
    "format": 1,
    "name": "tiny",
    "builder": "encoder_decoder",
    "source_vocab": 11,
    "target_vocab": 11,
    "share_embeddings": True,
    "n_layers": 1,
    "d_model": 8,
    "n_heads": 2,
    "d_ff": 12,
    "norm": "batch_norm",
    "head": {"kind": "linear", "tied": True},
}
"""A very small model with tied tensors, and with buffers, one of them of integers."""
TINY_DUAL: dict[str, Any] = {
    "format": 1,
    "name": "dual",
    "builder": "dual_encoder",
    "text_vocab": 11,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 12,
    "text": {"d_model": 8, "causal": True},
    "text_head": {"pooling": "end_token", "end_id": 7, "d_out": 6},
    "image": {
        "d_model": 12,
        "final_norm": False,
        "embedding": {"kind": "normed_patches", "image_size": 6, "patch_size": 2},
        "position": {"kind": "learned", "max_length": 10},
    },
    "image_head": {"norm": "layer_norm", "d_out": 6},
}
"""Very small encoders of images and of texts, as in CLIP."""
TINY_IMAGE_TEXT: dict[str, Any] = {
    "format": 1,
    "name": "image-text",
    "builder": "image_text_decoder",
    "vocab": 23,
    "image_id": 9,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 24,
    "decoder": {"d_model": 16, "position": "rotary"},
    "image": {
        "d_model": 12,
        "final_norm": False,
        "embedding": {"kind": "normed_patches", "image_size": 4, "patch_size": 2},
        "position": {"kind": "learned", "max_length": 5},
    },
}
"""A very small decoder with images in its text, each of four states, as in LLaVA."""
TINY_SOUND_TEXT: dict[str, Any] = {
    "format": 1,
    "name": "sound-text",
    "builder": "sound_text_decoder",
    "vocab": 23,
    "sound_id": 9,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 24,
    "projector": {"merge": 2, "merge_by": "mean", "norm": "layer_norm", "activation": "none"},
    "decoder": {"d_model": 16, "position": "rotary"},
    "sound": {
        "d_model": 12,
        "final_norm": False,
        "embedding": {"kind": "conv_frontend", "n_features": 5},
        "position": {"kind": "learned", "max_length": 12},
    },
}
"""A very small decoder with sounds in its text, in windows of 24 frames, as in Qwen2-Audio. Every
four frames become a state."""


def small(path: Path) -> dict[str, Any]:
    """Return the resolved spec of a file, with the same components in small sizes."""
    spec: dict[str, Any] = _shrunk(zoo.read_spec(path).to_dict())
    return spec


def _shrunk(value: Any) -> Any:
    if isinstance(value, list):
        return [_shrunk(item) for item in value]
    if not isinstance(value, dict):
        return value
    cut = {key: SIZES.get(key, _shrunk(item)) for key, item in value.items()}
    if "n_kv_heads" in value:
        cut["n_kv_heads"] = HEADS if value["n_kv_heads"] == value["n_heads"] else 1
    if "at" in value:  # the layers of a rule
        cut["at"] = [at for at in value["at"] if at < LAYERS] or [LAYERS - 1]
    return cut


def with_value(spec: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A spec with another value, at a path such as `decoder.n_layers`."""
    spec = copy.deepcopy(spec)
    *tables, key = path.split(".")
    inner = spec
    for table in tables:
        inner = inner.setdefault(table, {})
    inner[key] = value
    return spec


def randomized(spec: dict[str, Any]) -> Any:
    """The model of a spec in float64, with random values in every parameter."""
    return add_noise(zoo.build(spec, dtype=torch.float64).eval(), seed=1)
