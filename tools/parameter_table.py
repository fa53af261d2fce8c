"""Write docs/models.md: published parameter counts beside those computed from the specs.

python tools/parameter_table.py
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import zoo

DOCS = Path(__file__).parent.parent / "docs"
UNITS = {"M": 10**6, "B": 10**9}

HEAD = """\
# Models and their published sizes

Made by `python tools/parameter_table.py` from `docs/published.toml` and the registered specs.
Shared parameters count once. A count agrees when it is the published one, rounded to the digits
in print.

| model | published | computed | why they differ | source |
|---|---:|---:|---|---|
"""


def agrees(published: str, computed: int) -> bool:
    """Whether the computed count, rounded to the digits in print, is the published one."""
    digits, unit = published.rstrip("MB"), UNITS.get(published[-1], 1)
    decimals = len(digits.partition(".")[2])
    return round(computed / unit, decimals) == float(digits)


def rows(families: dict[str, Any], registry: zoo.Registry) -> list[str]:
    """The table's rows. Raises `SystemExit` when a difference is not explained."""
    lines: list[str] = []
    for family in families.values():
        for name, published in family["counts"].items():
            computed = zoo.read_spec(name, registry=registry).n_parameters
            why = "" if agrees(published, computed) else family.get("why")
            if why is None:
                raise SystemExit(f"{name}: published {published}, computed {computed:,}: why?")
            lines.append(f"| `{name}` | {published} | {computed:,} | {why} | {family['source']} |")
    return lines


def page() -> str:
    """The whole page."""
    families = tomllib.loads((DOCS / "published.toml").read_text())
    return HEAD + "\n".join(rows(families, zoo.load_registry())) + "\n"


if __name__ == "__main__":
    (DOCS / "models.md").write_text(page())
