"""Fields that mean something only beside a certain value of another field."""

from typing import Any

from pydantic import Field, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import core_schema


class OnlyWith:
    """Marks an optional field that counts only while the field `key`, declared before it, has one
    of `values`: there it is `default` unless stated. Elsewhere it is refused, so that no spec holds
    a value that changes nothing. The field itself is declared `= UNSTATED`."""

    def __init__(self, key: str, *values: object, default: object = None) -> None:
        self.key = key
        self.values = values
        self.default = default

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.with_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any, info: ValidationInfo) -> Any:
        if self.key not in info.data:  # it has a problem of its own
            return value
        if info.data[self.key] in self.values:
            return self.default if value is None else value
        if value is not None:
            wanted = " or ".join(f"`{self.key} = {_toml(allowed)}`" for allowed in self.values)
            stated = f"`{self.key} = {_toml(info.data[self.key])}`"
            raise ValueError(f"goes with {wanted}, not {stated}")
        return None


UNSTATED: Any = Field(default=None, validate_default=True)


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"'
