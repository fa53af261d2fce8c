"""`make bench` measures, compares and writes results. The speed itself is not tested."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial, partialmethod
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from breadth import slow
from torch import nn

from benchmarks import forward, generation, growth, limits, measure, plots, training
from benchmarks.__main__ import run
from benchmarks.growth import Curve, Size
from benchmarks.measure import Ratio, Samples, in_turn, timed
from benchmarks.page import Results, amount, table
from benchmarks.peers import hugging_face
from benchmarks.place import Place

SMALL = {"layers": 2, "width": 32, "heads": 4, "vocab": 60}
TRANSLATOR = {**SMALL, "hidden": 48}
DECODER = {**SMALL, "length": 256}


class Elsewhere(Place):
    """A CPU that is measured as other devices are."""

    on_cpu = False


ELSEWHERE = Elsewhere(torch.device("cpu"), torch.bfloat16)
LLAMA = {**DECODER, "kv_heads": 2, "hidden": 48}

# Each suite checks that the installed peers with the same weights have the same results.
SUITES: dict[str, Callable[[], Results]] = {
    "translation": lambda: forward.translation(TRANSLATOR).measure(1),
    "bert": lambda: forward.bert(DECODER, padded=False).measure(1),
    "bert, padded": lambda: forward.bert(DECODER, padded=True).measure(1),
    "gpt2": lambda: forward.gpt2(DECODER).measure(1),
    "llama": lambda: forward.llama(LLAMA).measure(1),
    "training": lambda: training.translation(TRANSLATOR, 1),
    "greedy, one": lambda: generation.greedy(DECODER, 1, 4, 1),
    "greedy, two": lambda: generation.greedy(DECODER, 2, 4, 1),
    "greedy, as loaded": lambda: generation.greedy(DECODER, 1, 4, 1, arranged=False),
    "greedy, compiled": lambda: generation.compiled(DECODER, 1, 4, 1),
    "greedy, 8 bits": lambda: generation.in_8_bits(DECODER, 4, 1),
    "beam": lambda: generation.beam(TRANSLATOR, 4, 1),
    "translation elsewhere": lambda: forward.translation(TRANSLATOR, ELSEWHERE).measure(1),
    "bert, padded, elsewhere": lambda: forward.bert(DECODER, ELSEWHERE, padded=True).measure(1),
    "gpt2 elsewhere": lambda: forward.gpt2(DECODER, ELSEWHERE).measure(1),
    "llama elsewhere": lambda: forward.llama(LLAMA, ELSEWHERE, 2, 32).measure(1),
    "training elsewhere": lambda: training.translation(TRANSLATOR, 1, ELSEWHERE),
    "greedy elsewhere": lambda: generation.greedy(DECODER, 1, 4, 1, ELSEWHERE, arranged=False),
    "greedy, compiled, elsewhere": lambda: generation.compiled(DECODER, 2, 4, 1, ELSEWHERE),
    "sampling elsewhere": lambda: generation.sampling(DECODER, 2, 4, 1, ELSEWHERE),
    "beam elsewhere": lambda: generation.beam(TRANSLATOR, 4, 1, ELSEWHERE),
    "growth": lambda: growth.measure(1, {"length": (Size(), Size(length=256))}),
}


LIKE_OTHERS = (
    "bert",
    "greedy, two",
    "greedy, as loaded",
    "translation elsewhere",
    "bert, padded, elsewhere",
    "llama elsewhere",
    "greedy elsewhere",
    "greedy, compiled, elsewhere",
    "beam elsewhere",
)
"""Suites of which others have each part."""


@pytest.mark.parametrize("name", [slow(name) if name in LIKE_OTHERS else name for name in SUITES])
def test_a_suite_is_measured_and_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "PAUSE", 0.0)
    monkeypatch.setattr(measure, "SHORTEST", 1e-4)
    monkeypatch.setattr(measure, "MOST_ROUNDS", 3)
    monkeypatch.setattr(limits, "SIDE", 64)
    monkeypatch.setattr(limits, "SIDE_ELSEWHERE", 64)
    # A compiler takes half a minute, and is not on every machine: the graphs are run as they are.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="eager"))
    results: list[Ratio | Curve] = []

    def measured() -> Results:
        results.extend(SUITES[name]())
        return results  # type: ignore[return-value]

    suite = SimpleNamespace(__doc__="What it is about.", measure=measured)
    page = tmp_path / "docs" / "speed.md"
    page.parent.mkdir()
    run({"tiny": suite}, page)
    ratios = [ratio for one in results for ratio in one.rows()]
    assert ratios
    for ratio in ratios:
        assert math.isfinite(ratio.ratio)
        assert min(ratio.of_rounds) > 0
        assert f"| {ratio.what} | {ratio.against} |" in page.read_text()
    assert "What it is about." in page.read_text()
    assert "![Tiny](plots/speed-tiny.svg)" in page.read_text()
    image = page.parent / "plots" / "speed-tiny.svg"
    assert ElementTree.parse(image).getroot().tag.endswith("svg")


def test_sections_of_suites_that_are_not_measured_stay(tmp_path: Path) -> None:
    def suite(seconds: float) -> SimpleNamespace:
        results = [Ratio("a", "b", Samples([seconds]), Samples([2.0]))]
        return SimpleNamespace(__doc__="What it is about.\n", measure=lambda: results)

    path = tmp_path / "performance.md"
    run({"one": suite(3.0), "two": suite(5.0)}, path)
    before = path.read_text().replace("# Performance", "# Performance on a GPU")
    path.write_text(before)
    run({"one": suite(7.0)}, path)
    head, one, two = before.split("\n## ")
    new_head, new_one, new_two = path.read_text().split("\n## ")
    assert (new_head, new_two) == (head, two)
    assert _undated(new_one).replace("| 7 s | 2 s | **3.50** | 3.50 … 3.50 |", ROW) == _undated(one)
    assert one.count(f"| a | b {ROW}") == 1


def _undated(section: str) -> str:
    """A section without the day and the machine's load, which change from run to run."""
    return "\n".join(line for line in section.splitlines() if not line.startswith("- "))


ROW = "| 3 s | 2 s | **1.50** | 1.50 … 1.50 |"


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # In the second round, the machine was busy with other work.
    ratio = Ratio("a", "b", Samples([1.0, 30.0, 3.0]), Samples([2.0, 40.0, 2.0]), target=0.7)
    assert ratio.of_rounds == (0.5, 0.75, 1.5)
    assert ratio.ratio == 0.75
    assert not ratio.met
    assert "| 3 s | 2 s | **0.75** | 0.50 … 1.50 | 0.70 | missed |" in table([ratio])


def test_a_limit_far_away_leaves_the_other_bars_to_be_seen(tmp_path: Path) -> None:
    ratios = [
        Ratio("a", against, Samples([1.0]), s) for against, s in (("b", 1.0), ("limit", 0.01))
    ]
    plots.draw(ratios, tmp_path / "a.svg")
    drawing = (tmp_path / "a.svg").read_text()
    assert re.findall(r">([\d.]+ ?▸?)</text>", drawing)[-2:] == ["1.00", "100.00 ▸"]
    assert ">20</text>" not in drawing  # a number beside the axis


def test_what_is_timed_runs_although_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SHORTEST", 0.0)
    calls: list[int] = []
    assert timed(lambda: calls.append(1))() > 0
    assert calls == [1]


def test_cases_run_in_turn_after_warming_up() -> None:
    calls: list[str] = []

    def case(name: str) -> Callable[[], float]:
        def call() -> float:
            calls.append(name)
            return float(len(calls))

        return call

    found = in_turn({name: case(name) for name in "abc"}, rounds=3)
    assert "".join(calls) == "abc" + "abc" + "cba" + "abc"
    assert found == {"a": (4, 9, 10), "b": (5, 8, 11), "c": (6, 7, 12)}


def test_a_curve_tells_what_grew_faster_than_the_arithmetic() -> None:
    measured = (Samples([1.0]), Samples([2.0]), Samples([12.0]))
    curve = Curve("time", "length", (1, 2, 4), measured, arithmetic=(1.0, 2.0, 4.0))
    assert [(row.what, row.ratio, row.met) for row in curve.rows()] == [
        ("time, length 1 to 2", 1.0, True),
        ("time, length 2 to 4", 3.0, False),
    ]


def test_the_limit_counts_the_products_of_weights_with_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, model = hugging_face.gpt2(**DECODER)
    tokens = forward.ids(1, 256, DECODER)
    clock = iter((10.0, 11.5, 20.0, 22.0))  # for each of the two kinds of product
    monkeypatch.setattr(limits, "SIDE", 8)
    monkeypatch.setattr(limits, "perf_counter", lambda: next(clock))
    with torch.inference_mode():
        seconds = limits.products(lambda: model(tokens))()
    # 12 d^2 weights in each of two layers, and the head.
    assert seconds == pytest.approx(1.5 * 256 * (2 * 12 * 32**2 + 60 * 32) / 8**3)


@pytest.mark.parametrize(
    ("value", "unit", "told"),
    [
        (0.0123, "s", "12.3 ms"),
        (0.99949, "s", "999 ms"),
        (0.9997, "s", "1 s"),
        (12.34, "s", "12.3 s"),
        (999.7, "MB", "1,000 MB"),
        (1234.5, "MB", "1,234 MB"),
    ],
)
def test_amounts_have_three_digits(value: float, unit: str, told: str) -> None:
    assert amount(value, unit) == told
