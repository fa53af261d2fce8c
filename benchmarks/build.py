"""How long `zoo build` of a Transformer-big takes, against the least that it has to do: import
torch, fill its bytes once at the speed of `torch.nn.init.uniform_`, write and hash them once."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import zoo
from benchmarks.measure import Ratio, in_turn, process, python, zoo_command

BAR = 1.3
MODEL = "vaswani-big"

_FILL = "import time, torch; n = {n}; x = torch.empty(n // 4); s = time.perf_counter(); \
torch.nn.init.uniform_(x); print(time.perf_counter() - s)"
_WRITE = """import hashlib, os, time
data = bytearray(os.urandom(1 << 20)) * ({n} >> 20)
start = time.perf_counter()
with open({path!r}, "wb") as file:
    file.write(data)
    os.fsync(file.fileno())
hashlib.sha256(data).hexdigest()
print(time.perf_counter() - start)"""


def measure(rounds: int = 5) -> list[Ratio]:
    """The ratio of one build."""
    n_bytes = 4 * zoo.read_spec(MODEL).n_parameters
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "plain")

        def printed(code: str) -> float:
            done = subprocess.run(python(code), check=True, capture_output=True, text=True)
            return float(json.loads(done.stdout))

        times = in_turn(
            {
                "build": process([zoo_command(), "build", MODEL, "-o", folder]),
                "import": process(python("import torch")),
                "fill": lambda: printed(_FILL.format(n=n_bytes)),
                "write": lambda: printed(_WRITE.format(n=n_bytes, path=path)),
            },
            rounds,
        )
    limit = times["import"] + times["fill"] + times["write"]
    parts = ", ".join(f"{name} {times[name]:.2f} s" for name in ("import", "fill", "write"))
    against = f"import torch + fill + write and hash ({parts})"
    return [Ratio(f"zoo build {MODEL}", against, times["build"], limit, BAR)]
