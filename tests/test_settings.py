"""The settings of generation that are published with a model, against `generate` of `transformers`,
which reads the same folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from random_values import add_noise
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
)
from trials import Refused

import zoo
from zoo.cli import run
from zoo.running.settings import UNSUPPORTED, Settings, SettingsWarning, read_settings

VOCAB, START, EOS, NEW = 41, 2, [25, 37], 14
"""The ids that end a text are among those that these models like to generate."""
TEXTS = ["5 9 33 17", "2 24 3", "11 24 24 30 7"]
SETTINGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "forced": {"forced_bos_token_id": 7, "forced_eos_token_id": 25},
    "summaries": {
        "forced_bos_token_id": 0,
        "forced_eos_token_id": 25,
        "early_stopping": True,
        "length_penalty": 2.0,
        "min_length": 6,
        "no_repeat_ngram_size": 3,
        "num_beams": 4,
    },
    "translations": {
        "bad_words_ids": [[23], [26, 26], [25]],
        "forced_eos_token_id": 25,
        "num_beams": 3,
        "renormalize_logits": True,
    },
    "penalties": {"repetition_penalty": 1.4, "min_new_tokens": 5, "no_repeat_ngram_size": 1},
    "beams": {"num_beams": 3, "length_penalty": 0.6, "repetition_penalty": 1.2},
    "pairs": {
        "num_beams": 3,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[18], [37, 33, 26], [23, 25]],
    },
    "suppressed": {"suppress_tokens": [3, 24, 37], "begin_suppress_tokens": [16, 20]},
    "suppressed after the first": {
        "forced_bos_token_id": 7,
        "begin_suppress_tokens": [24, 23, 3],
        "num_beams": 2,
    },
    "not the words of the source": {
        "encoder_no_repeat_ngram_size": 1,
        "no_repeat_ngram_size": 2,
        "num_beams": 3,
    },
    "not the pairs of the source": {"encoder_no_repeat_ngram_size": 2},
    "never early": {"num_beams": 2, "early_stopping": "never", "length_penalty": 3.0},
    "never early, short": {"num_beams": 2, "early_stopping": "never", "length_penalty": -1.0},
    "many at once": {
        "bad_words_ids": [[23], [26, 26], [25]],
        "begin_suppress_tokens": [16, 24],
        "encoder_no_repeat_ngram_size": 3,
        "forced_bos_token_id": 7,
        "forced_eos_token_id": 37,
        "length_penalty": 0.6,
        "min_new_tokens": 7,
        "no_repeat_ngram_size": 2,
        "num_beams": 4,
        "repetition_penalty": 1.3,
        "suppress_tokens": [3, 9],
    },
    "the likeliest": {"do_sample": True, "top_k": 1, "temperature": 0.5},
    "the likeliest by their sum": {"do_sample": True, "top_p": 0.0},
}


def publish(folder: Path, theirs: Any, **settings: Any) -> Path:
    """Write a checkpoint with these settings in the folder, and import it beside it."""
    add_noise(theirs, 0.4, seed=3).double().save_pretrained(folder)
    ids = {"eos_token_id": EOS, "pad_token_id": 1, "decoder_start_token_id": START}
    (folder / "generation_config.json").write_text(json.dumps({**ids, **settings}))
    zoo.import_folder(folder, folder.with_name("ours"), name="ours")
    return folder.with_name("ours")


def bart() -> Any:
    sizes = {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "vocab_size": VOCAB}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    layers = {"encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 90}
    torch.manual_seed(1)
    return BartForConditionalGeneration(BartConfig(**sizes, **heads, **layers))


def gpt2() -> Any:
    torch.manual_seed(1)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": VOCAB, "n_positions": 90}
    return GPT2LMHeadModel(GPT2Config(**sizes))


def theirs_generate(folder: Path, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text alone."""
    decodes = "GPT2" in (folder / "config.json").read_text()
    kind: Any = AutoModelForCausalLM if decodes else AutoModelForSeq2SeqLM
    model = kind.from_pretrained(folder).double().eval()
    written = []
    for text in texts:
        ids = torch.tensor([[int(word) for word in text.split()]])
        found = model.generate(ids, max_new_tokens=NEW, attention_mask=torch.ones_like(ids))
        new: list[int] = found[0, ids.shape[1] if decodes else 1 :].tolist()
        ends = [place for place, id_ in enumerate(new) if id_ in EOS]
        written.append(new[: ends[0] + 1] if ends else new)
    return written


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("make", [bart, gpt2])
def test_texts_are_those_of_transformers(make: Any, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    settings = SETTINGS[name]
    if make is gpt2:  # counts the prompt there, and is told, below
        settings = {key: value for key, value in settings.items() if key != "min_length"}
    model = zoo.TextModel.load(publish(folder, make(), **settings))
    found = [one["ids"] for one in model.run(TEXTS, max_new_tokens=NEW)]
    assert found == theirs_generate(folder, TEXTS)
    for text, ids in zip(TEXTS, found, strict=True):
        shown = ids[:-1] if ids[-1] in EOS else ids
        assert "".join(model.stream(text, max_new_tokens=NEW)) == " ".join(map(str, shown))


def test_settings_of_a_config_without_a_file_of_them(tmp_path: Path) -> None:
    """As old checkpoints have them, also in the configuration of the decoder alone."""
    folder = tmp_path / "theirs"
    publish(folder, bart())
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config |= {"eos_token_id": EOS, "decoder_start_token_id": START, **SETTINGS["summaries"]}
    (folder / "config.json").write_text(json.dumps(config))
    zoo.import_folder(folder, tmp_path / "old", name="old")
    found = zoo.TextModel.load(tmp_path / "old").run(TEXTS, max_new_tokens=NEW)
    assert [one["ids"] for one in found] == theirs_generate(folder, TEXTS)
    inner = zoo.load(tmp_path / "old")
    inner.origin = {"config": json.dumps({"num_beams": None, "decoder": {"num_beams": 3}})}
    zoo.save(inner, tmp_path / "inner")
    assert zoo.TextModel.load(tmp_path / "inner").settings.method() == zoo.Beam(size=3)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A translator that its folder has set up to draw tokens."""
    settings = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_length": 99}
    return publish(tmp_path / "theirs", bart(), **settings, forced_bos_token_id=7)


def change(folder: Path, **settings: Any) -> None:
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def test_options_go_before_the_settings(
    model: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    path = model / "generation_config.json"
    drawn = zoo.Sampling(temperature=0.6, top_p=0.9, top_k=50, first_id=7)
    cases: list[tuple[list[str], Any, str]] = [
        ([], drawn, "do_sample = true, temperature = 0.6, top_p = 0.9"),
        (["--sample"], drawn, "do_sample = true, temperature = 0.6, top_p = 0.9"),
        (
            ["--temperature", "2", "--seed", "5"],
            drawn.model_copy(update={"temperature": 2.0, "seed": 5}),
            "do_sample = true, top_p = 0.9",
        ),
        (["--no-sample"], zoo.Greedy(first_id=7), ""),
        (["--beams", "3"], zoo.Beam(size=3, first_id=7), ""),
        (
            ["--no-sample", "--repetition-penalty", "2"],
            zoo.Greedy(repetition_penalty=2.0, first_id=7),
            "",
        ),
    ]
    transformer = zoo.load(model)
    ids = [int(word) for word in TEXTS[0].split()]
    for options, method, told in cases:
        assert run(["run", str(model), TEXTS[0], "-n", "8", "--json", *options]) == 0
        said = capsys.readouterr()
        (found,) = zoo.generate(
            transformer, ids, max_new_tokens=8, start=START, eos=EOS, method=method
        )
        assert json.loads(said.out)["ids"] == list(found.ids)
        assert said.err == (f"{path}: {told}\n" if told else "")
    for options in (["--no-sample"], ["--beams", "2"]):
        told = refused("run", str(model), "5", "--top-p", "0.5", *options)
        assert "--top-p goes with --sample" in told
    change(model, do_sample=False)
    assert "--top-p goes with --sample" in refused("run", str(model), "5", "--top-p", "0.5")
    assert zoo.TextModel.load(model).settings.method(sample=True).top_k is None


METHODS: list[tuple[dict[str, Any], dict[str, Any], Any, dict[str, Any]]] = [
    ({"do_sample": True}, {}, zoo.Sampling(top_k=50), {"do_sample": True}),
    ({"do_sample": True, "top_k": 0}, {}, zoo.Sampling(), {"do_sample": True}),
    ({"do_sample": True}, {"changes": {"top_k": 5}}, zoo.Sampling(top_k=5), {"do_sample": True}),
    ({"do_sample": True, "temperature": 1.0}, {}, zoo.Sampling(top_k=50), {"do_sample": True}),
    (
        {"do_sample": True, "temperature": 0.5, "top_p": 0.9, "min_p": 0.2, "top_k": 7},
        {},
        zoo.Sampling(temperature=0.5, top_p=0.9, min_p=0.2, top_k=7),
        {"do_sample": True, "temperature": 0.5, "top_p": 0.9, "min_p": 0.2, "top_k": 7},
    ),
    ({"do_sample": True, "num_beams": 1}, {"beams": 3}, zoo.Beam(size=3), {}),
    ({"num_beams": 3}, {"beams": 1}, zoo.Greedy(), {}),
    ({"num_beams": 3}, {"sample": True}, zoo.Sampling(), {}),
    (
        {"num_beams": 3, "early_stopping": "never"},
        {},
        zoo.Beam(size=3, early_stopping="never"),
        {"num_beams": 3, "early_stopping": "never"},
    ),
    (
        {"num_beams": 3, "early_stopping": True},
        {},
        zoo.Beam(size=3, early_stopping=True),
        {"num_beams": 3, "early_stopping": True},
    ),
]


@pytest.mark.parametrize(("settings", "asked", "method", "applied"), METHODS)
def test_the_method_is_that_of_the_settings_and_of_what_is_asked(
    settings: dict[str, Any], asked: dict[str, Any], method: Any, applied: dict[str, Any]
) -> None:
    found = Settings(**settings)
    assert found.method(**asked) == method
    assert found.applied(method) == applied


def test_what_is_forced_holds_for_every_method(model: Path) -> None:
    change(model, forced_eos_token_id=[37, 25], bad_words_ids=[[40]])
    found = zoo.TextModel.load(model)
    for method in (zoo.Greedy(), zoo.Sampling(), zoo.Beam(), None):
        (one,) = found.run(["5 9"], method=method, max_new_tokens=2)
        assert one["ids"] == [7, 25]
    own = zoo.Greedy(first_id=9)
    assert found.run(["5 9"], method=own)[0]["ids"][0] == 9
    (one,) = found.run(["5 9"], start=[START], max_new_tokens=2)
    assert one["ids"] == [7, 25]
    # With several ids, the target begins as it shall already.
    begins: tuple[Any, ...] = ([START, 11], torch.tensor([START, 11]))
    one, same = (
        found.run(["5 9"], method=zoo.Greedy(), start=begin, max_new_tokens=3)[0]
        for begin in begins
    )
    assert one == same
    (wanted,) = zoo.generate(
        found.transformer,
        [5, 9],
        max_new_tokens=3,
        start=[START, 11],
        eos=EOS,
        method=zoo.Greedy(last_id=25, bad_words=[[40]]),
    )
    assert one["ids"] == list(wanted.ids)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"typical_p": 0.4, "num_beam_groups": 2}, "`num_beam_groups`, `typical_p`"),
        ({"num_beams": 3}, "`num_beams`"),
        ({"num_return_sequences": 3}, "`num_return_sequences`"),
        ({"do_sample": False, "num_beams": 3, "early_stopping": "never"}, ""),
        (UNSUPPORTED, ""),
        ({"max_length": 5, "my_own": 3, "use_cache": False, "pad_token_id": None}, ""),
    ],
    ids=str,
)
def test_what_is_not_applied_is_told(
    model: Path, settings: dict[str, Any], names: str, recwarn: pytest.WarningsRecorder
) -> None:
    change(model, **settings)
    zoo.TextModel.load(model)
    told = [str(one.message) for one in recwarn if one.category is SettingsWarning]
    wanted = [f"{model / 'generation_config.json'}: {names}: not supported by the zoo"]
    assert [one.partition(", so that")[0] for one in told] == (wanted if names else [])


@pytest.mark.parametrize(
    ("stated", "has_source", "read"),
    [
        # `min_length` counts the id that begins the target.
        ({"min_length": 6}, True, {"min_new_tokens": 5}),
        ({"min_length": 6, "min_new_tokens": 2}, True, {"min_new_tokens": 2}),
        ({"min_length": 6, "min_new_tokens": 2}, False, {"min_new_tokens": 2}),
        ({"forced_eos_token_id": [9, 4]}, True, {"forced_eos_token_id": 4}),
        ({"forced_eos_token_id": []}, True, {"forced_eos_token_id": None}),
        ({"forced_bos_token_id": 3}, True, {"forced_bos_token_id": 3}),
        ({"forced_bos_token_id": 3}, False, {"forced_bos_token_id": None}),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_settings_as_they_are_applied(
    tmp_path: Path, stated: dict[str, Any], has_source: bool, read: dict[str, Any]
) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(stated))
    found = read_settings(tmp_path, None, has_source=has_source)
    expected = {**stated, **read, "read_from": str(path)}
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize("name", ["decoder", "text_config"])
def test_a_config_goes_before_that_of_its_decoder(tmp_path: Path, name: str) -> None:
    inner = {"num_beams": 3, "length_penalty": 2.0, "typical_p": 0.5}
    config = {"num_beams": 2, "length_penalty": None, name: inner}
    with pytest.warns(SettingsWarning, match="`typical_p`: not supported"):
        found = read_settings(tmp_path, json.dumps(config), has_source=True)
    assert (found.num_beams, found.length_penalty) == (2, 2.0)
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert read_settings(tmp_path, None, has_source=True).length_penalty is None


def test_a_decoders_shortest_text_is_told(tmp_path: Path) -> None:
    """It would count the prompt."""
    folder = publish(tmp_path / "theirs", gpt2(), min_length=4, forced_bos_token_id=3)
    with pytest.warns(SettingsWarning, match="`min_length`: not supported"):
        model = zoo.TextModel.load(folder)
    assert model.settings.method() == zoo.Greedy()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"decoder_start_token_id": 50}, "`decoder_start_token_id` holds the id 50, which is"),
        ({"forced_bos_token_id": 41}, "`forced_bos_token_id` holds the id 41, which is outside"),
        ({"bad_words_ids": [[3, 77]]}, "`bad_words_ids` holds the id 77, which is outside"),
        ({"suppress_tokens": [3, 78]}, "`suppress_tokens` holds the id 78, which is outside"),
        ({"begin_suppress_tokens": [79]}, "`begin_suppress_tokens` holds the id 79, which is"),
        (
            {"num_beams": 2, "early_stopping": "Never"},
            "`early_stopping` must be `true` or `false` or `never`, not the string `Never`",
        ),
        ({"eos_token_id": [3, "</s>"]}, "`eos_token_id` must be an integer, not the string `</s>`"),
        ({"suppress_tokens": [3, -1]}, "`suppress_tokens` must be at least 0, not the integer"),
        ({"bad_words_ids": [[]]}, "`bad_words_ids` must have at least 1 item, not 0"),
        ({"temperature": 0}, "`temperature` must be at least 0.000001, not the float `0.0`"),
        ({"temperature": "warm"}, "cannot be read: `temperature` must be a number, not the string"),
        ({"do_sample": False, "num_beams": -1}, "`num_beams` must be at least 1"),
        ({"do_sample": False, "num_beams": 10_001}, "`num_beams` must be at most 10000"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(
    model: Path, settings: dict[str, Any], told: str, refused: Refused
) -> None:
    change(model, **settings)
    said = refused("run", str(model), "5 9")
    assert f"{model / 'generation_config.json'}: error: " in said
    assert told in said


@pytest.mark.parametrize("outside", [41, -1])
def test_an_end_outside_the_vocabulary_ends_nothing(model: Path, outside: int) -> None:
    """As in `transformers`: it never comes. A smaller vocabulary often keeps that of a larger."""
    change(model, eos_token_id=3)
    expected = zoo.TextModel.load(model).run(["5 9"], max_new_tokens=4)
    change(model, eos_token_id=[3, outside])
    told = f"`eos_token_id` {outside} is outside the vocabulary of 41 "
    with pytest.warns(SettingsWarning, match=told):
        assert zoo.TextModel.load(model).run(["5 9"], max_new_tokens=4) == expected


@pytest.mark.parametrize("settings", [{"decoder_start_token_id": 50}, {"temperature": 0}])
def test_what_an_option_replaces_is_not_looked_at(model: Path, settings: dict[str, Any]) -> None:
    change(model, **settings)
    options = ["--eos", "3", "--start", "2", "--temperature", "1"]
    assert run(["run", str(model), "5 9", *options]) == 0


@pytest.mark.parametrize("method", [zoo.Greedy, zoo.Beam, zoo.Sampling])
def test_if_everything_is_forbidden_nothing_is(method: Any) -> None:
    spec = {"format": 1, "name": "m", "builder": "decoder", "vocab": 4, "n_layers": 1}
    model = zoo.build({**spec, "d_model": 8, "n_heads": 2, "d_ff": 8})
    chosen = method(no_repeat_ngram_size=1)
    (found,) = zoo.generate(model, [1, 2], max_new_tokens=6, method=chosen)
    assert {*found.ids[:2]} == {0, 3}
    assert len(found.ids) == 6
    # So it is for each row alone: of the second, not everything is forbidden.
    prompts = [[3, 1, 0, 2], [1, 2]]
    if method is not zoo.Sampling:  # which draws numbers for the batch
        both = zoo.generate(model, prompts, max_new_tokens=3, method=chosen)
        alone = [zoo.generate(model, row, max_new_tokens=3, method=chosen)[0] for row in prompts]
        assert [one.ids for one in both] == [one.ids for one in alone]
    for wrong in ({"first_id": 4}, {"last_id": 9}, {"bad_words": [[3, 4]]}):
        with pytest.raises(
            zoo.ZooError, match=f"`{next(iter(wrong))}` holds the id ., which is out"
        ):
            zoo.generate(model, [1], max_new_tokens=2, method=method(**wrong))
