"""Scripts that set torch's default device, such as to a GPU, or its default dtype, get the same as
others from a model that is on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_training import RECIPE, write_toy
from transformers import RoFormerConfig, RoFormerForMaskedLM
from trials import other_defaults

import zoo
from zoo.benching.tasks import Sizes, inputs_of
from zoo.publishing.fingerprints import difference, take_fingerprint
from zoo.sounds import filter_bank, slaney

SPEC = {
    "format": 1,
    "name": "m",
    "builder": "decoder",
    "vocab": 150,
    "n_layers": 2,
    "d_model": 16,
    "n_heads": 4,
    "d_ff": 24,
    "position": "rotary",
    "norm": "rms_norm",
    "ffn": "glu",
    "bias": False,
}
SAMPLES = torch.linspace(-1.0, 1.0, 16_000).sin()


def generated(**options: Any) -> list[zoo.Generated]:
    model = zoo.build(SPEC).eval()
    return zoo.generate(model, [[1, 2, 3], [4]], max_new_tokens=5, **options)


def quantized() -> torch.Tensor:
    model = zoo.build(SPEC).eval()
    zoo.quantize_weights(model)
    with torch.no_grad():
        return model(torch.tensor([[1, 2, 3]], device="cpu"))  # type: ignore[no-any-return]


def fingerprint() -> tuple[Any, float]:
    model = zoo.build(SPEC)
    found = take_fingerprint(model)
    assert found is not None
    return found, difference(model, found, "m")


COMPUTED: dict[str, Callable[[], Any]] = {
    "greedy": generated,
    "sampling": lambda: generated(method=zoo.Sampling(seed=3)),
    "beams": lambda: generated(method=zoo.Beam(size=3)),
    "weights of 8 bits": quantized,
    "fingerprint": fingerprint,
    "log_mel": lambda: filter_bank.log_mel(SAMPLES, 8, window="hann"),
    "slaney_log_mel": lambda: slaney.slaney_log_mel(
        SAMPLES, n_bands=8, rate=16_000, n_fft=400, hop=160
    ),
    "normalized_log_mel": lambda: slaney.normalized_log_mel(
        SAMPLES, n_bands=8, rate=16_000, n_fft=512, window=400, hop=160, preemphasis=0.97
    ),
    "ids of a benchmark": lambda: torch.stack(inputs_of(zoo.build(SPEC), Sizes(2, 3, 0))),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_what_is_computed_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.generation.quantize.LARGE", 1)
    compute = COMPUTED[name]
    expected = compute()
    with other_defaults():
        found = compute()
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected


def test_losses_of_a_training_are_summed_in_float32(tmp_path: Path) -> None:
    recipe = write_toy(tmp_path, RECIPE.replace("steps = 12", "steps = 2"))
    expected = zoo.train(recipe, output=tmp_path / "one")
    with other_defaults(device="cpu"):
        found = zoo.train(recipe, output=tmp_path / "two")
    assert expected is not None
    assert found is not None
    for key in ("loss", "valid_loss", "content_digest"):
        assert found[key] == expected[key]


def test_what_is_imported_is_the_same(tmp_path: Path) -> None:
    """Also the tables that a checkpoint has beside its weights, which are computed."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = RoFormerConfig(vocab_size=19, intermediate_size=24, **sizes)
    RoFormerForMaskedLM(config).save_pretrained(tmp_path / "source")
    with other_defaults():
        digest = zoo.import_folder(tmp_path / "source", tmp_path / "one")
    assert zoo.import_folder(tmp_path / "source", tmp_path / "two") == digest
