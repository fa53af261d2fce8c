"""`zoo run` with sounds in texts, against the processors and the generation of `transformers`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import word_tokenizers
from families.cases import all_cases
from families.checkpoints import make_model, save
from test_sound_models import signal, write_wav
from trials import Refused, reported

import zoo
from zoo.cli import run as zoo_run

N_NEW = 8
RATE, HOP, FRAMES = 16000, 666, 24
"""A window is of a second, which is no whole number of frames."""
TOKENS = {
    "qwen2_audio": "<|AUDIO|>",
    "audioflamingo3": "<sound>",
    "glmasr": "<|pad|>",
    "voxtral": "[AUDIO]",
}
TEMPLATE = (
    "{% for message in messages %}{{ 'w20 ' }}{% for content in message['content'] %}"
    "{% if content['type'] == 'audio' %}{{ 'TOKEN ' }}{% else %}{{ content['text'] + ' ' }}"
    "{% endif %}{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'w21' }}{% endif %}"
)
Given = dict[str, torch.Tensor]


class Published:
    """A checkpoint with its processor, and what `transformers` makes of texts with sounds."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder, self.name, self.token = folder, name, TOKENS[name]
        self.model = make_model(all_cases()[name])
        save(self.model, all_cases()[name], folder)
        special = {90: self.token, 91: "[BEGIN_AUDIO]"}
        words = [special.get(n, f"w{n}") for n in range(97)]
        tokenizer = word_tokenizers.word_tokenizer(
            words, "w0", special=[*special.values()], single="w1 $A"
        )
        self.tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="w3", model_input_names=["input_ids"]
        )
        self.extractor = transformers.WhisperFeatureExtractor(
            feature_size=8, sampling_rate=RATE, hop_length=HOP, chunk_length=1
        )
        template = TEMPLATE.replace("TOKEN", self.token)
        if name == "voxtral":  # whose own tokenizer is that of another package
            self.tokenizer.save_pretrained(folder)
            self.extractor.save_pretrained(folder)
            (folder / "chat_template.jinja").write_text(template)
        else:
            classes = {
                "qwen2_audio": transformers.Qwen2AudioProcessor,
                "audioflamingo3": transformers.AudioFlamingo3Processor,
                "glmasr": transformers.GlmAsrProcessor,
            }
            options = {"chat_template": template}
            self.processor = classes[name](self.extractor, self.tokenizer, **options)
            self.processor.save_pretrained(folder)
        (folder / "generation_config.json").write_text('{"eos_token_id": 2}')

    def given(self, text: str, sounds: Sequence[Any], *, special: bool = True) -> Given:
        """What the processor makes of a text."""
        if self.name != "voxtral":
            audio = {"audio": [*sounds]} if sounds else {}
            options = {"sampling_rate": RATE} if sounds else {}
            processor = self.processor if sounds else self.tokenizer
            found = processor(
                text=[text], **audio, return_tensors="pt", add_special_tokens=special, **options
            )
            return dict(found)
        written, more = text, {}
        for sound in sounds:  # as mistral-common does
            n_states = 3 * -(-len(sound) // RATE)
            written = written.replace("[AUDIO]", "[BEGIN_AUDIO]" + " <A>" * n_states, 1)
        if sounds:
            own = SimpleNamespace(feature_extractor=self.extractor)
            more["input_features"] = transformers.VoxtralProcessor._retrieve_input_features(
                own,
                [*sounds],
                FRAMES,
                sampling_rate=RATE,
                padding=True,
                truncation=False,
                pad_to_multiple_of=RATE,
                return_tensors="pt",
            )
        written = written.replace("<A>", "[AUDIO]")
        ids = self.tokenizer(written, return_tensors="pt", add_special_tokens=special)
        return {"input_ids": ids["input_ids"], **more}

    def ids(self, text: str, sounds: Sequence[Any], *, special: bool = True) -> list[int]:
        given = self.given(text, sounds, special=special)
        for unread in ("num_audio_tokens", "token_type_ids"):
            given.pop(unread, None)
        n_read = given["input_ids"].shape[1]
        options = {"do_sample": False, "eos_token_id": 2, "pad_token_id": 3}
        found = self.model.generate(**given, max_new_tokens=N_NEW, **options)
        told: list[int] = found[0, n_read:].tolist()
        return told


@pytest.fixture(scope="module", params=TOKENS)
def truth(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Published:
    return Published(request.param, tmp_path_factory.mktemp("published") / "checkpoint")


@pytest.fixture(scope="module")
def model(truth: Published, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("imported") / "model"
    zoo.import_folder(truth.folder, folder)
    return str(folder)


def record(name: str, n_samples: int, seed: int = 0) -> tuple[str, Any]:
    """A sound in a file, and its samples."""
    (samples,) = write_wav(Path(name), [signal(n_samples, seed)])
    return name, np.asarray(samples, dtype=np.float32)


def run(capsys: pytest.CaptureFixture[str], model: str, *arguments: str) -> Any:
    return reported(capsys, model, *arguments, "-n", str(N_NEW))


def test_texts_with_a_sound(
    truth: Published, model: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shorter than a window, and longer for those that cut it."""
    text = f"w5 {truth.token} w6 w7"
    lengths = [5000] if truth.name == "qwen2_audio" else [5000, 38000]
    written = []
    for n_samples in (*lengths, RATE):
        path, samples = record("one.wav", n_samples)
        found = run(capsys, model, text, "--sound", path)
        assert found["ids"] == truth.ids(text, [samples])
        written.append(found["ids"])
    assert len({*map(tuple, written)}) > 1
    assert run(capsys, model, "w5 w6")["ids"] == truth.ids("w5 w6", [])


def test_spectrograms_are_those_of_the_processor(
    truth: Published, model: str, project: Path
) -> None:
    """Of a loud beginning and a quiet end, whose numbers are limited by the loudest of what is
    computed together."""
    n_samples = 9000 if truth.name == "qwen2_audio" else 38000
    loud = [*signal(n_samples // 2), *[x / 1e3 for x in signal(n_samples - n_samples // 2)]]
    (samples,) = write_wav(Path("one.wav"), [loud], width=4)
    text = f"w5 {truth.token} w6"
    expected = truth.given(text, [np.asarray(samples, dtype=np.float32)])
    sounds = zoo.TextModel.load(model).sounds
    assert sounds is not None
    read = sounds.row(text, ["one.wav"])
    (found,) = read.sounds
    features = expected["input_features"].transpose(1, 2)
    torch.testing.assert_close(found.windows, features, atol=2e-5, rtol=0)
    assert read.ids == expected["input_ids"][0].tolist()


def test_chats_with_a_sound(
    truth: Published, model: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, samples = record("one.wav", 7000)
    wanted = truth.ids(f"w20 {truth.token} w6 w7 w21", [samples], special=False)
    assert run(capsys, model, "w6 w7", "--chat", "--sound", path)["ids"] == wanted
    said = {"type": "text", "text": "w6 w7"}
    chat = [{"role": "user", "content": [{"type": "audio"}, said]}]
    (found,) = zoo.TextModel.load(model).run([chat], sounds=[[path]], max_new_tokens=N_NEW)
    assert found["ids"] == wanted


def test_several_texts(
    truth: Published, model: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the command line all sounds stand in each text; in Python each text has its own."""
    (one, of_one), (other, of_other) = record("one.wav", 5000), record("other.wav", 12345, 1)
    token = truth.token
    texts = [f"w5 {token} w6 w7", f"w8 {token}", "w9"]
    text_model = zoo.TextModel.load(model)
    found = text_model.run(texts, sounds=[[one], [other], []], max_new_tokens=N_NEW)
    wanted = [truth.ids(t, s) for t, s in zip(texts, ([of_one], [of_other], []), strict=True)]
    assert [one["ids"] for one in found] == wanted
    pieces = text_model.stream(texts[0], sounds=[one], max_new_tokens=N_NEW)
    assert "".join(pieces) == found[0]["text"]
    capsys.readouterr()
    arguments = ["run", model, *texts[:2], "--sound", one, "-n", str(N_NEW), "--json"]
    assert zoo_run(arguments) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["ids"] for line in lines] == [truth.ids(text, [of_one]) for text in texts[:2]]
    if truth.name not in ("audioflamingo3", "glmasr"):  # whose processors take one sound a text
        both = f"{token} w8 {token}"
        found = run(capsys, model, both, "--sound", one, "--sound", other)
        assert found["ids"] == truth.ids(both, [of_one, of_other])


def test_what_does_not_fit(truth: Published, model: str, project: Path, refused: Refused) -> None:
    one, _ = record("one.wav", 5000)
    long, _ = record("long.wav", 17000)
    token = truth.token
    text = f"w5 {token} w6"
    told = refused("run", model, "w5", "--sound", one)
    assert f"the text has 0 places for a sound, `{token}`, and 1 sound given" in told
    assert f"write `{token}` once in the text for each sound" in told
    assert f"1 place for a sound, `{token}`, and 0 sounds given" in refused("run", model, text)
    assert "there.wav" in refused("run", model, text, "--sound", "there.wav")
    if truth.name == "qwen2_audio":
        told = refused("run", model, text, "--sound", long)
        assert "long.wav" in told
        assert "the sound has 1.1 seconds, and model hears 1 of a sound" in told
        assert "--image: model takes no images in its texts" in refused(
            "run", model, text, "--image", "a.png"
        )
    text_model = zoo.TextModel.load(model)
    with pytest.raises(zoo.InputError, match="`sounds` are a list for each of 1 text"):
        text_model.run([text], sounds=[one])  # type: ignore[list-item]


def edited(model: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Copy the model's folder to `model`, with another processor_config.json."""
    for path in Path(model).iterdir():
        target = Path("model") / path.name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    path = Path("model/processor_config.json")
    stated = json.loads(path.read_text())
    change(stated)
    path.write_text(json.dumps(stated))


@pytest.mark.parametrize("truth", ["audioflamingo3"], indirect=True)
def test_the_longest_sound(model: str, project: Path, refused: Refused) -> None:
    long, _ = record("long.wav", 33000)
    edited(model, lambda stated: stated.update(max_audio_len=2))
    told = refused("run", "model", "w5 <sound>", "--sound", long)
    assert "the sound has 2.1 seconds, and model hears 2 of a sound" in told
    edited(model, lambda stated: stated.update(max_audio_len="long"))
    told = refused("run", "model", "w5 <sound>", "--sound", long)
    assert "`max_audio_len` must be a number of seconds" in told


@pytest.mark.parametrize("truth", ["qwen2_audio"], indirect=True)
def test_settings_that_do_not_fit(model: str, project: Path, refused: Refused) -> None:
    one, _ = record("one.wav", 5000)
    asked = ("run", "model", "w5 <|AUDIO|>", "--sound", one)
    edited(model, lambda stated: stated["feature_extractor"].update(chunk_length=2))
    assert "(48, 8), and the model takes (24, 8)" in refused(*asked)
    edited(model, lambda stated: stated.update(processor_class="Qwen9AudioProcessor"))
    told = refused(*asked)
    assert "how the processor `Qwen9AudioProcessor` writes sounds into a text is not known" in told
    assert "did you mean `Qwen2AudioProcessor`?" in told
    edited(model, lambda stated: stated.pop("feature_extractor"))
    assert "which says how sounds become spectrograms" in refused(*asked)


def test_models_that_take_no_sounds(project: Path, refused: Refused) -> None:
    spec = {"format": 1, "name": "plain", "builder": "decoder", "vocab": 9}
    zoo.save(zoo.build(spec | {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}), "plain")
    told = refused("run", "plain", "1 2", "--sound", "one.wav")
    assert "--sound: plain takes no sounds in its texts" in told
