"""Generation with guessed tokens gives what generation without them does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
import torch
from breadth import slow
from random_values import add_noise
from test_cache import VARIANTS, built, tiny

import zoo
from zoo.cache import Cache
from zoo.errors import InputError
from zoo.generation.drafts import LookupDrafter
from zoo.generation.scores import Row
from zoo.transformer import Transformer

PROMPTS = [[3, 7, 4, 9, 11, 6, 8], [8, 4], [7, 5, 3, 12, 16]]
NEW = 12
WITH_STATES: dict[str, dict[str, Any]] = {
    "gated_delta": {"attention": "gated_delta"},
    "mamba2": {"attention": "mamba2"},
    "lightning": {"attention": "lightning"},
    "mlstm": {"attention": "mlstm"},
    "two_mixers": {"attention": "time_mixing", "block": "two_mixers", "n_heads": None},
    "guided_mixer": {
        "position": "rotary",
        "block": {"kind": "guided_mixer", "mixer": "multi_head_mamba"},
        "decoder": {"share_layers": True, "share_parts": ["self_attn", "ffn"]},
    },
    "short_convolution": {"attention": "short_convolution", "n_heads": None},
    "rg_lru": {"attention": "rg_lru"},
    "parallel_hybrid": {"attention": {"kind": "parallel_hybrid", "attention": {"window": 3}}},
    "hybrid": {
        "position": {"kind": "sinusoidal"},
        "n_layers": 4,
        "decoder": {
            "layers": [
                {"at": [0, 2], "attention": "mamba2"},
                {"at": [1], "attention": {"kind": "multi_head", "window": 3}},
            ]
        },
    },
}
KINDS = {
    name: values
    for name, values in (VARIANTS | WITH_STATES).items()
    if name not in ("learned", "seen_padding_without_position")  # of 12 positions
}


def model_of(name: str) -> Transformer:
    values = tiny() | KINDS[name]
    return built({key: value for key, value in values.items() if value is not None})


def disturbed(model: Transformer, by: float = 0.05) -> Transformer:
    """A model that mostly guesses right."""
    return add_noise(deepcopy(model), by, seed=1)


def start(model: Transformer) -> dict[str, Any]:
    return {"start": [1, 4]} if hasattr(model, "encode") else {}


def count(model: Transformer) -> Counter[str]:
    """Count the passes over a decoder from now on, and the tokens that they read."""
    passes: Counter[str] = Counter()

    def note(module: Any, given: tuple[Any, ...]) -> None:
        passes["passes"] += 1
        passes["tokens"] += given[0].shape[1]

    model.decoder.register_forward_pre_hook(note)
    return passes


DRAFTS: dict[str, Callable[[Transformer], zoo.Draft | zoo.Lookup]] = {
    "mostly right": lambda model: zoo.Draft(disturbed(model), n_tokens=3),
    "mostly wrong": lambda model: zoo.Draft(disturbed(model, 1.0), n_tokens=2),
    "looked up": lambda _: zoo.Lookup(n_tokens=4, longest=2),
}


def drafted() -> Iterator[Any]:
    """Each kind of model with a draft that is right and wrong in turn. The others guess otherwise,
    and what they ask of a model is the same: they are for one kind, and for those with states."""
    first, *others = DRAFTS
    for name in KINDS:
        if name in ("rotary", *WITH_STATES):
            yield pytest.param(name, (first, *others), id=name)
        else:
            yield pytest.param(name, (first,), id=name)
            yield slow(pytest.param(name, tuple(others), id=f"{name}, otherwise"))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("name", "drafts"), drafted())
def test_the_same_tokens(name: str, drafts: tuple[str, ...]) -> None:
    model = model_of(name)
    expected = zoo.generate(model, PROMPTS, max_new_tokens=NEW, eos=5, **start(model))
    for draft in (DRAFTS[one](model) for one in drafts):
        found = zoo.generate(model, PROMPTS, max_new_tokens=NEW, eos=5, draft=draft, **start(model))
        assert [one.ids for one in found] == [one.ids for one in expected]
        assert [one.ended for one in found] == [one.ended for one in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.score == pytest.approx(other.score, rel=0, abs=1e-9)


def test_right_guesses_save_passes() -> None:
    """Of n guesses that are all right, a pass gives n + 1 tokens."""
    for name, n in (("rotary", 3), ("gated_delta", 4)):
        model = model_of(name)
        draft = zoo.Draft(deepcopy(model), n_tokens=n)
        of_model, of_draft = count(model), count(draft.model)
        (found,) = zoo.generate(model, [PROMPTS[0]], max_new_tokens=1 + 3 * (n + 1), draft=draft)
        assert len(found.ids) == 1 + 3 * (n + 1)
        prompt = len(PROMPTS[0])
        assert of_model == {"passes": 1 + 3, "tokens": prompt + 3 * (n + 1)}
        assert of_draft == {"passes": 3 * n, "tokens": prompt + 3 * (n + 1) - 1}


def test_guesses_are_judged_by_the_sequence_with_the_earlier_guesses() -> None:
    model = model_of("rotary")
    draft = zoo.Draft(deepcopy(model), n_tokens=3)
    passes = count(model)
    no_repeats = zoo.Greedy(no_repeat_ngram_size=1)  # every token differs from all before it
    (found,) = zoo.generate(model, [[3, 7]], max_new_tokens=13, method=no_repeats, draft=draft)
    assert len({*found.ids}) == 13
    assert passes["passes"] == 1 + 3


def test_wrong_guesses_of_a_model_with_states_are_read_again_but_not_for_ever() -> None:
    """Every pass takes back what it has read; so every second one goes without guesses."""
    model = model_of("gated_delta")
    ids = zoo.generate(model, [PROMPTS[0]], max_new_tokens=NEW)[0].ids
    wrong = deepcopy(model)
    with torch.no_grad():
        wrong.head.out.weight.neg_()  # the likeliest token is the least likely one
    passes = count(model)
    (found,) = zoo.generate(
        model, [PROMPTS[0]], max_new_tokens=NEW, draft=zoo.Draft(wrong, n_tokens=1)
    )
    assert found.ids == ids
    assert passes["passes"] == NEW
    assert passes["tokens"] < len(PROMPTS[0]) + 2.6 * NEW


LOOKED_UP: list[tuple[list[int], list[int], list[int]]] = [
    # The prompt, the new tokens, and what is guessed of them: 4 tokens, by the latest 2 at most.
    ([1, 2, 3, 4, 5, 6, 7, 1], [2], [3, 4, 5, 6]),
    ([1, 2, 3, 4, 5, 6, 1, 2, 7, 8, 9], [1, 2], [7, 8, 9, 1]),  # the last time that it came
    ([4, 2, 3, 6, 5], [1, 2], [3, 6, 5, 1]),  # one token, as two are not found
    ([9, 1, 2, 3], [1, 2], [3, 1, 2, 3]),  # it goes on with its own guesses
    ([5], [5], [5, 5, 5, 5]),
    ([1, 2, 3], [4], []),
]


@pytest.mark.parametrize(("prompt", "new", "guessed"), LOOKED_UP)
def test_looking_up(prompt: list[int], new: list[int], guessed: list[int]) -> None:
    drafter = LookupDrafter(zoo.Lookup(n_tokens=4, longest=2))
    for n_new in range(len(new)):  # what is looked up is extended from call to call
        drafter.guess(Row(0, [], prompt, new[:n_new]), 4)
    row = Row(0, [], prompt, new)
    assert drafter.guess(row, 4) == (guessed, None)
    assert drafter.guess(row, 2).ids == guessed[:2]
    assert row.ids == new


def test_copies_of_the_prompt_save_passes() -> None:
    model = model_of("rotary")
    ids = zoo.generate(model, [PROMPTS[0]], max_new_tokens=40)[0].ids
    passes = count(model)
    prompt = [*PROMPTS[0], *ids, *PROMPTS[0]]
    expected = zoo.generate(model, [prompt], max_new_tokens=40)[0].ids
    assert passes.pop("passes") == 40
    (found,) = zoo.generate(model, [prompt], max_new_tokens=40, draft=zoo.Lookup())
    assert found.ids == expected
    assert passes["passes"] < 32


METHODS = {
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeats": {"no_repeat_ngram_size": 2},
    "no_copies": {"encoder_no_repeat_ngram_size": 2},
    "bad_words": {"bad_words": [[3], [4, 7]], "suppress_tokens": [9]},
    "min_new_tokens": {"min_new_tokens": 6},
    "forced": {"first_id": 8, "last_id": 5, "begin_suppress_tokens": [4]},
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["rotary", "pair"])
def test_methods(name: str, kind: str) -> None:
    """A token that follows guesses is judged by the sequence with these guesses."""
    model, method = model_of(kind), zoo.Greedy(**METHODS[name])
    options = {"max_new_tokens": NEW, "method": method, "eos": [5, 6], "stop": [[7, 4]]}
    expected = zoo.generate(model, PROMPTS, **options, **start(model))
    for draft in (zoo.Draft(disturbed(model)), zoo.Lookup()):
        assert [
            one.ids for one in zoo.generate(model, PROMPTS, **options, draft=draft, **start(model))
        ] == [one.ids for one in expected]


def law(model: Transformer, prompt: list[int], vocab: int, temperature: float) -> torch.Tensor:
    """The probability of each pair of next tokens, (vocab, vocab), by calls of the model."""
    rows = torch.tensor([[*prompt, token] for token in range(vocab)])
    with torch.no_grad():
        scores = model(rows) / temperature
    first, second = scores[0, -2].softmax(-1), scores[:, -1].softmax(-1)
    return first[:, None] * second


@pytest.mark.parametrize("of_model", [True, False])
def test_samples_have_the_distribution_of_the_model(of_model: bool) -> None:
    """By the chi-squared test, with 24 degrees of freedom and 1 % of error."""
    vocab, n, prompt = 5, 1000, [1, 3, 1, 2, 1]
    model = built(tiny(vocab=vocab, n_layers=1, d_model=8, n_heads=2, d_ff=8))
    draft = zoo.Draft(disturbed(model, 0.5), n_tokens=2) if of_model else zoo.Lookup(n_tokens=2)
    method = zoo.Sampling(temperature=4.0, seed=3)
    # The second of three tokens follows a guess that may be wrong, and may be a guess itself.
    found = zoo.generate(model, [prompt] * n, max_new_tokens=3, method=method, draft=draft)
    counts = Counter(one.ids[:2] for one in found)
    expected = n * law(model, prompt, vocab, method.temperature)
    distance = sum(
        (counts[one, other] - float(expected[one, other])) ** 2 / float(expected[one, other])
        for one, other in product(range(vocab), repeat=2)
    )
    assert expected.min() > 4
    assert distance < 43.0


@pytest.mark.parametrize(
    "method", [zoo.Sampling(top_k=9, min_p=0.01, seed=4), zoo.Sampling(seed=4)]
)
def test_a_sample_of_the_same_model_is_always_kept(method: zoo.Sampling) -> None:
    """Each guess is judged by the distribution that it was drawn from itself."""
    model = model_of("rotary")
    draft = zoo.Draft(deepcopy(model), n_tokens=3)
    passes = count(model)
    zoo.generate(model, [PROMPTS[0]], max_new_tokens=41, method=method, draft=draft)
    assert passes["passes"] == 1 + 40 / 4


def test_a_stream_gives_the_same_tokens() -> None:
    model = model_of("window")
    expected = zoo.generate(model, [PROMPTS[0]], max_new_tokens=NEW)[0].ids
    draft = zoo.Draft(disturbed(model))
    model.train()
    steps = zoo.stream(model, PROMPTS[0], max_new_tokens=NEW, draft=draft)
    assert [next(steps)] == [[expected[0]]]
    assert model.training
    assert [id_ for (id_,) in steps] == list(expected[1:])


@pytest.mark.parametrize("vocab", [23 - 8, 23 + 4])
def test_vocabularies_of_other_sizes(vocab: int) -> None:
    """Tokens that one of the two models does not have are neither guessed nor read by it."""
    model, small = model_of("rotary"), model_of("rotary")
    other = built(tiny(position="rotary", vocab=vocab))
    n = min(vocab, 23)
    with torch.no_grad():
        for name, tensor in other.state_dict().items():
            values = small.state_dict()[name]
            tensor[:n].copy_(values[:n]) if tensor.shape[0] == vocab else tensor.copy_(values)
    (expected,) = zoo.generate(model, [[1, 2]], max_new_tokens=60)
    assert expected.ids.index(max(expected.ids)) > 30
    assert max(expected.ids) >= 15
    passes = count(model)
    (found,) = zoo.generate(model, [[1, 2]], max_new_tokens=60, draft=zoo.Draft(other))
    assert found.ids == expected.ids
    assert passes["passes"] < 50


def test_what_does_not_fit() -> None:
    model = model_of("rotary")
    pair, dynamic = model_of("pair"), built(tiny(position=DYNAMIC))
    whole = built(tiny(attention="disentangled", position="disentangled", n_layers=1))
    draft = zoo.Draft(model)
    cases: list[tuple[Transformer, dict[str, Any], str]] = [
        (model, {"draft": model}, "`draft` is a zoo.Draft"),
        (model, {"draft": draft, "method": zoo.Beam()}, "not for several beams"),
        (model, {"draft": draft, "cache": False}, "leave `cache` True"),
        (model, {"draft": zoo.Draft(pair)}, "cannot guess the tokens of tiny: it has an enc"),
        (pair, {"draft": draft, "start": 1}, "cannot guess the tokens of tiny: it has no enc"),
        (dynamic, {"draft": draft}, "cannot check guessed tokens: its positions"),
        (model, {"draft": zoo.Draft(dynamic)}, "cannot check guessed tokens: its positions"),
        (whole, {"draft": zoo.Lookup()}, "cannot check guessed tokens: .* cannot use a cache"),
        (model, {"draft": zoo.Draft(built(tiny(vocab=7)))}, "draft: error: ids: id 7 is outside"),
    ]
    for given, options, message in cases:
        with pytest.raises(InputError, match=message):
            zoo.generate(given, [PROMPTS[0]], max_new_tokens=NEW, **options)
    with pytest.raises(InputError, match="a stream is of one sequence"):
        zoo.stream(model, PROMPTS, max_new_tokens=NEW, draft=zoo.Lookup())
    for make in (lambda: zoo.Lookup(n_tokens=0), lambda: zoo.Lookup(longest=True)):
        with pytest.raises(InputError, match="is an integer of at least 1"):
            make()
    with pytest.raises(InputError, match="`longest` is at most 32, not 33"):
        zoo.Lookup(longest=33)
    assert zoo.Lookup(longest=32).longest == 32
    with pytest.raises(InputError, match=r"`n_tokens` is an integer of at least 1, not 2\.0"):
        zoo.Draft(model, n_tokens=2.0)  # type: ignore[arg-type]


def test_guesses_as_far_as_positions_stay_the_same() -> None:
    """The last of the new tokens is not read."""
    model, (prompt, n) = built(tiny(position=DYNAMIC)), ([8, 4], 5)
    assert len(prompt) + n - 1 == DYNAMIC["original_length"]
    (expected,) = zoo.generate(model, [prompt], max_new_tokens=n)
    (found,) = zoo.generate(model, [prompt], max_new_tokens=n, draft=zoo.Lookup())
    assert found.ids == expected.ids
    with pytest.raises(InputError, match="told apart otherwise in so long a sequence"):
        zoo.generate(model, [prompt], max_new_tokens=n + 1, draft=zoo.Lookup())


@pytest.mark.parametrize("method", [zoo.Greedy(), zoo.Sampling()])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_draft_that_computes_no_numbers(method: Any, value: float) -> None:
    model = model_of("rotary")
    damaged = zoo.build({**tiny(), "name": "damaged"}).double()
    with torch.no_grad():
        damaged.get_parameter("decoder.norm.weight").fill_(value)
    with pytest.raises(zoo.WeightsError, match=r"damaged: the outputs are not numbers"):
        zoo.generate(
            model, [PROMPTS[0]], max_new_tokens=NEW, method=method, draft=zoo.Draft(damaged)
        )


DYNAMIC = {"kind": "rotary_dynamic", "factor": 2.0, "original_length": 6}


@torch.no_grad()
@pytest.mark.parametrize(
    "name",
    [
        "rotary",
        "window",
        "latent",
        "sparse_latent",
        "compressed_sparse",
        "counted_padding",
        "hybrid",
    ],
)
def test_taking_back(name: str) -> None:
    """After tokens were taken back, a cache is as if they had never come."""
    model = model_of(name)
    cache, ids = Cache(40, back=5), torch.randint(2, 23, (2, 30))
    model.decode(ids[:, :6], cache=cache)
    for end in range(6, 30, 4):
        model.decode(torch.randint(2, 23, (2, 3)), cache=cache)
        model.decode(torch.randint(2, 23, (2, 2)), cache=cache)
        assert cache.take_back(5) == 5
        found = model.decode(ids[:, end : end + 4], cache=cache)
        expected = model.decode(ids[:, : end + 4])[:, end:]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@torch.no_grad()
def test_a_state_takes_back_the_tokens_of_a_call() -> None:
    model, ids = model_of("gated_delta"), torch.randint(2, 23, (1, 12))
    cache = Cache(12, back=4)
    model.decode(ids[:, :5], cache=cache)
    model.decode(ids[:, 5:9], cache=cache)
    assert cache.take_back(1) == 4
    assert cache.past.length == 5
    with pytest.raises(ValueError, match="1 tokens cannot be taken back, with `back` 4"):
        cache.take_back(1)
    plain = Cache(12)
    model.decode(ids[:, :5], cache=plain)
    with pytest.raises(ValueError, match="cannot be taken back, with `back` 0"):
        plain.take_back(1)
