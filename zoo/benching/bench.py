"""`zoo.bench`: check what is asked, build the models, measure them in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import count
from statistics import median
from typing import Literal

import torch

from zoo.benching.machine import hardware, load_average, versions
from zoo.benching.memory import meter_of
from zoo.benching.report import Bench, BenchRow
from zoo.benching.rounds import Case, measure
from zoo.benching.tasks import BY_HAND, TASKS, Phase, Sizes, Task, forward_flops, phases
from zoo.building import build
from zoo.byte_counts import human_bytes
from zoo.errors import InputError, Problem, ZooError, is_out_of_memory
from zoo.generation import quantize_weights
from zoo.initial import n_bytes_of
from zoo.machine.devices import usable_device
from zoo.machine.memory_limit import memory_limit
from zoo.registry import Registry, in_force
from zoo.reports.flops import check_called, inserted_in
from zoo.reports.sides import Comparable, Side, names_of
from zoo.spec import ModelSpec
from zoo.transformer import Transformer
from zoo.weights.dtypes import dtype_name, usable_dtype
from zoo.wording import did_you_mean, quoted

FEWEST_ROUNDS = 5


def bench(
    models: Iterable[Comparable],
    *,
    tasks: str | Sequence[str] | None = None,
    batch: int = 1,
    length: int = 128,
    new_tokens: int = 32,
    rounds: int = FEWEST_ROUNDS,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "float32",
    weights: Literal["int8"] | None = None,
    registry: Registry | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Bench:
    """Measure how fast models are on this machine: what `zoo bench --json` prints, as plain data.

    All models are built with initial weights and get the same inputs, none of them padding. Each
    task is run a few times to warm up, then in rounds, each of which runs all models in turn. Each
    run is waited for; one that takes less than a tenth of a second is repeated, and the mean
    counts.

    Args:
        models: each what `zoo.diff` takes. Their weights are in memory together.
        tasks: `forward`, a forward pass for inference; `train`, a step: forward pass, cross-entropy
            over the last dimension of the output, backward pass, AdamW; `generate`, greedily with a
            cache. By default all that a model can do.
        batch: the number of sequences, or of images, at a time.
        length: the number of tokens of each sequence; of an encoder-decoder, those of the source
            and, but for generation, as many of the target. Images have the size that their model
            states.
        new_tokens: the number of tokens that are generated after each.
        rounds: the number of rounds.
        device: the device; by default the CPU.
        dtype: the dtype of the weights, or its name.
        weights: "int8" measures the models with their weights in 8 bits (`zoo.quantize_weights`),
            which are not trained.
        registry: looks up names; by default the registries around the working directory.
        on_progress: called with the number of steps done, and of all.

    Returns:
        The circumstances, with the `load` of the machine before, None if it is unknown, and the
        names of the models in whose texts images or sounds may stand, which are measured
        `without_images` or `without_sounds`; and
        `rows`: for each task the models in their order. `phase` is `forward`, `train`, or for
        generation first `prefill`, which reads the prompts or sources and ends with the first
        token, then `decode`, the tokens after it. `seconds` are those of a run in each round, and
        `amount` is the number of `unit` in a run: tokens, of which those of the target count if
        there is a source, but for `prefill`; images; or pairs of an image and a text. Their rate is
        `per_second`, the median of the rounds, between `lowest` and `highest`. `speedup` is the
        median over rounds of the rate over that of the first model of the phase; None for another
        unit. `flops` are the operations of a run by `zoo.flops`, three times as many for a step of
        training, and None for generation; `flops_per_second` those over the median of the seconds.
        `memory_bytes` is the peak of the memory beside the weights, with the gradients and the
        state of the optimiser; None where the system does not count it. Where `error` is `out of
        memory`, nothing was measured, and these are None.

    Raises:
        InputError: an argument is wrong; or a model is called with neither ids nor images, or has
            fewer positions than are asked for, or cannot do a task.
        ZooError: a spec cannot be read or built; the device cannot be used; or it cannot hold all
            weights, with what training adds to them.
    """
    before = load_average()
    if weights not in (None, "int8"):
        raise InputError(f'`weights` are "int8", or as built, not {weights!r:.80}')
    asked = _read_tasks(tasks, trains=weights is None)
    sizes = _read_sizes(batch, length, new_tokens, rounds)
    device, torch_dtype = usable_device(device), usable_dtype(dtype)
    if device.type == "meta":
        raise InputError("the device `meta` computes nothing that could be measured")
    sides = _read_models(models, in_force(registry))
    specs = [side.spec for side in sides]
    plan = _plan(specs, asked, sizes, trains=weights is None)
    _check_fit(specs, plan, device, torch_dtype)
    total = len(specs) + (1 + rounds) * sum(map(len, plan.values()))
    done = count(1)

    def advance() -> None:
        if on_progress is not None:
            on_progress(next(done), total)

    built = [_built(spec, device, torch_dtype, weights, advance) for spec in specs]
    names, meter = names_of(sides), meter_of(device)
    rows: list[BenchRow] = []
    for task, planned in plan.items():
        cases = [
            Case(names[place], specs[place], built[place], task, found, sizes, device)
            for place, found in planned.items()
        ]
        measure(cases, rounds=rounds, meter=meter, on_step=advance)
        for number in range(len(cases[0].phases)):
            rows += _rows(cases, number)
    return {
        "device": str(device),
        "hardware": hardware(device),
        "threads": torch.get_num_threads(),
        "load": before,
        "dtype": dtype_name(torch_dtype),
        "weights": weights,
        "batch": batch,
        "length": length,
        "new_tokens": new_tokens,
        "rounds": rounds,
        "without_images": _named(names, specs, "images"),
        "without_sounds": _named(names, specs, "sounds"),
        "versions": versions(),
        "rows": rows,
    }


def _named(names: Sequence[str], specs: Sequence[ModelSpec], inserted: str) -> list[str]:
    """The models in whose texts these may stand."""
    return [name for name, spec in zip(names, specs, strict=True) if inserted_in(spec) == inserted]


# --- at the door --------------------------------------------------------------------------------


def _read_tasks(tasks: str | Sequence[str] | None, *, trains: bool) -> list[Task] | None:
    """Return the tasks in their order; None for all that a model can do."""
    if tasks is None:
        return None
    if not isinstance(tasks, Iterable):
        raise InputError(f"`tasks` is a task or a list of them, not {tasks!r:.80}")
    stated = [tasks] if isinstance(tasks, str) else list(tasks)
    for one in stated:
        if one not in TASKS:
            raise InputError(f"there is no task {quoted(one)}", help=did_you_mean(str(one), TASKS))
    if not stated:
        raise InputError("`tasks` is empty: there is nothing to measure")
    if not trains and "train" in stated:
        raise InputError("weights in 8 bits are not trained", help="leave out the task `train`")
    return [task for task in TASKS if task in stated]


def _read_models(models: Iterable[Comparable], registry: Registry) -> list[Side]:
    """Return the models, of which there is one at least."""
    if isinstance(models, str | Mapping) or not isinstance(models, Iterable):
        raise InputError("`models` is a list, of one model too: `bench([...])`")
    sides = [Side.of(source, registry) for source in models]
    if not sides:
        raise InputError("`models` is empty: there is nothing to measure")
    return sides


def _read_sizes(batch: int, length: int, new_tokens: int, rounds: int) -> Sizes:
    """Return the sizes of the inputs, and check the number of rounds too."""
    # The first new token is the end of the prefill.
    fewest = {"batch": 1, "length": 1, "new_tokens": 2, "rounds": FEWEST_ROUNDS}
    found = {"batch": batch, "length": length, "new_tokens": new_tokens, "rounds": rounds}
    problems = [
        Problem(f"`{name}` is an integer of at least {fewest[name]}, not {number!r:.80}")
        for name, number in found.items()
        if type(number) is not int or number < fewest[name]
    ]
    if problems:
        raise InputError(problems)
    return Sizes(batch, length, new_tokens)


def _plan(
    specs: Sequence[ModelSpec], asked: Sequence[Task] | None, sizes: Sizes, *, trains: bool
) -> dict[Task, dict[int, list[Phase]]]:
    """Return the phases of each task of each model, by its place in the list.

    Raises:
        InputError: a model cannot do what is asked; all such problems are told together.
    """
    plan: dict[Task, dict[int, list[Phase]]] = {}
    refused: dict[int, InputError] = {}  # one for each model, though other tasks may have more
    flops_of = cache(forward_flops)  # a step of training has the forward pass too
    possible = [task for task in TASKS if trains or task != "train"]
    for task in possible if asked is None else asked:
        for place, spec in enumerate(specs):
            if task == "generate" and spec.model.generation is None and asked is None:
                continue
            try:
                if task == "generate":
                    _check_generates(spec, sizes)
                plan.setdefault(task, {})[place] = phases(task, spec, sizes, flops_of)
            except InputError as error:
                refused.setdefault(place, error)
    if refused:
        raise InputError(problem for error in refused.values() for problem in error.problems)
    return plan


def _check_generates(spec: ModelSpec, sizes: Sizes) -> None:
    """Raise InputError if a model does not generate so many tokens from inputs of these sizes."""
    how = spec.model.generation
    if how is None:
        help_ = "state other tasks; without any, each model does what it can"
        raise InputError(f"{spec.name} does not generate", help=help_)
    check_called(spec, BY_HAND)
    source = sizes.length if how.source_vocab is not None else 0
    if how.longest_source is not None and source > how.longest_source:
        told = f"has {how.longest_source:,} positions of the source, which are fewer than"
        raise InputError(f"{spec.name} {told} {source:,}")
    prompt = 1 if how.has_source else sizes.length
    # The model is never called with the last new token.
    if how.longest is not None and prompt + sizes.new_tokens - 1 > how.longest:
        told = f"has {how.longest:,} positions, which are fewer than {prompt:,} and"
        raise InputError(f"{spec.name} {told} {sizes.new_tokens:,} new ones")


def _check_fit(
    specs: Sequence[ModelSpec],
    plan: Mapping[Task, object],
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Raise ZooError if the device cannot hold what is certain to be there at once: the weights of
    all models, and in training the two states of AdamW of each and the gradients of one."""
    sizes = [n_bytes_of(spec, dtype) for spec in specs]
    needed, what = sum(sizes), "their weights are"
    if "train" in plan:
        needed, what = 3 * needed + max(sizes), "with what training adds, their weights are"
    limit = memory_limit()
    if device.type == "cuda":
        limit = torch.cuda.get_device_properties(device).total_memory
    if limit is not None and needed > limit:
        message = f"the models do not fit into memory together: {what} {human_bytes(needed)}"
        help_ = "measure fewer models, in a smaller dtype, or the task `forward` alone"
        raise ZooError(f"{message}, and there are {human_bytes(limit)}", help=help_)


def _built(
    spec: ModelSpec,
    device: torch.device,
    dtype: torch.dtype,
    weights: str | None,
    advance: Callable[[], None],
) -> Transformer | None:
    """Build a model; None if the device has no memory left for it."""
    try:
        model = build(spec, device=device, dtype=dtype)
        if weights is not None:
            quantize_weights(model)
        return model
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        advance()


# --- rows ---------------------------------------------------------------------------------------


def _rows(cases: Sequence[Case], number: int) -> list[BenchRow]:
    """Return the rows of a phase, the `number`-th of a task."""
    first = cases[0].phases[number].unit
    base = _rates(cases[0], number)
    rows: list[BenchRow] = []
    for case in cases:
        phase, rates = case.phases[number], _rates(case, number)
        seconds = [of_phases[number] for of_phases in case.seconds] if rates else []
        comparable = rates and base and phase.unit == first
        rows.append(
            {
                "phase": phase.name,
                "name": case.name,
                "parameters": case.spec.n_parameters,
                "unit": phase.unit,
                "amount": phase.amount,
                "per_second": median(rates) if rates else None,
                "lowest": min(rates, default=None),
                "highest": max(rates, default=None),
                "speedup": median(a / b for a, b in zip(rates, base, strict=True))
                if comparable
                else None,
                "flops": phase.flops,
                "flops_per_second": phase.flops / median(seconds)
                if phase.flops is not None and seconds
                else None,
                "memory_bytes": case.memory[number] if rates else None,
                "seconds": seconds,
                "error": case.error,
            }
        )
    return rows


def _rates(case: Case, number: int) -> list[float]:
    """Return how much a second does of a phase in each round; nothing after an error."""
    if case.error is not None:
        return []
    return [case.phases[number].amount / seconds[number] for seconds in case.seconds]
