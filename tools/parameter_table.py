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
Shared parameters count once. Where the computed count, rounded to the digits in print, is not the
published one, the last column has the number of the reason.

| model | published | computed | source | differs |
|---|---:|---:|---|---:|
"""


def agrees(published: str, computed: int) -> bool:
    """Whether the computed count, rounded to the digits in print, is the published one."""
    digits, unit = published.rstrip("MB"), UNITS.get(published[-1], 1)
    decimals = len(digits.partition(".")[2])
    return round(computed / unit, decimals) == float(digits)


def rows(families: dict[str, Any], registry: zoo.Registry, reasons: list[str]) -> list[str]:
    """The table's rows; the reasons that they refer to are added to `reasons`. Raises `SystemExit`
    when a difference is not explained."""
    lines: list[str] = []
    for family in families.values():
        for name, published in family["counts"].items():
            computed = zoo.read_spec(name, registry=registry).n_parameters
            number = ""
            if not agrees(published, computed):
                if "why" not in family:
                    raise SystemExit(f"{name}: published {published}, computed {computed:,}: why?")
                if family["why"] not in reasons:
                    reasons.append(family["why"])
                number = str(reasons.index(family["why"]) + 1)
            source = family["source"]
            lines.append(f"| `{name}` | {published} | {computed:,} | {source} | {number} |")
    return lines


def page() -> str:
    """The whole page."""
    families = tomllib.loads((DOCS / "published.toml").read_text())
    reasons: list[str] = []
    table = rows(families, zoo.load_registry(), reasons)
    numbered = [f"{number}. {why}" for number, why in enumerate(reasons, 1)]
    return HEAD + "\n".join([*table, "", "## Why they differ", "", *numbered]) + "\n"


if __name__ == "__main__":
    (DOCS / "models.md").write_text(page())
