"""The checks of `zoo plugin check`, as one call for the tests of a component."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.registry import Registry, load_registry


def check_plugin(
    slot: str,
    kind: str,
    *,
    values: Mapping[str, Any] | None = None,
    registry: Registry | str | Path | None = None,
) -> None:
    """Check that a component meets the requirements of its slot (docs/plugin-reference.md), or that
    a source does what the store asks of it (docs/share.md).

    Args:
        slot: its slot, as in `ffn`, or `source`.
        kind: its name in the registry.
        values: the values of its fields, instead of the `example` of its description; of a source,
            those of a place that can be read, without which only its class is checked.
        registry: the registry that has it, or the path of a `registry.toml`; by default the
            registries around the working directory.

    Raises:
        AssertionError: a check failed; the message is the table of all checks.
        RegistryError: the registry cannot be read, or does not have the component.
    """
    from zoo.plugin_kit.check import check_plugins

    __tracebackhide__ = True  # pytest shows the caller instead
    if not isinstance(registry, Registry):
        registry = load_registry(registry)
    [report] = check_plugins([f"{slot}.{kind}"], registry, values=values)
    if not report.ok:
        raise AssertionError(report.text())
