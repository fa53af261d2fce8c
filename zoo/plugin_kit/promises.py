"""The promises of a plugin about the calls of its module, one function each, which raises
`PromiseError` if it is broken."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from zoo.building import build, build_on_meta
from zoo.loading import load
from zoo.plugin_kit.assertions import equal, expect_close, expect_equal
from zoo.plugin_kit.branches import branches
from zoo.plugin_kit.driver import Bare, Driver, every
from zoo.plugin_kit.drivers import driver_for, hosted
from zoo.plugin_kit.hosts import BlockHost, Host
from zoo.plugin_kit.inputs import Tensors
from zoo.plugin_kit.learning import gradients, modes
from zoo.plugin_kit.passed_on import check_heard, check_ids, declared, leaks_of_parts
from zoo.plugin_kit.precision import outputs_of, precision
from zoo.plugin_kit.report import PromiseError, no_failure
from zoo.plugin_kit.state import State, changes, shared_state, state_of, values_of
from zoo.reading import read_spec
from zoo.registering.plugin_errors import describe_failure
from zoo.registry import Registry
from zoo.saving import save
from zoo.slots import Plugin, Sublayer
from zoo.spec import ModelSpec
from zoo.transformer import Transformer

Promise = Callable[[ModelSpec, Registry], None]

_MIXED = "on the same device", "different devices", "not on the expected device"
"""What torch says of tensors on two devices."""


_HIDING = (
    "what `mask` hides, and with `causal` what is later, has the weight 0 in attention and is left "
    "out of other sums; a block passes both on from its context, and a builder into it"
)


def interface(spec: ModelSpec, registry: Registry) -> None:
    """The module takes the arguments and returns the values that its slot specifies."""
    driver = hosted(spec, torch.float32)
    inputs = driver.inputs()
    before = shared_state(driver.model)
    driver.check(inputs)
    _expect_nothing_shared("", before, shared_state(driver.model))
    if isinstance(spec.model, BlockHost) and spec.model.memory_width is None:
        check_heard(spec, registry)
        check_ids(spec, registry)
    module: nn.Module = getattr(driver.model, "part", driver.model)
    if type(module).__call__ is not nn.Module.__call__:
        called: list[nn.Module] = []
        module.register_forward_hook(lambda module, *_: called.append(module))
        driver(*inputs)
        if not called:
            raise PromiseError(
                "the module has a `__call__` of its own, which runs no hooks of torch",
                help="what it computes stands in `forward`",
            )


def _expect_nothing_shared(told: str, before: State, after: State) -> None:
    """Raises PromiseError if a call changed what the module shares with others."""
    if changed := next(changes(before, after), None):
        raise PromiseError(
            f"a call{told} changes `{changed}`, which other models in this process share and would "
            "compute something else by",
            help="what is computed once belongs to the module, in a buffer",
        )


def rows(spec: ModelSpec, _registry: Registry) -> None:
    """The rows of a batch do not influence each other, and may be parts of another tensor."""
    driver = hosted(spec)
    driver.rows()
    _check_parts(driver)


def _check_parts(driver: Driver) -> None:
    """Raises PromiseError unless the input may be a part of another tensor, as of more tokens."""
    inputs = driver.inputs()
    parts = tuple(torch.cat([t[:, :1], t], 1)[:, 1:] for t in inputs)
    for told, way in driver.ways(inputs).items():
        call = f"a call{told} with a part of another tensor"
        help = "`reshape` takes a tensor that is not contiguous, and `view` does not"
        with no_failure(call, help=help):
            found = way(*parts)
        expect_close(f"in {call}", way(*inputs), found)


def determinism(spec: ModelSpec, _registry: Registry) -> None:
    """Spec and seed determine all values and, with the input, the output, independently of the
    number of threads, the random state of torch and earlier calls."""
    with threads(1):
        torch.manual_seed(1)
        first = build(spec)
    with threads(2):
        torch.manual_seed(2)
        again = build(spec)
    expect_equal("in a second build", values_of(first), values_of(again))
    if not isinstance(first, Bare):
        driver = driver_for(spec, first.eval())
        inputs = driver.inputs()
        before = state_of(first)
        kept = tuple(t.clone() for t in inputs)
        one, two = (driver.in_every_way(*inputs) for _ in range(2))
        if not equal(inputs, kept):
            raise PromiseError(
                "a call changes its input, which others read too",
                help="compute new values, `x = x * 2` instead of `x *= 2` or `x.mul_(2)`",
            )
        _expect_nothing_kept("", before, state_of(first))
        _expect_same("", one, two)


def _expect_nothing_kept(told: str, before: State, after: State) -> None:
    """Raises PromiseError if a call changed the attributes of the modules."""
    if changed := next(changes(before, after), None):
        help = "what belongs to the tokens before goes into the `cache` that is passed"
        if changed.endswith(".auxiliary_loss"):
            help = "`__init__` sets it to None, and `forward` too unless `self.training`"
        raise PromiseError(
            f"a call{told} leaves another `{changed}` behind: a module keeps nothing of a call, "
            "since several generations may use it at once",
            help=help,
        )


def _expect_same(told: str, one: Tensors, two: Tensors) -> None:
    """Raises PromiseError unless two calls gave the same."""
    if not equal(one, two):
        raise PromiseError(
            f"a second call{told} with the same input gives another output",
            help="randomness, as of dropout, is for training: ask `self.training`; and a module "
            "keeps nothing of a call",
        )


def saving(spec: ModelSpec, registry: Registry) -> None:
    """The full form and the weights file restore the same model, and so does a copy."""
    again = read_spec(spec.to_toml(), registry=registry)
    if again.to_dict() != spec.to_dict():
        raise PromiseError("the full form of the spec, read again, is another spec")
    model = build(spec).eval()
    with tempfile.TemporaryDirectory() as folder:
        save(model, folder)
        loaded = load(folder, registry=registry).eval()
    expect_equal("when it is loaded again", values_of(model), values_of(loaded))
    if not isinstance(model, Bare):
        drivers = driver_for(spec, model), driver_for(spec, loaded)
        inputs = drivers[0].inputs()
        one, other = (driver.in_every_way(*inputs) for driver in drivers)
        if not equal(one, other):
            raise PromiseError(
                "the model that is loaded again has another output",
                help="what decides it is a field or a tensor; `build` draws nothing at random",
            )
        _check_copy(drivers[0], inputs, one)


def _check_copy(driver: Driver, inputs: Tensors, expected: Tensors) -> None:
    """Raises PromiseError unless a copy of the model gives the same when the model has changed."""
    with no_failure("`copy.deepcopy` of the model", help="a module holds tensors and plain values"):
        copied = driver_for(driver.spec, deepcopy(driver.model))
    for tensor in values_of(driver.model).values():
        tensor.detach().zero_()
    if not equal(expected, copied.in_every_way(*inputs)):
        raise PromiseError(
            "a copy of the model by `copy.deepcopy` computes with tensors of the model that it was "
            "copied from",
            help="a function that a module keeps, such as a lambda, is not copied: what reads the "
            "module's tensors is a method",
        )


def devices(spec: ModelSpec, _registry: Registry) -> None:
    """The module makes its tensors on the device of its input. For another device, which need not
    be there, stand tensors without values on meta, which torch refuses to mix with those on the CPU
    as it does for any two devices."""
    model = build_on_meta(spec, torch.float32).eval()
    failure: Exception | None = None
    try:
        _call_on_meta(spec, model)
    except Exception as error:  # also of a module that cannot be called without values
        failure = error
    for name, buffer in model.named_buffers():
        if not buffer.is_meta:
            raise PromiseError(
                f"`{name}` is on {buffer.device}, although `reset_buffers` is called for another "
                "device",
                help="make it there: `torch.arange(n, device=device)`",
            )
    if failure is not None and any(words in str(failure) for words in _MIXED):
        told = describe_failure("a call on another device than the CPU", failure).message
        raise PromiseError(
            told,
            help="make tensors on the device of x: `x.new_ones(...)`, or "
            "`torch.arange(n, device=x.device)`",
        )
    if isinstance(failure, DataDependentOutputException):
        raise PromiseError(
            describe_failure("a call with tensors that have no values", failure).message,
            help="compute with the tensor, as by `torch.where`: `item()` waits for a GPU, and "
            "`zoo show --flops` calls the module with tensors that have no values",
        )


def _call_on_meta(spec: ModelSpec, model: Transformer) -> None:
    """Compute the tables of a meta-built model, and call it."""
    other = torch.device("meta")
    for module in model.modules():
        if hasattr(module, "reset_buffers"):
            module.reset_buffers(device=other)  # type: ignore[operator]
    driver = driver_for(spec, model)
    inputs = tuple(t.to(other) for t in driver.inputs())
    with FakeTensorMode(allow_non_fake_inputs=True):  # finds what meta alone lets pass
        every(driver.traced_ways(inputs))(*inputs)


def compiles(spec: ModelSpec, _registry: Registry) -> None:
    """`torch.compile` compiles the module to one graph, whose output is the same."""
    driver = hosted(spec)
    inputs = driver.inputs()
    torch._dynamo.reset()
    call = every(driver.traced_ways(inputs))
    compiled = torch.compile(call, backend="eager", fullgraph=True)
    try:
        with _quiet():
            output = compiled(*inputs)
    except Exception as error:
        lines = [line.strip() for line in str(error).split("\n") if line.strip()]
        raise PromiseError("torch.compile breaks the graph: " + "\n".join(lines[:4])) from None
    expect_close("when compiled", call(*inputs), output)


def tokens(spec: ModelSpec, _registry: Registry) -> None:
    """The output for a token depends only on that token, for inputs of any shape."""
    hosted(spec).tokens()


def positions(spec: ModelSpec, _registry: Registry) -> None:
    """The rotation and bias of a position scheme are applied, or refused."""
    hosted(spec).positioned()


def cache(spec: ModelSpec, _registry: Registry) -> None:
    """A module that is declared incremental gives the same output token by token, and its cache has
    the stated size. In bfloat16 it can be called too, where a state is in float32. A call leaves
    nothing behind elsewhere."""
    _check_what_is_kept(hosted(spec))
    hosted(spec).continues()
    driver = hosted(spec, torch.bfloat16)
    outputs_of(driver, driver.with_cache, " with a `cache`")


def _check_what_is_kept(driver: Driver) -> None:
    """Raises PromiseError if calls with a cache change the module, or what it shares."""
    inputs = driver.inputs()
    before, shared = state_of(driver.model), shared_state(driver.model)
    told = " with a `cache`"
    try:
        one, two = (driver.with_cache(*inputs) for _ in range(2))
    except Exception:
        return  # `continues` tells why
    _expect_nothing_kept(told, before, state_of(driver.model))
    _expect_nothing_shared(told, shared, shared_state(driver.model))
    _expect_same(told, one, two)


def masks(spec: ModelSpec, registry: Registry) -> None:
    """Masked inputs do not change the output, and a query that sees nothing does not give NaN."""
    leaks = list(hosted(spec).leaks())
    if not leaks and (isinstance(spec.model, BlockHost) or not isinstance(spec.model, Host)):
        leaks = list(leaks_of_parts(spec, registry))
    if leaks:
        message = "\n".join(leaks)
        raise PromiseError(message, help=None if "\nhelp: " in message else _HIDING)


def nothing(spec: ModelSpec, _registry: Registry) -> None:
    """A branch that is not there adds 0 in a block that does not leave it out."""
    driver = hosted(spec)
    if bool(driver(*driver.inputs())[0].any()):
        raise PromiseError(
            "the output is not 0, and the description says `absent = True`, by which a block "
            "leaves the branch out"
        )


_OF_ALL: Mapping[str, Promise] = {"saving": saving}
_OF_MODULES: Mapping[str, Promise] = {
    **_OF_ALL,
    "modes": modes,
    "gradients": gradients,
    "precision": precision,
    "devices": devices,
    "compiles": compiles,
}
_WITH_MASKS: Mapping[str, Promise] = {**_OF_MODULES, "masks": masks}
_BY_TOKEN: Mapping[str, Promise] = {**_OF_MODULES, "tokens": tokens}
_ATTENDING: Mapping[str, Promise] = {**_WITH_MASKS, "positions": positions, "cache": cache}

PROMISES: Mapping[str, Mapping[str, Promise]] = {
    "builder": {**_WITH_MASKS, "cache": cache, "branches": branches, "declared": declared},
    "block": {**_ATTENDING, "branches": branches, "declared": declared},
    "attention": _ATTENDING,
    "ffn": _BY_TOKEN,
    "norm": _BY_TOKEN,
    "position": _OF_MODULES,
    "embedding": {**_WITH_MASKS, "tokens": tokens},
    "head": {**_WITH_MASKS, "tokens": tokens},
    "init": _OF_ALL,
}
"""The promises of each slot, in addition to the checks of the pipeline."""


def promises_of(cls: type[Plugin], slot: str) -> dict[str, Promise]:
    """Return the promises of a component in a slot. A branch that is not there has an output that
    depends on nothing."""
    promises = dict(PROMISES[slot])
    if issubclass(cls, Sublayer) and cls.absent:
        del promises["gradients"], promises["precision"]
        promises["nothing"] = nothing
    return promises


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Set the number of threads of torch in a `with` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Let torch's compiler log and warn of nothing in a `with` block: what it raises says all."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
