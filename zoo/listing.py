"""What `zoo list` prints, as data and as text. Needs the registries only: no plugin is imported,
and of published models only the names are looked at."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from typing import Any

from zoo.registry import Registry
from zoo.registry_file import Entry


def listing_data(registry: Registry, what: str | None, pattern: str | None) -> dict[str, Any]:
    """Registered names with where they come from, those that match `pattern`, or whose slot does;
    `what` is `models`, `components`, or None for both."""

    is_like = re.compile(fnmatch.translate(pattern or "*")).match

    def matching(entries: Mapping[str, Entry], **more: str) -> list[dict[str, str]]:
        return [
            {"name": name, **more, "target": entry.target, "registry": entry.document.name}
            for name, entry in sorted(entries.items())
            if any(map(is_like, (name, *more.values())))
        ]

    data: dict[str, Any] = {}
    if what in (None, "models"):
        published = [
            {"name": name, "target": f"{name}.toml", "registry": str(folder)}
            for name, folder in registry.catalog.names().items()
            if is_like(name)
        ]
        data["models"] = sorted(
            [*matching(registry.models), *published], key=lambda row: row["name"]
        )
    if what in (None, "components"):
        slots = registry.plugins.items()
        data["components"] = [
            row for slot, plugins in slots for row in matching(plugins, slot=slot)
        ]
    return data


def listing_text(data: Mapping[str, list[dict[str, str]]]) -> str:
    """One line a name, under a heading a slot."""
    lines: list[str] = []
    heading = None
    for group, rows in data.items():
        width = max((len(row["name"]) for row in rows), default=0)
        for row in rows:
            if heading != (heading := row.get("slot", group)):
                lines += ["", heading] if lines else [heading]
            lines.append(f"  {row['name']:<{width}}  {row['target']}")
    return "\n".join(lines) if lines else "nothing matches"
