"""Writing down what is said in a sound: of windows side by side or, with times, of one after the
other (Whisper: Radford et al. 2022, arXiv:2212.04356, section 4.5)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import Any, NamedTuple, cast

import torch

from zoo.errors import InputError
from zoo.generation import Beam, Sampling
from zoo.generation.decoding import Decoding, Memory, encode
from zoo.generation.evaluating import evaluating
from zoo.generation.inputs import Given
from zoo.generation.methods import Method
from zoo.generation.outputs import check_numbers
from zoo.generation.prompts import Rows
from zoo.machine.devices import as_input
from zoo.running.asked import Asked
from zoo.running.generating import Writer
from zoo.running.speech import SpeechSettings
from zoo.running.text import Detokenizer
from zoo.sounds.settings import SlaneySettings, SoundSettings
from zoo.sounds.windows import Window
from zoo.spec import ModelSpec
from zoo.transformer import Transformer

N_WINDOWS = 8
"""The most windows of a sound in a batch."""
TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0)
"""How a text is drawn anew that repeats itself or is unlikely, one after the other, as in OpenAI's
own code."""


class Heard(NamedTuple):
    """A sound as the model takes it.

    Args:
        windows: the parts of the sound that are each given to the model, mostly one.
        given: the waveform of each, (windows, samples, 1), or its spectrogram, (windows, frames,
            bands). For a text with times there is one, of the whole sound and the silence after it.
        rate: how many samples of the sound there are in a second.
    """

    windows: list[Window]
    given: torch.Tensor
    rate: int


class Segment(NamedTuple):
    """A part of the text of a window.

    Args:
        begin: when it begins, in steps of a time from the begin of the window.
        end: when it ends.
        ids: its ids, with those of the times.
    """

    begin: int
    end: int
    ids: list[int]


class Times(NamedTuple):
    """How a model writes times.

    Args:
        zero: the id of the time 0; those after it are later times.
        n_window: the number of frames of a window.
        step: how many of them there are from a time to the next one.
        rate: how many frames there are in a second.
    """

    zero: int
    n_window: int
    step: int
    rate: float


def times_of(spec: ModelSpec, settings: SpeechSettings, sound_settings: SoundSettings) -> Times:
    """How a model writes times, by the settings of its folder. Raises InputError if it writes
    none."""
    how, before = spec.model.generation, settings.no_timestamps_token_id
    if isinstance(sound_settings, SlaneySettings) and how is not None and before is not None:
        n_times, (n_window, _) = how.longest_source, sound_settings.shape
        if n_times is not None and before + 1 < how.target_vocab:
            rate = sound_settings.sampling_rate / sound_settings.hop_length
            return Times(before + 1, n_window, n_window // n_times, rate)
    raise InputError(
        f"{spec.name} writes no times",
        help="a model such as Whisper does, whose generation_config.json states "
        "`no_timestamps_token_id`",
    )


@dataclass(frozen=True, slots=True)
class Transcriber:
    """Writes down what is said.

    Args:
        model: the model, which generates text.
        text: turns ids into text.
        settings: how the publisher has set up generation.
        asked: what is asked of it.
        times: how it writes times; None if none are asked for.
        numbers: a number for each batch, from 0.
    """

    model: Transformer
    text: Detokenizer
    settings: SpeechSettings
    asked: Asked
    times: Times | None
    numbers: Iterator[int] = field(default_factory=count)

    def written(self, heard: Heard) -> dict[str, Any]:
        """The result for a sound.

        Raises:
            InputError: what is asked does not fit the model.
            WeightsError: what the model computes is NaN.
        """
        return self._in_windows(heard) if self.times is None else self._timed(heard, self.times)

    def _in_windows(self, heard: Heard) -> dict[str, Any]:
        batches = torch.split(heard.given, N_WINDOWS)
        encoded = self._encoded(batches[0])
        writer, language = self._begin(encoded)
        found: list[dict[str, Any]] = []
        for place, batch in enumerate(batches):
            memory = self._encoded(batch) if place else encoded
            found += self._heard_out(batch, memory, writer)
        # What follows a text at which to stop is not written.
        n_told = 1 + next((n for n, one in enumerate(found) if one["ended"] == "stop"), len(found))
        found = found[:n_told]
        ids = [id_ for one in found for id_ in _without_end(one)]
        every = [id_ for one in found for id_ in one["ids"]]
        result = {**_joined(found, ids, writer), "ids": every, **language}
        if len(heard.windows) == 1:
            return result
        windows = [
            {"begin": window.start / heard.rate, "end": window.end / heard.rate}
            | {**one, "text": one["text"].strip()}
            for window, one in zip(heard.windows, found, strict=False)
        ]
        return {**result, "windows": windows}

    def _timed(self, heard: Heard, times: Times) -> dict[str, Any]:
        """The same with times: a window begins where the last part ends of the one before."""
        zero, n_window, step, rate = times
        (given,) = heard.given
        n_frames = max(1, len(given) - n_window)
        writer, at = None, 0
        language: dict[str, str] = {}
        found: list[dict[str, Any]] = []
        segments: list[dict[str, Any]] = []
        while at < n_frames and not (found and found[-1]["ended"] == "stop"):
            window = given[None, at : at + n_window]
            encoded = self._encoded(window)
            if writer is None:
                writer, language = self._begin(encoded)
            (one,) = self._heard_out(window, encoded, writer)
            n_heard = min(n_frames - at, n_window)
            found.append(one)
            ids, end = _without_end(one), n_heard // step
            parts, goes_on = segments_of(ids, zero, end)
            if one["ended"] == "stop" and goes_on is not None:
                # No window follows that would write the part again that has no end here.
                n_told = sum(len(part.ids) for part in parts)
                parts.append(Segment(goes_on, end, ids[n_told:]))
            segments += [
                {
                    "begin": (at + part.begin * step) / rate,
                    "end": (at + part.end * step) / rate,
                    "text": writer.shown(part.ids).strip(),
                    "ids": part.ids,
                }
                for part in parts
            ]
            at += n_heard if goes_on is None else goes_on * step
        assert writer is not None  # there is a frame
        ids = [id_ for one in segments for id_ in one["ids"]]
        return {**_joined(found, ids, writer), "ids": ids, **language, "segments": segments}

    def _begin(self, encoded: Memory) -> tuple[Writer, dict[str, str]]:
        """What writes the text of a sound, of which the first windows are given, and the `language`
        with which it begins, if it does. One that is not stated is the likeliest of the first
        window."""
        asked, language = self.asked, None
        if asked.start is None:
            begin = self.settings.begin(timestamps=self.times is not None)
            languages = self.settings.languages
            if None in begin:
                ids = [*languages.values()]
                scores = self._first_scores(encoded.row(0))[0]
                begin[1] = ids[int(scores[ids].argmax())]
            codes = {id_: code for code, id_ in languages.items()}
            language = next((codes[id_] for id_ in begin[1:2] if id_ in codes), None)
            asked = replace(asked, start=cast("list[int]", begin) or None)
        writer = Writer.read(self.model, self.text, self.settings, asked)
        if self.times is not None:
            latest = self.settings.max_initial_timestamp_index
            timed = {"timestamp_begin": self.times.zero, "max_initial_timestamp": latest}
            writer = writer.choosing(writer.request.method.model_copy(update=timed))
        return writer, {} if language is None else {"language": language}

    def _heard_out(
        self, given: torch.Tensor, encoded: Memory, writer: Writer
    ) -> list[dict[str, Any]]:
        """The results for a batch of windows. If the settings say when, a window in which nothing
        is said has none, and a text that is doubtful is drawn anew."""
        found = writer.results(Given(given, encoded=encoded), batch=next(self.numbers))
        return [
            self._settled(one, given[row : row + 1], encoded.row(row), writer)
            for row, one in enumerate(found)
        ]

    def _settled(
        self, one: dict[str, Any], given: torch.Tensor, encoded: Memory, writer: Writer
    ) -> dict[str, Any]:
        """The result for a window, of which one is there."""
        silent, method = self._is_silent(encoded), writer.request.method
        for temperature in TEMPERATURES:
            if silent and self._unlikely(one, method):
                return writer.blank()
            if isinstance(writer.request.method, Sampling) or not self._doubtful(one, method):
                return one
            method = _drawing(method, temperature)
            (one,) = writer.choosing(method).results(
                Given(given, encoded=encoded), batch=next(self.numbers)
            )
        return writer.blank() if silent and self._unlikely(one, method) else one

    def _is_silent(self, encoded: Memory) -> bool:
        """Whether the model hears nothing that is said in a window, by the score of what follows
        the first id."""
        most, after = self.settings.no_speech_threshold, self.settings.no_timestamps_token_id
        if most is None or after is None or self.settings.decoder_start_token_id is None:
            return False
        scores = self._first_scores(encoded)[0]
        return float(scores.float().softmax(-1)[after - 1]) > most

    def _unlikely(self, found: Mapping[str, Any], method: Method) -> bool:
        """Whether the tokens of a text are unlikely, in the mean."""
        least, n = self.settings.logprob_threshold, len(found["ids"])
        if least is None:
            return False
        score: float = found["score"]  # of a beam search, it is normalised already
        return (score if isinstance(method, Beam) else score / n) < least

    def _doubtful(self, found: Mapping[str, Any], method: Method) -> bool:
        """Whether a text is unlikely, or repeats itself."""
        most, how = self.settings.compression_ratio_threshold, self.model.spec.model.generation
        assert how is not None
        repeats = most is not None and compression_ratio(found["ids"], how.target_vocab) > most
        return repeats or self._unlikely(found, method)

    def _first_scores(self, encoded: Memory) -> torch.Tensor:
        """The scores of what follows the first id in the text of each window, (windows, vocab)."""
        first, n = self.settings.decoder_start_token_id, len(encoded.states)
        with torch.inference_mode(), evaluating(self.model):
            decoding = Decoding(self.model, capacity=1, memory=encoded, keep=False)
            scores = decoding.scores(torch.tensor([[first]] * n, device=decoding.device))
        check_numbers(scores, self.model.spec.name)
        return scores

    def _encoded(self, given: torch.Tensor) -> Memory:
        """What the encoder makes of windows."""
        with torch.inference_mode(), evaluating(self.model):
            return encode(self.model, Rows(as_input(self.model, given), None))


def segments_of(ids: list[int], zero: int, n_times: int) -> tuple[list[Segment], int | None]:
    """The parts of the text of a window, and when the next window begins.

    Args:
        ids: those of the text, with times.
        zero: the id of the time 0.
        n_times: when the window ends.

    Returns:
        The parts, and the time at which the text goes on that has no end here; None if the next
        window begins where this one ends.
    """
    is_time = [id_ >= zero for id_ in ids]
    bounds = [n for n in range(1, len(ids)) if is_time[n - 1] and is_time[n]]
    if not bounds:
        last = next((id_ - zero for id_ in reversed(ids) if id_ >= zero), 0)
        return [Segment(0, last or n_times, ids)] if ids else [], None
    goes_on = None
    if is_time[-2:] == [False, True]:  # nothing is said after the last part
        bounds.append(len(ids))
    else:
        goes_on = max(1, ids[bounds[-1] - 1] - zero)  # so that every window begins later
    parts = [ids[begin:end] for begin, end in pairwise([0, *bounds])]
    return [Segment(part[0] - zero, part[-1] - zero, part) for part in parts], goes_on


def compression_ratio(ids: Sequence[int], vocab: int) -> float:
    """How many times as long ids are as what zlib makes of them, each in as many bytes as the
    largest of the vocabulary takes."""
    size = int(math.log2(vocab) / 8) + 1
    data = b"".join(id_.to_bytes(size, "little") for id_ in ids)
    return len(data) / len(zlib.compress(data))


def _joined(
    found: Sequence[Mapping[str, Any]], ids: Sequence[int], writer: Writer
) -> dict[str, Any]:
    """The text of windows as one, of these ids. It ended by its length if that of any did."""
    ends = [one["ended"] for one in found]
    return {
        "text": writer.shown(ids).strip(),
        "ids": ids,
        "score": sum(one["score"] for one in found),
        "ended": "length" if "length" in ends else ends[-1],
    }


def _without_end(found: Mapping[str, Any]) -> list[int]:
    """The ids of a text, without the one that ended it."""
    ids: list[int] = found["ids"]
    return ids[:-1] if found["ended"] == "eos" else ids


def _drawing(method: Method, temperature: float) -> Sampling:
    """A method that draws tokens, with what another forces and forbids."""
    stated = {name: getattr(method, name) for name in Method.model_fields}
    return Sampling(**{**stated, "temperature": temperature})
