"""The promises of a plugin that are checked before its module is called: what its fields are, and
what tensors the module has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from enum import Enum
from typing import Annotated, Any, TypeVar, get_args, is_typeddict

import torch
from pydantic import BaseModel, TypeAdapter, ValidationError
from torch import nn

from zoo.building import build_on_meta
from zoo.component import GIVEN, Part, fields_of
from zoo.plugin_kit.report import PromiseError
from zoo.plugin_kit.state import in_collections, plain_tensors, values_of
from zoo.registry import Registry
from zoo.slots import Plugin
from zoo.spec import ModelSpec
from zoo.validating.value_errors import value_message


def schema(cls: type[Plugin]) -> None:
    """The type of each field has a JSON Schema."""
    for name, mark in fields_of(cls).items():
        if mark is GIVEN or isinstance(mark, Part):
            continue
        field = cls.model_fields[name]
        described: Any = field.annotation
        if isinstance(described, TypeVar):  # of a bare `Shared`
            raise PromiseError(f"`{name}` has no type", help=f"such as `{mark}[Size]`")
        _check_type(name, described)
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
            _check_default(name, values, field.default)


def _check_type(name: str, described: Any) -> None:
    """Raises PromiseError for the type of a field that a spec does not hold, or that says too
    little."""
    if choice := _first_in(described, _is_enum):
        raise PromiseError(
            f"the type of `{name}` is the enum {choice.__name__}, and a spec holds words",
            help=f"a choice is a `Literal[{', '.join(repr(c.value) for c in choice)}]`",
        )
    if table := _first_in(described, _is_table):
        raise PromiseError(
            f"the type of `{name}` holds {table.__name__}, which is no component, and a table "
            "of a spec is one",
            help=f"derive {table.__name__} from `zoo.component.Component`, "
            f"and write `{name}: Annotated[{table.__name__}, Part()]`; several are several "
            "fields",
        )
    if _first_in(described, lambda one: one is Any or one is object):
        raise PromiseError(
            f"the type of `{name}` takes anything, and a spec does not hold everything",
            help="name the types that it takes, such as `int | str`",
        )
    if _first_in(described, lambda one: one is tuple):
        raise PromiseError(
            f"the type of `{name}` is a tuple of anything",
            help="state what it holds: `tuple[int, ...]` for any number, `tuple[int, int]` for two",
        )


def _first_in(described: Any, test: Callable[[Any], bool]) -> Any:
    """Return the first of the types that a type is made of which passes a test, or None."""
    if test(described):
        return described
    return next((f for inner in get_args(described) if (f := _first_in(inner, test))), None)


def _is_enum(described: Any) -> bool:
    return isinstance(described, type) and issubclass(described, Enum)


def _is_table(described: Any) -> bool:
    """Whether its values have fields with names; those of components are in `Part` and `Slot`."""
    if not isinstance(described, type):
        return False
    return issubclass(described, BaseModel) or is_dataclass(described) or is_typeddict(described)


def _check_default(name: str, values: TypeAdapter[Any], default: Any) -> None:
    """Raises PromiseError unless the default of a field is a valid value.

    pydantic does not validate defaults: an invalid one would only be found when a stored spec,
    which states it, is read again.
    """
    try:
        values.validate_python(default)
    except ValidationError as error:
        told = value_message(*error.errors(include_url=False))
        raise PromiseError(f"the default of `{name}` {told}") from None


def meta(spec: ModelSpec, _registry: Registry) -> None:
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
            "it would have no values and stay on its device",
            help=f'register_buffer("{name.rpartition(".")[2]}", ..., persistent=False), and '
            "compute it in `reset_buffers(self, *, device)`",
        )
    for name in in_collections(model, torch.Tensor, values_of(model).values()):
        raise PromiseError(
            f"`{name}` holds tensors that torch knows nothing of, so they would have no values",
            help="an nn.ParameterList or an nn.ParameterDict makes parameters known; what is "
            "computed is a buffer",
        )
    for name in in_collections(model, nn.Module, model.modules()):
        raise PromiseError(
            f"`{name}` holds modules that torch knows nothing of, so they would have no values",
            help="an nn.ModuleList or an nn.ModuleDict makes them known",
        )


def layout(spec: ModelSpec, _registry: Registry) -> None:
    """The layout states the names, shapes and kinds of the tensors of the module, and thereby its
    number of parameters, where those start that the module sets to a number, and the number of
    elements of the buffers that are not stored."""
    model = build_on_meta(spec, torch.float32)
    _check_tables(model)
    stored = model.state_dict().keys()
    tables = {name: table for name, table in model.named_buffers() if name not in stored}
    n_elements = sum(table.numel() for table in tables.values())
    if n_elements != spec.layout.n_computed:
        raise PromiseError(
            f"the buffers that are not stored ({', '.join(tables) or 'none'}) have {n_elements} "
            f"elements, and `computed` of the layout says {spec.layout.n_computed}"
        )
    for name in _drawn(spec):
        raise PromiseError(
            f"the module draws `{name}` at random itself, which has no effect: it starts as the "
            f"layout says, by its role ({spec.tensors[name].role})",
            help="leave the start to the layout by `torch.empty`; an `init` of the spec draws it",
        )
    set_to = _constants(spec)
    for name, tensor in spec.tensors.items():
        value = set_to.get(name)
        # A bias of 0 is what `nn.LayerNorm` and the like begin with; inits know that.
        if value is None or (value == 0.0 and tensor.role == "bias"):
            continue
        if tensor.role != "constant" or value != float(torch.tensor(tensor.value)):
            told = f"{tensor.role}, {tensor.value:g}" if tensor.role == "constant" else tensor.role
            raise PromiseError(
                f"the module sets all of `{name}` to {value:g}, which has no effect: it starts as "
                f"the layout says, by its role ({told})",
                help=f'state `role="constant", value={value:g}` in the layout, or leave the start '
                "to it by `torch.empty`",
            )


def _check_tables(model: nn.Module) -> None:
    """Raises PromiseError for a table with an option of `nn.Embedding` that changes how it learns,
    which neither the layout nor a spec says."""
    for name, module in model.named_modules():
        if not isinstance(module, nn.Embedding):
            continue
        if module.padding_idx is not None:
            raise PromiseError(
                f"`{name}` has `padding_idx={module.padding_idx}`: the vector of this id never "
                "learns, and starts as those of the others",
                help="leave it out; what is padding, the mask says",
            )
        if module.sparse:
            raise PromiseError(
                f"`{name}` has `sparse=True`, and training takes dense gradients alone",
                help="leave it out",
            )


def _drawn(spec: ModelSpec) -> list[str]:
    """Return the parameters that the module itself draws at random, other than by the layers of
    torch, which draw theirs whenever they are made."""
    with torch.random.fork_rng(devices=[]), _filled_with_nan(), _layers_without_start():
        builds = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            builds.append(_parameters(spec))
    one, other = builds
    return [
        name for name, t in one.items() if not torch.equal(t.nan_to_num(), other[name].nan_to_num())
    ]


def _constants(spec: ModelSpec) -> dict[str, float]:
    """Return the parameters that the module itself sets to one number, with the number."""
    with _filled_with_nan():
        one, other = _constants_of_a_build(spec), _constants_of_a_build(spec)
    # A single element that is drawn, as by `nn.Linear`, is another number each time.
    return {name: value for name, value in one.items() if other.get(name) == value}


@contextmanager
def _filled_with_nan() -> Iterator[None]:
    """Make `torch.empty` NaN in a `with` block."""
    # `torch.use_deterministic_algorithms` would import a compiler, for more than a second.
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


@contextmanager
def _layers_without_start() -> Iterator[None]:
    """Let the layers of torch leave their tensors as `torch.empty` made them in a `with` block."""
    layers = [layer for layer in vars(nn.modules).values() if isinstance(layer, type)]
    owners = dict.fromkeys(owner for layer in layers for owner in layer.__mro__)
    starts = ("reset_parameters", "_reset_parameters")
    before = [(o, name, vars(o)[name]) for o in owners for name in starts if name in vars(o)]
    for layer, name, _ in before:
        setattr(layer, name, lambda self: None)
    try:
        yield
    finally:
        for layer, name, method in before:
            setattr(layer, name, method)


def _constants_of_a_build(spec: ModelSpec) -> dict[str, float]:
    flat = {name: tensor.flatten() for name, tensor in _parameters(spec).items()}
    return {name: float(t[0]) for name, t in flat.items() if len(t) and bool((t == t[0]).all())}


def _parameters(spec: ModelSpec) -> dict[str, torch.Tensor]:
    """Build the module on the CPU, and return its parameters as it starts them."""
    with torch.device("cpu"):
        model = spec.model.build()
    return {name: tensor.detach() for name, tensor in model.named_parameters()}
