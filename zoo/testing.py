"""What `zoo plugin check` checks, as one call for the tests of a component."""

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
    registry: Registry | Path | None = None,
) -> None:
    """Check that a component keeps what every plugin of its slot promises (docs/plugins.md).

    Args:
        slot: its slot, as in `ffn`.
        kind: its name in the registry.
        values: of its fields, instead of the `example` of its description.
        registry: where it is registered: a registry, or the path of a `registry.toml`; the layers
            around the working directory unless given.

    Raises:
        AssertionError: a promise is broken; the message is the table of all checks.
        RegistryError: the registry cannot be read, or does not have the component.
    """
    from zoo.plugin_kit.check import check_plugins

    __tracebackhide__ = True  # pytest shows the caller instead
    if not isinstance(registry, Registry):
        registry = load_registry(registry)
    [report] = check_plugins([f"{slot}.{kind}"], registry, values=values)
    if not report.ok:
        raise AssertionError(report.text())
