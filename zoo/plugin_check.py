"""Plugins in, reports out: each promise of a plugin is checked on a small model around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from zoo.errors import PluginError, SpecError, ZooError
from zoo.plugin_drivers import PromiseError
from zoo.plugin_errors import describe_failure
from zoo.plugin_hosts import complete, host_data, with_hosts
from zoo.plugin_promises import PROMISES, interface, layout, meta, schema
from zoo.plugin_report import Check, Report
from zoo.registry import Registry
from zoo.spec import ModelSpec
from zoo.torch_free import import_failures


def check_plugins(
    names: Sequence[tuple[str, str]],
    registry: Registry,
    *,
    values: Mapping[str, Any] | None = None,
    on_done: Callable[[Report], None] | None = None,
) -> list[Report]:
    """Check plugins.

    Args:
        names: the slot and the kind of each.
        registry: where they and the components inside them are looked up.
        values: of the components' fields, instead of the `example` of the description.
        on_done: called with each report as soon as it is made.
    """
    registry = with_hosts(registry)
    failures = import_failures(registry.plugins[slot][kind] for slot, kind in names)
    reports: list[Report] = []
    for slot, kind in names:
        reports.append(_Subject(slot, kind, registry, values, failures.get((slot, kind))).report())
        if on_done is not None:
            on_done(reports[-1])
    return reports


class _Subject:
    """A plugin under test."""

    def __init__(
        self,
        slot: str,
        kind: str,
        registry: Registry,
        values: Mapping[str, Any] | None,
        import_failure: str | None,
    ) -> None:
        self.slot, self.kind, self.registry = slot, kind, registry
        self.values = values
        self.import_failure = import_failure
        self.specs: dict[str, ModelSpec] = {}

    def report(self) -> Report:
        """Run the checks: first those that follow the pipeline, each on what the one before it has
        made; then, if no link is broken, those that stand for themselves."""
        links: dict[str, Callable[[], str | None]] = {
            "imports": self.imports,
            "schema": self.schema,
            "example": self.example,
            "meta": partial(self.each, meta),
            "layout": partial(self.each, layout),
        }
        if self.slot != "init":
            links["interface"] = partial(self.each, interface)
        promises = {name: partial(self.each, check) for name, check in PROMISES[self.slot].items()}
        checks: list[Check] = []
        for name, check in links.items():
            checks.append(_run(name, check) if _unbroken(checks) else Check(name, None))
        linked = _unbroken(checks)
        checks += [_run(name, p) if linked else Check(name, None) for name, p in promises.items()]
        target = self.registry.plugins[self.slot][self.kind].target
        return Report(f"{self.slot}.{self.kind}", target, tuple(checks))

    def imports(self) -> None:
        """The description can be imported, here and where there is no torch."""
        self.registry.plugin(self.slot, self.kind)
        if self.import_failure is not None:
            raise PromiseError(self.import_failure)

    def schema(self) -> None:
        """Each field says what it takes, so that editors can be told."""
        schema(self.registry.plugin(self.slot, self.kind))

    def example(self) -> str | None:
        """There is a small spec around the component and, if it can attend to a memory, another."""
        values = self.values
        if values is None:
            values = self.registry.plugin(self.slot, self.kind).example
        self.specs[""] = complete(host_data(self.slot, self.kind, values), self.registry)
        if self.slot not in ("attention", "block"):
            return None
        try:
            data = host_data(self.slot, self.kind, values, memory=True)
            self.specs["over a memory: "] = complete(data, self.registry)
        except SpecError as error:
            return f"attends to no memory: {error.problems[0].message}"
        return None

    def each(self, promise: Callable[[ModelSpec, Registry], None]) -> None:
        """Check a promise on every spec of the component."""
        for prefix, spec in self.specs.items():
            try:
                promise(spec, self.registry)
            except PromiseError as error:
                raise PromiseError(f"{prefix}{error}") from None


def _unbroken(checks: Sequence[Check]) -> bool:
    return all(check.ok for check in checks)


def _run(name: str, check: Callable[[], str | None]) -> Check:
    """Run one check. Whatever a plugin's code raises breaks a promise, `SystemExit` included."""
    try:
        return Check(name, True, check() or "")
    except KeyboardInterrupt:
        raise
    except PromiseError as error:
        return Check(name, False, str(error))
    except ZooError as error:
        first = error.problems[0]
        hint = f"\nhelp: {first.help}" if first.help and not isinstance(error, PluginError) else ""
        return Check(name, False, first.message + hint)
    except BaseException as error:
        return Check(name, False, describe_failure(name, error).message)
