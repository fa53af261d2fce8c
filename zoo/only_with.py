"""Fields that have an effect only with certain values of another field.

Where such a field has no effect, its value is None and it is left out of the resolved spec, so that
two specs of the same model have the same digest. A spec may state it there only if it has an effect
elsewhere: a rule that switches a feature off in some layers need not remove the settings that the
stack states for that feature.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import Field, GetCoreSchemaHandler, ValidationInfo
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from zoo.component import ChildValidator

T = TypeVar("T")

UNSTATED: Any = Field(default=None, validate_default=True)
"""The default of every optional field with one of the marks below: `= UNSTATED`."""


class OnlyWith:
    """Mark an optional field that has an effect only if the field `key`, declared before it, has
    one of `values`. Then it is `default` unless stated; otherwise it is None. If `key` holds a
    component, its kind is compared. `because` replaces the reason made from the values."""

    def __init__(
        self, key: str, *values: object, default: object = None, because: str = ""
    ) -> None:
        self.key = key
        self.values = values
        self.default = default
        self.because = because

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.with_info_after_validator_function(self._check, handler(source))

    def counts(self, other: object) -> bool:
        """Return whether the field has an effect with this value of the other field."""
        return other in self.values

    def reason(self, other: object) -> str:
        """Return why it has no effect with this value, for a message."""
        wanted = " or ".join(f"`{self.key} = {_toml(allowed)}`" for allowed in self.values)
        return f"goes with {wanted}, not `{self.key} = {_toml(other)}`"

    def _check(self, value: Any, info: ValidationInfo) -> Any:
        if self.key not in info.data:  # that field is wrong, which is reported on its own
            return value
        other = info.data[self.key]
        other = getattr(other, "kind", other)
        if self.counts(other):
            return self.default if value is None else value
        if value is not None:
            reason = self.because or self.reason(other)
            validator: ChildValidator | None = info.context
            if validator is None or info.field_name is None:
                raise ValueError(reason)
            validator.without_effect(info.field_name, reason)
        return None


class NotWith(OnlyWith):
    """Mark an optional field that has an effect unless the field `key` has one of `values`."""

    def counts(self, other: object) -> bool:
        return other not in self.values

    def reason(self, other: object) -> str:
        return f"changes nothing beside `{self.key} = {_toml(other)}`"


def mark_of(field: FieldInfo) -> OnlyWith | None:
    """Return the mark of a field that has one of the two; None for any other field."""
    return next((mark for mark in field.metadata if isinstance(mark, OnlyWith)), None)


def stated(value: T | None) -> T:
    """Return the value of an optional field where it is known not to be None: a marked one that has
    an effect, or a dimension that a validator has checked."""
    assert value is not None
    return value


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    return f'"{value}"'
