"""The promises of a plugin that are checked before its module is called: what its fields are, and
what tensors the module has."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError

from zoo.building import build_on_meta
from zoo.component import GIVEN, Part, fields_of
from zoo.plugin_kit.driver import PromiseError
from zoo.plugin_kit.state import plain_tensors, unknown_modules, values_of
from zoo.registry import Registry
from zoo.slots import Plugin
from zoo.spec import ModelSpec
from zoo.toml.value_errors import value_message


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
