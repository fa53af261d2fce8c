"""Fields that mean something only beside certain values of another field.

Where such a field changes nothing it is absent, so that no spec holds a value without effect, and
two specs of one model have one digest. A spec may state it there only if it counts elsewhere: a
rule that switches a feature off in some layers need not repeal what the stack says of that feature.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import Field, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import core_schema

from zoo.component import ChildValidator

T = TypeVar("T")

UNSTATED: Any = Field(default=None, validate_default=True)
"""What an optional field with one of the marks below is declared as: `= UNSTATED`."""


class OnlyWith:
    """Marks an optional field that counts only while the field `key`, declared before it, has one
    of `values`: there it is `default` unless stated, and elsewhere None. A component is compared by
    its kind. `because` says why, where the values do not."""

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
        """Whether the field counts beside this value of the other."""
        return other in self.values

    def reason(self, other: object) -> str:
        """Why it does not count beside this value."""
        wanted = " or ".join(f"`{self.key} = {_toml(allowed)}`" for allowed in self.values)
        return f"goes with {wanted}, not `{self.key} = {_toml(other)}`"

    def _check(self, value: Any, info: ValidationInfo) -> Any:
        if self.key not in info.data:  # it has a problem of its own
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
    """The opposite: marks a field that counts unless the field `key` has one of `values`."""

    def counts(self, other: object) -> bool:
        return other not in self.values

    def reason(self, other: object) -> str:
        return f"changes nothing beside `{self.key} = {_toml(other)}`"


def stated(value: T | None) -> T:
    """The value of a field with one of the marks, in a place where it counts."""
    assert value is not None
    return value


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else f'"{value}"'
