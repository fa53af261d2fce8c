"""List registered names; the output of `zoo list`, as data and as text.

Only the registries are read: no plugin is imported, and no file of a published model is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from zoo.errors import Problem, RegistryError
from zoo.registering.registry_file import SOURCE, Entry
from zoo.registry import Registry, in_force
from zoo.reports.summaries import summary_of
from zoo.wording import did_you_mean, nearest, quoted

GROUPS = ("models", "components", "sources")


def list_models(pattern: str | None = None, *, registry: Registry | None = None) -> list[str]:
    """Return the names of models: of specs, for `zoo.build`, and of published models, for
    `zoo.load`.

    Args:
        pattern: a file name pattern such as `gpt2*`; by default all names match.
        registry: the registry to search; by default the layers around the working directory.

    Raises:
        RegistryError: a registry is malformed.
    """
    rows = _rows(in_force(registry), pattern)
    return [row["name"] for row, _ in rows["models"]]


def list_components(pattern: str | None = None, *, registry: Registry | None = None) -> list[str]:
    """Return the components that a spec can name, such as `ffn.glu`, by slot, if the name, the slot
    or both together match. Arguments and errors are those of `list_models`."""
    rows = _rows(in_force(registry), pattern)
    return [f"{row['slot']}.{row['name']}" for row, _ in rows["components"]]


def every_plugin(registry: Registry) -> list[str]:
    """Return the plugins of a registry, as `slot.kind`, and its sources, as `source.kind`."""
    return [*registry.components(), *(f"{SOURCE}.{kind}" for kind in registry.sources)]


def matching_plugins(pattern: str, registry: Registry) -> list[str]:
    """Return those of `every_plugin` that match, as `list_components` does."""
    return [plugin for plugin in every_plugin(registry) if _is_like(plugin, pattern)]


def listing_data(registry: Registry, what: str | None, pattern: str | None) -> dict[str, Any]:
    """Return registered names with their origins, and summaries of components and of sources of
    published models: those that match `pattern`, or whose slot does. `what` is one of `GROUPS`, or
    None for all.

    Raises:
        RegistryError: a pattern is given, and nothing matches it.
    """
    groups = GROUPS if what is None else (what,)
    found = _rows(registry, pattern)
    data = {group: found[group] for group in groups}
    if pattern is not None and not any(data.values()):
        raise RegistryError(_nothing(registry, what, pattern))
    return {
        group: [
            {**row, "summary": summary_of(entry) + _mark(registry, row)} if entry else row
            for row, entry in rows
        ]
        for group, rows in data.items()
    }


def _mark(registry: Registry, row: Mapping[str, str]) -> str:
    """What follows the summary of a component that its slot has where a spec names none."""
    default = registry.defaults.get(row["slot"])
    return " (the default)" if default is not None and default.target == row["name"] else ""


_Row = tuple[dict[str, str], Entry | None]


def _rows(registry: Registry, pattern: str | None) -> dict[str, list[_Row]]:
    """Return the rows that match the pattern, by group; components with their entries. Raises
    `TypeError` for a pattern that is no text."""
    if not isinstance(pattern, str | None):
        raise TypeError(f"`pattern` is a text such as `mlp*`, not {type(pattern).__name__}")
    pattern = pattern or "*"
    models = [_row(entry) for name, entry in registry.models.items() if fnmatchcase(name, pattern)]
    models += [
        {"name": name, "target": f"{name}.toml", "registry": str(folder)}
        for name, folder in registry.catalog.names().items()
        if fnmatchcase(name, pattern)
    ]
    return {
        "models": [(row, None) for row in sorted(models, key=lambda row: row["name"])],
        "components": [
            (_row(entry, slot=slot), entry)
            for slot, plugins in registry.plugins.items()
            for name, entry in sorted(plugins.items())
            if _is_like(f"{slot}.{name}", pattern)
        ],
        "sources": [
            (_row(entry, slot=SOURCE), entry)
            for name, entry in sorted(registry.sources.items())
            if _is_like(f"{SOURCE}.{name}", pattern)
        ],
    }


def _is_like(plugin: str, pattern: str) -> bool:
    """Whether the name of a plugin, its slot, or both together (`slot.kind`) match."""
    return any(fnmatchcase(part, pattern) for part in (plugin, *plugin.split(".")))


def _row(entry: Entry, **more: str) -> dict[str, str]:
    return {
        "name": entry.name,
        **more,
        "target": entry.target,
        "registry": entry.document.name,
    }


def _nothing(registry: Registry, what: str | None, pattern: str) -> Problem:
    """Return the problem that nothing matches, with a suggestion."""
    groups = GROUPS if what is None else (what,)
    everything = _rows(registry, None)
    elsewhere = [group for group, rows in _rows(registry, pattern).items() if rows]
    if elsewhere:
        hint = f"`zoo list {elsewhere[0]} {pattern}` finds some"
    elif what is None and (group := nearest(pattern, GROUPS)):
        hint = f"did you mean `zoo list {group}`?"
    else:
        rows = [row for group in groups for row, _ in everything[group]]
        known = {row[key] for row in rows for key in ("name", "slot") if key in row}
        hint = did_you_mean(pattern, known, f"`zoo list{f' {what}' if what else ''}` lists all")
    *first, last = (group.removesuffix("s") for group in groups)
    sought = f"{', '.join(first)} or {last}" if first else last
    message = f"no {sought} matches {quoted(pattern)}"
    return Problem(message, help=hint, related=registry.perhaps_missing())


def listing_text(data: Mapping[str, list[dict[str, str]]]) -> str:
    """Format one line per name: components and sources with their summaries, under headings for the
    slots; models with their files, under headings for the registries or folders that name them."""
    lines: list[str] = []
    heading = None
    for group, rows in data.items():
        width = max((len(row["name"]) for row in rows), default=0)
        if group == "models":
            rows = sorted(rows, key=lambda row: row["registry"])
        for row in rows:
            if heading != (heading := row.get("slot") or f"{group} of {row['registry']}"):
                lines += ["", heading] if lines else [heading]
            told = row.get("summary") or row["target"]
            lines.append(f"  {row['name']:<{width}}  {told}")
    return "\n".join(lines)
