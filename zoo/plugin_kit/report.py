"""The results of checking plugins, as data and as text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from typing import Any

from zoo.errors import ZooError, is_interrupt
from zoo.registering.plugin_errors import describe_failure, reason

PRINTS = (
    "it prints, into the output of commands such as `zoo show --json`\n"
    "help: print nothing, or to `sys.stderr`"
)


class PromiseError(Exception):
    """A plugin breaks a promise; `help` says how to keep it, in the last lines of the message."""

    def __init__(self, message: str, *, help: str | None = None) -> None:
        super().__init__(message if help is None else f"{message}\nhelp: {help}")


@contextmanager
def no_failure(what: str, *, help: str | None = None) -> Generator[None]:
    """Raises PromiseError if the code of a plugin in a `with` block fails; `what` says what it is
    called for."""
    try:
        yield
    except PromiseError:
        raise
    except Exception as error:
        raise PromiseError(describe_failure(what, error).message, help=help) from None


@dataclass(frozen=True)
class Check:
    """The result for one promise of a plugin: kept, broken or, if `ok` is None, not checked."""

    name: str
    ok: bool | None
    reason: str = ""


def run_check(name: str, check: Callable[[], str | None]) -> Check:
    """Run one check; also a plugin that prints to stdout breaks a promise."""
    with redirect_stdout(StringIO()) as printed:
        found = _found(name, check)
    sys.stderr.write(printed.getvalue())
    return Check(name, False, PRINTS) if found.ok and printed.getvalue() else found


def _found(name: str, check: Callable[[], str | None]) -> Check:
    """Run one check. Whatever a plugin's code raises breaks a promise, `SystemExit` included."""
    try:
        return Check(name, True, check() or "")
    except PromiseError as error:
        return Check(name, False, str(error))
    except ZooError as error:
        first = error.problems[0]
        return Check(name, False, reason(first))
    except BaseException as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        return Check(name, False, reason(describe_failure(name, error)))


def run_in_order(checks: Mapping[str, Callable[[], str | None]]) -> list[Check]:
    """Run checks by their names, each of which needs those before it: after one that fails, none is
    run."""
    found: list[Check] = []
    for name, check in checks.items():
        found.append(run_check(name, check) if unbroken(found) else Check(name, None))
    return found


def unbroken(checks: Sequence[Check]) -> bool:
    """Return whether all checks so far were run, and passed."""
    return all(check.ok for check in checks)


@dataclass(frozen=True)
class Report:
    """The results for one plugin, `slot.kind`; `target` is its target in the registry. `more` says
    how to check what was not checked."""

    plugin: str
    target: str
    checks: tuple[Check, ...]
    more: str = ""

    @property
    def ok(self) -> bool:
        return unbroken(self.checks)

    def data(self) -> dict[str, Any]:
        """The report as plain data."""
        return {"ok": self.ok, **asdict(self)}

    def text(self) -> str:
        """Format the report: one line if all checks pass, otherwise a table of the checks."""
        if self.ok:
            names = ", ".join(check.name for check in self.checks)
            return f"{self.plugin}: ok ({names})" + (f"; {self.more}" if self.more else "")
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
