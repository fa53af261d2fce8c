"""Generation of 64 tokens from 16, and translation by four beams, 8 x 32 tokens to 32.

What is found in float32 is the same, but for peers that are marked as having the same sizes only,
and for sampling. CTranslate2 finds the same by greedy search; its beams are pruned by its own
rules. In the rows "compiled", `torch.compile` compiles the zoo's layers and head, and the forward
pass of `transformers`. Elsewhere nothing is compiled, and on a CPU the zoo's weights are arranged
(`zoo.arrange_weights`), but for the rows "as loaded" and "8 bits", where they are quantized
(`zoo.quantize_weights`) and other tokens may be found. On a GPU, CUDA graphs are used in the rows
"CUDA graph", "compiled", "sampling" and "beam", by the zoo with its `cuda_graph`, and by
`transformers` where it is compiled. Weights are random, so that probabilities are nearly equal and
`top_p` keeps most tokens, which is where sampling takes longest. The limit is reading every weight
once for each token, at the rate at which this run reads memory: 85 % of it is a ratio of 1.18. It
holds for one sequence."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy, deepcopy
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig

import zoo
from benchmarks import limits
from benchmarks.forward import GPT2, SIZES_ONLY, TRANSLATOR, Sizes, ids
from benchmarks.measure import Ratio, compared, timed
from benchmarks.peers import hugging_face, peer
from benchmarks.place import CPU, Place

PROMPT, NEW = 16, 64
SOURCE, TARGET, BEAMS = 32, 32, 4
LIMIT = "limit: reading the weights"


def measure(place: Place = CPU, rounds: int = 5) -> list[Ratio]:
    """Return a ratio for each search and peer."""
    if not place.on_cpu:
        return [
            *greedy(GPT2, 1, NEW, rounds, place, arranged=False),
            *greedy(GPT2, 8, NEW, rounds, place, arranged=False),
            *compiled(GPT2, 1, NEW, rounds, place),
            *compiled(GPT2, 8, NEW, rounds, place),
            *sampling(GPT2, 8, NEW, rounds, place),
            *beam(TRANSLATOR, TARGET, rounds, place),
        ]
    return [
        *greedy(GPT2, 1, NEW, rounds),
        *greedy(GPT2, 8, NEW, rounds),
        *greedy(GPT2, 1, NEW, rounds, arranged=False),
        *greedy(GPT2, 8, NEW, rounds, arranged=False),
        *compiled(GPT2, 1, NEW, rounds),
        *in_8_bits(GPT2, NEW, rounds),
        *sampling(GPT2, 8, NEW, rounds),
        *beam(TRANSLATOR, TARGET, rounds),
    ]


def greedy(
    sizes: Sizes, batch: int, n: int, rounds: int, place: Place = CPU, *, arranged: bool = True
) -> list[Ratio]:
    """A decoder of GPT-2's kind continues prompts by `n` tokens."""
    theirs, ours = on_device(hugging_face.gpt2(**sizes), place)
    prompt = ids(batch, PROMPT, sizes, place)
    search = partial(searched, theirs, prompt, max_new_tokens=n)
    static = partial(search, cache_implementation="static", disable_compile=True)
    run = partial(generated, ours, prompt, max_new_tokens=n)
    expected = search()[:, PROMPT:].tolist()
    assert run() == expected
    recorded = partial(run, cuda_graph=place.records)
    assert recorded() == expected
    theirs.to(place.dtype)
    ours.to(place.dtype)
    if arranged:
        zoo.arrange_weights(ours, rows=batch)
    peers: dict[str, Callable[[], float]] = {
        "transformers, dynamic cache": timed(search, place),
        "transformers, static cache": timed(static, place),
    }
    if litgpt := peer("litgpt"):
        model = litgpt.gpt2(**sizes).to(place.device, place.dtype)
        peers[f"litgpt {SIZES_ONLY}"] = timed(lambda: litgpt.greedy(model, prompt, n), place)
    targets: dict[str, float | None] = {}
    if batch == 1 and place.on_cpu == arranged:
        targets = dict.fromkeys(peers, 1 / 1.6) | {LIMIT: of_reading(place)}
        peers[LIMIT] = reading(ours, n, place)
    what = continuing(batch, n)
    if place.on_cpu and not arranged:
        what = f"{what}, as loaded"
    with torch.inference_mode():
        found = compared(what, {"zoo": timed(run, place)} | peers, rounds, targets, batch * n)
        if place.records:
            cases = {"zoo": timed(recorded, place)} | peers
            found += compared(f"{what}, CUDA graph", cases, rounds, targets, batch * n)
    return found


def compiled(sizes: Sizes, batch: int, n: int, rounds: int, place: Place = CPU) -> list[Ratio]:
    """The same with compiled layers, against `transformers` compiled and not. Where there are CUDA
    graphs, both use them."""
    theirs, ours = on_device(hugging_face.gpt2(**sizes), place)
    prompt = ids(batch, PROMPT, sizes, place)
    search = partial(searched, theirs, prompt, max_new_tokens=n)
    expected = search()[:, PROMPT:].tolist()
    theirs.to(place.dtype)
    ours.to(place.dtype)
    for layer in ours.decoder.layers:
        layer.compile(dynamic=True)
    ours.head.compile(dynamic=True)
    run = partial(generated, ours, prompt, max_new_tokens=n, cuda_graph=place.records)
    static = partial(search, cache_implementation="static")
    if not place.records:  # there, it compiles by itself
        theirs_compiled = copy(theirs)
        theirs_compiled.forward = torch.compile(theirs.forward)
        static = partial(
            searched,
            theirs_compiled,
            prompt,
            max_new_tokens=n,
            cache_implementation="static",
            disable_compile=True,
        )
    with torch.inference_mode():
        if place.dtype == torch.float32:
            assert run() == expected
            assert static()[:, PROMPT:].tolist() == expected
        cases: dict[str, Callable[[], float]] = {
            "zoo": timed(run, place),
            "transformers, static cache, compiled": timed(static, place),
            "transformers, dynamic cache, not compiled": timed(search, place),
        }
        targets: dict[str, float | None] = {}
        if batch == 1:
            targets = dict.fromkeys(cases, 1 / 1.6) | {LIMIT: of_reading(place)}
            cases[LIMIT] = reading(ours, n, place)
        return compared(f"{continuing(batch, n)}, compiled", cases, rounds, targets, batch * n)


def in_8_bits(sizes: Sizes, n: int, rounds: int) -> list[Ratio]:
    """The same for one prompt, with weights in 8 bits, against the same weights as floats."""
    theirs, ours = hugging_face.gpt2(**sizes)
    prompt = ids(1, PROMPT, sizes)
    arranged = deepcopy(ours)
    zoo.arrange_weights(arranged, rows=1)
    floats = reading(ours, n)
    zoo.quantize_weights(ours)
    cases: dict[str, Callable[[], float]] = {
        "zoo": timed(lambda: generated(ours, prompt, max_new_tokens=n)),
        "float32, arranged": timed(lambda: generated(arranged, prompt, max_new_tokens=n)),
        "transformers, dynamic cache, float32": timed(
            partial(searched, theirs, prompt, max_new_tokens=n)
        ),
        f"{LIMIT} in float32": floats,
    }
    with torch.inference_mode():
        return compared(f"{continuing(1, n)}, 8 bits", cases, rounds, tokens=n)


def continuing(batch: int, n: int) -> str:
    """What is measured, in words."""
    return f"greedy, GPT-2 small, {batch} x {n} new tokens"


def on_device(pair: hugging_face.Pair, place: Place) -> hugging_face.Pair:
    """Models in float32, on the device of a place."""
    theirs, ours = pair
    return theirs.to(place.device), ours.to(place.device)


def of_reading(place: Place) -> float | None:
    """The target of reading the weights, which is one for CPUs."""
    return limits.OF_READING if place.on_cpu else None


def reading(model: nn.Module, n: int, place: Place = CPU) -> Callable[[], float]:
    """The limit for `n` tokens of one sequence."""
    return limits.reading(sum(p.nbytes for p in model.parameters()), n, place)


def sampling(sizes: Sizes, batch: int, n: int, rounds: int, place: Place = CPU) -> list[Ratio]:
    """The same decoder draws its tokens, of which `top_p` leaves the likeliest."""
    theirs, ours = on_device(hugging_face.gpt2(**sizes), place)
    theirs.to(place.dtype), ours.to(place.dtype)
    prompt, top_p = ids(batch, PROMPT, sizes, place), 0.9
    if place.on_cpu:
        zoo.arrange_weights(ours, rows=batch)
    method = zoo.Sampling(top_p=top_p)
    draws = {"do_sample": True, "top_k": 0, "top_p": top_p}
    run = partial(generated, ours, prompt, max_new_tokens=n, method=method)
    cases = {
        "zoo": timed(partial(run, cuda_graph=place.records), place),
        "transformers, dynamic cache": timed(
            partial(searched, theirs, prompt, max_new_tokens=n, **draws), place
        ),
    }
    with torch.inference_mode():
        what = f"sampling by top-p {top_p}, GPT-2 small, {batch} x {n} new tokens"
        return compared(what, cases, rounds, tokens=batch * n)


def beam(sizes: Sizes, n: int, rounds: int, place: Place = CPU) -> list[Ratio]:
    """Eight sources are translated to `n` tokens."""
    start = sizes["vocab"] - 1
    theirs, ours = on_device(hugging_face.marian(**sizes, eos=0, start=start), place)
    source = ids(8, SOURCE, sizes, place)
    search = partial(generated, ours, source, max_new_tokens=n, start=start)
    their_search = partial(searched, theirs, source, max_new_tokens=n, decoder_start_token_id=start)
    assert search() == their_search()[:, 1:].tolist()
    theirs.to(place.dtype), ours.to(place.dtype)
    if place.on_cpu:
        zoo.arrange_weights(ours, rows=8 * BEAMS)
    cases: dict[str, Callable[[], float]] = {
        "zoo": timed(partial(search, method=zoo.Beam(size=BEAMS), cuda_graph=place.records), place),
        "Marian of transformers": timed(partial(their_search, num_beams=BEAMS), place),
    }
    if place.on_cpu and (ctranslate2 := peer("ctranslate2")):
        translator = ctranslate2.translator(theirs, threads=torch.get_num_threads())
        translate = partial(translator, source, n=n)
        assert search() == translate(beams=1)
        cases["CTranslate2"] = timed(partial(translate, beams=BEAMS))
    targets = {"Marian of transformers": 1 / 2, "CTranslate2": 1 / 0.7}
    with torch.inference_mode():
        what = f"beam {BEAMS}, encoder-decoder base, 8 x {SOURCE}"
        return compared(what, cases, rounds, targets, 8 * n)


def generated(model: zoo.Transformer, prompt: torch.Tensor, **options: Any) -> list[list[int]]:
    """Generate with the zoo; no sequence ends before the last token."""
    return [list(found.ids) for found in zoo.generate(model, prompt, **options)]


def searched(model: nn.Module, prompt: torch.Tensor, **options: Any) -> torch.Tensor:
    """Generate with `transformers`; no sequence ends before the last token."""
    theirs: Any = model
    config = GenerationConfig(
        **{"do_sample": False} | options,
        eos_token_id=None,
        pad_token_id=0,
    )
    found: torch.Tensor = theirs.generate(
        prompt, generation_config=config, attention_mask=torch.ones_like(prompt)
    )
    return found
