"""The listing of `zoo families`. Does not import torch."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from zoo.errors import Problem, SpecError
from zoo.families.registered import Families
from zoo.registry import Registry
from zoo.resolving.tables import Leaf
from zoo.wording import did_you_mean, quoted


def families_data(registry: Registry, pattern: str | None) -> list[dict[str, Any]]:
    """Return the name, model types, builder and number of lines of each family. The builder is None
    for a family that leaves it to those that extend it.

    Raises:
        SpecError: nothing matches, or a family file is malformed.
    """
    families = Families(registry)
    found: list[dict[str, Any]] = []
    for name in sorted(families.paths):
        family = families.family(name)
        names = (name, *family.model_types)
        if pattern is None or any(fnmatchcase(one, pattern) for one in names):
            builder = family.spec.entries.get("builder")
            found.append(
                {
                    "family": name,
                    "model_types": list(family.model_types),
                    "kind": str(builder.value) if isinstance(builder, Leaf) else None,
                    "lines": family.n_lines,
                }
            )
    if not found:
        hint = did_you_mean(
            str(pattern),
            [*families.paths, *families.by_model_type],
            "`zoo families` lists all; what no family reads is not known here",
        )
        message, missing = f"there is no family {quoted(pattern)}", registry.perhaps_missing()
        raise SpecError(Problem(message, help=hint, related=missing))
    return found


def families_text(data: list[dict[str, Any]]) -> str:
    """Format the families as a table."""
    width = max(len(one["family"]) for one in data)
    kinds = max(len(one["kind"] or "") for one in data)
    return "\n".join(
        f"{one['family']:<{width}}  {one['kind'] or '':<{kinds}}  {one['lines']:>3} lines  "
        f"{', '.join(one['model_types'])}"
        for one in data
    )
