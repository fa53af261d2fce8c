"""A decoder whose text has sounds in it."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small_specs import TINY_SOUND_TEXT, randomized, with_value

import zoo
from zoo.transformer import Spectrogram

SOUND_ID, WINDOW, BANDS, VOCAB = 9, 24, 5, 23
RANDOM = torch.Generator().manual_seed(1)


def sound(n_windows: int, length: int, frames: int = WINDOW) -> Spectrogram:
    windows = torch.randn(n_windows, frames, BANDS, generator=RANDOM, dtype=torch.float64)
    return Spectrogram(windows, length)


SHORT, FULL, LONG = sound(1, 11), sound(1, WINDOW), sound(3, 2 * WINDOW + 13)
N_STATES = {"hidden": (3, 6, 15), "left_out": (3, 6, 15), "inserted": (6, 6, 18)}
"""Of 11 frames, 6 vectors are made, and of each two of these a state; of 13, 7 vectors, and the
last one is left out."""
PROMPTS = [
    [1, *[SOUND_ID] * 3, 4, *[SOUND_ID] * 6],
    [*[SOUND_ID] * 15, 7, 2],
    [1, 2, 3],
]
OF_PROMPTS = [[SHORT, FULL], [LONG], []]
SOUNDS = [SHORT, FULL, LONG]


changed = partial(with_value, TINY_SOUND_TEXT)


@pytest.fixture(scope="module")
def model() -> Any:
    return randomized(TINY_SOUND_TEXT)


@pytest.mark.parametrize("silence", N_STATES)
@pytest.mark.parametrize("merge_by", ["mean", "concatenation"])
def test_the_states_of_sounds_by_loops(silence: str, merge_by: str) -> None:
    """Pairs of the states of the stack of sounds, with the norm, and one linear map."""
    model = randomized(changed("projector.merge_by", merge_by) | {"silence": silence})
    norm, proj = model.projector.norm, model.projector.proj
    read = model.read_sounds(SOUNDS)
    for one, found, n_states in zip(SOUNDS, read, N_STATES[silence], strict=True):
        expected = []
        for number, window in enumerate(one.windows):
            left = min(WINDOW, one.length - number * WINDOW)
            n_vectors = (left + 1) // 2
            mask = (torch.arange(WINDOW // 2) < n_vectors)[None] if silence == "hidden" else None
            states = model.sound(window[None], mask=mask)[0][0]
            n_pairs = 6 if silence == "inserted" else n_vectors // 2
            for first in range(0, 2 * n_pairs, 2):
                pair = states[first], states[first + 1]
                both = torch.cat(pair) if merge_by == "concatenation" else sum(pair) / 2
                assert isinstance(both, torch.Tensor)
                both = (both - both.mean()) / (both.var(correction=0) + 1e-5).sqrt()
                both = both * norm.weight + norm.bias
                expected.append(proj.weight @ both + proj.bias)
        assert len(found) == len(expected) == n_states
        torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize("silence", N_STATES)
def test_who_reads_silence(silence: str) -> None:
    """In the attention maps of the stack of sounds, a row for each window."""
    model = randomized(TINY_SOUND_TEXT | {"silence": silence})
    text = torch.tensor([[SOUND_ID] * sum(N_STATES[silence][::2])])
    _, maps = model(text, [SHORT, LONG], return_attention=True)
    assert len(maps.encoder) == 2
    for map_ in maps.encoder:
        assert map_.shape == (4, 2, 12, 12)
        for window, n_vectors in enumerate([6, 12, 12, 7]):
            of_silence = map_[window, :, :n_vectors, n_vectors:]
            assert bool((of_silence == 0).all()) == (silence == "hidden" or n_vectors == 12)


@pytest.mark.parametrize(
    "embedding",
    [
        {"kind": "conv_frontend", "n_features": 5},
        {"kind": "conv_frontend", "n_features": 5, "kernel_sizes": [4], "strides": [1]},
        {"kind": "conv_frontend", "n_features": 5, "kernel_sizes": [5, 2, 7], "strides": [3, 1, 2]},
        {"kind": "conv2d_frontend", "n_features": 16, "channels": 3},
        {"kind": "projected_vectors", "n_features": 5},
    ],
)
def test_the_length_that_is_stated_is_that_of_the_module(embedding: dict[str, Any]) -> None:
    spec = changed("sound.embedding", embedding)
    spec["sound"]["position"] = "none"
    model: Any = zoo.build(spec)
    bands, described = embedding["n_features"], model.spec.model.sound.embedding
    for n in range(1, 40):
        try:
            made = model.sound(torch.zeros(1, n, bands))[0].shape[1]
        except ValueError:  # too few for one
            assert embedding["kind"] == "conv2d_frontend"
            continue
        assert described.embedded_length(n) == made


def test_a_tensor_holds_sounds_that_fill_a_window(model: Any) -> None:
    windows = torch.cat([FULL.windows, LONG.windows[:1]])
    found = model.read_sounds(windows)
    assert [len(one) for one in found] == [6, 6]
    torch.testing.assert_close(found, model.read_sounds([FULL, Spectrogram(windows[1:], WINDOW)]))
    shorter = sound(1, 14, 14)  # of a shorter window there are fewer states
    assert [len(one) for one in model.read_sounds(shorter.windows)] == [3]


def test_a_call_is_the_text_with_the_states_in_it(model: Any) -> None:
    text = torch.tensor([[1, *[SOUND_ID] * 3, 3, 8, 2, 2], [*[SOUND_ID] * 6, 2, 5]])
    states = model.read_sounds([SHORT, FULL])
    ids, inserted = model.insert_sounds(text, [SHORT, FULL])
    assert ids.tolist() == [[1, 23, 24, 25, 3, 8, 2, 2], [*range(26, 32), 2, 5]]
    torch.testing.assert_close(inserted, torch.cat(states))
    output = model(text, [SHORT, FULL])
    torch.testing.assert_close(output, model.head(model.decode(ids, inserted=inserted)))
    # Without sounds, the token is one like others.
    torch.testing.assert_close(model(text), model.head(model.decode(text)))


def test_padding_holds_no_sound(model: Any) -> None:
    text = torch.tensor([[1, *[SOUND_ID] * 3, 3], [SOUND_ID, SOUND_ID, 1, 2, 3]])
    mask = torch.ones_like(text, dtype=torch.bool)
    mask[1, :2] = False
    found = model(text, [SHORT], target_mask=mask)
    torch.testing.assert_close(found[:1], model(text[:1], [SHORT]))
    torch.testing.assert_close(found[1:, 2:], model(text[1:, 2:]))


@pytest.mark.parametrize(
    "asked", [{}, {"cache": False}, {"draft": zoo.Lookup()}], ids=lambda asked: " ".join(asked)
)
def test_greedy_tokens_are_those_of_calls_with_all(model: Any, asked: dict[str, Any]) -> None:
    """Of prompts with two sounds, with one, and with none, together."""
    found = zoo.generate(model, PROMPTS, sounds=SOUNDS, max_new_tokens=5, **asked)
    for prompt, some, one in zip(PROMPTS, OF_PROMPTS, found, strict=True):
        # A generated `sound_id` is a token, and no place of a sound.
        ids, inserted = torch.tensor([prompt]), None
        if some:
            ids, inserted = model.insert_sounds(ids, some)
        every = torch.cat([ids, torch.tensor([one.ids])], 1)
        states = model.decode(every, inserted=inserted)
        scores = model.head(states)[0, len(prompt) - 1 : -1].log_softmax(-1)
        assert scores.argmax(-1).tolist() == list(one.ids)
        assert one.score == pytest.approx(scores.amax(-1).sum().item(), abs=1e-10)


def test_beams_are_those_of_each_prompt_alone(model: Any) -> None:
    asked: dict[str, Any] = {"max_new_tokens": 5, "method": zoo.Beam(size=3)}
    found = zoo.generate(model, PROMPTS, sounds=SOUNDS, **asked)
    for prompt, some, one in zip(PROMPTS, OF_PROMPTS, found, strict=True):
        (alone,) = zoo.generate(model, prompt, sounds=some or None, **asked)
        assert alone.ids == one.ids


def test_sounds_are_read_once_and_converted(model: Any) -> None:
    calls: list[int] = []
    hook = model.sound.register_forward_hook(lambda *_: calls.append(1))
    single = [one.to(torch.float32) for one in SOUNDS]
    try:
        found = zoo.generate(model, PROMPTS, sounds=single, max_new_tokens=4)
    finally:
        hook.remove()
    assert len(calls) == 1
    exact = [one.to(torch.float64) for one in single]
    assert found == zoo.generate(model, PROMPTS, sounds=exact, max_new_tokens=4)


WRONG: dict[str, tuple[Any, str]] = {
    "no list": ({}, "a list of `Spectrogram`s, not a dict"),
    "nothing": ([], "there are no sounds"),
    "a list of tensors": ([FULL.windows], "sound 0 is a `Spectrogram`, not a Tensor"),
    "one alone": (FULL.windows[0], "single sound is `sound.None.`"),
    "bands first": (FULL.windows.movedim(-1, -2), "the bands come last"),
    "other bands": ([Spectrogram(torch.ones(1, 24, 4).double(), 24)], "not .1, 24, 4."),
    "no windows": ([Spectrogram(torch.ones(0, 24, 5).double(), 24)], "not .0, 24, 5."),
    "whole numbers": ([Spectrogram(torch.ones(1, 24, 5).int(), 24)], "not torch.int32"),
    "too long a window": ([sound(1, 30, 30)], "30 frames, and the model has positions for 24"),
    "frames of fewer windows": ([sound(2, 24)], "24 frames, which are not those of 2 windows of"),
    "frames of more windows": ([sound(2, 49)], "49 frames, which are not those of 2 windows of"),
    "too short": ([sound(1, 2)], "2 frames, of which no state is made: it is too short"),
    "two lengths": ([FULL, sound(1, 20, 20)], "of one length, and these have 20 and 24 frames"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_sound_is_refused(model: Any, name: str) -> None:
    given, message = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=message):
        model(torch.tensor([[1, *[SOUND_ID] * 6]]), given)
    with pytest.raises(zoo.InputError, match=message):
        zoo.generate(model, [1, *[SOUND_ID] * 6], sounds=given, max_new_tokens=2)


def test_places_and_sounds_must_agree(model: Any) -> None:
    text = [[1, *[SOUND_ID] * 5]]
    message = "5 places of the token 9, and each sound takes one .* the next sounds have 3, 6"
    with pytest.raises(ValueError, match=message):
        model(torch.tensor(text), [SHORT, FULL])
    with pytest.raises(zoo.InputError, match=f"sounds: there are {message}"):
        zoo.generate(model, text, sounds=[SHORT, FULL], max_new_tokens=2)
    damaged = Spectrogram(FULL.windows * torch.inf, WINDOW)
    with pytest.raises(zoo.InputError, match="sound 0 holds numbers that are not finite"):
        zoo.generate(model, [*[SOUND_ID] * 6], sounds=[damaged], max_new_tokens=2)


def test_sounds_where_none_belong(model: Any) -> None:
    decoder = {"format": 1, "name": "d", "builder": "decoder", "vocab": 23}
    plain = zoo.build(decoder | {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8})
    with pytest.raises(zoo.InputError, match="d takes no sounds in its prompts"):
        zoo.generate(plain, [1, 2], sounds=[FULL], max_new_tokens=2)
    with pytest.raises(zoo.InputError, match="sound-text takes no images in its prompts"):
        zoo.generate(model, [1, 2], images=torch.ones(1, 3, 4, 4), max_new_tokens=2)
    with pytest.raises(zoo.InputError, match="guesses no tokens of prompts with sounds in them"):
        zoo.generate(model, PROMPTS[1], sounds=[LONG], max_new_tokens=2, draft=zoo.Draft(plain))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("sound_id", 23, "sound_id = 23 is beyond the vocabulary of 23 tokens"),
        ("decoder.pad_id", 9, "the id 9 cannot stand for sounds and for padding"),
        (
            "decoder.embedding",
            {"kind": "projected_vectors", "n_features": 5},
            "sounds cannot stand among the vectors of the embedding `projected_vectors`",
        ),
        ("sound.embedding", "vectors", "the embedding `vectors` does not make vectors of spectr"),
        (
            "sound.embedding",
            {
                "kind": "spectrogram_patches",
                "n_features": 5,
                "n_frames": 8,
                "patch_size": 2,
                "feature_stride": 2,
                "frame_stride": 2,
            },
            "the embedding `spectrogram_patches` does not make vectors of spectrograms of any len",
        ),
        ("projector.merge", 13, "13 states become one, and there are positions for 12"),
        ("silence", "heard", "must be one of `hidden`, `left_out`, `inserted`"),
        ("memory_width", 12, "memory_width"),
    ],
)
def test_a_wrong_spec_is_refused(path: str, value: Any, message: str) -> None:
    with pytest.raises(zoo.SpecError, match=message):
        zoo.read_spec(changed(path, value))


def test_a_whole_window_may_become_one_state() -> None:
    model = zoo.build(changed("projector.merge", 12)).eval()
    (states,) = model.double().read_sounds([FULL])
    assert states.shape == (1, 16)


def test_decoding_returns_the_maps_of_attention(model: Any) -> None:
    text = torch.tensor([PROMPTS[0]])
    ids, inserted = model.insert_sounds(text, OF_PROMPTS[0])
    states, maps = model.decode(ids, inserted=inserted, return_attention=True)
    torch.testing.assert_close(states, model.decode(ids, inserted=inserted))
    _, expected = model(text, OF_PROMPTS[0], return_attention=True)
    torch.testing.assert_close(maps.decoder, expected.decoder)
    assert len(maps.decoder) == 2


def test_it_is_saved_and_loaded(model: Any, tmp_path: Path) -> None:
    zoo.save(model, tmp_path / "model.safetensors")
    loaded = zoo.load(tmp_path / "model.safetensors").eval()
    text = torch.tensor([PROMPTS[0]])
    expected = model(text, OF_PROMPTS[0])
    torch.testing.assert_close(loaded(text, OF_PROMPTS[0]), expected)
    assert loaded.spec.model.task == "generate"
    again = pickle.loads(pickle.dumps(loaded))
    torch.testing.assert_close(again(text, OF_PROMPTS[0]), expected)
