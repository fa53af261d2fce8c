"""`zoo.bench` and `zoo bench`: rates by a clock that feed-forward networks move, operations by
closed forms, and what is refused."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from live_bytes import LiveBytes
from small_specs import TINY_DUAL, TINY_IMAGE_TEXT, TINY_SOUND_TEXT
from torch.utils.flop_counter import FlopCounterMode
from trials import Refused

import zoo
from zoo.benching import bench as benching
from zoo.benching import rounds, tasks
from zoo.benching.memory import OfAllocator, OfProcess, meter_of, peaks
from zoo.benching.report import bench_text
from zoo.cli import run
from zoo.errors import is_out_of_memory
from zoo_components.modules.ffn import Mlp

CPU = torch.device("cpu")
B, T, NEW, D, HEADS, D_FF, V = 3, 10, 6, 16, 4, 32, 50
SIZES = {"batch": B, "length": T, "new_tokens": NEW}
DECODER: dict[str, Any] = {
    "format": 1,
    "name": "four",
    "builder": "decoder",
    "vocab": V,
    "n_layers": 4,
    "d_model": D,
    "n_heads": HEADS,
    "d_ff": D_FF,
}
TWO = {**DECODER, "name": "two", "n_layers": 2}
TEXT = {**DECODER, "name": "text", "builder": "encoder", "head": "mlm", "pad_id": 0}
PAIR = {key: value for key, value in DECODER.items() if key != "vocab"} | {
    "name": "pair",
    "builder": "encoder_decoder",
    "source_vocab": V,
    "target_vocab": V,
    "pad_id": 0,
}
PATCHES = {"kind": "patches", "image_size": 6, "patch_size": 2}
IMAGES = {key: value for key, value in DECODER.items() if key != "vocab"} | {
    "name": "images",
    "builder": "encoder",
    "embedding": PATCHES,
    "position": {"kind": "learned", "max_length": 10},
    "head": {"kind": "classifier", "n_classes": 7, "dense": "none"},
}
CAPTIONS = {key: value for key, value in PAIR.items() if key not in ("source_vocab", "pad_id")} | {
    "name": "captions",
    "encoder": {"embedding": PATCHES, "position": {"kind": "learned", "max_length": 10}},
}
DUAL = TINY_DUAL | {"text_vocab": V}
EXPERTS = {
    **DECODER,
    "name": "experts",
    "ffn": {"kind": "moe", "n_experts": 4, "top_k": 2, "auxiliary_loss": 0.01},
}

SECOND = 0.25
"""What a feed-forward network takes by the clock of the tests."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time so far. Each call of a feed-forward network takes a quarter of a second."""
    now, forward = [0.0], Mlp.forward

    def timed(self: Mlp, x: torch.Tensor) -> torch.Tensor:
        now[0] += SECOND
        return forward(self, x)

    monkeypatch.setattr(Mlp, "forward", timed)
    monkeypatch.setattr(rounds, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def rows_of(*specs: dict[str, Any], **options: Any) -> dict[tuple[str, str], Any]:
    found = zoo.bench(specs, **{**SIZES, **options})["rows"]
    return {(row["phase"], row["name"]): row for row in found}


def test_texts_are_measured_without_images_and_sounds() -> None:
    found = zoo.bench([DECODER, TINY_IMAGE_TEXT], tasks="forward", **SIZES)
    assert found["without_images"] == ["image-text"]
    told = "the texts of image-text are without images, which may stand in them"
    assert told in bench_text(found).splitlines()
    assert "without images" not in bench_text({**found, "without_images": []})
    found = zoo.bench([DECODER, TINY_SOUND_TEXT], tasks="forward", **SIZES)
    assert (found["without_images"], found["without_sounds"]) == ([], ["sound-text"])
    assert "the texts of sound-text are without sounds, which" in bench_text(found)


# --- rates --------------------------------------------------------------------------------------


def test_rates_of_a_decoder(clock: list[float]) -> None:
    """A pass of four layers takes a second, whether it reads all tokens or the last one."""
    rows = rows_of(DECODER)
    found = {phase: (row["unit"], row["per_second"]) for (phase, _), row in rows.items()}
    assert found == {
        "forward": ("tokens", B * T),
        "train": ("tokens", B * T),
        "prefill": ("tokens", B * T),
        "decode": ("tokens", B),
    }
    assert rows["decode", "four"]["seconds"] == [NEW - 1] * 5
    assert rows["decode", "four"]["amount"] == B * (NEW - 1)


def test_rates_of_an_encoder_decoder(clock: list[float]) -> None:
    """Both stacks read, and only the decoder writes."""
    rows = rows_of(PAIR)
    rates = {phase: row["per_second"] for (phase, _), row in rows.items()}
    assert rates == {"forward": B * T / 2, "train": B * T / 2, "prefill": B * T / 2, "decode": B}


def test_what_is_counted_of_other_models(clock: list[float]) -> None:
    rows = rows_of(TEXT, IMAGES, CAPTIONS, DUAL)
    found = {key: (row["unit"], row["per_second"]) for key, row in rows.items()}
    assert found == {
        ("forward", "text"): ("tokens", B * T),
        ("forward", "images"): ("images", B),
        ("forward", "captions"): ("tokens", B * T / 2),
        ("forward", "dual"): ("pairs", B),
        ("train", "text"): ("tokens", B * T),
        ("train", "images"): ("images", B),
        ("train", "captions"): ("tokens", B * T / 2),
        ("train", "dual"): ("pairs", B),
        ("prefill", "captions"): ("images", B / 2),
        ("decode", "captions"): ("tokens", B),
    }
    speedups = {name: rows["forward", name]["speedup"] for name in ("text", "images", "captions")}
    assert speedups == {"text": 1.0, "images": None, "captions": 0.5}


def test_a_model_of_half_the_depth_is_twice_as_fast(clock: list[float]) -> None:
    rows = rows_of(DECODER, TWO)
    for phase in ("forward", "train", "prefill", "decode"):
        assert rows[phase, "four"]["speedup"] == 1.0
        assert rows[phase, "two"]["speedup"] == 2.0
        assert rows[phase, "two"]["per_second"] == 2 * rows[phase, "four"]["per_second"]


def test_a_short_run_is_repeated(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it takes so long in sum; the mean counts."""
    monkeypatch.setattr(rounds, "SHORTEST", 3.5)
    calls = 0
    plain = zoo.Transformer.__call__

    def counted(self: Any, *inputs: Any, **options: Any) -> Any:
        nonlocal calls
        calls += isinstance(self, zoo.Transformer)
        return plain(self, *inputs, **options)

    monkeypatch.setattr(zoo.Transformer, "__call__", counted)
    (row,) = rows_of(DECODER, tasks="forward").values()
    assert row["seconds"] == [1.0] * 5
    # Meta, the first run, two for the memory, one for the time; then five rounds.
    assert calls == 1 + 1 + 2 + 1 + 5 * 4


def test_the_median_its_range_and_the_ratio_of_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratio is that of most rounds, and not that of the medians, which would be 1.5."""
    now = [0.0]
    monkeypatch.setattr(rounds, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    warm_up = [1.0] * 4
    seconds = {
        "four": iter([*warm_up, 1.0, 2.0, 4.0, 8.0, 3.0]),
        "two": iter([*warm_up, 0.5, 1.0, 2.0, 8.0, 3.0]),
    }

    def make(model: zoo.Transformer, sizes: tasks.Sizes) -> tasks.Run:
        def one() -> Iterator[None]:
            now[0] += next(seconds[model.spec.name])
            yield

        return one

    monkeypatch.setitem(tasks.RUNS, "forward", make)
    rows = rows_of(DECODER, TWO, tasks=["forward"])
    four, two = rows["forward", "four"], rows["forward", "two"]
    assert four["seconds"] == [1.0, 2.0, 4.0, 8.0, 3.0]
    assert (four["per_second"], four["lowest"], four["highest"]) == (B * T / 3, B * T / 8, B * T)
    assert two["speedup"] == 2.0


def test_models_are_measured_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    now = [0.0]
    monkeypatch.setattr(rounds, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def make(model: zoo.Transformer, sizes: tasks.Sizes) -> tasks.Run:
        def one() -> Iterator[None]:
            now[0] += 1.0
            order.append(model.spec.name)
            yield

        return one

    monkeypatch.setitem(tasks.RUNS, "forward", make)
    three = {**DECODER, "name": "three", "n_layers": 3}
    zoo.bench([DECODER, three, TWO], tasks="forward", rounds=6)
    there = ["four", "three", "two"]
    assert order[-18:] == [*there, *there[::-1]] * 3
    assert order[:-18] == [name for name in there for _ in range(4)]


def test_the_clock_is_the_real_one() -> None:
    """Nothing is known of what it tells but how the figures follow from it."""
    one, other = zoo.bench([DECODER, DECODER], tasks="forward", length=T)["rows"]
    assert min(one["seconds"] + other["seconds"]) > 0
    assert one["speedup"] == 1.0
    ratios = [a / b for a, b in zip(one["seconds"], other["seconds"], strict=True)]
    assert other["speedup"] == pytest.approx(statistics.median(ratios))
    assert one["per_second"] == pytest.approx(T / statistics.median(one["seconds"]))
    assert one["lowest"] == pytest.approx(T / max(one["seconds"]))
    assert one["highest"] == pytest.approx(T / min(one["seconds"]))


# --- operations ---------------------------------------------------------------------------------


def test_operations_a_second(clock: list[float]) -> None:
    """A layer's products, and the head's; a second for a pass."""
    layer = 2 * T * (4 * D * D + 2 * D * D_FF) + 4 * T * T * D
    total = B * (4 * layer + 2 * T * D * V)
    rows = rows_of(DECODER)
    assert rows["forward", "four"]["flops"] == rows["forward", "four"]["flops_per_second"] == total
    assert rows["train", "four"]["flops"] == rows["train", "four"]["flops_per_second"] == 3 * total
    assert rows["prefill", "four"]["flops"] is rows["decode", "four"]["flops_per_second"] is None


def test_operations_are_counted_once_for_each_model(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    count = tasks.count_forward

    def told(spec: zoo.ModelSpec, **options: Any) -> FlopCounterMode:
        counted.append(spec.name)
        return count(spec, **options)

    monkeypatch.setattr(tasks, "count_forward", told)
    rows = rows_of(DECODER, TWO)
    assert counted == ["four", "two"]
    for name in counted:
        assert rows["train", name]["flops"] == 3 * rows["forward", name]["flops"] > 0


@pytest.mark.parametrize("spec", [DECODER, PAIR, TEXT], ids=lambda spec: spec["name"])
def test_a_step_has_the_operations_that_torch_counts(spec: dict[str, Any]) -> None:
    """Forwards and backwards, of a step that runs."""
    found = zoo.read_spec({**spec, "dropout": 0.0})
    sizes = tasks.Sizes(B, T, NEW)
    (phase,) = tasks.phases("train", found, sizes, tasks.forward_flops)
    step = tasks.train(zoo.build(found), sizes)
    counter = FlopCounterMode(display=False)
    with zoo.attention_backend("math"), counter:
        list(step())
    assert phase.flops == counter.get_total_flops()


# --- what runs ----------------------------------------------------------------------------------


ALL = [DECODER, PAIR, TEXT, CAPTIONS, DUAL]


@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec["name"])
def test_the_inputs_are_the_same_and_no_padding(spec: dict[str, Any]) -> None:
    one, other = (
        tasks.inputs_of(zoo.build(spec, dtype=dtype), tasks.Sizes(B, 500, NEW))
        for dtype in ("float32", "bfloat16")
    )
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.to(b.dtype), b)
    assert [len(a) for a in one] == [B] * len(one)
    smallest = min(int(a.min()) for a in one if not a.is_floating_point())
    assert smallest == (1 if "pad_id" in spec else 0)


def test_a_step_computes_gradients_and_leaves_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.build(EXPERTS)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    steps: list[float] = []
    plain = torch.optim.AdamW.step

    def step(self: torch.optim.AdamW, *arguments: Any) -> Any:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        steps.append(sum(float(one.abs().sum()) for one in gradients))
        return plain(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    go = tasks.train(model, tasks.Sizes(B, T, NEW))
    list(go())
    list(go())
    assert len(steps) == 2
    assert steps[0] == steps[1] > 0
    after = model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_dropout_is_on_in_training_alone() -> None:
    model, sizes = zoo.build({**DECODER, "dropout": 0.1}), tasks.Sizes(B, T, NEW)
    for name, make in tasks.RUNS.items():
        make(model, sizes)
        assert model.training is (name == "train")


def test_tasks_are_those_that_are_asked_for(clock: list[float]) -> None:
    assert {phase for phase, _ in rows_of(DECODER, TEXT, tasks="forward")} == {"forward"}
    rows = rows_of(DECODER, TWO, tasks=["generate", "forward"])
    assert [phase for phase, _ in rows] == ["forward"] * 2 + ["prefill"] * 2 + ["decode"] * 2


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float64])
def test_other_dtypes(dtype: Any) -> None:
    found = zoo.bench([EXPERTS], dtype=dtype, **SIZES)
    assert found["dtype"] == str(dtype).removeprefix("torch.")
    assert all(row["per_second"] > 0 for row in found["rows"])


def test_weights_in_8_bits(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not trained, and a model with them is measured as one with floats is."""
    built: list[zoo.Transformer] = []
    monkeypatch.setattr(benching, "quantize_weights", built.append)
    found = zoo.bench([DECODER, TWO], weights="int8", **SIZES)
    assert [model.spec.name for model in built] == ["four", "two"]
    assert found["weights"] == "int8"
    assert {row["phase"] for row in found["rows"]} == {"forward", "prefill", "decode"}
    assert "; float32, int8 weights; zoo" in bench_text(found)


def test_progress_is_told(clock: list[float]) -> None:
    told: list[tuple[int, int]] = []
    rows_of(DECODER, TEXT, on_progress=lambda *steps: told.append(steps))
    total = 2 + 6 * 5  # two are built; two, two and one case are warmed up and measured
    assert told == [(n, total) for n in range(1, total + 1)]


# --- memory -------------------------------------------------------------------------------------

MB = 10**6
METER = meter_of(CPU)
linux = pytest.mark.skipif(METER is None, reason="this system does not count the memory")


@linux
def test_the_memory_of_a_run_beside_what_was_there() -> None:
    there = torch.ones(16 * MB)
    kept: list[torch.Tensor] = []

    def one() -> Iterator[None]:
        kept[:] = kept or [torch.ones(8 * MB)]
        yield
        torch.ones(16 * MB)
        yield

    first, second = peaks(one, METER)
    assert first is not None
    assert second is not None
    # The system counts what else the process does meanwhile, too.
    assert first == pytest.approx(32 * MB, abs=16 * MB)
    assert second == pytest.approx(96 * MB, abs=16 * MB)
    assert there.numel() == 16 * MB


def test_training_keeps_gradients_and_two_states(monkeypatch: pytest.MonkeyPatch) -> None:
    large = {**DECODER, "name": "large", "d_model": 256, "d_ff": 1024, "vocab": 2000}
    with LiveBytes() as live:
        meter = SimpleNamespace(start=live.reset, peak=lambda: live.peak)
        monkeypatch.setattr(benching, "meter_of", lambda device: meter)
        rows = rows_of(large, tasks=["forward", "train"])
    weights = 4 * rows["forward", "large"]["parameters"]
    assert rows["forward", "large"]["memory_bytes"] < 0.5 * weights
    assert 3 * weights < rows["train", "large"]["memory_bytes"] < 4 * weights


def test_a_system_that_does_not_count(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    def start(self: OfProcess) -> int:
        raise PermissionError("no")

    monkeypatch.setattr(OfProcess, "start", start)
    found = zoo.bench([DECODER], **SIZES)
    assert {row["memory_bytes"] for row in found["rows"]} == {None}
    assert "memory" not in bench_text(found)


def test_a_device_whose_allocator_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"now": 70, "peak": 500}
    module = SimpleNamespace(
        reset_peak_memory_stats=lambda device: counts.update(peak=counts["now"]),
        memory_allocated=lambda device: counts["now"],
        max_memory_allocated=lambda device: counts["peak"],
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    meter = meter_of(torch.device("cuda"))
    assert isinstance(meter, OfAllocator)

    def one() -> Iterator[None]:
        counts["peak"] = max(counts["peak"], 90)
        yield
        counts["peak"] = max(counts["peak"], 130)
        yield

    assert peaks(one, meter) == [20, 60]


# --- out of memory ------------------------------------------------------------------------------


def test_one_that_runs_out_of_memory_is_told_and_the_others_go_on(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Mlp.forward

    def short(self: Mlp, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad and self.up_proj.out_features == 2 * D_FF:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return plain(self, x)

    monkeypatch.setattr(Mlp, "forward", short)
    found = zoo.bench([{**DECODER, "name": "wide", "d_ff": 2 * D_FF}, TWO], **SIZES)
    rows = {(row["phase"], row["name"]): row for row in found["rows"]}
    missing = rows["train", "wide"]
    assert missing["error"] == "out of memory"
    assert missing["seconds"] == []
    keys = ("per_second", "lowest", "highest", "speedup", "flops_per_second", "memory_bytes")
    assert {missing[key] for key in keys} == {None}
    assert rows["train", "two"]["per_second"] == 2 * B * T
    assert rows["train", "two"]["speedup"] is None
    assert rows["forward", "wide"]["error"] is rows["decode", "wide"]["error"] is None
    assert rows["forward", "two"]["speedup"] == 2.0
    (line,) = (line for line in bench_text(found).splitlines() if "out of memory" in line)
    assert line.split() == ["wide", f"{missing['parameters']:,}", "out", "of", "memory"]
    json.dumps(found)


def test_one_that_cannot_be_built(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    def build(spec: zoo.ModelSpec, **options: Any) -> zoo.Transformer:
        if spec.name == "four":
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return zoo.build(spec, **options)

    monkeypatch.setattr(benching, "build", build)
    rows = rows_of(DECODER, TWO)
    errors = {key: row["error"] for key, row in rows.items()}
    assert {name for (_, name), error in errors.items() if error == "out of memory"} == {"four"}
    assert rows["decode", "two"]["per_second"] == 2 * B


def test_what_torch_says_of_no_memory() -> None:
    with pytest.raises(RuntimeError) as found:
        torch.empty(2**55)
    assert is_out_of_memory(found.value)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("a shape is wrong"))
    assert not is_out_of_memory(None)


# --- what is refused ----------------------------------------------------------------------------

LEARNED = {**DECODER, "name": "learned", "position": {"kind": "learned", "max_length": 12}}
WRONG = {
    "batch": ({"batch": 0}, "`batch` is an integer of at least 1, not 0"),
    "length": ({"length": 1.5}, "`length` is an integer of at least 1, not 1.5"),
    "new": ({"new_tokens": 1}, "`new_tokens` is an integer of at least 2, not 1"),
    "rounds": ({"rounds": 4}, "`rounds` is an integer of at least 5, not 4"),
    "task": ({"tasks": "trian"}, "there is no task `trian`\n.*did you mean `train`"),
    "tasks": ({"tasks": 5}, "`tasks` is a task or a list of them, not 5"),
    "none": ({"tasks": []}, "`tasks` is empty"),
    "device": ({"device": "gpu"}, "the device `gpu` cannot be used"),
    "meta": ({"device": "meta"}, "`meta` computes nothing"),
    "weights": ({"weights": "int4"}, "`weights` are \"int8\", or as built, not 'int4'"),
    "training": ({"weights": "int8", "tasks": "train"}, "8 bits are not trained\n.*leave out"),
    "dtype": ({"dtype": "float23"}, "cannot have the dtype `float23`"),
}


@pytest.mark.parametrize(("options", "told"), WRONG.values(), ids=WRONG)
def test_wrong_arguments(options: dict[str, Any], told: str) -> None:
    with pytest.raises(zoo.ZooError, match=told):
        zoo.bench([DECODER], **options)


def test_no_list_of_models() -> None:
    one: Any
    for one in ("gpt2", zoo.build(DECODER)):
        with pytest.raises(zoo.InputError, match="`models` is a list, of one model too"):
            zoo.bench(one)
    with pytest.raises(zoo.InputError, match="`models` is empty"):
        zoo.bench([])


REFUSED = {
    "positions": (LEARNED, {"length": 13}, "learned has 12 positions, which are fewer than 13"),
    "new": (
        LEARNED,
        {"length": 11, "new_tokens": 3},
        "learned has 12 positions, which are fewer than 11 and 3 new ones",
    ),
    "target": (
        {**PAIR, "decoder": {"position": {"kind": "learned", "max_length": 12}}},
        {"length": 12, "new_tokens": 13},
        "pair has 12 positions, which are fewer than 1 and 13 new ones",
    ),
    "source": (
        {**PAIR, "encoder": {"position": {"kind": "learned", "max_length": 12}}},
        {"length": 13, "tasks": "generate"},
        "pair has 12 positions of the source, which are fewer than 13",
    ),
    "no decoder": (TEXT, {"tasks": "generate"}, "text does not generate"),
    "vectors": (
        {**TEXT, "embedding": "vectors", "head": "none"},
        {},
        "text is called with neither ids nor images",
    ),
    "memory": ({**DECODER, "memory_width": 8}, {}, "four is called with neither ids nor images"),
}


@pytest.mark.parametrize(("spec", "options", "told"), REFUSED.values(), ids=REFUSED)
def test_a_model_that_cannot(spec: dict[str, Any], options: dict[str, Any], told: str) -> None:
    if spec.get("embedding") == "vectors":
        spec = {key: value for key, value in spec.items() if key not in ("vocab", "pad_id")}
    with pytest.raises(zoo.InputError, match=told) as found:
        zoo.bench([DECODER, spec], **options)
    assert len(found.value.problems) == 1


@pytest.mark.parametrize(("spec", "longest"), [(LEARNED, (10, 3)), (PAIR, (12, 12))])
def test_as_many_as_there_are_positions(
    spec: dict[str, Any], longest: tuple[int, int], clock: list[float]
) -> None:
    spec = {**spec, "position": {"kind": "learned", "max_length": 12}}
    rows = rows_of(spec, length=longest[0], new_tokens=longest[1])
    assert all(row["per_second"] > 0 for row in rows.values())


def test_models_that_do_not_fit_together(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    weights = 4 * zoo.read_spec(DECODER).n_parameters
    monkeypatch.setattr(benching, "memory_limit", lambda: 7 * weights)
    zoo.bench([DECODER, DECODER], **SIZES)  # two models, four states, one set of gradients
    monkeypatch.setattr(benching, "memory_limit", lambda: 7 * weights - 1)
    with pytest.raises(zoo.ZooError, match="the models do not fit into memory together"):
        zoo.bench([DECODER, DECODER], **SIZES)
    zoo.bench([DECODER, DECODER], tasks="forward", **SIZES)
    zoo.bench([DECODER, DECODER], dtype="bfloat16", **SIZES)


def test_a_component_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Mlp.forward

    def broken(self: Mlp, x: torch.Tensor) -> torch.Tensor:
        if x.is_meta:
            return plain(self, x)
        raise ValueError("of no use")

    monkeypatch.setattr(Mlp, "forward", broken)
    with pytest.raises(zoo.PluginError, match="measuring four failed: ValueError: of no use"):
        zoo.bench([DECODER], **SIZES)


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def files(project: Path) -> list[str]:
    for spec in (DECODER, TWO):
        (project / f"{spec['name']}.toml").write_text(zoo.read_spec(spec).to_toml())
    zoo.save(zoo.build(TWO), project / "two")
    return ["four.toml", "two"]


def test_the_table(
    files: list[str],
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a spec and of saved weights, where memory is not counted."""
    monkeypatch.setattr(benching, "meter_of", lambda device: None)
    arguments = ["--batch", "3", "--length", "1000", "--new-tokens", "6", "--task", "forward"]
    assert run(["bench", *files, *arguments, "--task", "generate"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    machine, *lines = out.splitlines()
    assert f"{torch.get_num_threads()} thread" in machine
    assert f"float32; zoo {zoo.__version__}, torch {torch.__version__}, python 3." in machine
    assert lines == [
        "batch 3, 1,000 tokens, 6 new; median of 5 rounds, and their range",
        "",
        "forward  parameters  tokens/s          range  speedup         FLOP/s",
        "four         10,528     3,000  3,000 … 3,000    1.00x  822.0 MFLOP/s",
        "two           6,080     6,000  6,000 … 6,000    2.00x  826.8 MFLOP/s",
        "",
        "prefill  parameters  tokens/s          range  speedup",
        "four         10,528     3,000  3,000 … 3,000    1.00x",
        "two           6,080     6,000  6,000 … 6,000    2.00x",
        "",
        "decode  parameters  tokens/s        range  speedup",
        "four        10,528      3.00  3.00 … 3.00    1.00x",
        "two          6,080      6.00  6.00 … 6.00    2.00x",
    ]


def test_units_that_differ_are_told_in_each_line(clock: list[float]) -> None:
    text = bench_text(zoo.bench([TEXT, IMAGES], tasks="forward", **SIZES))
    assert "batch 3, 10 tokens; median" in text
    assert "30.0 tokens" in text
    assert "3.00 images" in text
    alone = bench_text(zoo.bench([IMAGES], **SIZES))
    assert "batch 3; median" in alone
    assert "images/s" in alone
    assert "speedup" not in alone


def test_json_is_what_python_returns(
    files: list[str], clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--batch", "3", "--length", "10", "--new-tokens", "6"]
    assert run(["bench", *files, *arguments, "--weights", "int8", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    printed, returned = json.loads(out), zoo.bench(files, weights="int8", **SIZES)
    for data in (printed, returned):
        data["load"] = 0.0
        for row in data["rows"]:
            row["memory_bytes"] = 0
    assert printed == returned


def test_what_the_command_refuses(project: Path, refused: Refused) -> None:
    assert "0 is not in the range" in refused("bench", "gpt2", "--batch", "0")
    assert "gpt2 has 1,024 positions" in refused("bench", "gpt2", "--length", "1025")
    assert "bert-base does not generate" in refused("bench", "bert-base", "--task", "generate")
    assert "`gpu` cannot be used" in refused("bench", "gpt2", "--device", "gpu")
    assert "no_such" in refused("bench", "no_such.toml")
