"""Check the promises of plugins, each on a small model around it, and report the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from zoo.component import Slot, fields_of
from zoo.errors import Problem, RegistryError, SpecError
from zoo.plugin_kit.cuts import in_processes, same_when_cut
from zoo.plugin_kit.elsewhere import same_elsewhere, with_other_hashes
from zoo.plugin_kit.hosts import complete, host_data, with_hosts
from zoo.plugin_kit.promises import (
    PROMISES,
    Promise,
    determinism,
    interface,
    promises_of,
    rows,
    threads,
)
from zoo.plugin_kit.report import (
    Check,
    PromiseError,
    Report,
    run_check,
    run_in_order,
    unbroken,
)
from zoo.plugin_kit.sources import source_report
from zoo.plugin_kit.structure import layout, meta, schema
from zoo.plugin_kit.torch_free import import_failures
from zoo.plugin_kit.workers import Workers
from zoo.plugin_kit.written import written
from zoo.registering.registry_file import FILE_NAME, SOURCE, Entry
from zoo.registry import Registry, registered_near
from zoo.reports.listing import every_plugin
from zoo.slots import Plugin
from zoo.spec import ModelSpec
from zoo.wording import did_you_mean, quoted


def check_plugins(
    names: Sequence[str],
    registry: Registry,
    *,
    values: Mapping[str, Any] | None = None,
    on_done: Callable[[Report], None] | None = None,
) -> list[Report]:
    """Check plugins.

    Args:
        names: the plugins, as `slot.kind`.
        registry: the registry to look up the plugins and the components inside them.
        values: values of the fields, instead of the `example` of the description; of a source,
            those of a place that can be read.
        on_done: called with each report as soon as it is complete.

    Raises:
        RegistryError: one of the names is unknown.
    """
    entries = [_entry(name, registry) for name in names]
    failures = import_failures(entries)
    registry = with_hosts(registry)
    reports: list[Report] = []
    # For tensors this small, a second thread only adds overhead.
    with threads(1), in_processes() as cut, with_other_hashes() as other:
        for entry, failure in zip(entries, failures, strict=True):
            if entry.group == SOURCE:
                reports.append(source_report(entry, registry, values, failure))
            else:
                reports.append(_Subject(entry, registry, values, failure, cut, other).report())
            if on_done is not None:
                on_done(reports[-1])
    return reports


def _entry(name: str, registry: Registry) -> Entry:
    slot, _, kind = name.partition(".")
    entry = {**registry.plugins, SOURCE: registry.sources}.get(slot, {}).get(kind)
    if entry is None:
        every = every_plugin(registry)
        known = {part for one in every for part in (one, *one.split("."))}
        help = registered_near(FILE_NAME, slot, kind) if slot in registry.plugins else None
        listed = "`zoo list components` and `zoo list sources` list them"
        help = help or did_you_mean(name, known, listed)
        missing = registry.perhaps_missing()
        raise RegistryError(Problem(f"unknown plugin {quoted(name)}", help=help, related=missing))
    return entry


class _Subject:
    """A plugin under test."""

    def __init__(
        self,
        entry: Entry,
        registry: Registry,
        values: Mapping[str, Any] | None,
        import_failure: str | None,
        cut: Workers,
        other: Workers,
    ) -> None:
        self.slot, self.kind, self.target = entry.group, entry.name, entry.target
        self.registry = registry
        self.values = values
        self.import_failure = import_failure
        self.same_when_cut = partial(same_when_cut, cut)
        self.same_elsewhere = partial(same_elsewhere, other)
        self.specs: dict[str, ModelSpec] = {}

    @property
    def cls(self) -> type[Plugin]:
        return self.registry.plugin(self.slot, self.kind)

    def report(self) -> Report:
        """Run the checks: first those of the pipeline, each of which needs the result of the
        previous one; then, if all of them pass, the independent ones."""
        links: dict[str, Promise] = {
            "meta": meta,
            "layout": layout,
            "interface": interface,
            "determinism": self.determinism,
            "rows": rows,  # the others compare batches
        }
        if self.slot == "init":
            del links["interface"], links["rows"]
        checks = run_in_order(
            {
                "imports": self.imports,
                "schema": self.schema,
                "example": self.example,
                **{name: partial(self.each, name, promise) for name, promise in links.items()},
            }
        )
        if not unbroken(checks):
            checks += [Check(name, None) for name in PROMISES[self.slot]]
        else:
            promises = promises_of(self.cls, self.slot)
            if self.slot not in _HOLDERS and self.is_cut:
                promises["cuts"] = self.same_when_cut
            checks += [
                run_check(name, partial(self.each, name, one)) for name, one in promises.items()
            ]
        return Report(f"{self.slot}.{self.kind}", self.target, tuple(checks))

    def imports(self) -> None:
        """The description can be imported, in a process without torch and in this one."""
        if self.import_failure is not None:
            raise PromiseError(self.import_failure)
        _ = self.cls  # imports it

    def schema(self) -> None:
        """Each field has a type with a JSON Schema, for editors, and is read; contradictions name
        fields."""
        schema(self.cls)
        written(self.cls, self.registry)

    def example(self) -> str | None:
        """Make a small spec around the component and, if it can attend to a memory, another."""
        for name, mark in fields_of(self.cls).items():
            if isinstance(mark, Slot) and mark.slot == self.slot and mark.inherit:
                raise PromiseError(
                    f"its field `{name}` takes what is stated for `{self.slot}` around it, and so "
                    "the component itself",
                    help=f'Slot("{self.slot}", inherit=False)',
                )
        values = self.cls.example if self.values is None else self.values
        about = (self.slot, self.kind, values, self.registry)
        try:
            self.specs[""] = complete(host_data(*about), self.registry)
        except SpecError as error:
            first = error.problems[0]
            unstated = "state what the check cannot guess in the description's `example`"
            raise PromiseError(first.message, help=first.help if values else unstated) from None
        if self.slot not in ("attention", "block"):
            return None
        try:
            data = host_data(*about, memory=True)
            self.specs["over a memory: "] = complete(data, self.registry)
        except SpecError as error:
            return f"attends to no memory: {error.problems[0].message}"
        return None

    @property
    def is_cut(self) -> bool:
        """Whether the component states cuts, which divide it among processes."""
        return any(True for spec in self.specs.values() for _ in spec.layout.cuts())

    def determinism(self, spec: ModelSpec, registry: Registry) -> None:
        """A spec has the same values and outputs each time, also in another process."""
        determinism(spec, registry)
        self.same_elsewhere(spec, registry)

    def each(self, name: str, promise: Promise) -> None:
        """Check a promise for every spec of the component."""
        for prefix, spec in self.specs.items():
            found = run_check(name, partial(promise, spec, self.registry))
            if not found.ok:
                raise PromiseError(f"{prefix}{found.reason}")


_HOLDERS = ("builder", "block")
"""Slots whose components have only the cuts of the components inside."""
