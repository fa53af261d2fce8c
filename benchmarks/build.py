"""The time of `zoo build` of a Transformer-big, compared with the least work it must do: import
torch, fill its bytes once at the speed of `torch.nn.init.uniform_`, write and hash them once."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path

import zoo
from benchmarks.measure import Ratio, Samples, in_turn, printed, process, zoo_command

TARGET = 1.3
MODEL = "vaswani-big"

# Fills fresh memory and writes a new file, as the build does.
LEAST = """
from time import perf_counter as now

t = [now()]
import torch

t += [now()]
tensor = torch.empty({n})
torch.nn.init.uniform_(tensor)
t += [now()]
import hashlib, os

data = memoryview(tensor.view(torch.uint8).numpy())
with open({path!r}, "xb") as file:
    file.write(data)
    t += [now()]
    os.fsync(file.fileno())
t += [now()]
hashlib.sha256(data).hexdigest()
t += [now()]
print(*(end - start for start, end in zip(t, t[1:])))
"""
PARTS = ("import", "fill", "write", "sync", "hash")


def measure(rounds: int = 7) -> list[Ratio]:
    """Return the ratio of a build to this minimum, and to the minimum without waiting for the disk,
    which a build does."""
    n_parameters = zoo.read_spec(MODEL).n_parameters
    parts: dict[str, list[float]] = {part: [] for part in PARTS}
    with tempfile.TemporaryDirectory() as folder:
        path, output = Path(folder) / "plain", Path(folder) / "model"
        command = process([zoo_command(), "build", MODEL, "-o", str(output)])

        def build() -> float:
            seconds = command()
            shutil.rmtree(output)
            return seconds

        def least() -> float:
            seconds = printed(LEAST.format(n=n_parameters, path=str(path)))
            path.unlink()
            for part, value in zip(PARTS, seconds, strict=True):
                parts[part].append(value)
            return sum(seconds)

        times = in_turn({"build": build, "least": least}, rounds)
    told = ", ".join(f"{part} {statistics.median(values):.2f}" for part, values in parts.items())
    # The first round is the warm-up.
    without = zip(times["least"], parts["sync"][1:], strict=True)
    return [
        Ratio(
            f"zoo build {MODEL}",
            f"torch, fill, write, sync, hash ({told})",
            *times.values(),
            TARGET,
        ),
        Ratio(
            f"zoo build {MODEL}",
            "the same without the sync",
            times["build"],
            Samples(total - sync for total, sync in without),
            TARGET,
        ),
    ]
