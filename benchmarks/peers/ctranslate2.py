"""Marian in CTranslate2, in float32, with the weights of one of `transformers`."""

from __future__ import annotations

import tempfile

import torch
from ctranslate2 import Translator
from ctranslate2.converters.transformers import BartLoader
from transformers import MarianMTModel

N_UNUSED = 2  # ids that no search may end with or pad with


def translator(marian: MarianMTModel, *, threads: int) -> Translator:
    """The model, whose tokens are named by their ids. Their own converter for Marian starts from a
    vector of zeros; this one starts from `decoder_start_token_id`, as `transformers` does."""
    config = marian.config
    config.normalize_before, config.normalize_embedding = False, False
    spec = BartLoader().get_model_spec(marian)
    names = [str(number) for number in range(config.vocab_size)]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.decoder_start_token = str(config.decoder_start_token_id)
    spec.config.eos_token = str(config.eos_token_id)
    spec.config.unk_token = names[1]
    spec.config.bos_token = names[2]
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.validate()
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        return Translator(folder, "cpu", compute_type="float32", intra_threads=threads)


def translate(model: Translator, source: torch.Tensor, *, beams: int, n: int) -> list[list[int]]:
    """The best targets of exactly `n` tokens for sources (batch, length)."""
    found = model.translate_batch(
        [[str(number) for number in row] for row in source.tolist()],
        beam_size=beams,
        min_decoding_length=n,
        max_decoding_length=n,
    )
    return [[int(name) for name in one.hypotheses[0]] for one in found]
