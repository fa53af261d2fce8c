"""Write docs/components/: a page for each registered component, from its description.

python tools/component_pages.py
"""

from __future__ import annotations

import json
from inspect import getfile
from pathlib import Path

from schema_words import cell, described

import zoo
from zoo.component import GIVEN, SHARED, Component, LayerRules, Part, Slot, fields_of
from zoo.only_with import OnlyWith
from zoo.schema.field_docs import class_doc, field_docs
from zoo.schema.values import plain_value
from zoo.showing.summaries import summary
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
        "What ships with the zoo, by slot. A key marked *shared* may be stated on any table around",
        "the component, and the nearest statement counts ([how](../build.md)). What a page calls",
        "*the registry's* default is marked here; a registry of yours names another by a line in",
        '`[defaults]`, such as `norm = { kind = "rms_norm", override = true }`.',
    ]
    for slot, entries in registry.plugins.items():
        index += ["", f"## {slot}", ""]
        for kind in sorted(entries):
            cls = registry.plugin(slot, kind)
            name = f"{slot}.{kind}.md"
            found[name] = page(slot, kind, cls)
            default = registry.defaults.get(slot)
            mark = " (the default)" if default and default.target == kind else ""
            index.append(f"- [`{kind}`]({name}){mark}: {summary(class_doc(cls))}")
    found["README.md"] = "\n".join(index) + "\n"
    return found


def page(slot: str, kind: str, cls: type[Plugin]) -> str:
    """One component's page."""
    lines = [f"# {slot} `{kind}`", "", class_doc(cls), "", "```toml", in_a_spec(slot, kind, cls)]
    lines += ["```", "", *fields(cls), "", *parts(cls), code_of(cls), "", MADE, ""]
    return "\n".join(lines)


def code_of(cls: type[Plugin]) -> str:
    """Links to the files that describe a component and that compute it."""
    description = Path(getfile(cls)).relative_to(ROOT)
    computed = description.parent / "modules" / description.name
    files = [path for path in (description, computed) if (ROOT / path).is_file()]
    return "The code: " + ", ".join(f"[`{path}`](../../{path})" for path in files) + "."


def parts(cls: type[Component], prefix: str = "") -> list[str]:
    """The tables of the components that are parts of this one, whatever the spec says."""
    lines: list[str] = []
    for name, mark in fields_of(cls).items():
        if not isinstance(mark, Part) or isinstance(mark, Slot):
            continue
        rules = isinstance(mark, LayerRules)
        inner: type[Component] = mark.group if rules else cls.model_fields[name].annotation
        path = f"{prefix}{name}"
        lines += [f"## `[[{path}]]`" if rules else f"## `[{path}]`", "", class_doc(inner), ""]
        if rules:
            lines += [SELECTORS, ""]
        lines += [*fields(inner, without="at" if rules else ""), "", *parts(inner, f"{path}.")]
    return lines


def in_a_spec(slot: str, kind: str, cls: type[Plugin]) -> str:
    """The line of a spec that asks for the component."""
    stated = {name: value for name, value in cls.example.items() if name in cls.model_fields}
    if slot == "builder" or not stated:
        return f'{slot} = "{kind}"'
    inside = ", ".join(f"{name} = {json.dumps(value)}" for name, value in stated.items())
    return f'{slot} = {{ kind = "{kind}", {inside} }}'


def fields(cls: type[Component], without: str = "") -> list[str]:
    """The table of the keys that a spec can state, but for one."""
    docs = field_docs(cls)
    rows = [
        f"| `{name}` | {value_of(cls, name, mark)} | {default_of(cls, name, mark)} | "
        f"{cell(docs.get(name, ''))} |"
        for name, mark in fields_of(cls).items()
        if name not in ("kind", without) and mark is not GIVEN
    ]
    if not rows:
        return ["It has no keys."]
    return ["| key | value | default | meaning |", "|---|---|---|---|", *rows]


def value_of(cls: type[Component], name: str, mark: object) -> str:
    """What may be written for a key."""
    if isinstance(mark, Slot):
        return f"{mark.slot}"
    if isinstance(mark, LayerRules):
        return "rules"
    if isinstance(mark, Part):
        return "table"
    schema, _ = plain_value(cls, name)
    return described(schema) + (" (shared)" if mark is SHARED else "")


def default_of(cls: type[Component], name: str, mark: object) -> str:
    """What a key is when nothing states it."""
    field = cls.model_fields[name]
    if isinstance(mark, Slot):
        return f'`"{mark.default}"`' if mark.default else "the registry's"
    conditional = [m.default for m in field.metadata if isinstance(m, OnlyWith)]
    if conditional and not isinstance(mark, Part):
        return f"`{json.dumps(conditional[0])}`"
    if isinstance(mark, Part) or field.default is None:
        return ""
    if field.default_factory is not None:
        return "derived"
    if field.is_required():
        return "**required**"
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    return f"`{json.dumps(default)}`"


if __name__ == "__main__":
    made = pages()
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.md"):
        old.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text)
