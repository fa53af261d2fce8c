"""Position schemes of layers that may have no attention."""

from __future__ import annotations

from typing import Any

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import core_schema

from zoo.component import ChildValidator
from zoo.slots import Position
from zoo_components.position import NoPosition


class WhereAttended:
    """Marks the position scheme of the layers whose `block`, a field declared before it, describes
    them. Schemes work in self-attention, unless they are added to the embeddings: where the block
    has none, the scheme is `none`, whatever is stated around it for other layers."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.with_info_wrap_validator_function(self._check, handler(source))

    def _check(
        self, value: Any, made: core_schema.ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Any:
        block = info.data.get("block")  # absent if it is wrong, which is reported on its own
        scheme: type[Position] | None = getattr(value, "cls", type(value))
        if block is None or block.attends or scheme is None or scheme.embedded or scheme.absent:
            return made(value)
        validator: ChildValidator | None = info.context
        if validator is not None and info.field_name is not None:
            reason = "changes nothing in layers without self-attention"
            validator.without_effect(info.field_name, reason)
        return NoPosition(kind="none", d_model=info.data["d_model"])
