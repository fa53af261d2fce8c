"""The promises of a plugin, one function each, which raises `PromiseError` if it is broken."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from zoo.building import build, build_on_meta
from zoo.component import GIVEN, Part, fields_of
from zoo.loading import load
from zoo.plugin_kit.branches import branches
from zoo.plugin_kit.driver import Bare, PromiseError, Tensors, close
from zoo.plugin_kit.drivers import driver_for, hosted
from zoo.plugin_kit.state import changes, plain_tensors, state_of, unknown_modules
from zoo.reading import read_spec
from zoo.registering.plugin_errors import describe_failure
from zoo.registry import Registry
from zoo.saving import save
from zoo.slots import Plugin
from zoo.spec import ModelSpec
from zoo.toml.value_errors import value_message
from zoo.transformer import Transformer

Promise = Callable[[ModelSpec, Registry], None]

N_BATCHES = 4
"""Number of batches, in at least one of which each parameter must get a gradient: a router may
skip an expert."""
SAME = 1e-9
"""Tolerance, relative to the largest value, for two ways to compute the same in float64."""
TINY = 1e-12
"""A relative change of the input that float64 resolves and float32 does not."""
FLOAT32_ERROR = 1e-4
"""Tolerance of float32 compared with float64, relative to the largest value."""


def schema(cls: type[Plugin]) -> None:
    """The type of each field has a JSON Schema."""
    for name, mark in fields_of(cls).items():
        if mark is GIVEN or isinstance(mark, Part):
            continue
        field = cls.model_fields[name]
        described: Any = field.annotation
        if isinstance(described, TypeVar):  # of a bare `Shared`
            raise PromiseError(f"`{name}` has no type\nhelp: such as `{mark}[Size]`")
        for metadata in field.metadata:
            described = Annotated[described, metadata]
        try:
            values = TypeAdapter(described, config=cls.model_config)
            values.json_schema()
        except Exception as error:
            message = str(error).split("\n")[0]
            raise PromiseError(f"the type of `{name}` has no JSON Schema: {message}") from None
        unchecked = not (field.validate_default or field.is_required() or field.default_factory)
        if unchecked:
            check_default(name, values, field.default)


def check_default(name: str, values: TypeAdapter[Any], default: Any) -> None:
    """Raises PromiseError unless the default of a field is a valid value.

    pydantic does not validate defaults: an invalid one would only be found when a stored spec,
    which states it, is read again.
    """
    try:
        values.validate_python(default)
    except ValidationError as error:
        told = value_message(*error.errors(include_url=False))
        raise PromiseError(f"the default of `{name}` {told}") from None


def meta(spec: ModelSpec, registry: Registry) -> None:
    """The module can be built on the meta device, without memory for its tensors."""
    with torch.device("meta"):
        model = spec.model.build()
    for name, tensor in values_of(model).items():
        if not tensor.is_meta:
            raise PromiseError(
                f"`{name}` is built on {tensor.device}; leave the device to the caller"
            )
    for name, found in plain_tensors(model):
        raise PromiseError(
            f"`{name}` is a tensor {tuple(found.shape)} and neither a parameter nor a buffer, so "
            "it would have no values and stay on its device\n"
            f'help: register_buffer("{name.rpartition(".")[2]}", ..., persistent=False), and '
            "compute it in `reset_buffers(self, *, device)`"
        )
    for name in unknown_modules(model):
        raise PromiseError(
            f"`{name}` holds modules that torch knows nothing of, so they would have no values\n"
            "help: an nn.ModuleList or an nn.ModuleDict makes them known"
        )


def layout(spec: ModelSpec, registry: Registry) -> None:
    """The layout states the names, shapes and kinds of the tensors of the module, and thereby its
    number of parameters, where those start that the module sets to a number, and the number of
    elements of the buffers that are not stored."""
    model = build_on_meta(spec, torch.float32)
    stored = model.state_dict().keys()
    tables = {name: table for name, table in model.named_buffers() if name not in stored}
    n_elements = sum(table.numel() for table in tables.values())
    if n_elements != spec.layout.n_computed:
        raise PromiseError(
            f"the buffers that are not stored ({', '.join(tables) or 'none'}) have {n_elements} "
            f"elements, and `computed` of the layout says {spec.layout.n_computed}"
        )
    set_to = constants(spec)
    for name, tensor in spec.tensors.items():
        value = set_to.get(name)
        # A bias of 0 is what `nn.LayerNorm` and the like begin with; inits know that.
        if value is None or (value == 0.0 and tensor.role == "bias"):
            continue
        if tensor.role != "constant" or value != float(torch.tensor(tensor.value)):
            told = f"{tensor.role}, {tensor.value:g}" if tensor.role == "constant" else tensor.role
            raise PromiseError(
                f"the module sets all of `{name}` to {value:g}, which has no effect: it starts as "
                f"the layout says, by its role ({told})\n"
                f'help: state `role="constant", value={value:g}` in the layout, or leave the start '
                "to it by `torch.empty`"
            )


def constants(spec: ModelSpec) -> dict[str, float]:
    """Return the parameters that the module itself sets to one number, with the number."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # then `torch.empty` is NaN
    try:
        one, other = _constants_of_a_build(spec), _constants_of_a_build(spec)
    finally:
        torch.use_deterministic_algorithms(before)
    # A single element that is drawn, as by `nn.Linear`, is another number each time.
    return {name: value for name, value in one.items() if other.get(name) == value}


def _constants_of_a_build(spec: ModelSpec) -> dict[str, float]:
    with torch.device("cpu"):
        model = spec.model.build()
    flat = {name: tensor.detach().flatten() for name, tensor in model.named_parameters()}
    return {name: float(t[0]) for name, t in flat.items() if len(t) and bool((t == t[0]).all())}


def interface(spec: ModelSpec, registry: Registry) -> None:
    """The module takes the arguments and returns the values that its slot specifies."""
    driver = hosted(spec, registry, torch.float32)
    inputs = driver.inputs(torch.float32)
    driver.check(inputs)
    module: nn.Module = getattr(driver.model, "part", driver.model)
    if type(module).__call__ is not nn.Module.__call__:
        called: list[nn.Module] = []
        module.register_forward_hook(lambda module, *_: called.append(module))
        driver(*inputs)
        if not called:
            raise PromiseError(
                "the module has a `__call__` of its own, which runs no hooks of torch\n"
                "help: what it computes stands in `forward`"
            )


def determinism(spec: ModelSpec, registry: Registry) -> None:
    """Spec and seed determine all values and, with the input, the output, independently of the
    number of threads, the random state of torch and earlier calls."""
    with threads(1):
        torch.manual_seed(1)
        first = build(spec, registry=registry)
    with threads(2):
        torch.manual_seed(2)
        again = build(spec, registry=registry)
    expect_equal("in a second build", values_of(first), values_of(again))
    if not isinstance(first, Bare):
        driver = driver_for(spec, first.eval())
        inputs = driver.inputs(torch.float32)
        before = state_of(first)
        kept = tuple(t.clone() for t in inputs)
        one, two = driver(*inputs), driver(*inputs)
        if not all(torch.equal(a, b) for a, b in zip(inputs, kept, strict=True)):
            raise PromiseError(
                "a call changes its input, which others read too\n"
                "help: compute new values, `x = x * 2` instead of `x *= 2` or `x.mul_(2)`"
            )
        if changed := next(changes(before, first), None):
            raise PromiseError(
                f"a call leaves another `{changed}` behind: a module keeps nothing of a call, "
                "since several generations may use it at once\n"
                "help: what belongs to the tokens before goes into the `cache` that is passed"
            )
        if not all(torch.equal(a, b) for a, b in zip(one, two, strict=True)):
            raise PromiseError(
                "a second call with the same input gives another output\n"
                "help: randomness, as of dropout, is for training: ask `self.training`"
            )


def saving(spec: ModelSpec, registry: Registry) -> None:
    """The full form and the weights file restore the same model."""
    again = read_spec(spec.to_toml(), registry=registry)
    if again.to_dict() != spec.to_dict():
        raise PromiseError("the full form of the spec, read again, is another spec")
    model = build(spec, registry=registry).eval()
    with tempfile.TemporaryDirectory() as folder:
        save(model, folder)
        loaded = load(folder, registry=registry).eval()
    expect_equal("when it is loaded again", values_of(model), values_of(loaded))
    if not isinstance(model, Bare):
        inputs = driver_for(spec, model).inputs(torch.float32)
        pairs = zip(
            driver_for(spec, model)(*inputs), driver_for(spec, loaded)(*inputs), strict=True
        )
        if not all(torch.equal(a, b) for a, b in pairs):
            raise PromiseError(
                "the model that is loaded again has another output\n"
                "help: what decides it is a field or a tensor; `build` draws nothing at random"
            )


def modes(spec: ModelSpec, registry: Registry) -> None:
    """Without dropout, the outputs in training and evaluation mode and under `no_grad` are equal,
    unless the module keeps statistics of its batches."""
    driver = hosted(spec, registry, torch.float64)
    inputs = driver.inputs(torch.float64)
    evaluated = driver(*inputs)
    with torch.no_grad():
        expect_close("under `no_grad`", evaluated, driver(*inputs))
    before = {name: tensor.clone() for name, tensor in driver.model.named_buffers()}
    driver.model.train()
    trained = driver(*inputs)
    stored = driver.model.state_dict().keys()
    for name, tensor in driver.model.named_buffers():
        if name not in stored and not torch.equal(tensor, before[name]):
            raise PromiseError(
                f"a call in training changes `{name}`, which is not stored: a model that is loaded "
                "would compute something else\n"
                "help: register it as a stored buffer, and state it in the layout by `buffer=True`"
            )
    if all(torch.equal(tensor, before[name]) for name, tensor in driver.model.named_buffers()):
        expect_close(
            "in training mode than in evaluation, without dropout",
            evaluated,
            trained,
            hint="\nhelp: what is random in training is off by default, or belongs to a field with "
            "`dropout` in its name, which is 0 here",
        )


def gradients(spec: ModelSpec, registry: Registry) -> None:
    """The output has a finite gradient with respect to every parameter and input vector."""
    driver = hosted(spec, registry, torch.float64)
    model = driver.model
    model.train()
    random = torch.Generator().manual_seed(1)
    by_name = dict(model.named_parameters())
    reached: set[str] = set()
    for seed in range(N_BATCHES):
        inputs = driver.inputs(torch.float64, seed)
        for name, tensor in zip(driver.names, inputs, strict=False):
            if tensor.is_floating_point():
                by_name[f"the input {name}"] = tensor.requires_grad_()
        model.zero_grad(set_to_none=True)
        total = torch.zeros((), dtype=torch.float64)
        for output in driver(*inputs):
            if output.is_floating_point():
                weights = torch.randn(output.shape, generator=random, dtype=torch.float64)
                total = total + (output * weights).sum()
        if total.requires_grad:
            total.backward()  # type: ignore[no-untyped-call]
        for name, tensor in by_name.items():
            if tensor.grad is not None and bool(tensor.grad.any()):
                reached.add(name)
                if not bool(tensor.grad.isfinite().all()):
                    raise PromiseError(f"the gradient of `{name}` is not finite")
    left = [name for name, t in by_name.items() if t.requires_grad and name not in reached]
    if left:
        raise PromiseError(f"no gradient reaches {', '.join(left)}")


def precision(spec: ModelSpec, registry: Registry) -> None:
    """The outputs in float32 and float64 are equal up to rounding and have the dtype of the module,
    which can also be called in bfloat16."""
    found: list[Tensors] = []
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        driver = hosted(spec, registry, dtype)
        try:
            found.append(driver(*driver.inputs(dtype)))
        except RuntimeError as error:
            told = describe_failure(f"a call in {dtype}", error).message
            raise PromiseError(
                f"{told}\nhelp: make tensors in the dtype of x, such as `x.new_ones(...)`"
            ) from None
        for output in found[-1]:
            if output.is_floating_point() and output.dtype != dtype:
                raise PromiseError(
                    f"a model in {dtype} puts out {output.dtype}\n"
                    "help: make tensors in the dtype of x, such as `x.new_ones(...)`; what is "
                    "computed in float32 goes back by `.to(x.dtype)`"
                )
            if not bool(output.isfinite().all()):
                raise PromiseError(f"the output of a model in {dtype} is not finite")
    expect_close("in float32", found[2], tuple(t.double() for t in found[1]), FLOAT32_ERROR)
    nudged = tuple(t * (1 + TINY) if t.is_floating_point() else t for t in driver.inputs(dtype))
    pairs = zip(found[2], driver(*nudged), strict=True)
    if nudged[0].is_floating_point() and all(torch.equal(a, b) for a, b in pairs):
        raise PromiseError("a model in float64 rounds to a narrower dtype inside")


def compiles(spec: ModelSpec, registry: Registry) -> None:
    """`torch.compile` compiles the module to one graph, whose output is the same."""
    driver = hosted(spec, registry, torch.float64)
    inputs = driver.inputs(torch.float64)
    torch._dynamo.reset()
    compiled = torch.compile(driver.__call__, backend="eager", fullgraph=True)
    try:
        output = compiled(*inputs)
    except Exception as error:
        lines = [line.strip() for line in str(error).split("\n") if line.strip()]
        raise PromiseError("torch.compile breaks the graph: " + "\n".join(lines[:4])) from None
    expect_close("when compiled", driver(*inputs), output)


def tokens(spec: ModelSpec, registry: Registry) -> None:
    """The output for a token depends only on that token, for inputs of any shape."""
    hosted(spec, registry, torch.float64).tokens()


def positions(spec: ModelSpec, registry: Registry) -> None:
    """The rotation and bias of a position scheme are applied, or refused."""
    hosted(spec, registry, torch.float64).positioned()


def cache(spec: ModelSpec, registry: Registry) -> None:
    """A module that is declared incremental gives the same output token by token, and its cache has
    the stated size."""
    hosted(spec, registry, torch.float64).continues()


def masks(spec: ModelSpec, registry: Registry) -> None:
    """Masked inputs do not change the output, and a query that sees nothing does not give NaN."""
    leaks = list(hosted(spec, registry, torch.float64).leaks())
    if leaks:
        raise PromiseError("\n".join(leaks))


_OF_ALL: Mapping[str, Promise] = {"saving": saving}
_OF_MODULES: Mapping[str, Promise] = {
    **_OF_ALL,
    "modes": modes,
    "gradients": gradients,
    "precision": precision,
    "compiles": compiles,
}
_WITH_MASKS: Mapping[str, Promise] = {**_OF_MODULES, "masks": masks}
_BY_TOKEN: Mapping[str, Promise] = {**_OF_MODULES, "tokens": tokens}
_ATTENDING: Mapping[str, Promise] = {**_WITH_MASKS, "positions": positions, "cache": cache}

PROMISES: Mapping[str, Mapping[str, Promise]] = {
    "builder": {**_WITH_MASKS, "cache": cache},
    "block": {**_ATTENDING, "branches": branches},
    "attention": _ATTENDING,
    "ffn": _BY_TOKEN,
    "norm": _BY_TOKEN,
    "position": _OF_MODULES,
    "embedding": {**_WITH_MASKS, "tokens": tokens},
    "head": {**_WITH_MASKS, "tokens": tokens},
    "init": _OF_ALL,
}
"""The promises of each slot, in addition to the checks of the pipeline."""


def values_of(model: Transformer) -> dict[str, torch.Tensor]:
    """Return the parameters and all buffers, including those that are not stored."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Set the number of threads of torch in a `with` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def expect_equal(
    when: str, first: Mapping[str, torch.Tensor], again: Mapping[str, torch.Tensor]
) -> None:
    """Raises PromiseError unless all tensors are equal."""
    changed = [name for name in first if not torch.equal(first[name], again[name])]
    if changed:
        raise PromiseError(f"`{changed[0]}` has other values {when}")


def expect_close(
    when: str, expected: Tensors, found: Tensors, tolerance: float = SAME, *, hint: str = ""
) -> None:
    """Raises PromiseError unless the outputs are equal within the tolerance."""
    for a, b in zip(expected, found, strict=True):
        if not close(b, a, tolerance):
            raise PromiseError(
                f"the output is another {when} (largest difference {gap(a, b)}){hint}"
            )


def gap(a: torch.Tensor, b: torch.Tensor) -> str:
    """Return the largest difference, for a message."""
    return f"{float((a - b).detach().abs().max()):.1e}" if a.shape == b.shape else "in shape"
