"""The promises of a plugin about training: what differs in it, and what it changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from zoo.auxiliary import auxiliary_loss
from zoo.errors import SpecError
from zoo.linear import Linear
from zoo.plugin_kit.assertions import SAME, close, expect_close
from zoo.plugin_kit.by_token import FeedForwardDriver
from zoo.plugin_kit.driver import Driver, Way, every, weighted_sum
from zoo.plugin_kit.drivers import hosted
from zoo.plugin_kit.hosts import Host
from zoo.plugin_kit.inputs import HIDDEN, Tensors, with_another
from zoo.plugin_kit.report import PromiseError
from zoo.reading import read_spec
from zoo.registry import Registry
from zoo.spec import ModelSpec

N_BATCHES = 4
"""Number of batches, in at least one of which each parameter must get a gradient: a router may
skip an expert."""
SHOWN = 4
"""The most parameters that a message lists."""
N_DRAWS = 16
"""Number of calls with dropout, in at least one of which something is dropped."""


def modes(spec: ModelSpec, registry: Registry) -> None:
    """Without dropout, the outputs in training and evaluation mode and under `no_grad` are equal,
    unless the module keeps statistics of its batches. Dropout is for training alone."""
    driver = hosted(spec)
    inputs = driver.inputs()
    call = _unmasked(driver, inputs)
    evaluated = call(*inputs)
    with torch.no_grad():
        expect_close("under `no_grad`", evaluated, call(*inputs))
    before = {name: tensor.clone() for name, tensor in driver.model.named_buffers()}
    driver.model.train()
    trained = call(*inputs)
    stored = driver.model.state_dict().keys()
    for name, tensor in driver.model.named_buffers():
        if name not in stored and not torch.equal(tensor, before[name]):
            raise PromiseError(
                f"a call in training changes `{name}`, which is not stored: a model that is loaded "
                "would compute something else",
                help="register it as a stored buffer, and state it in the layout by `buffer=True`",
            )
    if all(torch.equal(tensor, before[name]) for name, tensor in driver.model.named_buffers()):
        expect_close(
            "in training mode than in evaluation, without dropout",
            evaluated,
            trained,
            help="what is random in training is off by default, or belongs to a field with "
            "`dropout` in its name, which is 0 here",
        )
    _check_auxiliary_losses(driver, partial(call, *inputs))
    _check_padding(driver, inputs)
    for name in _dropouts(spec):
        _check_dropout(name, spec, registry, evaluated)


def _unmasked(driver: Driver, inputs: Tensors) -> Way:
    """Return all ways of calling the module but those with a mask: what is computed of padding
    differs, as it may be left out without gradients."""
    return every([way for told, way in driver.ways(inputs).items() if "mask" not in told])


def _check_auxiliary_losses(driver: Driver, call: Callable[[], object]) -> None:
    """Raises PromiseError unless what was added to the training loss is a scalar, and nothing is
    left of it in evaluation. The last call was in training."""
    for name, module in driver.model.named_modules():
        found = vars(module).get("auxiliary_loss")
        if isinstance(found, torch.Tensor) and found.dim():
            raise PromiseError(
                f"the `auxiliary_loss` of `{name}` is {tuple(found.shape)}, and not a scalar",
                help="it is added to the loss as it is: sum it up, or take its mean",
            )
    driver.model.eval()
    call()
    for name, module in driver.model.named_modules():
        if vars(module).get("auxiliary_loss") is not None:
            raise PromiseError(
                f"in evaluation, `{name}` still has the `auxiliary_loss` of a call in training",
                help="`forward` sets it to None unless `self.training`",
            )


def _check_padding(driver: Driver, inputs: Tensors) -> None:
    """Raises PromiseError if what padding holds counts in what is added to the training loss."""
    could_mask = isinstance(driver, FeedForwardDriver) and not driver.described.takes_mask
    driver.model.train()
    for told, way in driver.ways(inputs).items():
        if not (could_mask or "mask" in told):
            continue
        way(*inputs)
        loss = auxiliary_loss(driver.model)
        way(*inputs[:-1], with_another(inputs[-1], HIDDEN))
        if not close(auxiliary_loss(driver.model), loss, SAME):
            raise PromiseError(
                f"in a call{told}, the `auxiliary_loss` depends on a token that may be padding",
                help="it leaves out what is padding: a network whose `takes_mask` is True is told "
                "by `mask`, a block by `context.tokens`, a builder by its masks",
            )


def _dropouts(spec: ModelSpec) -> list[str]:
    """Return the fields of the component with `dropout` in their names."""
    component = spec.model.part if isinstance(spec.model, Host) else spec.model
    return [n for n, v in component.dump().items() if "dropout" in n and type(v) is float]


def _check_dropout(name: str, spec: ModelSpec, registry: Registry, expected: Tensors) -> None:
    """Raises PromiseError unless a share of 0.5 in this field changes the output in training, and
    in training alone."""
    data: dict[str, Any] = spec.to_dict()
    (data["part"] if isinstance(spec.model, Host) else data)[name] = 0.5
    with suppress(SpecError):  # another field may have to be stated with it
        driver = hosted(read_spec(data, registry=registry))
        inputs = driver.inputs()
        call = _unmasked(driver, inputs)
        expect_close(
            f"in evaluation, with `{name} = 0.5`,",
            expected,
            call(*inputs),
            help="`nn.Dropout` is for training alone, and so is "
            "`nn.functional.dropout(x, p, self.training)`",
        )
        driver.model.train()
        torch.manual_seed(0)
        if all(_all_close(call(*inputs), expected) for _ in range(N_DRAWS)):
            raise PromiseError(f"`{name} = 0.5` drops nothing in training")


def _all_close(found: Tensors, expected: Tensors) -> bool:
    return all(close(one, other, SAME) for one, other in zip(found, expected, strict=True))


def gradients(spec: ModelSpec, _registry: Registry) -> None:
    """The output, or what the module adds to the training loss, has a finite gradient with respect
    to every parameter and input vector, in whatever way the module is called; and so would low-rank
    updates have."""
    _check_maps(hosted(spec))
    driver = hosted(spec)
    driver.model.train()
    for told, way in driver.learning_ways(driver.inputs()).items():
        left = _without_gradient(driver, way)
        if not left:
            continue
        more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        each = told and f", each{told}"
        help = (
            "what the output depends on is neither detached nor unused; if it is one of many "
            "experts, of which a batch reaches a few, state few in the description's `example`, "
            'such as `example = {"n_experts": 4}`'
        )
        raise PromiseError(
            f"no gradient reaches {', '.join(left[:SHOWN])}{more} in {N_BATCHES} small batches"
            f"{each}",
            help=help,
        )


def _without_gradient(driver: Driver, way: Way) -> list[str]:
    """Return the names of the parameters and inputs that no gradient reaches in several batches.
    Raises PromiseError if one is not finite."""
    model = driver.model
    random = torch.Generator().manual_seed(1)
    by_name = dict(model.named_parameters())
    reached: set[str] = set()
    for seed in range(N_BATCHES):
        inputs = driver.inputs(seed)
        for name, tensor in zip(driver.names, inputs, strict=False):
            if tensor.is_floating_point():
                by_name[f"the input {name}"] = tensor.requires_grad_()
        model.zero_grad(set_to_none=True)
        total = weighted_sum(way(*inputs), random) + auxiliary_loss(model)
        if total.requires_grad:
            total.backward()  # type: ignore[no-untyped-call]
        for name, tensor in by_name.items():
            if tensor.grad is not None and bool(tensor.grad.any()):
                reached.add(name)
                if not bool(tensor.grad.isfinite().all()):
                    raise PromiseError(f"the gradient of `{name}` is not finite")
        left = [name for name, t in by_name.items() if t.requires_grad and name not in reached]
        if not left:
            break
    return left


def _check_maps(driver: Driver) -> None:
    """Raises PromiseError unless the linear maps that low-rank updates can be given to are called:
    an update is another `forward`, which nothing else than a call finds."""
    inputs = driver.inputs()
    holders = Counter(id(t) for m in driver.model.modules() for t in m.parameters(recurse=False))
    for name, linear in driver.model.named_modules():
        if type(linear) is not Linear or holders[id(linear.weight)] > 1:
            continue
        hook = linear.register_forward_hook(lambda _, inputs, output: 2 * output)
        called = driver.in_every_way(*inputs)
        hook.remove()
        _multiply(linear, 2.0)
        doubled = driver.in_every_way(*inputs)
        _multiply(linear, 0.5)
        if not _all_close(called, doubled):
            raise PromiseError(
                f"the weight of `{name}` is read without a call of the map, and a low-rank update "
                "of it (`[lora]` in a recipe) would change nothing",
                help="call it; or make it an `nn.Linear`, which is given none",
            )


@torch.no_grad()
def _multiply(linear: Linear, factor: float) -> None:
    for tensor in linear.parameters():
        tensor.mul_(factor)
