"""The results of checking plugins, as data and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


class PromiseError(Exception):
    """A plugin breaks a promise; `help` says how to keep it, in the last lines of the message."""

    def __init__(self, message: str, *, help: str | None = None) -> None:
        super().__init__(message if help is None else f"{message}\nhelp: {help}")


@dataclass(frozen=True)
class Check:
    """The result for one promise of a plugin: kept, broken or, if `ok` is None, not checked."""

    name: str
    ok: bool | None
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """The results for one plugin, `slot.kind`; `target` is its target in the registry."""

    plugin: str
    target: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def data(self) -> dict[str, Any]:
        """The report as plain data."""
        return {"ok": self.ok, **asdict(self)}

    def text(self) -> str:
        """Format the report: one line if all checks pass, otherwise a table of the checks."""
        if self.ok:
            return f"{self.plugin}: ok ({', '.join(check.name for check in self.checks)})"
        lines = [f"{self.plugin}: FAILED ({self.target})"]
        for check in self.checks:
            if check.ok is not None:
                state = "ok" if check.ok else "FAILED"
                first, *rest = check.reason.split("\n")
                lines.append(f"    {check.name:<11} {state:<7} {first}".rstrip())
                lines += [f"    {'':<19} {line}" for line in rest]
        if left := [check.name for check in self.checks if check.ok is None]:
            lines.append(f"    not run: {', '.join(left)}")
        return "\n".join(lines)


def failures(reports: Sequence[Report]) -> str:
    """Name the plugins that failed; empty if none did."""
    failed = [report.plugin for report in reports if not report.ok]
    return f"{len(failed)} of {len(reports)} plugins failed: {', '.join(failed)}" if failed else ""
