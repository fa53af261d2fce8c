"""Generation by steps that are recorded as a CUDA graph.

Without a GPU, a tape stands for the graph: it runs the operations of the recorded step again, on
the same tensors. Whatever would wait for a GPU is refused.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_cache import HEAVY, PAIR, ROWS, STEPS, SUMMARIES, VARIANTS, alone, built, memory, tiny
from torch.utils._python_dispatch import TorchDispatchMode

import zoo
from zoo.cache import AttentionCache, Cache
from zoo.cli import run
from zoo.errors import InputError
from zoo.generation import recorded
from zoo.generation.fixed_cache import FixedCache
from zoo.generation.prompts import read_ids
from zoo.generation.recorded import RecordedDecoding
from zoo.plugin_kit.tape import Tape
from zoo_components.modules import experts

WAITING = ("aten._local_scalar_dense", "aten.nonzero", "zoo_components.grouped_linear")
"""Operations that wait for a GPU."""


class Counted(Tape):
    """Counts recordings."""

    n_recorded = 0

    def __init__(self, call: Callable[[], torch.Tensor]) -> None:
        super().__init__(call)
        Counted.n_recorded += 1


class NoWaiting(TorchDispatchMode):
    """Refuses operations that wait for a GPU, in the words of torch."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func).startswith(WAITING):
            raise RuntimeError("called a synchronizing CUDA operation")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded on a GPU is recorded on a tape."""
    monkeypatch.setattr(recorded, "Recording", Counted)
    monkeypatch.setattr(recorded, "check_device", lambda model: None)
    monkeypatch.setattr(experts, "copies", lambda x: True)
    refusing = NoWaiting()

    def switch(mode: str | int) -> None:
        if mode == "error":
            refusing.__enter__()
        else:
            refusing.__exit__(None, None, None)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", switch)


MIXERS: dict[str, dict[str, Any]] = {
    "mamba2": {"attention": {"kind": "mamba2", "state_size": 3}},
    "gated_delta": {"attention": {"kind": "gated_delta", "head_dim": 4}},
    "kimi_delta": {"attention": {"kind": "kimi_delta", "head_dim": 4}},
    "lightning": {"attention": "lightning"},
    "mlstm": {"attention": "mlstm"},
    "two_mixers": {"attention": "time_mixing", "block": "two_mixers", "n_heads": None},
    "guided_mixer": {
        "position": "rotary",
        "block": {"kind": "guided_mixer", "mixer": {"kind": "mamba2", "state_size": 3}},
        "decoder": {"share_layers": True, "share_parts": ["self_attn", "ffn"]},
    },
    "rg_lru": {"attention": "rg_lru"},
    "parallel_hybrid": {
        "position": "rotary",
        "attention": {"kind": "parallel_hybrid", "recurrence": {"state_size": 3}},
    },
    "short_convolution": {"attention": "short_convolution", "n_heads": None},
    "no_attention_in_one_layer": {"decoder": {"layers": [{"at": [1], "attention": "none"}]}},
}
RECORDED = MIXERS | {
    name: values
    for name, values in VARIANTS.items()
    if values.get("attention") not in (HEAVY, SUMMARIES)
}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", RECORDED)
@torch.no_grad()
def test_scores_are_those_of_each_row_alone(name: str) -> None:
    values = {key: value for key, value in (tiny() | RECORDED[name]).items() if value is not None}
    model = built(values)
    first = [list(row[:-STEPS]) for row in ROWS]
    prompt = read_ids(first, what="", vocab=23, pad="left")
    decoding = RecordedDecoding(model, capacity=len(ROWS[0]), memory=memory(model))
    tokens, mask = prompt.values, prompt.mask
    for step in range(STEPS + 1):
        found = decoding.scores(tokens, mask)
        for number, row in enumerate(ROWS):
            expected = alone(model, row[: len(row) - STEPS + step], number)
            torch.testing.assert_close(found[number], expected, rtol=0, atol=1e-10)
        if step < STEPS:
            tokens = torch.tensor([[row[len(row) - STEPS + step]] for row in ROWS])
            mask = None
    assert decoding._recording is not None


@pytest.mark.parametrize(("capacity", "room"), [(1, 8), (8, 8), (9, 16)])
def test_no_more_room_than_rows_of_masks_need(capacity: int, room: int) -> None:
    assert FixedCache(Cache(capacity), torch.device("cpu")).past.capacity == room


DECODER = {"position": "rotary"}
PROMPTS = [[3, 7, 4, 9, 11], [8, 4], [7, 5, 3]]
METHODS = {
    "greedy": zoo.Greedy(),
    "sampling": zoo.Sampling(temperature=1.5, seed=3),
    "beams": zoo.Beam(size=3),
    "repetitions": zoo.Greedy(repetition_penalty=1.3),
}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("variant", [DECODER, MIXERS["mamba2"], {**PAIR, "position": "rotary"}])
def test_what_is_generated_is_the_same(variant: dict[str, Any], name: str) -> None:
    values = {key: value for key, value in (tiny() | variant).items() if value is not None}
    model = built(values)
    start = {"start": 2} if "source_vocab" in values else {}
    # Rows end at different lengths: then fewer are left, and the step is recorded anew.
    options: dict[str, Any] = {"max_new_tokens": 20, "eos": [1, 4, 9], "method": METHODS[name]}
    options |= start
    Counted.n_recorded = 0
    found = zoo.generate(model, PROMPTS, cuda_graph=True, **options)
    assert Counted.n_recorded > 0
    expected = zoo.generate(model, PROMPTS, **options)
    assert [(one.ids, one.ended) for one in found] == [(one.ids, one.ended) for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected])


@pytest.mark.usefixtures("on_cpu")
def test_a_stream_is_the_same() -> None:
    model = built(tiny() | DECODER)
    found = list(zoo.stream(model, PROMPTS, max_new_tokens=9, cuda_graph=True))
    assert found == list(zoo.stream(model, PROMPTS, max_new_tokens=9))


@pytest.mark.usefixtures("on_cpu")
def test_texts_are_the_same(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zoo.save(built(tiny() | DECODER), project / "m")
    model, texts = zoo.TextModel.load("m"), ["3 7 4 9", "8 4"]
    expected = [result["text"] for result in model.run(texts, max_new_tokens=9)]
    Counted.n_recorded = 0
    found = model.run(texts, max_new_tokens=9, cuda_graph=True)
    assert [result["text"] for result in found] == expected
    assert "".join(model.stream(texts[0], max_new_tokens=9, cuda_graph=True)) == expected[0]
    assert run(["run", "m", texts[1], "-n", "9", "--cuda-graph"]) == 0
    assert capsys.readouterr().out == f"{expected[1]}\n"
    assert Counted.n_recorded == 3


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("values", "why"),
    [
        (
            {"attention": "disentangled", "position": {"kind": "disentangled", "n_buckets": 4}},
            "tiny cannot be recorded: what attention `disentangled` does",
        ),
        ({"attention": HEAVY}, "tiny cannot be recorded: what attention `heavily_compressed` does"),
        (
            {"attention": SUMMARIES},
            "tiny cannot be recorded: what attention `compressed_sparse` does",
        ),
        (
            {"position": {"kind": "rotary_dynamic", "factor": 2.0, "original_length": 8}},
            "tiny cannot be recorded: its positions are told apart otherwise in longer sequences",
        ),
    ],
)
def test_what_cannot_be_recorded_is_refused(values: dict[str, Any], why: str) -> None:
    model = built(tiny() | values)
    with pytest.raises(InputError, match=why):
        zoo.generate(model, PROMPTS, max_new_tokens=9, cuda_graph=True)


@pytest.mark.usefixtures("on_cpu", "without_cycles_found")
def test_the_memory_of_a_fixed_cache_is_free_with_the_end_of_a_generation() -> None:
    """Of so few tokens none is recorded: the tape, unlike a graph, holds what it has recorded."""
    for _ in range(2):
        gc.collect()  # the first time imports what it needs, which makes cycles of its own
        zoo.generate(built(tiny()), PROMPTS, max_new_tokens=3, cuda_graph=True)
    assert not any(isinstance(one, AttentionCache) for one in gc.get_objects())


@pytest.mark.usefixtures("on_cpu")
def test_an_operation_that_waits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of experts that are too large to be copied for each row."""
    model = built(tiny() | VARIANTS["experts"])
    bytes_of_one = model.get_parameter("decoder.layers.0.ffn.experts.up_proj.weight")[0].nbytes
    monkeypatch.setattr(experts, "COPIED", 4 * bytes_of_one)  # two choices of each of two rows
    zoo.generate(model, PROMPTS[:2], max_new_tokens=9, cuda_graph=True)
    with pytest.raises(InputError, match="one of its layers waits for a value from the GPU"):
        zoo.generate(model, PROMPTS, max_new_tokens=9, cuda_graph=True)


def test_a_model_on_a_cpu_is_refused() -> None:
    with pytest.raises(InputError, match="tiny is on the device `cpu`, and `cuda_graph` is for"):
        zoo.generate(built(tiny()), PROMPTS, max_new_tokens=9, cuda_graph=True)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"cache": False}, "a step that is recorded has a cache"),
        ({"draft": zoo.Lookup()}, "`draft` or `cuda_graph`"),
    ],
)
def test_options_that_contradict_it(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        zoo.generate(built(tiny()), PROMPTS, max_new_tokens=9, cuda_graph=True, **options)


def test_a_fixed_cache_takes_one_token_at_a_time() -> None:
    cache = Cache(8)
    cache.past.append(2, seen=None, counted=None, device=torch.device("cpu"))
    fixed = FixedCache(cache, torch.device("cpu")).past
    with pytest.raises(ValueError, match="one token at a time, not 2"):
        fixed.append(2, seen=None, counted=None, device=torch.device("cpu"))
