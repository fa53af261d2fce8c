"""Limits on the size of a spec, checked by arithmetic before anything is built. Only whoever runs
the command (`zoo --budget parameters=2e12 ...`) or calls the library can raise them, not a spec."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from zoo.byte_counts import parse_bytes
from zoo.errors import Place, Problem, SpecError, ZooError
from zoo.wording import allowed, quoted

MAX_KEY_DEPTH = 100  # what the parser's own recursion allows
_OF_BYTES = ("bytes", "file_size")


class Budget(NamedTuple):
    """The limits. `bytes` counts all tensors in float32, including computed tables; `file_size` is
    the size of a spec or registry file in bytes; `key_depth` is the nesting depth of its keys."""

    parameters: int = 999_999_999_999
    layers: int = 10_000
    bytes: int = 4_000_000_000_000
    file_size: int = 1 << 18
    key_depth: int = 32

    @classmethod
    def from_options(cls, options: Iterable[str]) -> Budget:
        """Return the default budget with some limits replaced, each written `name=number`.

        Raises:
            ZooError: there is no such limit, or the number is not a positive integer (`2e12` is
                one, and so is `2TB` for bytes).
        """
        limits: dict[str, int] = {}
        for option in options:
            name, _, text = option.partition("=")
            if name not in cls._fields:
                message = f"there is no budget {quoted(name)}"
                raise ZooError(message, help=allowed(cls._fields))
            try:
                number = parse_bytes(text) if name in _OF_BYTES else float(text)
            except ValueError:
                number = 0.0
            if not 1 <= number < 1e300 or number != int(number):
                message = f"the budget of {name} must be a positive integer, not {quoted(text)}"
                raise ZooError(message, help=f"for example --budget {name}=1000000")
            if name == "key_depth" and number > MAX_KEY_DEPTH:
                raise ZooError(f"keys cannot nest more than {MAX_KEY_DEPTH} deep")
            limits[name] = int(number)
        return cls(**limits)

    def check(self, *, parameters: int, bytes: int, place: Place) -> None:
        """Refuse a model that is larger. `place` is the spec's file.

        Raises:
            SpecError: it has too many parameters or bytes; the message says how to allow it.
        """
        problems = [
            Problem(
                f"the model has {_grouped(size)} {name}, more than {limit:,}",
                place,
                help=raising(name),
            )
            for name, size, limit in (
                ("parameters", parameters, self.parameters),
                ("bytes", bytes, self.bytes),
            )
            if size > limit
        ]
        if problems:
            raise SpecError(problems)


def raising(name: str) -> str:
    """Return the help text for exceeding the limit `name`."""
    return f"if it is meant, `zoo --budget {name}=NUMBER` raises the limit"


def _grouped(number: int) -> str:
    return f"{number:,}" if number < 10**30 else f"about 10^{len(str(number)) - 1}"
