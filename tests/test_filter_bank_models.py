"""Models of Kaldi's filter banks against `transformers`: Speech2Text and w2v-BERT 2.0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_sound_models import RATE, TOKENS, saved, signal, tokenizer, write_wav
from transformers import (
    SeamlessM4TFeatureExtractor,
    Speech2TextConfig,
    Speech2TextFeatureExtractor,
    Speech2TextForConditionalGeneration,
    Wav2Vec2BertConfig,
    Wav2Vec2BertForCTC,
    Wav2Vec2BertModel,
)

import zoo
from zoo.sounds.files import Sound, read_sound
from zoo.sounds.settings import read_sound_settings

BANDS = 10
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "\u2581a", "b", "\u2581c", "d", "<lang:de>", "<lang:fr>"]
WRITTEN = ["", "", "", "", " a", "b", " c", "d", "", ""]
"""What each piece is in a text."""


@pytest.mark.parametrize(
    ("extractor", "width"),
    [
        (Speech2TextFeatureExtractor(num_mel_bins=40, feature_size=40), 40),
        (Speech2TextFeatureExtractor(num_mel_bins=40, normalize_vars=False), 40),
        (Speech2TextFeatureExtractor(num_mel_bins=40, normalize_means=False), 40),
        (Speech2TextFeatureExtractor(num_mel_bins=40, do_ceptral_normalize=False), 40),
        (SeamlessM4TFeatureExtractor(num_mel_bins=40, feature_size=40), 80),
    ],
)
@pytest.mark.parametrize("n_samples", [720, 5000, 5160])  # of which 3, 29 and 30 frames are made
def test_spectrograms_are_those_of_transformers(
    extractor: Any, width: int, n_samples: int, tmp_path: Path
) -> None:
    write_wav(tmp_path / "a.wav", [signal(n_samples)])
    extractor.save_pretrained(tmp_path)
    sound = read_sound(tmp_path / "a.wav")
    given = extractor(sound.samples.numpy(), sampling_rate=RATE, return_tensors="pt")
    # What is told to be padding is not given to a model of the zoo.
    expected = given.input_features[0]
    if extractor.__class__ is SeamlessM4TFeatureExtractor:
        expected = expected[given.attention_mask[0].bool()]
    found = read_sound_settings(tmp_path, (None, width)).prepared(sound)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("extractor", "width", "fewest"),
    [(Speech2TextFeatureExtractor, 80, 400), (SeamlessM4TFeatureExtractor, 160, 560)],
)
def test_silence_and_the_shortest_sounds(
    extractor: Any, width: int, fewest: int, tmp_path: Path
) -> None:
    extractor().save_pretrained(tmp_path)
    settings = read_sound_settings(tmp_path, (None, width))
    silence = settings.prepared(Sound(torch.zeros(1000), RATE))
    assert torch.equal(silence, torch.zeros_like(silence))
    samples = torch.tensor(signal(fewest))
    assert settings.prepared(Sound(samples, RATE)).shape == (1, width)
    with pytest.raises(zoo.InputError, match=f"and the model takes {fewest} or more"):
        settings.prepared(Sound(samples[1:], RATE))


def published(folder: Path, **settings: Any) -> Speech2TextForConditionalGeneration:
    """A tiny Speech2Text, as it is published in a folder with these settings of generation; `a.wav`
    is beside it, and the model is imported as `model`."""
    config = Speech2TextConfig(
        vocab_size=len(PIECES),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=20,
        max_target_positions=12,
        conv_channels=8,
        input_feat_per_channel=BANDS,
    )
    model = Speech2TextForConditionalGeneration(config)
    saved(model, folder / "published")
    # What is heard, and the tokens before, count, so that texts differ.
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "decoder" in name and "attn.out_proj.weight" in name:
                tensor *= 4
    model.generation_config = type(model.generation_config)(
        decoder_start_token_id=2, eos_token_id=2, pad_token_id=1, bos_token_id=0, **settings
    )
    model.save_pretrained(folder / "published")
    extractor = Speech2TextFeatureExtractor(feature_size=BANDS, num_mel_bins=BANDS)
    extractor.save_pretrained(folder / "published")
    ids = {piece: id_ for id_, piece in enumerate(PIECES)}
    (folder / "published" / "vocab.json").write_text(json.dumps(ids))
    (folder / "published" / "sentencepiece.bpe.model").write_bytes(b"pieces")
    write_wav(folder / "a.wav", [signal(3000)])
    zoo.import_folder(folder / "published", folder / "model")
    return model.eval()


@pytest.mark.parametrize("beams", [1, 3])
def test_speech_becomes_what_transformers_writes(beams: int, tmp_path: Path) -> None:
    settings = {"num_beams": beams, "bad_words_ids": [[0], [1], [3]], "min_length": 9}
    theirs = published(tmp_path, **settings)
    extractor = Speech2TextFeatureExtractor.from_pretrained(tmp_path / "published")
    samples = read_sound(tmp_path / "a.wav").samples.numpy()
    given = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
    ours = zoo.SoundModel.load(tmp_path / "model")
    seen = set()
    for language, first in ((None, None), ("de", 8), ("fr", 9)):
        with torch.no_grad():
            wanted = theirs.generate(given, max_length=12, forced_bos_token_id=first)[0].tolist()
        (found,) = ours.translating(target=language).run([tmp_path / "a.wav"])
        assert [2, *found["ids"]] == wanted
        assert found["text"] == "".join(WRITTEN[id_] for id_ in wanted).strip()
        seen.add(found["text"])
    assert len(seen) > 1
    with pytest.raises(zoo.InputError, match="the model has no language `en`") as error:
        ours.translating(target="en")
    assert "`de`" in str(error.value)
    with pytest.raises(zoo.InputError, match="is not told which language is spoken"):
        ours.translating(source="de")
    greedy = zoo.Greedy(first_id=9, min_new_tokens=8)
    (whole,) = ours.run([tmp_path / "a.wav"], method=greedy)
    (stopped,) = ours.run([tmp_path / "a.wav"], method=greedy, stop=[whole["text"][-1]])
    assert stopped["text"] == whole["text"].split(whole["text"][-1])[0].strip()


def test_a_sound_that_is_too_long(tmp_path: Path) -> None:
    published(tmp_path)
    write_wav(tmp_path / "a.wav", [signal(400 + 81 * 160)])
    ours = zoo.SoundModel.load(tmp_path / "model")
    with pytest.raises(zoo.InputError, match="has 82 frames, and the model has positions for 80"):
        ours.run([tmp_path / "a.wav"])
    write_wav(tmp_path / "a.wav", [signal(400 + 79 * 160)])
    assert ours.run([tmp_path / "a.wav"])[0]["ids"]


def test_upper_case_and_special_tokens_by_other_names(tmp_path: Path) -> None:
    published(tmp_path)
    (tmp_path / "model" / "tokenizer_config.json").write_text(
        json.dumps({"do_upper_case": True, "unk_token": "d"})
    )
    ours = zoo.SoundModel.load(tmp_path / "model")
    assert ours.text.decode([0, 4, 5, 7, 6, 99, 2]) == "AB C<UNK>"
    assert ours.text.decode([4, 7, 2], special=True) == "AD</S>"


TINY: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "feature_projection_input_dim": 2 * BANDS,
    "left_max_position_embeddings": 4,
    "right_max_position_embeddings": 3,
    "conv_depthwise_kernel_size": 5,
    "vocab_size": len(TOKENS),
}


@pytest.mark.parametrize("n_samples", [5000, 5160])  # of which 29 and 30 frames are made
def test_w2v_bert(n_samples: int, tmp_path: Path) -> None:
    extractor = SeamlessM4TFeatureExtractor(feature_size=BANDS, num_mel_bins=BANDS)
    write_wav(tmp_path / "a.wav", [signal(n_samples)])
    samples = read_sound(tmp_path / "a.wav").samples.numpy()
    given = extractor(samples, sampling_rate=RATE, return_tensors="pt")
    there = given.attention_mask[0].bool()
    results = []
    for kind in (Wav2Vec2BertForCTC, Wav2Vec2BertModel):
        folder = tmp_path / kind.__name__
        theirs = saved(kind(Wav2Vec2BertConfig(**TINY)), folder)
        extractor.save_pretrained(folder)
        letters = tokenizer(tmp_path / "letters")
        letters.save_pretrained(folder)
        with torch.no_grad():
            results.append(theirs(**given)[0][0][there])
        zoo.import_folder(folder, tmp_path / f"{kind.__name__}-model")
    (text,) = zoo.SoundModel.load(tmp_path / "Wav2Vec2BertForCTC-model").run([tmp_path / "a.wav"])
    assert text["text"] == letters.decode(results[0].argmax(-1))
    assert len(text["text"]) > 3
    (found,) = zoo.SoundModel.load(tmp_path / "Wav2Vec2BertModel-model").run([tmp_path / "a.wav"])
    assert found["embedding"] == pytest.approx(results[1].mean(0).tolist(), abs=1e-4)
