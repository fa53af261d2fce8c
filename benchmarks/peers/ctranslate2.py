"""Marian in CTranslate2, in float32, with the weights of one of `transformers`.

It runs in a process of its own. In one process it and torch share a pool of threads, and once both
have used it, torch waits for its threads in a slower way: a beam search of the zoo takes a tenth
longer then.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from ctranslate2 import Translator
from ctranslate2.converters.transformers import BartLoader
from transformers import MarianMTModel

Translate = Callable[..., list[list[int]]]


def translator(marian: MarianMTModel, *, threads: int) -> Translate:
    """The model's `translate`, whose tokens are named by their ids. Their own converter for Marian
    starts from a vector of zeros; this one starts from `decoder_start_token_id`, as `transformers`
    does."""
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
    beside = ProcessPoolExecutor(1, get_context("spawn"))
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        beside.submit(_open, folder, threads).result()

    def translate(source: torch.Tensor, *, beams: int, n: int) -> list[list[int]]:
        """The best targets of exactly `n` tokens for sources (batch, length)."""
        return beside.submit(_translate, source.tolist(), beams, n).result()

    return translate


_opened: dict[str, Any] = {}
"""The model, in the process that runs it."""


def _open(folder: str, threads: int) -> None:
    _opened["model"] = Translator(folder, "cpu", compute_type="float32", intra_threads=threads)


def _translate(source: list[list[int]], beams: int, n: int) -> list[list[int]]:
    found = _opened["model"].translate_batch(
        [[str(number) for number in row] for row in source],
        beam_size=beams,
        min_decoding_length=n,
        max_decoding_length=n,
    )
    return [[int(name) for name in one.hypotheses[0]] for one in found]
