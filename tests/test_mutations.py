"""Damaged specs: whatever a text holds, reading it gives a spec or the zoo's own error, quickly.

Every shipped spec is damaged at random, by lines, values and bytes, from a fixed seed. Each text is
read, resolved, validated and counted, as `zoo show` does.
"""

from __future__ import annotations

import random
import resource
import time
from pathlib import Path

import pytest

import zoo
from zoo.errors import PluginError, ZooError

ROOT = Path(__file__).parent.parent
SPECS = [
    path.read_text()
    for path in sorted((ROOT / "examples").rglob("*.toml"))
    if "extends" not in path.read_text()
]
VALUES = [
    "true",
    "0",
    "-1",
    "1.5",
    "nan",
    "inf",
    '"none"',
    '"\\u0000"',
    "[]",
    "[1, 2]",
    "[0, 0, 1]",
    "{}",
    '{ kind = "none" }',
    '{ kind = "mlp", d_ff = {} }',
    "9007199254740991",
    "9007199254740993",
    "1" * 400,
    "1e308",
    "1979-05-27",
    '"' + "x" * 5000 + '"',
    "[[[[[[[[[[1]]]]]]]]]]",
]
KEYS = [
    "kind",
    "d_model",
    "n_layers",
    "encoder.block",
    "decoder.layers",
    "a.b.c.d",
    "norm",
    "norms",
    "share_layers",
    "at",
]


def damaged(text: str, rng: random.Random) -> str:
    """Return the text with one to four random changes."""
    for _ in range(rng.randint(1, 4)):
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        match rng.randrange(9):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, rng.choice(lines))
            case 2 if "=" in lines[at]:
                lines[at] = lines[at].split("=")[0] + "= " + rng.choice(VALUES)
            case 3:
                lines.insert(at, f"{rng.choice(KEYS)} = {rng.choice(VALUES)}")
            case 4 if lines[at]:
                where = rng.randrange(len(lines[at]))
                lines[at] = (
                    f"{lines[at][:where]}{chr(rng.randrange(1, 0x2FF))}{lines[at][where + 1 :]}"
                )
            case 5:
                lines.insert(at, f"[{rng.choice(KEYS)}]")
            case 6:
                lines.insert(at, f"[[{rng.choice(['encoder', 'decoder'])}.layers]]")
            case 7:
                lines = lines[:at] or lines
            case _:
                rng.shuffle(lines)
        text = "\n".join(lines)
    return text


def read_damaged(count: int, seed: int) -> tuple[int, float]:
    """Read `count` damaged specs; return the number of refused ones and the longest time, in
    seconds of this process."""
    rng = random.Random(seed)
    registry = zoo.load_registry()
    refused, slowest = 0, 0.0
    for _ in range(count):
        text = damaged(rng.choice(SPECS), rng) + "\n\n"
        start = time.process_time()
        try:
            spec = zoo.read_spec(text, registry=registry)
            assert spec.n_parameters >= 0
        except PluginError as error:  # the shipped plugins must not fail for any spec
            raise AssertionError(f"{error} for this spec:\n{text}") from error
        except ZooError as error:
            refused += bool(str(error))
        except Exception as error:
            raise AssertionError(f"{error!r} for this spec:\n{text}") from error
        slowest = max(slowest, time.process_time() - start)
    return refused, slowest


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize(
    "count", [1_000, pytest.param(100_000, marks=pytest.mark.drill)], ids=["test", "drill"]
)
def test_damaged_specs(count: int) -> None:
    """Only the zoo's own exceptions, within seconds for each, and at most 200 MB."""
    read_damaged(200, seed=1)  # plugins are imported and torch-free before memory is measured
    before = peak_bytes()
    refused, slowest = read_damaged(count, seed=2)
    assert slowest < 20  # no measure of speed, which is of milliseconds
    assert peak_bytes() - before < 200e6
    # Most damage must be found; some changes (to a comment, a number) leave a valid spec.
    assert 0.5 * count < refused < count
