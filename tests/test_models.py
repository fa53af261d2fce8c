"""The registered models: every spec is valid, and published parameter counts are reproduced."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import zoo

ROOT = Path(__file__).parent.parent
REGISTRY = zoo.load_registry()

# Counts of the published checkpoints, which the specs must give to the last parameter.
CHECKPOINTS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "roberta-base": 124_645_632,
    "distilbert-base": 66_362_880,
    "albert-base": 11_683_584,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-11b": 11_307_321_344,
    "bart-large": 406_291_456,
    "vit-base": 86_567_656,
    "deit-base-distilled": 87_338_192,
    "dinov2-base": 86_580_480 - 768,  # without the vector of masked patches, which training uses
    "clip-vit-base-patch32": 151_277_313,
    "siglip-base-patch16-224": 203_155_970,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "gemma-2b": 2_506_172_416,
    "gpt-j-6b": 6_050_882_784,
    "gpt-neox-20b": 20_554_567_680,
    "opt-125m": 125_239_296,
    "bloom-560m": 559_214_592,
    "falcon-7b": 6_921_720_704,
    "phi-2": 2_779_683_840,
    "deepseek-v3": 671_026_404_352,
}


@pytest.mark.parametrize("name", sorted(REGISTRY.models))
def test_registered_spec_is_valid_and_named_alike(name: str) -> None:
    spec = zoo.read_spec(name, registry=REGISTRY)
    assert spec.name == name
    assert spec.n_parameters > 0


@pytest.mark.parametrize("name", sorted(CHECKPOINTS))
def test_count_is_that_of_the_checkpoint(name: str) -> None:
    assert zoo.read_spec(name, registry=REGISTRY).n_parameters == CHECKPOINTS[name]


def test_every_example_is_registered_or_extends_one() -> None:
    targets = {entry.target for entry in REGISTRY.models.values()}
    specs = {str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.toml")}
    unregistered = specs - targets
    assert all("extends" in (ROOT / path).read_text() for path in unregistered), unregistered


def test_the_table_of_published_sizes_is_current() -> None:
    tool = runpy.run_path(str(ROOT / "tools/parameter_table.py"))
    assert tool["page"]() == (ROOT / "docs/models.md").read_text()


@pytest.mark.parametrize(
    ("published", "computed", "expected"),
    [("109M", 109_482_240, True), ("110M", 109_482_240, False), ("6.7B", 6_738_415_616, True)],
)
def test_agreement_is_rounding_to_the_printed_digits(
    published: str, computed: int, expected: bool
) -> None:
    agrees = runpy.run_path(str(ROOT / "tools/parameter_table.py"))["agrees"]
    assert agrees(published, computed) is expected
