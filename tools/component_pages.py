"""Write docs/components/: a page for each registered component, from its description.

python tools/component_pages.py
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import getfile
from pathlib import Path

from cells import cell

import zoo
from zoo.reports.component import Described, Key, component_data
from zoo.reports.summaries import summary
from zoo.schema.field_docs import class_doc
from zoo.slots import Plugin

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "components"
SELECTORS = (
    "A rule has one of the keys `every` (with `start`), `first`, `last` and `at` "
    "([how](../build.md#rules-for-single-layers)), and what differs: shared values, or these."
)
MADE = "Made by `python tools/component_pages.py` from the component's description."


def pages() -> dict[str, str]:
    """Every page by its file name."""
    registry = zoo.load_registry()
    found: dict[str, str] = {}
    index = [
        "# Components",
        "",
        "What ships with the zoo, by slot. [Architectures](../architectures.md) shows what papers",
        "propose, in these words. A key marked *shared* may be stated on any table around the",
        "component; [the nearest statement counts](../build.md#where-a-value-counts). What a page",
        "calls *the registry's* default is marked here; [a registry of yours](../registry.md)",
        "names another by a line in `[defaults]`.",
    ]
    for slot, entries in registry.plugins.items():
        index += ["", f"## {slot}", ""]
        for kind in sorted(entries):
            cls = registry.plugin(slot, kind)
            name = f"{slot}.{kind}.md"
            described = component_data(registry, slot, kind)
            found[name] = page(described, cls)
            mark = " (the default)" if described.is_default else ""
            index.append(f"- [`{kind}`]({name}){mark}: {summary(class_doc(cls))}")
    found["README.md"] = "\n".join(index) + "\n"
    return found


def page(found: Described, cls: type[Plugin]) -> str:
    """One component's page."""
    own, *parts = found.tables
    lines = [f"# {found.slot} `{found.kind}`", "", own.meaning, ""]
    lines += ["```toml", found.in_a_spec, "```", "", *rows(own.keys), ""]
    for part in parts:
        heading = f"[[{part.path}]]" if part.is_rule else f"[{part.path}]"
        lines += [f"## `{heading}`", "", part.meaning, ""]
        lines += [SELECTORS, ""] if part.is_rule else []
        lines += [*rows(part.keys), ""]
    return "\n".join([*lines, code_of(cls), "", MADE, ""])


def code_of(cls: type[Plugin]) -> str:
    """Links to the files that describe a component and that compute it."""
    description = Path(getfile(cls)).relative_to(ROOT)
    computed = description.parent / "modules" / description.name
    files = [path for path in (description, computed) if (ROOT / path).is_file()]
    return "The code: " + ", ".join(f"[`{path}`](../../{path})" for path in files) + "."


def rows(keys: Sequence[Key]) -> list[str]:
    """The table of a component's keys."""
    if not keys:
        return ["It has no keys."]
    found = [
        f"| `{key.name}` | {key.value}{' (shared)' if key.shared else ''} | "
        f"{'**required**' if key.required else key.default} | {cell(key.meaning)} |"
        for key in keys
    ]
    return ["| key | value | default | meaning |", "|---|---|---|---|", *found]


if __name__ == "__main__":
    made = pages()
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.md"):
        old.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text)
