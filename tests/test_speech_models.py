"""Models that generate the text of a sound, against `transformers`: spectrograms, the ids that a
text begins with, and the text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_sound_models import RATE, saved, signal, write_wav
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    MoonshineConfig,
    MoonshineForConditionalGeneration,
    Wav2Vec2FeatureExtractor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)
from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE
from trials import Command

import zoo
from zoo.running.speech import SpeechSettings
from zoo.sounds.files import Sound, read_sound
from zoo.sounds.settings import read_sound_settings
from zoo.sounds.windows import windows_of

Whisper = tuple[Path, WhisperForConditionalGeneration]

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = [
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|fr|>"),
    *("<|translate|>", "<|transcribe|>", "<|notimestamps|>"),
]
IDS = {token: number for number, token in enumerate([*BYTES, *SPECIAL])}
EOS, START, EN, DE, FR, TRANSLATE, TRANSCRIBE, NO_TIMES = (IDS[token] for token in SPECIAL)
N_TIMES = 4
VOCAB = len(IDS) + N_TIMES
LONGEST, BANDS = 24, 8
SETTINGS: dict[str, Any] = {
    "eos_token_id": EOS,
    "pad_token_id": EOS,
    "bos_token_id": EOS,
    "decoder_start_token_id": START,
    "lang_to_id": {token: IDS[token] for token in ("<|en|>", "<|de|>", "<|fr|>")},
    "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    "no_timestamps_token_id": NO_TIMES,
    "is_multilingual": True,
    "begin_suppress_tokens": [IDS["A"], EOS],
    "suppress_tokens": [IDS["B"], START, EN, DE, FR, TRANSLATE, TRANSCRIBE, NO_TIMES],
    "max_length": LONGEST,
}


def published(
    folder: Path, *, n_times: int = N_TIMES, **settings: Any
) -> WhisperForConditionalGeneration:
    """A tiny Whisper that hears a second, as it is published in a folder, with a tokenizer of bytes
    and these settings of generation; those that are None are left out. `a.wav` is beside it, and
    the model is imported as `model`."""
    config = WhisperConfig(
        vocab_size=len(IDS) + n_times,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_mel_bins=BANDS,
        max_source_positions=50,
        max_target_positions=LONGEST,
        **{key: SETTINGS[key] for key in SETTINGS if key.endswith("token_id") and key[0] in "ebpd"},
    )
    model = WhisperForConditionalGeneration(config)
    stated = {key: value for key, value in {**SETTINGS, **settings}.items() if value is not None}
    saved(model, folder / "published")
    # What is heard, and the tokens before, count, so that texts differ.
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "decoder" in name and "attn.out_proj.weight" in name:
                tensor *= 4
    model.generation_config = type(model.generation_config)(**stated)
    model.save_pretrained(folder / "published")
    WhisperFeatureExtractor(BANDS, chunk_length=1).save_pretrained(folder / "published")
    tokenizer = Tokenizer(models.BPE({byte: n for n, byte in enumerate(BYTES)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([f"<|{n / 50:.2f}|>" for n in range(n_times)])
    tokenizer.save(str(folder / "published" / "tokenizer.json"))
    write_wav(folder / "a.wav", [signal(RATE)])
    zoo.import_folder(folder / "published", folder / "model")
    return model.eval()


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Whisper:
    """The model that is `published`, in a folder that no test changes."""
    folder = tmp_path_factory.mktemp("whisper")
    return folder, published(folder)


def features(folder: Path, file: str = "a.wav") -> torch.Tensor:
    """The spectrogram of a sound, by the extractor of a published model, (1, bands, frames)."""
    extractor = WhisperFeatureExtractor.from_pretrained(folder / "published")
    samples = read_sound(folder / file).samples.numpy()
    found: torch.Tensor = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
    return found


def theirs_of(model: WhisperForConditionalGeneration, given: torch.Tensor, **how: Any) -> list[int]:
    """The ids that `transformers` generates after those that a text begins with."""
    with torch.no_grad():
        found: list[int] = model.generate(given, **how)[0].tolist()
    return found


@pytest.mark.parametrize("n_samples", [100, 15997, RATE])
@pytest.mark.parametrize("options", [{}, {"feature_size": 128}, {"n_fft": 512, "hop_length": 200}])
def test_spectrograms_are_those_of_transformers(
    options: dict[str, Any], n_samples: int, tmp_path: Path
) -> None:
    extractor = WhisperFeatureExtractor(chunk_length=1, **options)
    extractor.save_pretrained(tmp_path)
    samples = torch.tensor(signal(n_samples))
    found = read_sound_settings(tmp_path, (None, extractor.feature_size)).prepared(
        Sound(samples, RATE)
    )
    padded = np.pad(samples.double().numpy(), (0, RATE - n_samples))
    torch.testing.assert_close(found.double(), exact(padded, extractor), rtol=0, atol=1e-7)
    used = extractor(samples.numpy(), sampling_rate=RATE, return_tensors="pt").input_features[0]
    torch.testing.assert_close(found, used.T, rtol=0, atol=1e-4)


def exact(samples: np.ndarray[Any, Any], extractor: WhisperFeatureExtractor) -> torch.Tensor:
    """The spectrogram of samples, computed in float64 by the filters of an extractor: it computes
    in float32 itself."""
    n_fft, hop = extractor.n_fft, extractor.hop_length
    mirrored = np.pad(samples, n_fft // 2, mode="reflect")
    window = np.hanning(n_fft + 1)[:-1]
    frames = [mirrored[at : at + n_fft] * window for at in range(0, len(samples), hop)]
    power = np.abs(np.fft.rfft(frames)) ** 2 @ extractor.mel_filters
    logs = np.log10(np.maximum(power, 1e-10))
    return torch.tensor((np.maximum(logs, logs.max() - 8) + 4) / 4)


def test_thirty_seconds_and_what_older_files_state_too(tmp_path: Path) -> None:
    extractor = WhisperFeatureExtractor()
    stated = {**extractor.to_dict(), "mel_filters": extractor.mel_filters.T.tolist()}
    stated |= {"n_samples": 480000, "nb_max_frames": 3000, "processor_class": "WhisperProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(stated))
    samples = torch.tensor(signal(20000))
    found = read_sound_settings(tmp_path, (3000, 80)).prepared(Sound(samples, RATE))
    used = extractor(samples.numpy(), sampling_rate=RATE, return_tensors="pt").input_features[0]
    torch.testing.assert_close(found, used.T, rtol=0, atol=1e-4)


def test_silence_is_no_infinity(tmp_path: Path) -> None:
    WhisperFeatureExtractor(chunk_length=1).save_pretrained(tmp_path)
    found = read_sound_settings(tmp_path, (100, 80)).prepared(Sound(torch.zeros(9), RATE))
    assert torch.equal(found, torch.full((100, 80), -1.5))  # (log10(1e-10) + 4) / 4


CASES: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, Any]]] = {
    "a detected language": ({}, {}, {"task": "transcribe"}),
    "a language": ({}, {"source": "fr"}, {"language": "fr"}),
    "the name of a language": ({}, {"source": "German"}, {"language": "german"}),
    "the token of a language": ({}, {"source": "<|de|>"}, {"language": "<|de|>"}),
    "a translation": (
        {},
        {"source": "de", "target": "en"},
        {"language": "de", "task": "translate"},
    ),
    "a translation of anything": ({}, {"target": "english"}, {"task": "translate"}),
    "a language twice": ({}, {"source": "fr", "target": "fr"}, {"language": "fr"}),
    "settings of older checkpoints": (
        {"forced_decoder_ids": [[1, None], [2, TRANSLATE], [3, NO_TIMES]]},
        {},
        {},
    ),
    "older checkpoints in one language": (
        {"forced_decoder_ids": [[1, DE], [2, TRANSCRIBE]]},
        {},
        {},
    ),
    "older settings that are overridden": (
        {"forced_decoder_ids": [[1, DE], [2, TRANSLATE]]},
        {"source": "fr"},
        {"language": "fr"},
    ),
    "newer settings": ({"language": "german", "task": "translate"}, {}, {}),
    "a model of English": (
        {
            **dict.fromkeys(("lang_to_id", "task_to_id")),
            "is_multilingual": False,
            "forced_decoder_ids": [[1, NO_TIMES]],
        },
        {},
        {},
    ),
    "a text that ends": ({"eos_token_id": 161}, {"source": "de"}, {"language": "de"}),
    "no ids of languages": ({"lang_to_id": None, "task_to_id": None}, {}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_ids_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    settings, languages, theirs = CASES[case]
    model = published(tmp_path, **settings)
    wanted = theirs_of(model, features(tmp_path), **theirs)
    ours = zoo.SoundModel.load(tmp_path / "model").translating(**languages)
    (found,) = ours.run([tmp_path / "a.wav"])
    assert (found["task"], ended(found)) == ("transcribe", wanted)


def ended(found: dict[str, Any]) -> list[int]:
    """The ids of a result without the one that ended it, as `transformers` returns them."""
    ids: list[int] = found["ids"]
    return ids[:-1] if found["ended"] == "eos" else ids


def test_the_begin_decides(whisper: Whisper) -> None:
    """The cases above would not tell languages and tasks apart if the model did not."""
    folder, _ = whisper
    model = zoo.SoundModel.load(folder / "model")
    languages = [{"source": one} for one in ("en", "de", "fr")]
    languages.append({"source": "de", "target": "en"})
    found = [model.translating(**one).run([folder / "a.wav"])[0] for one in languages]
    assert [one["language"] for one in found] == ["en", "de", "fr", "de"]
    assert len({tuple(one["ids"]) for one in found}) == 4


def test_a_search_and_its_options(whisper: Whisper) -> None:
    folder, model = whisper
    wanted = theirs_of(
        model, features(folder), language="de", num_beams=3, max_new_tokens=9, early_stopping=True
    )
    ours = zoo.SoundModel.load(folder / "model").translating(source="de")
    beam = zoo.Beam(size=3, early_stopping=True)
    (found,) = ours.run([folder / "a.wav"], method=beam, max_new_tokens=9)
    assert ended(found) == wanted
    # The same begin, stated as ids.
    start = [START, DE, TRANSCRIBE, NO_TIMES]
    (other,) = ours.run([folder / "a.wav"], method=beam, max_new_tokens=9, start=start)
    assert {**other, "language": "de"} == found
    with pytest.raises(zoo.InputError, match="one text is written of a sound"):
        ours.run([folder / "a.wav"], method=zoo.Beam(size=2, n_answers=2))


def test_the_command_and_python_say_the_same(whisper: Whisper, command: Command) -> None:
    folder, _ = whisper
    model, file = zoo.SoundModel.load(folder / "model"), folder / "a.wav"
    assert repr(model) == "<SoundModel model>"
    (detected,) = model.run([file])
    run_model = ("run", str(folder / "model"), str(file))
    status, out, err = command(*run_model, "--json")
    assert (status, json.loads(out), err) == (0, detected, "")
    assert {*detected} == {"task", "text", "ids", "score", "ended", "language"}
    (translated,) = model.translating(source="de", target="en").run([file], max_new_tokens=5)
    options = ("--source-language", "de", "--target-language", "en", "-n", "5")
    assert command(*run_model, *options) == (0, f"{translated['text']}\n", "")
    assert len(translated["ids"]) == 5
    (searched,) = model.run([file], method=zoo.Beam(size=2), eos=9)
    status, out, _ = command(*run_model, "--beams", "2", "--eos", "9", "--json")
    assert (status, json.loads(out)) == (0, searched)
    # As many tokens as the positions allow after those that the text begins with.
    start = ("--start", str(START), "--start", str(DE))
    status, out, _ = command(*run_model, *start, "--eos", "9", "--json")
    assert (status, len(json.loads(out)["ids"])) == (0, LONGEST - 2)


def test_the_text_is_that_of_transformers(tmp_path: Path) -> None:
    """Special tokens and times are left out."""
    left = {IDS["2"], IDS["|"], IDS["\u0120"], FR, VOCAB - 2}  # \u0120 stands for a space
    published(tmp_path, suppress_tokens=[id_ for id_ in range(VOCAB) if id_ not in left])
    model = zoo.SoundModel.load(tmp_path / "model")
    theirs = WhisperTokenizer.from_pretrained(tmp_path / "published")
    seen: set[int] = set()
    for language in ("en", "de", "fr"):
        ours = model.translating(source=language)
        (found,) = ours.run([tmp_path / "a.wav"], method=zoo.Sampling(temperature=9.0))
        seen |= {*found["ids"]}
        assert found["text"] == theirs.decode(found["ids"], skip_special_tokens=True).strip()
    assert seen == left


def test_long_sounds_are_heard_in_windows(tmp_path: Path) -> None:
    model = published(tmp_path)
    # A second of noise is more than the model hears with the half before; pauses are in 0.9 s.
    sound = torch.tensor(signal(40000))
    sound[14400:16000] = 0
    sound[29600:31200] = 0
    write_wav(tmp_path / "long.wav", [sound.tolist()])
    bounds = [(0, 15200), (15200, 30400), (30400, 40000)]
    samples, parts = read_sound(tmp_path / "long.wav").samples, []
    for number, (begin, end) in enumerate(bounds):
        write_wav(tmp_path / f"{number}.wav", [samples[begin:end].tolist()])
        parts.append(theirs_of(model, features(tmp_path, f"{number}.wav"), language="de"))
    ours = zoo.SoundModel.load(tmp_path / "model").translating(source="de")
    (found,) = ours.run([tmp_path / "long.wav"])
    windows = found["windows"]
    assert [(one["begin"], one["end"]) for one in windows] == [
        (begin / RATE, end / RATE) for begin, end in bounds
    ]
    assert [ended(one) for one in windows] == parts
    assert found["ids"] == [id_ for one in windows for id_ in one["ids"]]
    assert found["score"] == pytest.approx(sum(one["score"] for one in windows))
    told = [id_ for part in parts for id_ in part]
    assert found["text"] == ours.text.decode(told).strip()
    assert found["language"] == "de"
    # A text at which to stop ends the text of the sound, and not that of a window alone.
    character = next(one for one in ours.text.decode(parts[1]) if one not in windows[0]["text"])
    (stopped,) = ours.run([tmp_path / "long.wav"], stop=[character])
    assert [one["ended"] for one in stopped["windows"]] == [windows[0]["ended"], "stop"]
    assert found["text"].startswith(stopped["text"])
    assert character not in stopped["text"]


def test_windows_follow_each_other_and_end_in_pauses() -> None:
    noise = torch.tensor(signal(50000)) + 0.5
    for n in (1, 1000, 1001, 1900, 50000):
        found = windows_of(noise[:n], 1000, 1000)
        assert [one.start for one in found] == [0, *(one.end for one in found[:-1])]
        assert found[-1].end == n
        lengths = [one.end - one.start for one in found]
        assert max(lengths) <= 1000
        assert min(lengths[:-1], default=1000) >= 834
    noise[900:960] = 0  # shorter than a tenth of a second, which is then the quietest around it
    (first, *_) = windows_of(noise[:1500], 1000, 1000)
    assert 860 <= first.end <= 1000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feature_size": 9}, r"shape \(100, 9\), and the model takes \(100, 8\)"),
        ({"chunk_length": 30}, r"shape \(3000, 8\), and the model takes \(100, 8\)"),
        ({"feature_extractor_type": None}, "`feature_extractor_type` must be stated"),
        (
            {"feature_extractor_type": "Speech"},
            "`feature_extractor_type` `Speech` is not supported",
        ),
        ({"padding_side": "left"}, "`padding_side` must be `right`"),
        ({"dither": 0.1}, "`dither`"),
        ({"sampling_rate": 8000}, "`sampling_rate`"),
        ({"hop": 160}, "`hop` is a setting of sounds that is not supported"),
    ],
)
def test_settings_of_sounds_that_do_not_fit(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    published(tmp_path)
    file = tmp_path / "model" / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(zoo.WeightsError, match=message):
        zoo.SoundModel.load(tmp_path / "model")


def test_a_folder_without_settings_of_sounds(tmp_path: Path, command: Command) -> None:
    published(tmp_path)
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    status, _, err = command("run", str(tmp_path / "model"), str(tmp_path / "a.wav"))
    assert status == 2
    assert "there is no preprocessor_config.json, which says how sounds become spectrograms" in err
    assert '`{"feature_extractor_type": "WhisperFeatureExtractor"}`' in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source-language", "xx"], "the model has no language `xx`"),
        (["--source-language", "germann"], "did you mean `german`?"),
        (["--target-language", "fr"], "translated into English, and not into `fr`"),
        (["--draft", "model"], "--draft: model takes no texts"),
        (["--chat"], "--chat: model takes no texts"),
        (["--answers", "2", "--beams", "2"], "leave `--answers` out"),
        (["-n", "22"], "`--max-new-tokens`"),
        (["--top", "2"], "ranks no classes"),
    ],
)
def test_options_that_do_not_fit(
    arguments: list[str], message: str, whisper: Whisper, command: Command
) -> None:
    folder, _ = whisper
    status, out, err = command("run", str(folder / "model"), str(folder / "a.wav"), *arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_a_sound_of_another_rate(tmp_path: Path, command: Command) -> None:
    published(tmp_path)
    write_wav(tmp_path / "a.wav", [signal(99999)], rate=44100)
    status, _, err = command("run", str(tmp_path / "model"), str(tmp_path / "a.wav"))
    assert status == 2
    assert "the sound has 44,100 samples a second, and the model hears 16,000" in err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lang_to_id": None, "forced_decoder_ids": [[1, None]]}, "no `lang_to_id`"),
        ({"forced_decoder_ids": [[2, DE]]}, "pairs of a place and the id there"),
        ({"language": "klingon"}, "the model has no language `klingon`"),
        ({"task": "sing"}, "the model has no task `sing`"),
        ({"lang_to_id": {"<|en|>": 999}}, "`lang_to_id` holds the id 999"),
        ({"lang_to_id": {"<|en|>": "en"}}, "`lang_to_id`"),
    ],
)
def test_settings_of_the_begin_that_do_not_fit(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    published(tmp_path)
    file = tmp_path / "model" / "generation_config.json"
    stated = {**json.loads(file.read_text()), **settings}
    file.write_text(json.dumps({key: one for key, one in stated.items() if one is not None}))
    with pytest.raises(zoo.WeightsError, match=message) as error:
        zoo.SoundModel.load(tmp_path / "model")
    assert str(file) in str(error.value)


def test_a_model_of_one_language_takes_none(tmp_path: Path) -> None:
    published(tmp_path, lang_to_id=None, task_to_id=None)
    model = zoo.SoundModel.load(tmp_path / "model")
    for one in ("source", "target"):
        with pytest.raises(zoo.InputError, match=r"states no languages \(`lang_to_id`\)"):
            model.translating(**{one: "en"})


def test_the_names_of_languages() -> None:
    every = {f"<|{code}|>": n for n, code in enumerate(sorted({*TO_LANGUAGE_CODE.values()}))}
    settings = SpeechSettings(decoder_start_token_id=999, lang_to_id=every)
    for name, code in TO_LANGUAGE_CODE.items():
        assert settings.speaking(name).begin() == [999, every[f"<|{code}|>"]]


def test_an_encoder_of_any_number_of_frames(tmp_path: Path) -> None:
    spec = {
        "format": 1,
        "name": "own",
        "builder": "encoder",
        "position": "none",
        "head": "none",
        "n_layers": 1,
        "d_model": 8,
        "n_heads": 2,
        "d_ff": 8,
        "embedding": {"kind": "conv_frontend", "n_features": BANDS},
    }
    model = zoo.build(spec)
    zoo.save(model, tmp_path / "own")
    extractor = WhisperFeatureExtractor(BANDS, chunk_length=2)
    extractor.save_pretrained(tmp_path / "own")
    (samples,) = write_wav(tmp_path / "a.wav", [signal(2 * RATE)])
    given = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
    (found,) = zoo.SoundModel.load(tmp_path / "own").run([tmp_path / "a.wav"])
    with torch.no_grad():
        wanted = model.eval()(given.mT)[0].mean(0).tolist()
    assert found == {"task": "embed", "embedding": pytest.approx(wanted, abs=1e-4)}


def test_a_model_of_waveforms_that_generates(tmp_path: Path) -> None:
    spec = {
        "format": 1,
        "name": "own",
        "builder": "encoder_decoder",
        "target_vocab": 9,
        "n_layers": 1,
        "d_model": 8,
        "n_heads": 2,
        "d_ff": 8,
        "position": "none",
        "encoder": {
            "embedding": {
                "kind": "waveform",
                "d_conv": 6,
                "kernel_sizes": [10, 4],
                "strides": [5, 3],
                "position_kernel_size": 4,
                "position_groups": 1,
            }
        },
    }
    model = zoo.build(spec)
    zoo.save(model, tmp_path / "own")
    (tmp_path / "own" / "preprocessor_config.json").write_text('{"do_normalize": false}')
    (samples,) = write_wav(tmp_path / "a.wav", [signal()])
    given = torch.tensor(samples)[None, :, None]
    (wanted,) = zoo.generate(model, given, max_new_tokens=6, start=1)
    ours = zoo.SoundModel.load(tmp_path / "own")
    (found,) = ours.run([tmp_path / "a.wav"], max_new_tokens=6, start=1)
    assert (tuple(found["ids"]), found["text"]) == (wanted.ids, " ".join(map(str, wanted.ids)))
    assert ours.most_new(1) == 447
    with pytest.raises(zoo.InputError, match="state the ids that each target begins with"):
        ours.run([tmp_path / "a.wav"])
    with pytest.raises(zoo.InputError, match=r"`zoo\.SoundModel` does"):
        zoo.TextModel.load(tmp_path / "own").run(["5 9"])


def test_the_encoder_reads_a_sound_once(whisper: Whisper, tmp_path: Path) -> None:
    """Also where the language is detected."""
    folder, _ = whisper
    model, calls = zoo.SoundModel.load(folder / "model"), []
    model.transformer.encoder.register_forward_hook(lambda *_: calls.append(1))
    write_wav(tmp_path / "long.wav", [signal(9 * RATE)])  # two batches of windows
    for file, n in ((folder / "a.wav", 1), (tmp_path / "long.wav", 2)):
        calls.clear()
        assert model.run([file])[0]["language"]
        assert len(calls) == n


def test_a_model_of_waveforms_writes_what_transformers_does(tmp_path: Path) -> None:
    config = MoonshineConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=24,
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=1,
        encoder_num_attention_heads=2,
        decoder_num_attention_heads=2,
    )
    theirs = MoonshineForConditionalGeneration(config)
    saved(theirs, tmp_path / "published")
    Wav2Vec2FeatureExtractor(do_normalize=False).save_pretrained(tmp_path / "published")
    tokenizer = Tokenizer(models.BPE({byte: n for n, byte in enumerate(BYTES)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "published" / "tokenizer.json"))
    zoo.import_folder(tmp_path / "published", tmp_path / "model")
    files = [tmp_path / f"{number}.wav" for number in range(3)]
    expected = []
    for number, file in enumerate(files):
        (samples,) = write_wav(file, [signal(5000 + 700 * number, number)])
        ids = theirs_of(theirs, torch.tensor([samples]), max_new_tokens=12)
        expected.append(ids[1:])
    assert len({tuple(ids) for ids in expected}) > 1
    found = zoo.SoundModel.load(tmp_path / "model").run(files, max_new_tokens=12)
    assert [one["ids"] for one in found] == expected
    assert [one["task"] for one in found] == ["transcribe"] * 3
