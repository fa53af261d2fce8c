"""How long `zoo build` of a Transformer-big takes, against the least that it has to do: import
torch, fill its bytes once at the speed of `torch.nn.init.uniform_`, write and hash them once."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path

import zoo
from benchmarks.measure import Ratio, printed, process, zoo_command

BAR = 1.3
MODEL = "vaswani-big"

# The fill is of fresh memory and the file a new one, as they are for the build.
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
    """The ratio of a build to that sum, and to the sum without waiting for the disk, for which a
    build does wait."""
    n_parameters = zoo.read_spec(MODEL).n_parameters
    builds: list[float] = []
    sums: dict[str, list[float]] = {part: [] for part in PARTS}
    with tempfile.TemporaryDirectory() as folder:
        path, output = Path(folder) / "plain", Path(folder) / "model"
        build = process([zoo_command(), "build", MODEL, "-o", str(output)])
        for number in range(rounds + 1):
            seconds = printed(LEAST.format(n=n_parameters, path=str(path)))
            path.unlink()
            built = build()
            shutil.rmtree(output)
            if number > 0:
                builds.append(built)
                for part, value in zip(PARTS, seconds, strict=True):
                    sums[part].append(value)
    parts = {part: statistics.median(values) for part, values in sums.items()}
    told = ", ".join(f"{part} {seconds:.2f}" for part, seconds in parts.items())
    least = sum(parts.values())
    took = statistics.median(builds)
    return [
        Ratio(f"zoo build {MODEL}", f"torch, fill, write, sync, hash ({told})", took, least, BAR),
        Ratio(f"zoo build {MODEL}", "the same without the sync", took, least - parts["sync"], BAR),
    ]
