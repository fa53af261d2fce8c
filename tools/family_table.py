"""Write docs/families.md: the families, held against transformers, and what is left out.

python tools/family_table.py

Every case of tests/families is run; it takes minutes. A case that fails stops it.
"""

from __future__ import annotations

import statistics
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the checks are those of the tests

from families.cases import all_cases

from zoo.families.registered import Families
from zoo.registry import load_registry

DOCS = Path(__file__).parents[1] / "docs"

HEAD = """\
# Families

Made by `python tools/family_table.py`. A family is a TOML file that says how the checkpoints of
some `model_type`s are read; [how to write one](write-a-family.md).

Each family is tested against `transformers` on tiny checkpoints with random weights. The outputs
in float32 must be equal, with and without padding, up to 1e-5, absolute and relative; the table has
the largest difference. An export must be equal to the checkpoint byte for byte, and `transformers`
must compute the same from it. "Lines" counts the lines of the file that are not blank, "models" the
tested checkpoints.

"""

UNSEEN = """\
## What another family costs

Four families were written last, from the source of `transformers` alone, to measure how long this
takes: from opening the source to the last test that passes, by an author who had just read
[how to write one](write-a-family.md).

| family | what is special | minutes |
|---|---|---:|
| `exaone4` | windows and layers without positions in turn, norms of each head | 3 |
| `rembert` | narrow token vectors, a wide head, three further heads | 2 |
| `plbart` | nothing | 1 |
| `seed_oss` | which projections have a bias, dropout of the branches | 1 |

No Python was written for any of them. `exaone4` led to a fix for all families: a key of
config.json that a family ignores may be of another type than its default, as in published
configurations.

"""

Differences = Mapping[str, float]
"""The largest difference of each case, by name."""


def page(differences: Differences) -> str:
    """The whole page."""
    families = Families(load_registry())
    lines = {name: families.family(name).n_lines for name in sorted(families.paths)}
    types: dict[str, list[str]] = {name: [] for name in lines}
    for model_type, name in sorted(families.by_model_type.items()):
        types[name].append(model_type)
    left_out = tomllib.loads((DOCS / "left_out.toml").read_text())
    rows = [row(name, types[name], lines[name], differences) for name in lines if types[name]]
    return "\n".join(
        [
            HEAD + f"{len(rows)} families read {sum(map(len, types.values()))} model types, with "
            f"{statistics.median(lines.values()):g} lines in the median.",
            "",
            "| family | model types | kind | lines | models | largest difference |",
            "|---|---|---|---:|---:|---:|",
            *rows,
            "",
            UNSEEN + "## What families leave out",
            "",
            *entries(left_out["parts"]),
            "",
            "## What has no family",
            "",
            *entries(left_out["model_types"]),
            "",
        ]
    )


def row(name: str, types: Iterable[str], n_lines: int, differences: Differences) -> str:
    """The row of a family. Raises `SystemExit` when a model type of it has no case."""
    types = list(types)
    cases = [case for case in all_cases().values() if case.model_type in types]
    if untested := set(types) - {case.model_type for case in cases}:
        raise SystemExit(f"{name}: no case of {', '.join(sorted(untested))} in tests/families")
    kinds = ", ".join(sorted({case.kind.replace("_", "-") for case in cases}))
    largest = max(differences[case.name] for case in cases)
    listed = ", ".join(f"`{model_type}`" for model_type in types)
    return f"| `{name}` | {listed} | {kinds} | {n_lines} | {len(cases)} | {largest:.1e} |"


def entries(reasons: Mapping[str, str]) -> list[str]:
    return [
        f"- `{name}`: {why}" if " " not in name else f"- {name}: {why}"
        for name, why in reasons.items()
    ]


def measured(told: Callable[[str], object]) -> Differences:
    """Run every case of a family that is there. Raises `SystemExit` when one fails."""
    from families.conformance import check, make_truth

    served = Families(load_registry()).by_model_type
    found: dict[str, float] = {}
    for case in all_cases().values():
        if case.model_type in served:
            told(case.name)
            with TemporaryDirectory() as folder:
                report = check(make_truth(case, Path(folder) / "original"), Path(folder))
            if report.faults:
                raise SystemExit(f"{case.name}: {report.faults[0]}")
            found[case.name] = report.largest
    return found


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)  # the models are too small for more
    (DOCS / "families.md").write_text(page(measured(print)))
