"""Component descriptions: frozen pydantic models whose fields state where their values come from.

The value of a field is written in the component's own table. Three marks change that:

- `Shared[T]`: stated in this table or in any enclosing one; the nearest value counts.
- `Given[T]`: a dimension that the parent passes. It cannot be written in a spec, and is not stored.
- `Annotated[Norm, Slot("norm", width="d_model")]`: another component, picked by its `kind`. The
  keywords say which of the parent's fields become which `Given` fields of the child; fields of
  the same name are given without being listed. `Part` is the same with the class known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, wraps
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationInfo
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic_core import PydanticCustomError, core_schema

from zoo.errors import PluginError
from zoo.field_rules import check_bound, check_names, check_types, exact_choices, undefined_type
from zoo.layout import Layout
from zoo.registering.plugin_errors import MEND, plugin_code
from zoo.registering.returned import checked
from zoo.wording import quoted

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")


class _Mark:
    """A mark without data; identity is its meaning."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


SHARED = _Mark("Shared")
GIVEN = _Mark("Given")
FAILED = _Mark("FAILED")
"""The value of a dimension or a component that is wrong itself; no field takes it."""

Shared = Annotated[T, SHARED]
Given = Annotated[T, GIVEN]

Size = Annotated[int, Field(ge=1)]
"""A count or a width: an integer of at least 1."""
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
"""The share of elements that dropout zeroes: from 0 up to, not including, 1."""
PositiveFloat = Annotated[float, Field(gt=0.0)]


class ChildValidator(Protocol):
    """What validates a child on behalf of its parent; `zoo.validate` passes one as the context."""

    def child(self, value: Any, given: Mapping[str, Any]) -> Component | None: ...

    def without_effect(self, name: str, reason: str) -> None:
        """Record that this field of the validated component has no effect."""


class Part:
    """Marks a field as a nested component. `given` maps the child's `Given` names to the parent's
    fields, a dotted name reaching into an earlier child (`n_heads="block.n_heads"`)."""

    def __init__(self, **given: str) -> None:
        self.given = given

    @property
    def sources(self) -> Mapping[str, str]:
        """The fields of the parent that it reads, by the names that they are passed as."""
        return self.given

    def held_in(self, cls: type[Component], name: str) -> type[Component]:
        """Return the class of the component in a field with this mark.

        Raises:
            TypeError: the type of the field is not one class of components.
        """
        part = cls.model_fields[name].annotation
        if isinstance(part, type) and issubclass(part, Component):
            return part
        raise TypeError(
            f"the field `{name}` of {cls.__name__} is a part, and not of one class of components; "
            "what may be absent, or of several kinds, is a `Slot`"
        )

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(self._validate)

    def _validate(self, value: Any, info: ValidationInfo) -> Any:
        if value is None or isinstance(value, Component):
            return value
        validator: ChildValidator | None = info.context
        if validator is None:
            raise ValueError("a component, not a table, is expected here")
        given = dict(info.data)
        for name, source in self.given.items():
            first, *rest = source.split(".")
            given[name] = FAILED
            if first in info.data:
                found = info.data[first]
                with plugin_code(f"reading `{source}`"):
                    for attribute in rest:
                        found = getattr(found, attribute)
                given[name] = found
        return validator.child(value, given)


class Slot(Part):
    """Marks a field as a component that the spec picks by `kind` among the plugins of slot `slot`.

    Args:
        slot: the registry's name of the slot.
        default: the kind when no table names one; without it, the registry's default for the slot.
        inherit: whether enclosing tables may fill it (`norm = "rms_norm"` at the top of a spec
            fills every inheriting slot `norm`).
        needs: the field is absent unless an enclosing component passes this dimension.
    """

    def __init__(
        self,
        slot: str,
        /,
        *,
        default: str | None = None,
        inherit: bool = True,
        needs: str | None = None,
        **given: str,
    ) -> None:
        super().__init__(**given)
        self.slot = slot
        self.default = default
        self.inherit = inherit
        self.needs = needs

    def held_in(self, cls: type[Component], name: str) -> type[Component]:
        """Return the class of the slot; the field may be None too. Raises as that of `Part`."""
        annotation = cls.model_fields[name].annotation
        parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
        kinds = [one for one in parts or (annotation,) if one is not type(None)]
        if len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], Component):
            return kinds[0]
        raise TypeError(
            f"the field `{name}` of {cls.__name__} is a slot, which holds one component, and its "
            "type is not one class of components: write `Annotated[Norm, Slot(...)]`, or "
            "`Norm | None` in it; several components are several fields"
        )


class LayerRules(Part):
    """Marks a field as the rules for single layers: a tuple of components of class `group`, one for
    each set of layers to which the same rules apply. In a spec it is a list of tables, each with a
    selector (`zoo.resolving.layer_rules`) and the differing values; later rules have priority.
    `count` names the field with the number of layers; the field `at` of a group gets the numbers of
    its own."""

    def __init__(self, group: type[Component], /, *, count: str, **given: str) -> None:
        super().__init__(**given)
        self.group = group
        self.count = count

    def held_in(self, cls: type[Component], name: str) -> type[Component]:
        """Return the class of the rules."""
        return self.group

    @property
    def sources(self) -> Mapping[str, str]:
        """As for a `Part`, with the field that holds the number of layers."""
        return {**self.given, "count": self.count}

    def _validate(self, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, list | tuple):
            return super()._validate(value, info)
        found: list[Any] = []
        failed: PydanticCustomError | None = None
        for item in value:  # all of them, so that all problems are found
            try:
                found.append(super()._validate(item, info))
            except PydanticCustomError as error:
                failed = error
        if failed is not None:
            raise failed
        return tuple(found)


_completed_late: set[type[Component]] = set()
"""The classes whose fields could not be checked when they were made."""


class Component(BaseModel):
    """A description of one module: its configuration, its tensors, and how to build it.

    Importing a description never imports torch; `build` does.
    """

    # Built on first use: a command validates few of the classes that it imports, and every command
    # pays for the start.
    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,
    )

    @property
    def _builds(self) -> str:
        """The full name of the class of the modules that `build` returns."""
        return "torch.nn.Module"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            raise TypeError(
                f"the description {cls.__name__} has an `__init__`: its values are its fields, "
                "and what follows from them is a property"
            )
        check_names(cls)
        for name in ("build", "layout"):
            if not callable(vars(cls).get(name, check_names)):
                what = f"a {type(vars(cls)[name]).__name__}"
                raise TypeError(f"`{name}` of {cls.__name__} is {what}: write `def {name}(self)`")
        if "build" in vars(cls):
            cls.build = checked(cls.build, lambda made_by: made_by._builds)  # type: ignore[method-assign]
        if "layout" in vars(cls):
            cls.layout = _names_itself(cls.layout)  # type: ignore[method-assign]

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        schema: core_schema.CoreSchema = exact_choices(handler(source))
        return schema

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if cls.__pydantic_fields_complete__:  # else a type may be defined further below
            cls._check_fields()

    @classmethod
    def _check_fields(cls) -> None:
        """Raise `TypeError` for a field that no spec can state."""
        for name, field in cls.model_fields.items():
            if field.alias or field.validation_alias:
                raise TypeError(
                    f"the field `{name}` of {cls.__name__} has an alias, and the key of a spec is "
                    "the field's name: name the field so"
                )
        marks = fields_of(cls).items()
        bound = {name: mark.sources if isinstance(mark, Part) else None for name, mark in marks}
        check_types(cls, bound, Component)
        for name, mark in marks:
            if isinstance(mark, Part) and name in vars(cls).get("__annotations__", {}):
                what = f"the field `{name}` of {cls.__name__}"
                check_bound(what, mark.given, mark.held_in(cls, name), GIVEN)

    @classmethod
    def complete_fields(cls) -> None:
        """Find the types of the fields that were not defined yet when the class was made.

        Raises:
            PluginError: a type is not defined in the file at all, or no spec can state it.
        """
        if not cls.__pydantic_fields_complete__:
            try:
                cls.model_rebuild()
            except PydanticUndefinedAnnotation as error:
                raise PluginError(undefined_type(cls, error.name or "")) from None
            _completed_late.add(cls)
        if cls not in _completed_late:
            return
        try:
            cls._check_fields()
        except TypeError as error:
            raise PluginError(str(error), help=MEND) from None

    def layout(self) -> Layout:
        """The tensors of the module that `build` returns, without building it."""
        return Layout(component=self)

    def build(self) -> nn.Module:
        """The module, on torch's current default device. Its tensors are filled afterwards."""
        raise self._lacks("build")

    def _lacks(self, method: str) -> PluginError:
        """Return the error for a method that a description does not define and that is called."""
        return PluginError(f"{self.named()} has no method `{method}`", help=MEND)

    def named(self) -> str:
        """Return its name for messages."""
        return type(self).__name__

    def dump(self) -> dict[str, Any]:
        """Return the values as plain data, with defaults, without the parent's dimensions."""
        data: dict[str, Any] = {}
        for name, marks in fields_of(type(self)).items():
            value = getattr(self, name)
            if marks is not GIVEN and value is not None:
                data[name] = _plain(value, name, type(self))
        return data


def _names_itself(layout: Callable[..., Any]) -> Callable[..., Layout]:
    """Wrap the `layout` of a description so that the layout refers to its description, and `zoo
    show` can describe it wherever a parent puts it. It raises `PluginError` if the method fails or
    does not return a `Layout`."""
    returned = checked(layout, lambda _: "zoo.layout.Layout")

    @wraps(layout)
    def named(component: Component) -> Layout:
        made: Layout = returned(component)
        return replace(made, component=component)

    return named


def _plain(value: Any, name: str, cls: type[Component]) -> Any:
    if isinstance(value, Component):
        return value.dump()
    if isinstance(value, tuple):
        return [_plain(item, name, cls) for item in value]
    if type(value) not in (bool, int, float, str):
        what = f"{quoted(value)}, a {type(value).__name__}"
        raise TypeError(f"the field `{name}` of {cls.__name__} is {what}, which no spec can hold")
    return value


@cache
def fields_of(cls: type[Component]) -> dict[str, _Mark | Part | None]:
    """Return the fields of a description in order, each with its mark."""
    found: dict[str, _Mark | Part | None] = {}
    for name, field in cls.model_fields.items():
        marks = [mark for mark in field.metadata if isinstance(mark, _Mark | Part)]
        found[name] = marks[0] if marks else None
    return found


@cache
def layer_rules_of(cls: type[Component]) -> LayerRules | None:
    """Return the mark of the field with the rules for single layers, if a description has one."""
    return next((mark for mark in fields_of(cls).values() if isinstance(mark, LayerRules)), None)


def given_of(cls: type[Component]) -> set[str]:
    """Return the names of the dimensions that a description gets from its parent."""
    return {name for name, mark in fields_of(cls).items() if mark is GIVEN}


def missing_dimension(name: str, otherwise: str = "") -> PydanticCustomError:
    """Return an error for a dimension that the parent gives as None and this component needs. Raise
    it in a pydantic validator.

    The user is told the key of the spec that the dimension comes from. `otherwise` completes the
    help `add ..., or`: what to write instead.
    """
    context = {"name": name, "otherwise": otherwise}
    return PydanticCustomError("missing_dimension", "the dimension `{name}` is missing", context)


def contradiction(message: str, *keys: str) -> PydanticCustomError:
    """Return an error for keys that contradict each other. Raise it in a pydantic validator.

    The place of each key is shown, wherever it is written: in the component's own table, in an
    enclosing one, or where the parent got the dimension from. A key with dots is one of a component
    inside, such as `self_attn.n_heads`, or `layers.0.block.kind` for the first of several. `zoo
    plugin check` finds a key that no component has.
    """
    return PydanticCustomError("contradiction", "{message}", {"message": message, "keys": keys})
