"""Running models of sounds: files, waveforms and texts as `transformers` makes them."""

from __future__ import annotations

import json
import math
import struct
import wave
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from torch import nn
from transformers import (
    ASTConfig,
    ASTFeatureExtractor,
    ASTForAudioClassification,
    ASTModel,
    HubertConfig,
    HubertForSequenceClassification,
    ParakeetCTCConfig,
    ParakeetFeatureExtractor,
    ParakeetForCTC,
    ParakeetTokenizer,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    Wav2Vec2Model,
    Wav2Vec2Processor,
)
from trials import Command

import zoo
from zoo.purpose import Transcription
from zoo.running.letters import read_letters, without_blanks
from zoo.sounds.files import read_sound
from zoo.sounds.filter_bank import log_mel
from zoo.sounds.settings import read_sound_settings

TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "conv_dim": [8, 8],
    "conv_kernel": [10, 4],
    "conv_stride": [5, 3],
    "num_conv_pos_embeddings": 6,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 6,
}
TOKENS = ["<pad>", "<s>", "</s>", "<unk>", "|", "E", "T", "A", "O", "'"]
RATE = 16000


def signal(n_samples: int = 900, seed: int = 0) -> list[float]:
    """Samples of noise that swells, between -1 and 1."""
    noise = torch.rand(n_samples, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return (noise * torch.linspace(0.1, 0.9, n_samples)).tolist()


def write_wav(
    path: Path, channels: list[list[float]], *, width: int = 2, rate: int = RATE
) -> list[list[float]]:
    """Write channels of samples as a WAV file. Return them as they are rounded."""
    top = 2 ** (8 * width - 1)
    whole = [[max(-top, min(top - 1, round(x * top))) for x in one] for one in channels]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(len(channels))
        file.setsampwidth(width)
        file.setframerate(rate)
        for frame in zip(*whole, strict=True):
            for value in frame:
                raw = value + 128 if width == 1 else value  # 8 bits have no sign
                file.writeframesraw(raw.to_bytes(width, "little", signed=width > 1))
    return [[x / top for x in one] for one in whole]


def tokenizer(folder: Path, **options: Any) -> Wav2Vec2CTCTokenizer:
    folder.mkdir(exist_ok=True)
    vocab = {token: id_ for id_, token in enumerate(TOKENS)}
    (folder / "letters.json").write_text(json.dumps(vocab))
    return Wav2Vec2CTCTokenizer(folder / "letters.json", **options)


def saved(model: nn.Module, folder: Path) -> nn.Module:
    """A model with weights that count, in a folder."""
    torch.manual_seed(0)
    for name, tensor in model.named_parameters():
        norm = "norm" in name and name.endswith("weight") and tensor.dim() == 1
        scale = norm or "original0" in name
        nn.init.normal_(tensor, mean=float(scale), std=0.5 if tensor.dim() > 1 else 0.1)
    model.eval().save_pretrained(folder)  # type: ignore[operator]
    return model


@pytest.fixture
def recognizer(tmp_path: Path) -> Wav2Vec2ForCTC:
    """A recognizer of speech of `transformers`, with its files in `published`, and imported as
    `model`."""
    config = Wav2Vec2Config(**TINY, vocab_size=len(TOKENS))
    model = saved(Wav2Vec2ForCTC(config), tmp_path / "published")
    tokenizer(tmp_path / "letters").save_pretrained(tmp_path / "published")
    Wav2Vec2FeatureExtractor().save_pretrained(tmp_path / "published")
    zoo.import_folder(tmp_path / "published", tmp_path / "model")
    return model


def test_speech_becomes_the_text_that_transformers_writes(
    recognizer: Wav2Vec2ForCTC, tmp_path: Path, command: Command
) -> None:
    texts = []
    extractor = Wav2Vec2FeatureExtractor.from_pretrained(tmp_path / "published")
    letters = Wav2Vec2CTCTokenizer.from_pretrained(tmp_path / "published")
    for number in range(3):
        (samples,) = write_wav(tmp_path / f"{number}.wav", [signal(700 + 99 * number, number)])
        inputs = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_values
        with torch.no_grad():
            best = recognizer(inputs).logits.argmax(-1)
        texts.append(letters.decode(best[0]))
    assert len({*texts}) == 3
    assert all(len(text) > 3 for text in texts)

    files = [tmp_path / f"{number}.wav" for number in range(3)]
    model = zoo.SoundModel.load(tmp_path / "model")
    found = model.run(files)
    assert [one["text"] for one in found] == texts
    assert [one["task"] for one in found] == ["transcribe"] * 3
    assert [TOKENS[id_] for id_ in found[0]["ids"] if id_ != 4] == tokens_of(texts[0])
    assert model.run([files[1].read_bytes()])[0]["text"] == texts[1]
    assert repr(model) == "<SoundModel model>"

    assert command("run", str(tmp_path / "model"), *map(str, files)) == (
        0,
        "".join(f"{text}\n" for text in texts),
        "",
    )
    status, out, _ = command("run", str(tmp_path / "model"), str(files[2]), "--json")
    assert (status, json.loads(out)) == (0, found[2])


def tokens_of(text: str) -> list[str]:
    """The tokens of a text, without spaces."""
    found = []
    text = text.replace(" ", "")
    while text:
        found.append(next(token for token in TOKENS if text.startswith(token)))
        text = text[len(found[-1]) :]
    return found


def test_what_the_model_gets_is_what_transformers_gives_it(tmp_path: Path) -> None:
    (samples,) = write_wav(tmp_path / "a.wav", [signal()])
    for normalize in (True, False):
        extractor = Wav2Vec2FeatureExtractor(do_normalize=normalize)
        extractor.save_pretrained(tmp_path)
        expected = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_values[0]
        found = read_sound_settings(tmp_path, None).prepared(read_sound(tmp_path / "a.wav"))
        torch.testing.assert_close(found[:, 0], expected, rtol=1e-5, atol=1e-6)


def test_settings_of_a_processor(tmp_path: Path) -> None:
    """Newer checkpoints have one file for all inputs; it counts first."""
    extractor = Wav2Vec2FeatureExtractor(sampling_rate=8000, do_normalize=False)
    Wav2Vec2FeatureExtractor().save_pretrained(tmp_path)
    Wav2Vec2Processor(extractor, tokenizer(tmp_path / "letters")).save_pretrained(tmp_path)
    found = read_sound_settings(tmp_path, None)
    assert (found.sampling_rate, found.do_normalize) == (8000, False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampling_rat": 8000}, "`sampling_rat` is a setting of sounds that is not supported"),
        ({"feature_size": 80}, "`feature_size`"),
        ({"sampling_rate": 0}, "`sampling_rate`"),
        ({"feature_extractor_type": "WhisperFeatureExtractor"}, "`feature_extractor_type`"),
    ],
)
def test_settings_that_are_not_known(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(zoo.WeightsError, match=message):
        read_sound_settings(tmp_path, None)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_of_any_width(width: int, tmp_path: Path) -> None:
    (expected,) = write_wav(tmp_path / "a.wav", [[-1.0, 1.0, 0.0, 0.3, -0.7]], width=width)
    found = read_sound(tmp_path / "a.wav")
    assert found.rate == RATE
    torch.testing.assert_close(found.samples, torch.tensor(expected), rtol=1e-7, atol=0)


def test_the_mean_of_channels(tmp_path: Path) -> None:
    left, right = write_wav(tmp_path / "a.wav", [signal(seed=1), signal(seed=2)])
    expected = [(one + other) / 2 for one, other in zip(left, right, strict=True)]
    torch.testing.assert_close(read_sound(tmp_path / "a.wav").samples, torch.tensor(expected))


def test_a_file_of_unknown_length(tmp_path: Path) -> None:
    """As `ffmpeg` writes it into a pipe: the lengths in the header are the largest."""
    write_wav(tmp_path / "a.wav", [signal(), signal(seed=1)])
    content = (tmp_path / "a.wav").read_bytes()
    endless = content[:4] + b"\xff" * 4 + content[8:40] + b"\xff" * 4 + content[44:]
    found, expected = read_sound(endless), read_sound(tmp_path / "a.wav")
    torch.testing.assert_close(found.samples, expected.samples, rtol=0, atol=0)


def test_the_extensible_header(tmp_path: Path) -> None:
    """As `ffmpeg` writes it for 24 bits: the format is told by a GUID, of which this is the one of
    whole numbers."""
    write_wav(tmp_path / "a.wav", [signal(), signal(seed=1)], width=3)
    content = (tmp_path / "a.wav").read_bytes()
    assert content[12:22] == b"fmt \x10\0\0\0\x01\0"
    guid = b"\x01\0\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
    more = struct.pack("<HHI", 22, 24, 3) + guid
    header = content[12:16] + struct.pack("<IH", 40, 0xFFFE) + content[22:36] + more
    size = struct.pack("<I", len(content) - 8 + len(more))
    found = read_sound(content[:4] + size + content[8:12] + header + content[36:])
    expected = read_sound(content)
    assert (found.rate, len(found.samples)) == (RATE, 900)
    torch.testing.assert_close(found.samples, expected.samples, rtol=0, atol=0)


def wav(tag: int, bits: int, data: bytes, *, rate: int = RATE, before: bytes = b"") -> bytes:
    """A WAV file of one channel of this format, with chunks before those that count."""
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, tag, 1, rate, rate * bits // 8, bits // 8, bits)
    body = b"WAVE" + before + form + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI", b"RIFF", len(body)) + body


@pytest.mark.parametrize(("bits", "letter"), [(32, "f"), (64, "d")])
def test_floats(bits: int, letter: str) -> None:
    """As editors of sounds and SciPy write them; beyond 1 they are as they are."""
    found = read_sound(wav(3, bits, struct.pack(f"<4{letter}", 0.1, -1.5, 0.0, 1.0)))
    assert torch.equal(found.samples, torch.tensor([0.1, -1.5, 0.0, 1.0]))


def test_chunks_that_look_like_others() -> None:
    """A title that holds the name of a chunk, and has an odd number of bytes."""
    title = b"LIST" + struct.pack("<I", 21) + b"about fmt \x10\0\0\0\xfe\xff data" + b"\0"
    data = struct.pack("<3h", 1, -2, 3)
    found = read_sound(wav(1, 16, data, before=title))
    assert torch.equal(found.samples * 2**15, torch.tensor([1.0, -2.0, 3.0]))


def test_the_lengths_that_other_programs_write() -> None:
    data = struct.pack("<3h", 1, -2, 3)
    content = wav(1, 16, data)
    piped = content[:40] + struct.pack("<I", 0x7FFFF000) + data  # by sox, into a pipe
    assert len(read_sound(piped).samples) == 3
    # A file for more than 4 GiB, whose length is that of 64 bits.
    for announced in (6, 8):
        more = b"ds64" + struct.pack("<IQQQI", 28, 0, announced, 3, 0)
        long = b"RF64" + b"\xff" * 4 + b"WAVE" + more + content[12:40] + b"\xff" * 4 + data
        if announced == 6:
            assert len(read_sound(long).samples) == 3
        else:
            with pytest.raises(zoo.InputError, match="announces 4 samples, and holds 3 samples"):
                read_sound(long)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"do_lower_case": True, "replace_word_delimiter_char": "_"},
    {"word_delimiter_token": "'", "unk_token": "<s>"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_letters_are_those_of_transformers(options: dict[str, Any], tmp_path: Path) -> None:
    theirs = tokenizer(tmp_path, **options)
    theirs.add_tokens(["<new>"])
    theirs.save_pretrained(tmp_path)
    ours = read_letters(tmp_path, Transcription(vocab=12, blank=0))
    assert ours is not None
    random = torch.Generator().manual_seed(0)
    for _ in range(50):
        ids = torch.randint(len(TOKENS), (12,), generator=random).repeat_interleave(2).tolist()
        assert ours.decode(without_blanks(ids, 0)) == theirs.decode(ids)
    assert ours.decode([5, 11]) == theirs.decode([5, 11])


def test_repetitions_and_blanks() -> None:
    assert without_blanks([5, 5, 0, 5, 0, 0, 6, 6], 0) == [5, 5, 6]
    assert without_blanks([0, 0], 0) == without_blanks([], 0) == []


def test_files_of_letters_that_contradict_the_model(tmp_path: Path) -> None:
    tokenizer(tmp_path).save_pretrained(tmp_path)
    with pytest.raises(zoo.WeightsError, match=r"the token 3, .* is `<unk>`, and not `<pad>`"):
        read_letters(tmp_path, Transcription(vocab=10, blank=3))
    (tmp_path / "vocab.json").write_text('{"eng": {"E": 1}}')
    with pytest.raises(zoo.WeightsError, match=r"eng.* has no number as its id"):
        read_letters(tmp_path, Transcription(vocab=10, blank=0))


def test_classes_of_sounds(tmp_path: Path, command: Command) -> None:
    labels = {0: "yes", 1: "no", 2: "up"}
    config = HubertConfig(**TINY, id2label=labels)
    theirs = saved(HubertForSequenceClassification(config), tmp_path / "published")
    extractor = Wav2Vec2FeatureExtractor()
    extractor.save_pretrained(tmp_path / "published")
    zoo.import_folder(tmp_path / "published", tmp_path / "model")
    (samples,) = write_wav(tmp_path / "a.wav", [signal()])
    with torch.no_grad():
        logits = theirs(**extractor(samples, sampling_rate=RATE, return_tensors="pt")).logits[0]
    best = logits.softmax(-1).sort(descending=True)
    (found,) = zoo.SoundModel.load(tmp_path / "model").run([str(tmp_path / "a.wav")], top=2)
    assert [one["label"] for one in found["classes"]] == [labels[int(n)] for n in best.indices[:2]]
    assert [one["probability"] for one in found["classes"]] == pytest.approx(
        best.values[:2].tolist(), abs=1e-5
    )
    status, out, _ = command("run", str(tmp_path / "model"), str(tmp_path / "a.wav"), "--top", "1")
    assert (status, out.split()[0]) == (0, labels[int(best.indices[0])])


def test_the_vector_of_a_sound(tmp_path: Path) -> None:
    theirs = saved(Wav2Vec2Model(Wav2Vec2Config(**TINY)), tmp_path / "published")
    extractor = Wav2Vec2FeatureExtractor()
    extractor.save_pretrained(tmp_path / "published")
    zoo.import_folder(tmp_path / "published", tmp_path / "model")
    (samples,) = write_wav(tmp_path / "a.wav", [signal()])
    with torch.no_grad():
        states = theirs(**extractor(samples, sampling_rate=RATE, return_tensors="pt"))[0]
    (found,) = zoo.SoundModel.load(tmp_path / "model").run([str(tmp_path / "a.wav")])
    assert found["embedding"] == pytest.approx(states[0].mean(0).tolist(), abs=1e-5)


SPECTROGRAMS: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "max_length": 12,
    "num_mel_bins": 10,
    "patch_size": 4,
    "frequency_stride": 3,
    "time_stride": 2,
}


@pytest.mark.parametrize("options", [{}, {"do_normalize": False}, {"mean": -6.0, "std": 3.0}])
@pytest.mark.parametrize("n_samples", [400, 2000, 5000])  # of which 1, 11 and 29 frames are made
def test_spectrograms_are_those_of_transformers(
    options: dict[str, Any], n_samples: int, tmp_path: Path
) -> None:
    (samples,) = write_wav(tmp_path / "a.wav", [signal(n_samples)])
    extractor = ASTFeatureExtractor(max_length=12, num_mel_bins=40, **options)
    extractor.save_pretrained(tmp_path)
    expected = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_values[0]
    settings = read_sound_settings(tmp_path, (12, 40))
    found = settings.prepared(read_sound(tmp_path / "a.wav"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_silence_has_the_least_power_in_each_band() -> None:
    assert torch.equal(log_mel(torch.zeros(720), 10), torch.full((3, 10), math.log(2**-23)))


def imported_with_spectrograms(theirs: nn.Module, folder: Path) -> Any:
    """Import a model that takes spectrograms as `model`. Return what it makes of `a.wav`."""
    saved(theirs, folder / "published")
    extractor = ASTFeatureExtractor(max_length=12, num_mel_bins=10)
    extractor.save_pretrained(folder / "published")
    zoo.import_folder(folder / "published", folder / "model")
    (samples,) = write_wav(folder / "a.wav", [signal(3000)])
    with torch.no_grad():
        return theirs(**extractor(samples, sampling_rate=RATE, return_tensors="pt"))


def test_classes_of_spectrograms(tmp_path: Path, command: Command) -> None:
    config = ASTConfig(**SPECTROGRAMS, id2label={0: "rain", 1: "wind", 2: "sea"})
    theirs = imported_with_spectrograms(ASTForAudioClassification(config), tmp_path)
    likely = theirs.logits[0].softmax(-1)
    (found,) = zoo.SoundModel.load(tmp_path / "model").run([tmp_path / "a.wav"])
    told = {one["class"]: one["probability"] for one in found["classes"]}
    assert told == pytest.approx(dict(enumerate(likely.tolist())), abs=1e-4)
    assert found["classes"][0]["label"] == config.id2label[int(likely.argmax())]

    write_wav(tmp_path / "short.wav", [signal(399)])
    status, _, err = command("run", str(tmp_path / "model"), str(tmp_path / "short.wav"))
    assert status == 2
    assert "the sound has 399 samples, and the model takes 400 or more" in err
    ASTFeatureExtractor(max_length=13, num_mel_bins=10).save_pretrained(tmp_path / "model")
    with pytest.raises(zoo.WeightsError, match=r"shape \(13, 10\), and the model takes \(12, 10\)"):
        zoo.SoundModel.load(tmp_path / "model")


def test_the_vector_of_a_spectrogram(tmp_path: Path) -> None:
    theirs = imported_with_spectrograms(ASTModel(ASTConfig(**SPECTROGRAMS)), tmp_path)
    (found,) = zoo.SoundModel.load(tmp_path / "model").run([tmp_path / "a.wav"])
    assert found["embedding"] == pytest.approx(theirs.pooler_output[0].tolist(), abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"feature_size": 20, "n_fft": 256, "win_length": 200, "preemphasis": 0.5},
        {"preemphasis": None},
    ],
)
@pytest.mark.parametrize("n_samples", [320, 1759, 5000])  # of which 2, 10 and 31 frames are made
def test_normalized_spectrograms_are_those_of_transformers(
    options: dict[str, Any], n_samples: int, tmp_path: Path
) -> None:
    """But for the last frame, which its mask hides."""
    (samples,) = write_wav(tmp_path / "a.wav", [signal(n_samples)])
    extractor = ParakeetFeatureExtractor(**options)
    extractor.save_pretrained(tmp_path)
    theirs = extractor(samples_of(samples), sampling_rate=RATE, return_tensors="pt")
    settings = read_sound_settings(tmp_path, (None, options.get("feature_size", 80)))
    found = settings.prepared(read_sound(tmp_path / "a.wav"))
    expected = theirs.input_features[theirs.attention_mask]
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)  # of theirs, in float32


def samples_of(samples: list[float]) -> Any:
    return torch.tensor(samples).numpy()


def test_speech_becomes_the_tokens_of_a_tokenizer(tmp_path: Path, command: Command) -> None:
    """The text of a model of spectrograms is that of `transformers`, which pads them."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    sizes |= {"num_hidden_layers": 1, "num_mel_bins": 8, "subsampling_conv_channels": 4}
    config = ParakeetCTCConfig(vocab_size=10, pad_token_id=9, encoder_config=sizes)
    theirs = saved(ParakeetForCTC(config), tmp_path / "published")
    extractor = ParakeetFeatureExtractor(feature_size=8)
    extractor.save_pretrained(tmp_path / "published")
    pieces = {"<unk>": 0, "\u2581so": 1, "me": 2, "\u2581wo": 3, "rd": 4, "s": 5, "ly": 6}
    pieces |= {"\u2581a": 7, "n": 8, "<pad>": 9}
    made = Tokenizer(models.BPE(pieces, [], unk_token="<unk>"))
    made.decoder = decoders.Metaspace()
    tokenizer = ParakeetTokenizer(tokenizer_object=made, pad_token="<pad>", unk_token="<unk>")
    tokenizer.save_pretrained(tmp_path / "published")
    zoo.import_folder(tmp_path / "published", tmp_path / "model")
    sounds = [
        samples_of(write_wav(tmp_path / f"{n}.wav", [signal(9000 + 4321 * n, n)])[0])
        for n in range(3)
    ]
    given = extractor(sounds, sampling_rate=RATE, return_tensors="pt")
    with torch.no_grad():
        best = theirs(**given).logits.argmax(-1)
    n_states = -(-given.attention_mask.sum(1) // 8)
    texts = [
        tokenizer.decode(one[:n], skip_special_tokens=True)
        for one, n in zip(best, n_states, strict=True)
    ]
    assert len({*texts}) == 3
    model = zoo.SoundModel.load(tmp_path / "model")
    files = [tmp_path / f"{n}.wav" for n in range(3)]
    assert [one["text"] for one in model.run(files)] == texts
    _, out, _ = command("run", str(tmp_path / "model"), *map(str, files))
    assert out == "".join(f"{text}\n" for text in texts)
    (tmp_path / "model" / "tokenizer.json").unlink()
    ids = without_blanks(best[0][: n_states[0]].tolist(), 9)
    assert zoo.SoundModel.load(tmp_path / "model").run(files[:1])[0]["text"] == " ".join(
        map(str, ids)
    )


def test_a_frame_fits_into_its_transform(tmp_path: Path) -> None:
    settings = {"feature_extractor_type": "ParakeetFeatureExtractor", "n_fft": 256}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(zoo.WeightsError, match="`win_length` is 400, which is more than `n_fft`"):
        read_sound_settings(tmp_path, (None, 80))


def bad_files(folder: Path) -> dict[str, str]:
    """Files that are no sounds for the model, by name, with what is said of each."""
    write_wav(folder / "other rate.wav", [signal()], rate=44100)
    write_wav(folder / "short.wav", [signal(20)])
    write_wav(folder / "none.wav", [[]])
    whole = write_wav(folder / "cut.wav", [signal()])
    assert len(whole[0]) == 900
    (folder / "cut.wav").write_bytes((folder / "cut.wav").read_bytes()[:-101])
    (folder / "chunk.wav").write_bytes(b"RIFF\x24\0\0\0WAVEfmt \xff\xff\0\0" + bytes(40))
    (folder / "text.wav").write_text("speech")
    (folder / "empty.wav").write_bytes(b"")
    (folder / "law.wav").write_bytes(wav(7, 8, bytes(900)))
    (folder / "wide.wav").write_bytes(wav(1, 64, struct.pack("<2q", 1, 2)))
    (folder / "nan.wav").write_bytes(wav(3, 32, struct.pack("<2f", 0.5, math.nan)))
    (folder / "huge.wav").write_bytes(wav(3, 64, struct.pack("<2d", 0.5, 1e300)))
    (folder / "rate.wav").write_bytes(wav(1, 16, bytes(900), rate=0))
    (folder / "header.wav").write_bytes(wav(1, 16, bytes(900))[:36])
    content = wav(1, 16, bytes(900))
    (folder / "turned.wav").write_bytes(content[:12] + content[36:] + content[12:36])
    (folder / "folder.wav").mkdir()
    return {
        "other rate.wav": "the sound has 44,100 samples a second, and the model hears 16,000",
        "short.wav": "the sound has 20 samples, and the model takes 25 or more",
        "none.wav": "the sound has no samples",
        "cut.wav": "the file is cut off: it announces 900 samples, and holds 849 samples",
        "chunk.wav": "the header of this WAV file is damaged: it states 0 channels",
        "text.wav": "this is not a WAV file",
        "empty.wav": "the file is empty",
        "law.wav": "this WAV file is of the format 7 with 8 bits a sample",
        "wide.wav": "this WAV file is of the format 1 with 64 bits a sample",
        "nan.wav": "the sound has samples that are no finite numbers",
        "huge.wav": "the sound has samples that are no finite numbers",
        "rate.wav": "the header of this WAV file is damaged: it states 1 channel and 0 samples",
        "header.wav": "this WAV file has no samples",
        "turned.wav": "this WAV file has no format before its samples",
        "folder.wav": "this is a folder, and not a sound",
        "missing.wav": "there is no such file",
    }


def test_files_that_are_no_sounds(
    recognizer: Wav2Vec2ForCTC, tmp_path: Path, command: Command
) -> None:
    """All are told at once, each with its path, and nothing is computed."""
    messages = bad_files(tmp_path)
    write_wav(tmp_path / "good.wav", [signal()])
    files = [str(tmp_path / name) for name in ["good.wav", *messages]]
    status, out, err = command("run", str(tmp_path / "model"), *files)
    assert (status, out) == (2, "")
    for name, message in messages.items():
        assert f"{tmp_path / name}: error: {message}" in err
    assert "ffmpeg -i IN -ar 16000 OUT.wav" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--beams", "2"], "generates no text"),
        (["--label", "a"], "takes no images"),
        (["--pairs"], "takes no texts"),
    ],
)
def test_options_of_other_models(
    arguments: list[str],
    message: str,
    recognizer: Wav2Vec2ForCTC,
    tmp_path: Path,
    command: Command,
) -> None:
    files = [str(tmp_path / "a.wav")] * 2
    write_wav(tmp_path / "a.wav", [signal()])
    status, _, err = command("run", str(tmp_path / "model"), *files, *arguments)
    assert status == 2
    assert message in err


def test_other_models(recognizer: Wav2Vec2ForCTC, tmp_path: Path) -> None:
    spec: dict[str, Any] = {"format": 1, "name": "texts", "builder": "decoder", "vocab": 9}
    spec |= {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}
    zoo.save(zoo.build(spec), tmp_path / "texts")
    with pytest.raises(zoo.InputError, match="texts takes no sounds"):
        zoo.SoundModel.load(tmp_path / "texts")
    with pytest.raises(zoo.InputError, match=r"`zoo\.SoundModel` does"):
        zoo.TextModel.load(tmp_path / "model").run(["5 9"])
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    with pytest.raises(zoo.WeightsError, match=r"there is no preprocessor_config\.json"):
        zoo.SoundModel.load(tmp_path / "model")
