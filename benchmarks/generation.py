"""How fast tokens are generated: against `transformers` with the same weights, and against reading
every weight once for each token, at the speed of memory that the same run measures."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig

import zoo
from benchmarks import peers
from benchmarks.forward import Case, ids, timed
from benchmarks.measure import Ratio, in_turn

NEW = 64


def measure(rounds: int = 5) -> list[Ratio]:
    """A ratio for each search and peer."""
    return [*greedy(rounds, 1), *greedy(rounds, 8), *beam(rounds)]


def greedy(rounds: int, batch: int) -> list[Ratio]:
    """GPT-2 small, 16 tokens continued by 64."""
    theirs, ours = peers.gpt2(layers=12, width=768, heads=12, vocab=50257, length=1024)
    if batch == 1:
        zoo.arrange_weights(ours)
    prompt = ids(batch, 16)
    cases: dict[str, Case] = {
        "zoo": lambda: zoo.generate(ours, prompt, max_new_tokens=NEW),
        "transformers, dynamic cache": lambda: searched(theirs, prompt),
        "transformers, static cache": lambda: searched(
            theirs, prompt, cache_implementation="static", disable_compile=True
        ),
    }
    found = zoo.generate(ours, prompt, max_new_tokens=NEW)
    assert [list(one.ids) for one in found] == searched(theirs, prompt)[:, 16:].tolist()
    n_bytes = sum(p.nbytes for p in ours.parameters())
    big = torch.zeros(n_bytes // 4)
    cases["reading the weights"] = lambda: [big.sum() for _ in range(NEW)]
    bars = {"reading the weights": 1 / 0.85} if batch == 1 else {}
    bars |= {peer: 1 / 1.6 for peer in cases if peer.startswith("tr") and batch == 1}
    return ratios(f"greedy, GPT-2 small, {batch} x 64 new tokens", cases, rounds, bars)


def beam(rounds: int) -> list[Ratio]:
    """Translation of base size, four beams, eight sources of 32 tokens to 32 tokens."""
    theirs, ours = peers.marian(
        layers=6, width=512, heads=8, hidden=2048, vocab=32000, eos=0, start=31999
    )
    source = ids(8, 32)
    method = zoo.Beam(size=4)
    cases: dict[str, Case] = {
        "zoo": lambda: zoo.generate(ours, source, max_new_tokens=32, method=method, start=31999),
        "Marian": lambda: searched(theirs, source, max_new_tokens=32, num_beams=4),
    }
    return ratios("beam 4, encoder-decoder base, 8 x 32", cases, rounds, {"Marian": 1 / 2})


def searched(model: nn.Module, prompt: torch.Tensor, **options: Any) -> torch.Tensor:
    """What `transformers` generates, without an end before the last token."""
    config = GenerationConfig(
        **{"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0} | options,
        eos_token_id=None,
        decoder_start_token_id=31999,
    )
    theirs: Any = model
    found: torch.Tensor = theirs.generate(
        prompt, generation_config=config, attention_mask=torch.ones_like(prompt)
    )
    return found


def ratios(name: str, cases: dict[str, Case], rounds: int, bars: dict[str, float]) -> list[Ratio]:
    """The zoo's time over that of each peer."""
    times = in_turn({peer: timed(case) for peer, case in cases.items()}, rounds)
    return [
        Ratio(name, peer, times["zoo"], times[peer], bars.get(peer, 1.0))
        for peer in cases
        if peer != "zoo"
    ]
