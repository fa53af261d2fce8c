"""The Python functions that list models and components."""

from __future__ import annotations

from pathlib import Path

import pytest

import zoo
from zoo.cli import run
from zoo.registry import read_layers

REGISTRY = """
format = 1

[norm]
twice = "own.py:Twice"
thrice = "own.py:Thrice"

[ffn]
twofold = "own.py:Twofold"

[models]
two-small = "two.toml"
one-small = "one.toml"
"""


@pytest.fixture
def own(tmp_path: Path) -> zoo.Registry:
    """Return a registry with only its own names; none of the files exists."""
    path = tmp_path / "registry.toml"
    path.write_text(REGISTRY)
    return read_layers([path])


def test_the_names_of_models_match_as_file_names_do(own: zoo.Registry) -> None:
    assert zoo.list_models(registry=own) == ["one-small", "two-small"]
    assert zoo.list_models("t*", registry=own) == ["two-small"]
    assert zoo.list_models("three*", registry=own) == []


def test_components_match_by_their_names_and_by_their_slots(own: zoo.Registry) -> None:
    everything = ["norm.thrice", "norm.twice", "ffn.twofold"]
    assert sorted(zoo.list_components(registry=own)) == sorted(everything)
    assert zoo.list_components("norm", registry=own) == everything[:2]
    assert sorted(zoo.list_components("tw*", registry=own)) == ["ffn.twofold", "norm.twice"]


def test_of_two_words_the_first_is_what_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "modles", "gpt*"]) == 2
    assert "'modles' is neither 'models' nor 'components'" in capsys.readouterr().err


def test_the_default_of_a_slot_is_marked(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "components", "norm.*"]) == 0
    before = capsys.readouterr().out
    assert "layer_norm  Layer normalisation (the default)\n" in before
    assert before.count("(the default)") == 1
    (project / "registry.toml").write_text(
        'format = 1\n[defaults]\nnorm = { kind = "rms_norm", override = true }\n'
    )
    assert run(["list", "components", "norm.*"]) == 0
    after = capsys.readouterr().out
    assert "rms_norm    Root mean square normalisation (the default)\n" in after
    assert after.count("(the default)") == 1


def test_without_a_registry_names_are_those_around_the_working_directory() -> None:
    assert {"gpt2", "vaswani-base", "beer-de-en"} <= set(zoo.list_models())
    assert "norm.rms_norm" in zoo.list_components("norm")


def test_a_spec_is_printed_as_zoo_show_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "gpt2"]) == 0
    assert f"{zoo.read_spec('gpt2')}\n" == capsys.readouterr().out
