"""What is measured of a model: a forward pass, a step of training, and generation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, get_args

import torch
from torch.nn import functional as F

from zoo.auxiliary import auxiliary_loss
from zoo.generation import stream
from zoo.machine.devices import input_device, input_dtype
from zoo.reports.flops import count_forward
from zoo.spec import ModelSpec
from zoo.transformer import Transformer
from zoo.weights.dtypes import widened

Task = Literal["forward", "train", "generate"]
Unit = Literal["tokens", "images", "pairs"]
Run = Callable[[], Iterator[None]]
"""Does the work of a task once, and yields at the end of each of its phases."""

TASKS: tuple[Task, ...] = get_args(Task)
BY_HAND = "`time.perf_counter` around a call of your own measures it"
BACKWARD = 2
"""The operations of a backward pass over those of the forward pass (Kaplan et al. 2020,
arXiv:2001.08361, section 2.1)."""


class Sizes(NamedTuple):
    """The sizes of the inputs: sequences or images at a time, tokens of each sequence, and tokens
    that are generated after each."""

    batch: int
    length: int
    new_tokens: int


class Phase(NamedTuple):
    """A part of a task.

    Args:
        name: `forward`, `train`, `prefill` or `decode`.
        unit: what is counted: the tokens that are scored, or read, or generated; the images of a
            model that takes nothing else; or the pairs of an image and a text that are compared.
        amount: how many of them a run has.
        flops: the operations of a run, by `zoo.flops`; None if they are not counted.
    """

    name: str
    unit: Unit
    amount: int
    flops: int | None = None


def forward_flops(spec: ModelSpec, sizes: Sizes) -> int:
    """Return the operations of a forward pass. Nothing is built but shapes. Raises as `phases`."""
    counter = count_forward(spec, batch=sizes.batch, length=sizes.length, by_hand=BY_HAND)
    return counter.get_total_flops()


def phases(
    task: Task, spec: ModelSpec, sizes: Sizes, flops_of: Callable[[ModelSpec, Sizes], int]
) -> list[Phase]:
    """Return the phases of a task of a model; `flops_of` is what `forward_flops` is.

    Raises:
        InputError: the model is called with neither ids nor images, or with more than these, or
            has fewer positions than tokens are asked for.
        PluginError: it cannot be built.
    """
    batch, length, new_tokens = sizes
    if task == "generate":
        tokens = spec.model.generation is not None and spec.model.generation.image_shape is None
        reads: Unit = "tokens" if tokens else "images"
        return [
            Phase("prefill", reads, batch * length if tokens else batch),
            # The prefill ends with the first new token.
            Phase("decode", "tokens", batch * (new_tokens - 1)),
        ]
    flops = flops_of(spec, sizes) * (1 + BACKWARD if task == "train" else 1)
    unit: Unit = "tokens"
    if spec.model.images and not (spec.model.called_with and spec.model.generation):
        unit = "pairs" if spec.model.called_with else "images"
    return [Phase(task, unit, batch * length if unit == "tokens" else batch, flops)]


# --- runs ---------------------------------------------------------------------------------------


def forward(model: Transformer, sizes: Sizes) -> Run:
    """Return a run of a forward pass for inference, without a cache."""
    inputs = inputs_of(model, sizes)
    model.eval()

    def run() -> Iterator[None]:
        with torch.inference_mode():
            model(*inputs)
        yield

    return run


def train(model: Transformer, sizes: Sizes) -> Run:
    """Return a run of a step of training: forward pass, cross-entropy over the last dimension of
    the output, backward pass and AdamW. Its learning rate is 0, so that all steps are alike."""
    inputs = inputs_of(model, sizes)
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.0)

    def run() -> Iterator[None]:
        output: torch.Tensor = model(*inputs)
        scores = output.flatten(0, -2)
        labels = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        loss = F.cross_entropy(widened(scores), labels) + auxiliary_loss(model)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        yield

    return run


def generate(model: Transformer, sizes: Sizes) -> Run:
    """Return a run of greedy generation: `prefill`, which reads the prompts or the sources and
    ends with the first token, then `decode`, the tokens after it, one by one."""
    inputs = inputs_of(model, sizes)
    how = model.spec.model.generation
    start = None
    if how is not None and how.has_source:
        start = 0 if how.pad_id != 0 or how.target_vocab == 1 else 1
    model.eval()

    def run() -> Iterator[None]:
        tokens = stream(model, inputs[0], max_new_tokens=sizes.new_tokens, start=start)
        next(tokens)
        yield
        for _ in tokens:
            pass
        yield

    return run


RUNS: Mapping[Task, Callable[[Transformer, Sizes], Run]] = {
    "forward": forward,
    "train": train,
    "generate": generate,
}


def inputs_of(model: Transformer, sizes: Sizes) -> list[torch.Tensor]:
    """Return random inputs of a model, the same for every model that takes alike: its images, then
    its ids, none of them padding."""
    device, dtype = input_device(model), input_dtype(model)
    random = torch.Generator().manual_seed(0)
    inputs: list[torch.Tensor] = []
    for shape in model.spec.model.images.values():
        images = torch.randn(
            sizes.batch, *shape, generator=random, dtype=torch.float32, device="cpu"
        )
        inputs.append(images.to(device, dtype))
    for read in model.spec.model.called_with:
        pad = read.pad_id if read.vocab > 1 else None
        n_ids = read.vocab if pad is None else read.vocab - 1
        ids = torch.randint(n_ids, (sizes.batch, sizes.length), generator=random, device="cpu")
        if pad is not None:
            ids += ids >= pad
        inputs.append(ids.to(device))
    return inputs
