"""The time of `zoo.import_folder` for a checkpoint of GPT-2's size, compared with reading,
hashing and writing its bytes once, in turn and in one buffer, as a plain copy would."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.measure import Ratio, in_turn, of_code, printed

TARGET = 1.5
GPT2_SMALL = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
"""Its config.json; all other keys have the defaults of the model type."""

MAKE = """
import torch
from safetensors.torch import save_file

D, T = 768, torch.rand
layer = {{
    "ln_1.weight": T(D), "ln_1.bias": T(D), "ln_2.weight": T(D), "ln_2.bias": T(D),
    "attn.c_attn.weight": T(D, 3 * D), "attn.c_attn.bias": T(3 * D),
    "attn.c_proj.weight": T(D, D), "attn.c_proj.bias": T(D),
    "mlp.c_fc.weight": T(D, 4 * D), "mlp.c_fc.bias": T(4 * D),
    "mlp.c_proj.weight": T(4 * D, D), "mlp.c_proj.bias": T(D),
}}
ends = {{
    "wte.weight": T(50257, D), "wpe.weight": T(1024, D), "ln_f.weight": T(D), "ln_f.bias": T(D)
}}
layers = {{f"h.{{i}}.{{name}}": t.clone() for i in range(12) for name, t in layer.items()}}
tensors = {{f"transformer.{{name}}": t for name, t in {{**layers, **ends}}.items()}}
save_file(tensors, {path!r}, metadata={{"format": "pt"}})
"""

# Waits for the disk, as the import does before it renames the folder.
COPY = """
import hashlib, os, time

start = time.perf_counter()
digest, buffer = hashlib.sha256(), memoryview(bytearray(1 << 20))
with open({source!r}, "rb", buffering=0) as read, open({target!r}, "xb", buffering=0) as write:
    while length := read.readinto(buffer):
        digest.update(buffer[:length])
        write.write(buffer[:length])
    os.fsync(write.fileno())
print(time.perf_counter() - start)
os.unlink({target!r})
"""

IMPORT = """
import shutil, time
from pathlib import Path
from zoo import import_folder

start = time.perf_counter()
import_folder(Path({source!r}), Path({target!r}))
print(time.perf_counter() - start)
shutil.rmtree({target!r})
"""


def measure(rounds: int = 5) -> list[Ratio]:
    """Return the ratio. The checkpoint is in the page cache; importing modules is not timed."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "gpt2", str(Path(folder) / "made")
        source.mkdir()
        (source / "config.json").write_text(json.dumps(GPT2_SMALL))
        weights = str(source / "model.safetensors")
        printed(MAKE.format(path=weights) + "\nprint(0)")
        cases = {
            "copy": of_code(COPY.format(source=weights, target=target)),
            "import": of_code(IMPORT.format(source=str(source), target=target)),
        }
        times = in_turn(cases, rounds)
    against = "reading, hashing and writing its bytes"
    return [Ratio("import_folder of GPT-2 small", against, times["import"], times["copy"], TARGET)]
