"""How long `zoo.load` takes, with and without checking the digests, against reading the tensors of
the same file with `safetensors.torch.load_file`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import zoo
from benchmarks.measure import Ratio, in_turn, printed

MODEL = "vaswani-big"

# The library maps a file unless it is told to read it, and then reads nothing until it is used.
TIMED = """
import time, torch, zoo, zoo.loading
from safetensors.torch import load_file

start = time.perf_counter()
model = {what}
print(time.perf_counter() - start)
"""


def measure(rounds: int = 7) -> list[Ratio]:
    """One ratio for each way of loading. The file is in the page cache."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.safetensors")
        zoo.save(zoo.build(MODEL), path)
        whats = {
            "load_file": f'load_file({path!r}, backend="pread")',
            "zoo.load": f"zoo.load({path!r})",
            "zoo.load, verify=False": f"zoo.load({path!r}, verify=False)",
        }

        def timed(what: str) -> float:
            (seconds,) = printed(TIMED.format(what=what))
            return seconds

        cases = {name: lambda what=what: timed(what) for name, what in whats.items()}
        times = in_turn(cases, rounds)
    against = "safetensors.torch.load_file"
    return [
        Ratio(f"{name} of {MODEL}", against, times[name], times["load_file"])
        for name in list(whats)[1:]
    ]
