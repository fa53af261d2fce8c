"""When the parts of a text are said, windows in which nothing is, and texts that are drawn anew,
against `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_sound_models import RATE, signal, write_wav
from test_speech_models import (
    DE,
    EOS,
    IDS,
    START,
    TRANSCRIBE,
    features,
    published,
)
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.generation import GenerationConfig
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor
from trials import Command

import zoo
from zoo.generation.ends import Ends
from zoo.generation.methods import Method
from zoo.generation.scores import mark_times
from zoo.running import transcribing
from zoo.running.transcribing import compression_ratio, segments_of
from zoo.sounds.files import read_sound

ZERO = IDS["<|notimestamps|>"] + 1
VOCAB = ZERO + 51
"""With a time for each state of a second, and its end."""
HOP, WINDOW = 160, 100
"""The samples of a frame, and the frames of a window."""


def test_scores_of_times_are_those_of_transformers() -> None:
    random = torch.Generator().manual_seed(0)
    ends = Ends.read(20, 12, ())
    for latest in (None, 3):
        config = GenerationConfig(eos_token_id=12, no_timestamps_token_id=14)
        config.max_initial_timestamp_index = latest
        theirs = WhisperTimeStampLogitsProcessor(config, begin_index=2)
        for n in range(5):
            scores = torch.randn(64, 24, generator=random, dtype=torch.float64) * 2
            ids = torch.randint(8, 24, (64, n), generator=random)
            wanted = theirs(torch.cat([torch.full((64, 2), 13), ids], 1), scores)
            assert torch.equal(mark_times(scores, ids.tolist(), 15, latest, ends), wanted)


@pytest.mark.parametrize("ids", [[1, 2, 3], [7] * 40, list(range(99))])
@pytest.mark.parametrize("vocab", [100, 51865, 2**24])
def test_the_compression_ratio_is_that_of_transformers(ids: list[int], vocab: int) -> None:
    theirs = WhisperForConditionalGeneration._retrieve_compression_ratio(torch.tensor(ids), vocab)
    assert compression_ratio(ids, vocab) == theirs


def test_the_segments_are_those_of_transformers() -> None:
    random = torch.Generator().manual_seed(0)
    n_going_on = 0
    for n in range(300):
        ids = torch.randint(6, 14, (1 + n % 9,), generator=random)  # from 10 on, they are times
        wanted, after = WhisperForConditionalGeneration._retrieve_segment(
            seek_sequence=ids,
            seek_outputs=[None],
            time_offset=[torch.zeros((), dtype=torch.float64)],
            timestamp_begin=10,
            seek_num_frames=torch.tensor([80]),
            time_precision=0.02,
            time_precision_features=0.01,
            input_stride=2,
            prev_idx=0,
            idx=0,
            return_token_timestamps=False,
            decoder_input_ids=torch.zeros(1, 3),
        )
        found, goes_on = segments_of(ids.tolist(), 10, 40)
        assert [(one.begin, one.end) for one in found] == [
            (round(float(one["start"]) * 50), round(float(one["end"]) * 50)) for one in wanted
        ]
        n_going_on += goes_on is not None
        # Theirs go on with a window that is the same where no time has passed.
        assert (80 if goes_on is None else 2 * goes_on) == (int(after) or 2)
        # Their last one has the time at which the text goes on too.
        theirs = [one["tokens"].tolist() for one in wanted]
        if goes_on is not None:
            theirs[-1].pop()
        assert [one.ids for one in found] == theirs
    assert 50 < n_going_on < 250
    assert segments_of([], 10, 40) == ([], None)


def segments_of_transformers(
    model: WhisperForConditionalGeneration,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    **options: Any,
) -> list[dict[str, Any]]:
    """The segments of `long.wav`, of which `transformers` is given the frames of silence after it
    too, as OpenAI's own code gives them: it would put zeros there."""
    extractor = WhisperFeatureExtractor.from_pretrained(folder / "published")
    samples = read_sound(folder / "long.wav").samples
    silent = F.pad(samples, (0, RATE)).numpy()
    given = extractor(
        silent, sampling_rate=RATE, return_tensors="pt", truncation=False, padding="longest"
    ).input_features

    def window(*, seek: torch.Tensor, batch_idx_map: list[int], **_: Any) -> torch.Tensor:
        return torch.cat([given[:, :, seek[n] : seek[n] + WINDOW] for n in batch_idx_map])

    monkeypatch.setattr(WhisperForConditionalGeneration, "_get_input_segment", staticmethod(window))
    mask = (torch.arange(given.shape[-1]) < len(samples) // HOP).long()
    with torch.no_grad():
        found = model.generate(
            given.repeat(2, 1, 1),  # of one sound, all frames would count
            attention_mask=mask.repeat(2, 1),
            return_timestamps=True,
            return_segments=True,
            **options,
        )
    segments: list[dict[str, Any]] = found["segments"][0]
    return segments


@pytest.mark.parametrize("n_samples", [9000, RATE, 43210])
def test_a_text_with_times_is_that_of_transformers(
    n_samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = published(tmp_path, n_times=51, max_initial_timestamp_index=9)
    write_wav(tmp_path / "long.wav", [signal(n_samples)])
    ours = zoo.SoundModel.load(tmp_path / "model").translating(source="de")
    wanted = segments_of_transformers(model, tmp_path, monkeypatch, language="de")
    (found,) = ours.run([tmp_path / "long.wav"], timestamps=True)
    segments = found["segments"]
    for name, theirs in (("begin", "start"), ("end", "end")):
        assert [one[name] for one in segments] == pytest.approx(
            [float(one[theirs]) for one in wanted]
        )
    for one, other in zip(segments, wanted, strict=True):
        assert one["ids"] == other["tokens"].tolist()[: len(one["ids"])]
        assert one["text"] == ours.text.decode([n for n in one["ids"] if n < ZERO]).strip()
    assert found["ids"] == [id_ for one in segments for id_ in one["ids"]]
    assert found["language"] == "de"
    assert "windows" not in found
    assert len({one["begin"] for one in segments}) > (n_samples > RATE)


def test_the_command_writes_times(tmp_path: Path, command: Command) -> None:
    published(tmp_path, n_times=51)
    write_wav(tmp_path / "long.wav", [signal(43210)])
    run_model = ("run", str(tmp_path / "model"), "--timestamps")
    (found,) = zoo.SoundModel.load(tmp_path / "model").run(
        [tmp_path / "long.wav"], timestamps=True, method=zoo.Beam(size=2)
    )
    file = str(tmp_path / "long.wav")
    status, out, err = command(*run_model, file, "--beams", "2", "--json")
    assert (status, json.loads(out), err) == (0, found, "")
    status, out, _ = command(*run_model, file, "--beams", "2")
    times = [(f"00:{one['begin']:06.3f}", f"00:{one['end']:06.3f}") for one in found["segments"]]
    texts = [one["text"] for one in found["segments"]]
    lines = [f"[{a} --> {b}] {text}" for (a, b), text in zip(times, texts, strict=True)]
    assert (status, out) == (0, "".join(f"{line}\n" for line in lines))
    # What follows a text at which to stop is not written, and no further window is heard.
    whole = found["text"]
    character = next(one for one in whole if one in texts[0])
    status, out, _ = command(*run_model, file, "--stop", character, "--json")
    stopped = json.loads(out)
    assert (status, stopped["ended"]) == (0, "stop")
    assert character not in stopped["text"]
    assert stopped["segments"][-1]["begin"] < 1


def test_a_text_is_whole_up_to_where_it_stops(tmp_path: Path) -> None:
    """Also in a part that has no end then. What is in the tokens of times stops no text."""
    letters = {IDS[letter] for letter in "abcdefghijklmnopqrstuvwxyz"}
    published(tmp_path, n_times=51, suppress_tokens=[n for n in range(EOS) if n not in letters])
    model = zoo.SoundModel.load(tmp_path / "model").translating(source="de")
    n_without_end = 0
    for seed in range(20):
        method = zoo.Sampling(seed=seed, temperature=2.0)
        asked: dict[str, Any] = {"timestamps": True, "method": method, "max_new_tokens": 12}
        (whole,) = model.run([tmp_path / "a.wav"], **asked)
        assert model.run([tmp_path / "a.wav"], **asked, stop=["<|0.", "|><|"]) == [whole]
        timed = model.settings.completed(method).model_copy(update={"timestamp_begin": ZERO})
        (first,) = zoo.generate(
            model.transformer,
            features(tmp_path).mT,
            max_new_tokens=12,
            method=timed,
            eos=EOS,
            start=[START, DE, TRANSCRIBE],
        )
        parts, goes_on = segments_of(list(first.ids), ZERO, 50)
        left = first.ids[sum(len(part.ids) for part in parts) :]
        text, rest = (model.text.decode(ids) for ids in (first.ids, left))
        if goes_on is None or len(rest) < 2 or rest[-1] in text[:-1] or first.ended == "eos":
            continue
        n_without_end += 1
        (found,) = model.run([tmp_path / "a.wav"], **asked, stop=[rest[-1]])
        assert found["text"] == text[:-1].strip()
        assert found["segments"][-1]["text"] == rest[:-1].strip()
    assert n_without_end


def test_models_that_write_no_times(tmp_path: Path, command: Command) -> None:
    published(tmp_path, n_times=51, no_timestamps_token_id=None)
    model = zoo.SoundModel.load(tmp_path / "model")
    with pytest.raises(zoo.InputError, match="model writes no times"):
        model.run([tmp_path / "a.wav"], timestamps=True)
    status, _, err = command("run", str(tmp_path / "model"), "a.wav", "--timestamps")
    assert (status, "states `no_timestamps_token_id`" in err) == (2, True)


@pytest.mark.parametrize(("speech", "likely"), [(0.0, 0.0), (0.99, 0.0), (0.0, -99.0)])
def test_a_window_in_which_nothing_is_said(
    speech: float, likely: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the thresholds of the settings, as `transformers` leaves it out."""
    monkeypatch.setattr("zoo.running.transcribing.TEMPERATURES", ())
    thresholds = {"no_speech_threshold": speech, "logprob_threshold": likely}
    model = published(tmp_path, n_times=51, **thresholds)
    write_wav(tmp_path / "long.wav", [signal(43210)])
    wanted = segments_of_transformers(
        model, tmp_path, monkeypatch, language="de", temperature=0.0, **thresholds
    )
    ours = zoo.SoundModel.load(tmp_path / "model").translating(source="de")
    (timed,) = ours.run([tmp_path / "long.wav"], timestamps=True)
    assert len(timed["segments"]) == len(wanted)
    (one,) = ours.run([tmp_path / "long.wav"])
    silent = speech == likely == 0
    assert (timed["text"] == "", one["text"] == "", wanted == []) == (silent,) * 3
    assert [window["text"] == "" for window in one["windows"]] == [silent] * 3


@pytest.mark.parametrize("timestamps", [False, True])
def test_a_text_that_repeats_itself_is_drawn_anew(
    timestamps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At one temperature after the other, until it repeats itself less, or the last."""
    published(tmp_path, n_times=51)
    file, settings = tmp_path / "a.wav", tmp_path / "model" / "generation_config.json"
    used: list[float] = []
    drawing = transcribing._drawing

    def watched(method: Method, temperature: float) -> zoo.Sampling:
        used.append(temperature)
        return drawing(method, temperature)

    monkeypatch.setattr(transcribing, "_drawing", watched)

    def text(threshold: float | None, **options: Any) -> tuple[list[int], list[float]]:
        """The ids by this threshold, and the temperatures that they were drawn with."""
        stated = {**json.loads(settings.read_text()), "compression_ratio_threshold": threshold}
        settings.write_text(json.dumps(stated))
        model = zoo.SoundModel.load(tmp_path / "model").translating(source="de")
        used.clear()
        (found,) = model.run([file], timestamps=timestamps, **options)
        return found["ids"], [*used]

    plain, _ = text(None)
    assert text(99.0) == (plain, [])
    drawn, temperatures = text(0.0)
    n_windows, every = len(temperatures) // 5, [0.2, 0.4, 0.6, 0.8, 1.0]
    assert temperatures == every * n_windows != []
    assert drawn != plain
    assert text(0.0) == (drawn, temperatures)
    if not timestamps:
        less = compression_ratio(plain, VOCAB) - 0.01
        ids, temperatures = text(less)
        assert compression_ratio(ids, VOCAB) <= less or temperatures == every
    assert text(0.0, method=zoo.Sampling(seed=3))[1] == []  # drawn already, as asked


def test_each_window_is_drawn_anew_from_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If what is drawn is the likeliest again, every window keeps the text that it had."""
    published(tmp_path, n_times=51)
    write_wav(tmp_path / "long.wav", [signal(43210)])
    model = zoo.SoundModel.load(tmp_path / "model").translating(source="de")
    (plain,) = model.run([tmp_path / "long.wav"])
    assert len({window["score"] for window in plain["windows"]}) == 3
    monkeypatch.setattr(transcribing, "_drawing", lambda method, _: method)
    settings = tmp_path / "model" / "generation_config.json"
    stated = {**json.loads(settings.read_text()), "compression_ratio_threshold": 0.0}
    settings.write_text(json.dumps(stated))
    model = zoo.SoundModel.load(tmp_path / "model").translating(source="de")
    (drawn,) = model.run([tmp_path / "long.wav"])
    for one, other in zip(drawn["windows"], plain["windows"], strict=True):
        assert one["ids"] == other["ids"]
        assert one["score"] == pytest.approx(other["score"], rel=0, abs=1e-4)
