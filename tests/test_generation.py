"""Generated tokens, against the same search of `transformers` with the same weights."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_values import add_noise
from torch import nn
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

import zoo
from benchmarks.peers import hugging_face as peers
from zoo.generation.beam import Hypotheses
from zoo.generation.decoding import RecomputeWarning
from zoo.generation.ends import Ends
from zoo.generation.evaluating import evaluating
from zoo.generation.methods import Generated
from zoo.generation.sampling import FEW, draw, probabilities
from zoo.generation.scores import BLOCK, SHARE, Row, constrain, largest
from zoo.transformer import Transformer

VOCAB, EOS, START, NEW = 61, 2, 60, 14
GREEDY = zoo.Greedy()
PROMPTS = [[5, 9, 33, 17], [4, 8], [11, 50, 7]]

DECODERS = {
    "gpt2": lambda: peers.gpt2(layers=2, width=32, heads=4, vocab=VOCAB, length=40),
    "llama": lambda: peers.llama(
        layers=2, width=32, heads=4, kv_heads=2, hidden=40, vocab=VOCAB, length=40
    ),
}


def doubled(pair: peers.Pair) -> peers.Pair:
    """Return both in float64, so that rounding never decides between two tokens."""
    return pair[0].double(), pair[1].double()


@pytest.fixture(scope="module", params=DECODERS)
def decoders(request: pytest.FixtureRequest) -> peers.Pair:
    return doubled(DECODERS[request.param]())


@pytest.fixture(scope="module")
def translators() -> peers.Pair:
    return doubled(
        peers.marian(layers=2, width=32, heads=4, hidden=40, vocab=VOCAB, eos=EOS, start=START)
    )


def expected(
    theirs: nn.Module, row: list[int], *, eos: Sequence[int] = (EOS,), **options: Any
) -> list[int]:
    """Return the tokens that `transformers` generates for one row, up to its end token."""
    return all_expected(theirs, row, eos=eos, **options)[0]


def all_expected(
    theirs: nn.Module, row: list[int], *, eos: Sequence[int] = (EOS,), **options: Any
) -> list[list[int]]:
    """Return the tokens of each sequence that `transformers` generates for one row."""
    config = GenerationConfig(
        max_new_tokens=NEW,
        eos_token_id=list(eos),
        pad_token_id=START,
        do_sample=False,
        decoder_start_token_id=START,
        **options,
    )
    given: Any = theirs
    ids = torch.tensor([row])
    found = given.generate(ids, generation_config=config, attention_mask=torch.ones_like(ids))
    first = 1 if theirs.config.is_encoder_decoder else len(row)
    every: list[list[int]] = found[:, first:].tolist()
    ends = [[place for place, id_ in enumerate(new) if id_ in eos] for new in every]
    return [new[: at[0] + 1] if at else new for new, at in zip(every, ends, strict=True)]


def generated(ours: Transformer, method: Any = GREEDY, **options: Any) -> list[list[int]]:
    start = {"start": START} if hasattr(ours, "encode") else {}
    found = zoo.generate(
        ours, PROMPTS, max_new_tokens=NEW, eos=EOS, method=method, **start, **options
    )
    return [list(one.ids) for one in found]


@pytest.mark.parametrize("penalty", [1.0, 1.7])
def test_greedy_search_of_decoders(decoders: peers.Pair, penalty: float) -> None:
    theirs, ours = decoders
    wanted = [expected(theirs, row, repetition_penalty=penalty) for row in PROMPTS]
    assert generated(ours, zoo.Greedy(repetition_penalty=penalty)) == wanted


@pytest.mark.parametrize(
    ("alpha", "penalty"), [(0.0, 1.0), (0.6, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, 1.7)]
)
def test_beam_search_of_decoders(decoders: peers.Pair, alpha: float, penalty: float) -> None:
    theirs, ours = decoders
    options = {"num_beams": 4, "length_penalty": alpha, "repetition_penalty": penalty}
    wanted = [expected(theirs, row, **options) for row in PROMPTS]
    method = zoo.Beam(size=4, length_penalty=alpha, repetition_penalty=penalty)
    assert generated(ours, method) == wanted


@pytest.mark.parametrize("eos", [[3], [49], [3, 12, 25, 42], [5, 11, 16, 48], range(20)])
def test_beam_search_that_meets_ends(decoders: peers.Pair, eos: Sequence[int]) -> None:
    """The end tokens are likely, so that sequences end early, some at ranks beyond the beam."""
    theirs, ours = decoders
    wanted = [expected(theirs, row, eos=eos, num_beams=4, length_penalty=0.8) for row in PROMPTS]
    method = zoo.Beam(size=4, length_penalty=0.8)
    found = zoo.generate(ours, PROMPTS, max_new_tokens=NEW, eos=eos, method=method)
    assert [list(one.ids) for one in found] == wanted


@pytest.mark.parametrize("penalty", [1.5, 3.0])
def test_greedy_search_of_translators(translators: peers.Pair, penalty: float) -> None:
    theirs, ours = translators
    wanted = [expected(theirs, row, repetition_penalty=penalty) for row in PROMPTS]
    assert len({id_ for row in wanted for id_ in row}) > 8
    assert generated(ours, zoo.Greedy(repetition_penalty=penalty)) == wanted


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_beam_search_of_translators(translators: peers.Pair, alpha: float, penalty: float) -> None:
    theirs, ours = translators
    options = {"num_beams": 3, "length_penalty": alpha, "repetition_penalty": penalty}
    wanted = [expected(theirs, row, **options) for row in PROMPTS]
    method = zoo.Beam(size=3, length_penalty=alpha, repetition_penalty=penalty)
    assert generated(ours, method) == wanted


def test_without_a_cache_and_alone_the_same(decoders: peers.Pair, translators: peers.Pair) -> None:
    for _, ours in (decoders, translators):
        for method in (zoo.Greedy(), zoo.Beam(size=3), zoo.Sampling(seed=3)):
            found = generated(ours, method)
            assert generated(ours, method, cache=False) == found
            if not isinstance(method, zoo.Sampling):
                start = {"start": START} if hasattr(ours, "encode") else {}
                options: dict[str, Any] = {"max_new_tokens": NEW, "eos": EOS, "method": method}
                rows = [zoo.generate(ours, row, **options, **start) for row in PROMPTS]
                assert [list(one.ids) for (one,) in rows] == found


SHIFTED = """
from zoo.slots import FeedForward

class Shifted(FeedForward):
    \"\"\"A token gets the one before it.\"\"\"

    @property
    def incremental(self):
        return False

    def build(self):
        import torch

        class Module(torch.nn.Module):
            def forward(self, x):
                return torch.nn.functional.pad(x, (0, 0, 1, -1))

        return Module()
"""


@pytest.mark.parametrize("pad_id", [None, 0])
def test_what_reads_neighbours_reads_no_padding(pad_id: int | None, tmp_path: Path) -> None:
    """A network that mixes tokens and keeps no cache, with sequences of several lengths."""
    (tmp_path / "shifted.py").write_text(SHIFTED)
    path = tmp_path / "registry.toml"
    path.write_text('format = 1\n[ffn]\nshifted = "shifted.py:Shifted"\n')
    spec = {"format": 1, "name": "shifted", "builder": "decoder", "vocab": 11, "n_layers": 2}
    spec |= {"d_model": 8, "n_heads": 2, "ffn": "shifted", "init": "torch", "position": "rotary"}
    spec |= {} if pad_id is None else {"pad_id": pad_id}
    model = zoo.build(spec, dtype=torch.float64, registry=zoo.load_registry(path)).eval()
    prompts = [[1, 2, 3, 4, 5], [7, 8], [9]]
    with pytest.warns(RecomputeWarning):
        found, *alone = [
            zoo.generate(model, some, max_new_tokens=5)
            for some in (prompts, *([one] for one in prompts))
        ]
    for one, (wanted,) in zip(found, alone, strict=True):
        assert one.ids == wanted.ids
        assert one.score == pytest.approx(wanted.score, abs=1e-10)


# --- the search itself, on a model whose best sequence can be found by trying all -----------------

SMALL, LENGTH = 4, 4


@pytest.fixture(scope="module")
def four_tokens() -> Transformer:
    spec = {"format": 1, "name": "four", "builder": "decoder", "vocab": SMALL, "n_layers": 2}
    spec |= {"d_model": 8, "n_heads": 2, "d_ff": 16, "position": "alibi"}
    return add_noise(zoo.build(spec, dtype=torch.float64).eval(), 1.0, seed=5)


@torch.no_grad()
def log_probability(model: Transformer, prompt: list[int], ids: Sequence[int]) -> float:
    scores = model(torch.tensor([prompt + list(ids)]))[0].log_softmax(-1)
    return sum(float(scores[len(prompt) - 1 + n, id_]) for n, id_ in enumerate(ids))


@pytest.mark.parametrize("formula", ["power", "gnmt"])
@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.5])
def test_a_wide_beam_finds_the_best_of_all(
    four_tokens: Transformer, alpha: float, formula: Any
) -> None:
    prompt, eos = [1, 2], 3
    every = [
        (*start, *end)
        for n in range(LENGTH)
        for start in product(range(3), repeat=n)
        for end in ([(eos,)] if n < LENGTH - 1 else [(id_,) for id_ in range(SMALL)])
    ]

    def judged(ids: Sequence[int]) -> float:
        length = len(ids) if formula == "power" else (5 + len(ids)) / 6
        return log_probability(four_tokens, prompt, ids) / length**alpha

    best = max(every, key=judged)
    method = zoo.Beam(size=SMALL**LENGTH, length_penalty=alpha, length_formula=formula)
    (found,) = zoo.generate(four_tokens, prompt, max_new_tokens=LENGTH, eos=eos, method=method)
    assert found.ids == best
    assert found.score == pytest.approx(judged(best), abs=1e-5)


def written_out(
    model: Transformer, prompt: list[int], method: zoo.Beam, ends: Ends
) -> tuple[int, ...]:
    """Beam search by its definition, without any state between the steps."""
    running: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[float, tuple[int, ...]]] = []
    for n in range(1, ends.max_new_tokens + 1):
        candidates = [
            (total + log_probability(model, [*prompt, *ids], [id_]), (*ids, id_))
            for total, ids in running
            for id_ in range(model.spec.model.generation.target_vocab)
        ]
        candidates.sort(reverse=True)
        ended += [
            (total / n**method.length_penalty, ids)
            for total, ids in candidates[: method.size]
            if ends.of(ids)
        ]
        ended = sorted(ended, reverse=True)[: method.size]
        running = [one for one in candidates if not ends.of(one[1])][: method.size]
        best = running[0][0] / n**method.length_penalty if running else -torch.inf
        if len(ended) == method.size and ended[-1][0] >= best:
            break
    return ended[0][1]


@pytest.mark.parametrize("prompt", [[5, 8], [8, 2], [4, 10]], ids=str)
@pytest.mark.parametrize("alpha", [0.0, 2.0, 4.0])
@pytest.mark.parametrize(
    ("size", "stop"), [(2, ((0,), (1,), (3,), (5,), (7,), (6, 4))), (4, ())], ids=["many", "one"]
)
def test_as_many_run_on_whatever_may_end(
    prompt: list[int], alpha: float, size: int, stop: tuple[tuple[int, ...], ...]
) -> None:
    """With more ends than beams, both single ids and sequences; and with one that all may meet."""
    spec = {"format": 1, "name": "flat", "builder": "decoder", "vocab": 12, "n_layers": 2}
    spec |= {"d_model": 8, "n_heads": 2, "d_ff": 16, "position": "alibi"}
    model = add_noise(zoo.build(spec, dtype=torch.float64).eval(), seed=5)
    method = zoo.Beam(size=size, length_penalty=alpha)
    ends = Ends(6, frozenset({9}), stop)
    (found,) = zoo.generate(model, prompt, max_new_tokens=6, eos=9, stop=stop, method=method)
    assert found.ids == written_out(model, prompt, method, ends)


def test_no_sequence_ends_before_its_least_length(four_tokens: Transformer) -> None:
    scores = [log_probability(four_tokens, [1, 2], [id_]) for id_ in range(SMALL)]
    eos = max(range(SMALL), key=scores.__getitem__)
    ids: list[int] = []
    while len(ids) < 6 and eos not in ids:
        scores = [log_probability(four_tokens, [1, 2, *ids], [id_]) for id_ in range(SMALL)]
        allowed = [id_ for id_ in range(SMALL) if id_ != eos or len(ids) >= 3]
        ids.append(max(allowed, key=scores.__getitem__))
    method = zoo.Greedy(min_new_tokens=3)
    (found,) = zoo.generate(four_tokens, [1, 2], max_new_tokens=6, eos=eos, method=method)
    assert list(found.ids) == ids


@pytest.mark.parametrize("name", ["suppress_tokens", "begin_suppress_tokens"])
def test_what_is_suppressed_is_in_the_vocabulary(four_tokens: Transformer, name: str) -> None:
    method = zoo.Greedy(**{name: (1, SMALL)})
    with pytest.raises(zoo.InputError, match=f"`{name}` holds the id {SMALL}, which is outside"):
        zoo.generate(four_tokens, [1, 2], max_new_tokens=2, method=method)


def test_what_is_less_likely_goes_on_where_a_function_ends_all_beams(
    four_tokens: Transformer,
) -> None:
    method = zoo.Beam(size=2, length_penalty=16.0, early_stopping="never")  # for the longest
    scores = [log_probability(four_tokens, [1, 2], [id_]) for id_ in range(SMALL)]
    best = sorted(range(SMALL), key=scores.__getitem__)[-2:]
    stop = lambda ids: len(ids) == 1 and ids[0] in best  # noqa: E731
    (found,) = zoo.generate(four_tokens, [1, 2], max_new_tokens=5, stop=stop, method=method)
    assert len(found.ids) == 5
    assert found.ids[0] not in best


@pytest.mark.parametrize("renormalize", [False, True])
def test_beams_are_scored_by_what_is_left(four_tokens: Transformer, renormalize: bool) -> None:
    """The probabilities of the tokens that are not forbidden sum to 1 again, if so asked."""
    method = zoo.Beam(size=1, renormalize=renormalize, length_penalty=0.0, bad_words=((3,), (0,)))
    (found,) = zoo.generate(four_tokens, [1, 2], max_new_tokens=4, method=method)
    expected = 0.0
    for n, id_ in enumerate(found.ids):
        each = [log_probability(four_tokens, [1, 2, *found.ids[:n]], [one]) for one in (1, 2)]
        expected += each[id_ - 1]
        if renormalize:
            expected -= math.log(sum(math.exp(one) for one in each))
    assert found.score == pytest.approx(expected, rel=0, abs=1e-5)


def test_missing_beams_are_told_apart() -> None:
    row = Hypotheses(0, zoo.Beam(size=3), Ends(10, frozenset({9}), ()), [(1,), (2,), (3,)])
    assert row.extend([-1.0, -2.0, -math.inf, -math.inf], [0, 1, 2, 0], [5, 6, 5, 6]) == [0, 1, -1]
    assert row.running == [(1, 5), (2, 6), (1, 5)]


def test_what_ends_beyond_the_beam_neither_counts_nor_runs_on() -> None:
    row = Hypotheses(0, zoo.Beam(size=2), Ends(10, frozenset({9}), ()), [(1,), (2,)])
    assert row.extend([-1.0, -2.0, -3.0, -4.0], [0, 1, 0, 1], [9, 5, 9, 6]) == [1, 3]
    assert row.running == [(2, 5), (2, 6)]
    assert [one.ids for one in row.ended] == [(1, 9)]


@pytest.mark.parametrize(
    ("early", "alpha", "settled"),
    [
        (True, -1.0, True),
        (False, -1.0, False),
        (False, 1.0, True),
        ("never", 1.0, False),
        ("never", -1.0, False),
    ],
)
def test_when_a_search_can_end(early: Any, alpha: float, settled: bool) -> None:
    """After 2 of at most 8 tokens the sequence that runs on has log p = -4, and may be scored
    -4 / 2, at last -4 / 8, or with alpha = -1, at first -4 * 2. What has ended scores -1 or -9."""
    method = zoo.Beam(size=1, length_penalty=alpha, early_stopping=early)
    ended = Generated((1,), -1.0 if alpha > 0 else -9.0, "eos")
    row = Hypotheses(0, method, Ends.read(8, 0, []), [(2,)], [ended])
    assert row.extend([-4.0], [0], [2]) == ([] if settled else [0])


def test_scores_are_log_probabilities(four_tokens: Transformer) -> None:
    prompts = [[1, 2], [0], [3, 3, 1]]
    """Of the model, whatever was done with them to choose."""
    methods = (
        zoo.Greedy(),
        zoo.Greedy(repetition_penalty=1.7),
        zoo.Sampling(temperature=2.0, top_k=2),
    )
    for method in methods:
        for prompt, one in zip(
            prompts,
            zoo.generate(four_tokens, prompts, max_new_tokens=5, method=method),
            strict=True,
        ):
            expected = log_probability(four_tokens, prompt, one.ids)
            assert one.score == pytest.approx(expected, abs=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("first", [None, 7])
@pytest.mark.parametrize("size", [None, 1])
def test_tokens_that_do_not_begin_a_text(
    decoders: peers.Pair, first: int | None, size: int | None
) -> None:
    """The likeliest at the beginning, or after the forced first one, gives way to the next, and may
    come later."""
    _, ours = decoders
    begun = PROMPTS[0] + ([] if first is None else [first])
    likeliest, second = ours(torch.tensor([begun]))[0, -1].topk(2).indices.tolist()
    after = ours(torch.tensor([[*begun, second]]))[0, -1].argmax().item()
    options: dict[str, Any] = {"first_id": first, "begin_suppress_tokens": (likeliest,)}
    method = zoo.Greedy(**options) if size is None else zoo.Beam(size=size, **options)
    found = zoo.generate(ours, [PROMPTS[0]], max_new_tokens=3, method=method)[0].ids
    assert list(found[-2 if first else 0 :][:2]) == [second, after]


@pytest.mark.parametrize("prompt", [[1, 2], [0], [3, 3, 1]])
def test_what_is_forced_is_certain(four_tokens: Transformer, prompt: list[int]) -> None:
    """It adds nothing to the score of a beam search."""
    method = zoo.Beam(size=1, length_penalty=0.0, first_id=2)
    (found,) = zoo.generate(four_tokens, prompt, max_new_tokens=4, method=method)
    expected = log_probability(four_tokens, [*prompt, 2], found.ids[1:])
    assert found.score == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("eos", range(SMALL))
def test_what_is_forbidden_ends_no_search(four_tokens: Transformer, eos: int) -> None:
    """Only one token is allowed until the end is, so that most candidates are forbidden."""
    allowed = (eos + 1) % SMALL
    forbidden = {*range(SMALL)} - {eos, allowed}
    method = zoo.Beam(
        size=2, early_stopping=True, min_new_tokens=4, suppress_tokens=tuple(forbidden)
    )
    (found,) = zoo.generate(four_tokens, [1, 2], max_new_tokens=8, eos=eos, method=method)
    assert found.ids[:4] == (allowed,) * 4
    assert math.isfinite(found.score)


@pytest.mark.parametrize("method", [zoo.Greedy, zoo.Beam])
def test_an_end_that_is_a_bad_word_alone_is_generated(
    four_tokens: Transformer, method: type[zoo.Greedy | zoo.Beam]
) -> None:
    options: dict[str, Any] = {"max_new_tokens": 6, "eos": 3}
    (found,) = zoo.generate(four_tokens, [1, 2], method=method(), **options)
    assert found.ended == "eos"
    bad = method(bad_words=((3,),))
    assert zoo.generate(four_tokens, [1, 2], method=bad, **options) == [found]
    bad = method(bad_words=((2, 3),))
    assert zoo.generate(four_tokens, [1, 2], method=bad, **options) != [found]


def test_a_bad_word_is_forbidden_after_its_own_beginning_alone() -> None:
    method, ends = zoo.Greedy(bad_words=((2, 3), (1, 2, 0))), Ends.read(9, (), ())
    sequences = [[2], [3], [1], [0, 2], [2, 1], [1, 2], [3, 2], [2, 3]]
    rows = [Row(number, [], sequence) for number, sequence in enumerate(sequences)]
    found = constrain(torch.zeros(len(rows), 4), rows, method, ends)
    forbidden = [[3], [], [], [3], [], [0, 3], [3], []]
    assert [(row == -torch.inf).nonzero().flatten().tolist() for row in found] == forbidden


@pytest.mark.parametrize("method", [zoo.Greedy(), zoo.Beam(size=1, length_penalty=0.0)])
def test_log_probabilities_in_half_precision_are_exact(method: Any) -> None:
    """The model computes in half precision; its scores are normalised and summed in full."""
    sizes = {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 16, "head": "linear"}
    spec = {"format": 1, "name": "tiny", "builder": "decoder", "vocab": 50, **sizes}
    model, ids, expected = zoo.build(spec, dtype=torch.bfloat16).eval(), [1, 2], 0.0
    (found,) = zoo.generate(model, ids, max_new_tokens=5, method=method, cache=False)
    with torch.inference_mode():
        for token in found.ids:
            expected += float(model(torch.tensor([ids]))[0, -1].float().log_softmax(-1)[token])
            ids = [*ids, token]
    assert found.score == pytest.approx(expected, abs=1e-5)


# --- sampling -------------------------------------------------------------------------------------

LOGITS = torch.log(torch.tensor([[0.4, 0.3, 0.15, 0.1, 0.05]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("method", "shares"),
    [
        (zoo.Sampling(), [0.4, 0.3, 0.15, 0.1, 0.05]),
        (zoo.Sampling(temperature=0.5), [0.16, 0.09, 0.0225, 0.01, 0.0025]),
        (zoo.Sampling(top_k=2), [4, 3, 0, 0, 0]),
        (zoo.Sampling(top_k=9), [0.4, 0.3, 0.15, 0.1, 0.05]),
        (zoo.Sampling(top_p=0.69), [4, 3, 0, 0, 0]),
        (zoo.Sampling(top_p=0.71), [0.4, 0.3, 0.15, 0, 0]),
        (zoo.Sampling(top_p=1e-9), [1, 0, 0, 0, 0]),
        (zoo.Sampling(min_p=0.3), [0.4, 0.3, 0.15, 0, 0]),
        (zoo.Sampling(min_p=1.0), [1, 0, 0, 0, 0]),
        (zoo.Sampling(temperature=0.5, top_k=3, min_p=0.2), [0.16, 0.09, 0, 0, 0]),
        (zoo.Sampling(top_k=4, top_p=0.7), [4, 3, 0, 0, 0]),
    ],
)
def test_the_distribution_that_is_drawn_from(method: zoo.Sampling, shares: list[float]) -> None:
    wanted = torch.tensor([shares], dtype=torch.float64)
    for shift in (0.0, 7.0):
        found = probabilities(LOGITS + shift, method)
        torch.testing.assert_close(found, wanted / wanted.sum(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("top_p", [0.0, 1e-46, 5e-324])
def test_the_least_top_p_takes_the_likeliest_token(top_p: float, dtype: torch.dtype) -> None:
    """In float32 such numbers are 0."""
    found = probabilities(LOGITS.flip(-1).to(dtype), zoo.Sampling(top_p=top_p))
    assert found.tolist() == [[0.0, 0.0, 0.0, 0.0, 1.0]]


def test_top_p_takes_no_more_tokens_than_it_needs() -> None:
    """Of four equal probabilities, each exactly a quarter, two make a half."""
    found = probabilities(torch.zeros(1, 4, dtype=torch.float64), zoo.Sampling(top_p=0.5))
    assert sorted(found[0].tolist()) == [0.0, 0.0, 0.5, 0.5]


@pytest.mark.parametrize("n_kept", [1, 300, FEW, FEW + 1, 9000, 19_999])
def test_top_p_of_a_large_vocabulary(n_kept: int) -> None:
    """Falling probabilities in a random order: those of the first `n_kept` are needed."""
    falling = torch.linspace(2, 1, 20_000, dtype=torch.float64)
    order = torch.randperm(20_000, generator=torch.Generator().manual_seed(n_kept))
    weights = torch.ones(2, 20_000, dtype=torch.float64)
    weights[0, order] = falling
    weights[1, 0] = 1e9  # one token is enough here
    top_p = float((falling[:n_kept].sum() - falling[n_kept - 1] / 2) / falling.sum())
    found = probabilities(weights.log(), zoo.Sampling(top_p=top_p))
    assert set(found[0].nonzero().flatten().tolist()) == set(order[:n_kept].tolist())
    assert found[1].tolist() == [1.0] + [0.0] * 19_999


def test_half_precision_is_cut_off_in_full() -> None:
    scores = LOGITS.bfloat16()
    method = zoo.Sampling(temperature=0.7, min_p=0.1)
    found = probabilities(scores, method)
    torch.testing.assert_close(found.double(), probabilities(scores.double(), method))


def test_tokens_are_drawn_with_their_probabilities(four_tokens: Transformer) -> None:
    n = 4000
    method = zoo.Sampling(temperature=1.5, seed=1)
    rows = zoo.generate(four_tokens, [[1, 2]] * n, max_new_tokens=1, method=method)
    counts = torch.tensor([row.ids[0] for row in rows]).bincount(minlength=SMALL)
    with torch.no_grad():
        wanted = (four_tokens(torch.tensor([[1, 2]]))[0, -1] / 1.5).softmax(-1)
    # Five standard deviations of a binomial count.
    assert ((counts - n * wanted).abs() < 5 * (n * wanted * (1 - wanted)).sqrt()).all()


def test_a_token_without_probability_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever number is drawn from 0 to below 1."""
    found = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]], dtype=torch.float64)
    for number, token in ((0.0, 1), (0.25, 3), (1 - 2**-53, 3)):
        drawn = torch.tensor([[number]], dtype=torch.float64)
        monkeypatch.setattr(torch, "rand", lambda *_, drawn=drawn, **__: drawn)
        assert draw(found, None).tolist() == [[token]]


def test_what_is_drawn_from_a_large_vocabulary() -> None:
    """Tokens without probability are never drawn, wherever they are."""
    shares = torch.zeros(50_000)
    shares[[7, 8, 30_000, 49_998]] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    n = 2000
    drawn = draw(shares.expand(n, -1), torch.Generator().manual_seed(0))
    assert drawn.shape == (n, 1)
    counts = drawn.flatten().bincount(minlength=50_000)
    # Five standard deviations of a binomial count.
    assert ((counts - n * shares).abs() <= 5 * (n * shares * (1 - shares)).sqrt()).all()


def test_every_token_of_a_large_vocabulary_can_be_drawn() -> None:
    """The Kolmogorov-Smirnov statistic of equal probabilities, at the level of 1 %. On average,
    1,961 of 2,000 tokens differ, with a deviation of 6."""
    n, vocab = 2000, 50_000
    equal = torch.full((n, vocab), 1 / vocab)
    drawn = draw(equal, torch.Generator().manual_seed(0)).flatten().sort().values
    steps = torch.arange(n) / n
    assert (drawn / vocab - steps).abs().max() < 1.63 / math.sqrt(n)
    assert len(drawn.unique()) > 1900


@settings(max_examples=60)
@given(
    n_rows=st.integers(1, 3),
    vocab=st.integers(1, 5 * SHARE * BLOCK),
    n=st.integers(1, 9),
    levels=st.sampled_from([2, 7, 10**6]),
    seed=st.integers(0, 99),
)
@example(n_rows=2, vocab=3 * SHARE * BLOCK, n=3, levels=7, seed=0)
@example(n_rows=3, vocab=4 * SHARE * BLOCK + 120, n=3, levels=10**6, seed=1)
@example(n_rows=2, vocab=9 * SHARE * BLOCK + 5, n=8, levels=10**6, seed=0)
def test_the_largest_scores(n_rows: int, vocab: int, n: int, levels: int, seed: int) -> None:
    """With equal scores too, and with -inf."""
    random = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (n_rows, vocab), generator=random).float().log()
    n = min(n, vocab)
    found, tokens = largest(scores, n)
    for row, row_found, row_tokens in zip(scores, found, tokens, strict=True):
        assert row_found.tolist() == sorted(row.tolist(), reverse=True)[:n]
        assert row[row_tokens].tolist() == row_found.tolist()
        assert len(set(row_tokens.tolist())) == n


def test_nan_is_the_largest_score() -> None:
    """So that `Decoding.check` sees it."""
    scores = torch.zeros(1, 2 * SHARE * BLOCK)
    scores[0, 5 * BLOCK] = torch.nan
    found, tokens = largest(scores, 2)
    assert found[0, 0].isnan()
    assert tokens[0, 0] == 5 * BLOCK


def test_a_seed_decides_what_is_drawn(four_tokens: Transformer) -> None:
    def drawn(seed: int) -> list[tuple[int, ...]]:
        torch.manual_seed(torch.seed() % 1000)  # which must have no effect
        method = zoo.Sampling(seed=seed)
        return [
            o.ids for o in zoo.generate(four_tokens, [[1]] * 9, max_new_tokens=9, method=method)
        ]

    assert drawn(1) == drawn(1) != drawn(2)


# --- several answers ------------------------------------------------------------------------------


@pytest.mark.parametrize("eos", [[EOS], [3, 12, 25, 42]])
@pytest.mark.parametrize("n", [2, 4])
def test_the_best_of_a_beam_search(
    decoders: peers.Pair, translators: peers.Pair, n: int, eos: list[int]
) -> None:
    for theirs, ours in (decoders, translators):
        start = {"start": START} if hasattr(ours, "encode") else {}
        asked: dict[str, Any] = {"max_new_tokens": NEW, "eos": eos, **start}
        best = zoo.generate(ours, PROMPTS, method=zoo.Beam(n_answers=n), **asked)
        for row, first in zip(PROMPTS, best, strict=True):
            found = [first, *first.others]
            options = {"num_beams": 4, "num_return_sequences": n}
            assert [list(one.ids) for one in found] == all_expected(theirs, row, eos=eos, **options)
            assert sorted((one.score for one in found), reverse=True) == [
                one.score for one in found
            ]
        alone = zoo.generate(ours, PROMPTS, method=zoo.Beam(), **asked)
        assert [replace(one, others=()) for one in best] == alone


def test_fewer_than_asked_for_where_there_are_no_more(four_tokens: Transformer) -> None:
    method = zoo.Beam(size=9, n_answers=9)
    (found,) = zoo.generate(four_tokens, [1], max_new_tokens=1, method=method)
    assert sorted(one.ids for one in (found, *found.others)) == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("draft", [None, zoo.Lookup()])
def test_answers_are_drawn_as_for_repeated_prompts(
    decoders: peers.Pair, translators: peers.Pair, draft: zoo.Lookup | None
) -> None:
    limits: dict[str, Any] = {"top_k": 9, "encoder_no_repeat_ngram_size": 2, "seed": 5}
    for ours, n in ((decoders[1], 3), (translators[1], 2)):
        start = {"start": START} if hasattr(ours, "encode") else {}
        asked: dict[str, Any] = {"max_new_tokens": NEW, "eos": [EOS, 7], "draft": draft, **start}
        found = zoo.generate(ours, PROMPTS, method=zoo.Sampling(n_answers=n, **limits), **asked)
        repeated = [prompt for prompt in PROMPTS for _ in range(n)]
        wanted = zoo.generate(ours, repeated, method=zoo.Sampling(**limits), **asked)
        flat = [one for first in found for one in (first, *first.others)]
        assert [one.ids for one in flat] == [one.ids for one in wanted]
        assert [one.ended for one in flat] == [one.ended for one in wanted]
        assert [one.score for one in flat] == pytest.approx([one.score for one in wanted])


def test_a_prompt_of_several_answers_is_read_once(four_tokens: Transformer) -> None:
    rows: list[int] = []
    note = lambda module, given: rows.append(given[0].shape[0])  # noqa: E731
    with four_tokens.decoder.register_forward_pre_hook(note):
        zoo.generate(
            four_tokens, [[1, 2], [3, 1]], max_new_tokens=3, method=zoo.Sampling(n_answers=5)
        )
    assert rows == [2, 10, 10]


def test_what_gives_no_several_answers(four_tokens: Transformer) -> None:
    with pytest.raises(zoo.InputError, match="`n_answers` is at most the number of beams, 4, not"):
        zoo.Beam(n_answers=5)
    with pytest.raises(zoo.InputError, match="`n_answers` must be"):
        zoo.Greedy(n_answers=2)
    with pytest.raises(zoo.InputError, match="`n_answers` must be at least 1"):
        zoo.Sampling(n_answers=0)
    with pytest.raises(zoo.InputError, match="a stream is of one answer for each prompt"):
        zoo.stream(four_tokens, [1], max_new_tokens=3, method=zoo.Sampling(n_answers=2))


# --- ends, streams, inputs ------------------------------------------------------------------------


def test_a_sequence_ends_with_its_first_end(decoders: peers.Pair) -> None:
    ours = decoders[1]
    whole = generated(ours)
    end = whole[0][3]
    for row, one in zip(
        whole, zoo.generate(ours, PROMPTS, max_new_tokens=NEW, eos=[EOS, end]), strict=True
    ):
        ends = [n for n, id_ in enumerate(row) if id_ in (EOS, end)]
        assert list(one.ids) == (row[: ends[0] + 1] if ends else row)
        assert one.ended == ("eos" if ends else "length")


def test_a_sequence_ends_with_a_stop_sequence(decoders: peers.Pair) -> None:
    ours = decoders[1]
    whole = generated(ours)
    stop = whole[1][3:5]
    for row, one in zip(
        whole, zoo.generate(ours, PROMPTS, max_new_tokens=NEW, eos=EOS, stop=[stop]), strict=True
    ):
        ends = [n + 2 for n in range(len(row) - 1) if row[n : n + 2] == stop]
        assert list(one.ids) == (row[: ends[0]] if ends else row)
        assert (one.ended == "stop") == bool(ends)


def test_a_function_judges_where_each_sequence_ends(decoders: peers.Pair) -> None:
    ours = decoders[1]
    whole = generated(ours)
    odd = lambda ids: sum(ids) % 3 == 1  # noqa: E731
    asked: dict[str, Any] = {"max_new_tokens": NEW, "eos": EOS, "stop": odd}
    for row, one in zip(whole, zoo.generate(ours, PROMPTS, **asked), strict=True):
        ends = [n for n in range(1, len(row) + 1) if odd(row[:n])]
        assert list(one.ids) == (row[: ends[0]] if ends else row)
        assert (one.ended == "stop") == bool(ends and (len(one.ids) < NEW or odd(one.ids)))


def test_a_function_judges_where_each_beam_ends(decoders: peers.Pair) -> None:
    theirs, ours = decoders
    ended = 0
    for row in PROMPTS:

        def odd(ids: Sequence[int]) -> bool:
            return sum(ids) % 5 == 1

        class Odd(StoppingCriteria):
            def __call__(self, ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
                return torch.tensor([odd(one) for one in ids[:, len(row) :].tolist()])  # noqa: B023

        config = GenerationConfig(
            max_new_tokens=NEW,
            num_beams=4,
            eos_token_id=[EOS],
            pad_token_id=START,
            do_sample=False,
        )
        ids = torch.tensor([row])
        wanted = theirs.generate(  # type: ignore[operator]
            ids,
            generation_config=config,
            attention_mask=torch.ones_like(ids),
            stopping_criteria=StoppingCriteriaList([Odd()]),
        )
        (found,) = zoo.generate(
            ours, [row], max_new_tokens=NEW, eos=EOS, method=zoo.Beam(size=4), stop=odd
        )
        assert [*row, *found.ids] == wanted[0, : len(row) + len(found.ids)].tolist()
        ended += found.ended == "stop"
    assert ended


def test_the_first_reason_to_end_is_told() -> None:
    ends = Ends(3, frozenset({9}), ((5, 9), (7,)))
    assert [ends.of(ids) for ids in ([5, 9], [1, 7], [1, 5, 7], [1, 2, 9], [1, 2, 3], [5])] == [
        "eos",
        "stop",
        "stop",
        "eos",
        "length",
        None,
    ]


@pytest.mark.parametrize("method", [zoo.Greedy(), zoo.Sampling(seed=4)])
def test_a_stream_is_what_is_generated(decoders: peers.Pair, method: Any) -> None:
    ours = decoders[1]
    options: dict[str, Any] = {"max_new_tokens": NEW, "eos": generated(ours)[1][4]}
    whole = zoo.generate(ours, PROMPTS, method=method, **options)
    steps = []
    for step in zoo.stream(ours, PROMPTS, method=method, **options):
        assert not torch.is_inference_mode_enabled()
        steps.append(step)
    for number, one in enumerate(whole):
        row = [step[number] for step in steps]
        assert row == [*one.ids, *[None] * (len(row) - len(one.ids))]


def test_a_stream_may_be_left_unfinished() -> None:
    """Python closes it when the program ends, and most modules are gone by then."""
    spec = {"format": 1, "name": "m", "builder": "decoder", "vocab": 20, "n_layers": 1}
    spec |= {"d_model": 8, "n_heads": 2, "d_ff": 8}
    script = f"import zoo\nsteps = zoo.stream(zoo.build({spec}), [[1]], max_new_tokens=5)\n"
    command = [sys.executable, "-c", f"{script}print(next(steps))"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (len(done.stdout.split()), done.stderr) == (1, "")


def test_padding_on_any_side_is_not_part_of_a_prompt(decoders: peers.Pair) -> None:
    ours = decoders[1]
    wanted = generated(ours)
    ids = torch.full((3, 6), 40)
    mask = torch.zeros(3, 6, dtype=torch.bool)
    for row, at in ((0, slice(1, 5)), (1, slice(4, 6)), (2, slice(0, 3))):
        ids[row, at], mask[row, at] = torch.tensor(PROMPTS[row]), True
    found = zoo.generate(ours, ids, mask=mask, max_new_tokens=NEW, eos=EOS)
    assert [list(one.ids) for one in found] == wanted


def test_the_mode_of_each_module_is_left_as_it_was(four_tokens: Transformer) -> None:
    model = zoo.build(four_tokens.spec.to_dict() | {"name": "dropping"})
    model.decoder.layers[0].eval()
    before = [module.training for module in model.modules()]
    zoo.generate(model, [1], max_new_tokens=2)
    list(zoo.stream(model, [1], max_new_tokens=2))
    assert [module.training for module in model.modules()] == before


class Interrupting(nn.Module):
    """Raises KeyboardInterrupt once when its mode becomes `at`, as Ctrl-C may at any moment."""

    def __init__(self, at: bool) -> None:
        super().__init__()
        self.at: bool | None = at

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "training" and value is getattr(self, "at", None):
            self.at = None
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", [False, True])
def test_an_interrupted_change_of_the_mode_is_undone(at: bool) -> None:
    model = nn.Sequential(nn.Dropout(), Interrupting(at), nn.Dropout())
    with pytest.raises(KeyboardInterrupt), evaluating(model):
        pass
    assert all(module.training for module in model.modules())
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert all(module.training for module in model.modules())


def test_dropout_is_off(four_tokens: Transformer) -> None:
    spec = {"format": 1, "name": "d", "builder": "decoder", "vocab": 50, "n_layers": 2}
    model = zoo.build(spec | {"d_model": 8, "n_heads": 2, "d_ff": 16, "dropout": 0.5})
    rows = {one.ids for one in zoo.generate(model, [[1]] * 20, max_new_tokens=8)}
    assert len(rows) == 1


def test_dropout_stays_off_when_another_thread_is_done() -> None:
    spec = {"format": 1, "name": "d", "builder": "decoder", "vocab": 50, "n_layers": 2}
    model = zoo.build(spec | {"d_model": 8, "n_heads": 2, "d_ff": 16, "dropout": 0.5})
    (wanted,) = zoo.generate(model, [[1]], max_new_tokens=8)
    inside, go_on = threading.Event(), threading.Event()

    def in_turn(*_: object) -> None:
        """The other thread enters first, and has finished when this one begins to compute."""
        if threading.current_thread() is other:
            inside.set()
            go_on.wait()
        else:
            go_on.set()
            other.join()

    model.decoder.register_forward_pre_hook(in_turn)
    other = threading.Thread(target=zoo.generate, args=(model, [[1]]), kwargs={"max_new_tokens": 8})
    other.start()
    inside.wait()
    (found,) = zoo.generate(model, [[1]], max_new_tokens=8)
    assert found == wanted
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("rows", [1, 4])
def test_arranged_weights_are_the_same_weights(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zoo.linear.LARGE", 1)
    spec = {"format": 1, "name": "m", "builder": "decoder", "vocab": 50, "n_layers": 2}
    spec |= {"d_model": 8, "n_heads": 2, "d_ff": 16, "head": {"kind": "linear", "tied": True}}
    plain, arranged = zoo.build(spec), zoo.build(spec)
    zoo.arrange_weights(arranged, rows=rows)
    assert arranged.decoder.layers[0].ffn.up_proj.packed is not None
    assert arranged.head.out.weight is arranged.decoder.embed.tokens.weight
    for one, other in zip(plain.parameters(), arranged.parameters(), strict=True):
        assert torch.equal(one, other)
    assert zoo.save(arranged, tmp_path / "a") == zoo.save(plain, tmp_path / "b")
    found = [zoo.generate(model, [[1, 2]], max_new_tokens=9) for model in (plain, arranged)]
    assert found[0][0].ids == found[1][0].ids


@pytest.mark.parametrize("rows", [0, -1, 1.0, True, "8", None])
def test_weights_are_arranged_for_a_number_of_rows(rows: Any) -> None:
    _, model = DECODERS["gpt2"]()
    with pytest.raises(zoo.InputError, match="`rows` is an integer of at least 1, not"):
        zoo.arrange_weights(model, rows=rows)


def test_a_penalty_is_not_rounded_to_the_dtype_of_the_model() -> None:
    """In float16 both logits would become infinite, and the first of them would be chosen."""
    head = {"kind": "linear", "logits_bias": True}
    spec = {"builder": "decoder", "vocab": 4, "n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}
    model = zoo.build({"format": 1, "name": "m", **spec, "head": head}, dtype=torch.float16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.get_buffer("head.logits_bias").copy_(torch.tensor([0.0, 100.0, 200.0, 1.0]))
    method = zoo.Greedy(repetition_penalty=1e-3)
    (found,) = zoo.generate(model, [1, 2], max_new_tokens=1, method=method)
    assert found.ids == (2,)
