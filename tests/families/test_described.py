"""Each case exported by its config.json alone, as if it had not been imported: the checkpoint that
`transformers` has saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers
from breadth import one_then_slow

from families.cases import all_cases
from families.checkpoints import make_model, save
from families.conformance import (
    Report,
    compare_reloaded,
    compare_tensors,
    make_truth,
    registry,
    tensors,
)
from zoo import export_folder, import_folder
from zoo.errors import WeightsError, ZooError
from zoo.families.import_plan import plan_import
from zoo.families.registered import Families

REFUSED = {
    "esm": "`encoder.position.kind` is",
    "electra": "`head.kind` is",
    "marian.untied": "the checkpoint has no tensor that becomes",
    **dict.fromkeys(
        (f"{name}.sequence" for name in ("data2vec-audio", "hubert", "wavlm")), "`head.kind` is"
    ),
    **dict.fromkeys(
        (f"wav2vec2{name}.sequence" for name in ("", "-bert", "-conformer")), "`head.kind` is"
    ),
    **dict.fromkeys(
        (f"esm.{name}" for name in ("base", "masked", "sequence", "token")),
        "`encoder.position.kind` is",
    ),
    **dict.fromkeys(
        (f"{name}.pretraining" for name in ("wav2vec2", "wav2vec2-conformer")),
        "`quantizer` has weights there, and none here",
    ),
}
"""Cases whose configuration leaves open what only the names of tensors in a checkpoint tell, with
what is told of it, or whose class has weights for training alone."""
OLDER = ("altclip.first", "bert.old_names", "dinov3_vit.named", "esm.absolute", "gte.published")
OLDER += (
    "aya_vision.inner",
    "deepseek_v4.published",
    "gemma3",
    "internvl.qwen3",
    "kimi_linear.published",
    "lfm2_vl.published",
    "llava",
    "llava_next.siglip",
)
OLDER += ("mistral3.ministral3", "paligemma", "qwen2_vl.tied", "wav2vec2.old", "wavlm.old")
"""Cases with names of tensors for which `transformers` reads others too."""
FOUND = ("llama", "albert.base", "bart", "bert", "falcon", "gemma", "gemma2", "gpt2", "marian")
FOUND += ("mistral", "mixtral", "qwen2", "qwen3", "roberta", "t5", "vit", "whisper")
"""Cases whose configuration has to be found by their class alone."""
OTHERS = all_cases().keys() - FOUND - set(OLDER) - {"pegasus", "vit_mae"}
"""The other cases, but two that cannot be compared: `transformers` misses a table that it computes,
and hides patches at random."""
WRITTEN = sorted(all_cases().keys() - REFUSED.keys() - set(OLDER))


def imported(name: str, folder: Path) -> None:
    if not (folder / "source").exists():
        save(make_model(all_cases()[name]), all_cases()[name], folder / "source")
    import_folder(folder / "source", folder / "m", name="tiny", registry=registry())


def exported(name: str, folder: Path) -> Path:
    imported(name, folder)
    config = folder / "source" / "config.json"
    export_folder(folder / "m", folder / "back", config=config, registry=registry())
    return folder / "back"


@pytest.mark.parametrize("name", one_then_slow(["gpt2", *(n for n in WRITTEN if n != "gpt2")]))
def test_a_configuration_is_enough(name: str, tmp_path: Path) -> None:
    back = exported(name, tmp_path)
    check_tensors(tmp_path / "source", back)
    assert (back / "config.json").read_bytes() == (tmp_path / "source/config.json").read_bytes()


def check_tensors(source: Path, back: Path) -> None:
    planned = plan_import(source, name="tiny", registry=registry())
    # A table that is computed may be left out, and one of two copies.
    left = tensors(source).keys() - tensors(back).keys()
    assert left <= {*planned.plan.computed, *planned.plan.copies, *planned.plan.dropped}
    report = Report()
    compare_tensors(planned, source, back, report)
    assert [fault for fault in report.faults if "is missing" not in fault] == []


def check_class(name: str, folder: Path) -> None:
    """A case exported by its class alone is loaded by `transformers` as the same model."""
    case = all_cases()[name]
    truth = make_truth(case, folder / "source")
    imported(name, folder)
    back = folder / "back"
    export_folder(folder / "m", back, architecture=case.model_class, registry=registry())
    config, source = (
        json.loads((folder / one / "config.json").read_text()) for one in ("back", "source")
    )
    as_the_truth = {"use_cache": False}
    for key in ("block_size", "pad_head_dim_to_multiple_of"):
        if key in source:  # which decides in which order terms are added up
            as_the_truth[key] = source[key]
    (back / "config.json").write_text(json.dumps(config | as_the_truth))
    report = Report()
    planned = plan_import(folder / "source", name="tiny", registry=registry())
    compare_reloaded(truth, planned, back, report)
    assert report.faults == []


@pytest.mark.parametrize("name", one_then_slow(FOUND))
def test_a_class_is_enough(name: str, tmp_path: Path) -> None:
    check_class(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(n for n in OTHERS if "." not in n))
def test_a_class_is_enough_or_refused(name: str, tmp_path: Path) -> None:
    """What is not found is told, and nothing else is exported."""
    try:
        check_class(name, tmp_path)
    except ZooError:
        assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("name", one_then_slow(sorted(FOUND, reverse=True)))
def test_no_class_starts_from_weights_that_are_not_there(name: str, tmp_path: Path) -> None:
    """A class with another head is refused, as `transformers` would begin that anew."""
    imported(name, tmp_path)
    own = all_cases()[name].model_class
    others = Families(registry()).defaults(all_cases()[name].model_type).classes.keys() - {own}
    assert others
    for number, architecture in enumerate(sorted(others)):
        back = tmp_path / str(number)
        try:
            export_folder(tmp_path / "m", back, architecture=architecture, registry=registry())
        except ZooError:
            continue
        cls = getattr(transformers, architecture)
        _, told = cls.from_pretrained(back, output_loading_info=True)
        missing = {key for key in told["missing_keys"] if not key.startswith("pooler.")}
        assert (architecture, missing, told["unexpected_keys"]) == (architecture, set(), set())


@pytest.mark.parametrize("name", one_then_slow(sorted(REFUSED)))
def test_what_a_configuration_leaves_open_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=REFUSED[name]):
        exported(name, tmp_path)
    assert not (tmp_path / "back").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", OLDER)
def test_other_names_are_read_as_the_same(name: str, tmp_path: Path) -> None:
    truth = make_truth(all_cases()[name], tmp_path / "source")
    back = exported(name, tmp_path)
    planned = plan_import(tmp_path / "source", name="tiny", registry=registry())
    report = Report()
    compare_reloaded(truth, planned, back, report)
    assert report.faults == []
