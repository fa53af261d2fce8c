"""The time of `zoo.load`, with and without checking the digests, compared with `from_pretrained` of
Hugging Face, which checks nothing, and with reading the tensors with safetensors alone.

The model has the size of GPT-2 small. Its files are read-only, as in the zoo's store, and in the
page cache. `from_pretrained` maps its file and reads none of it, and so does `zoo.load` without
digests. With them, half a gigabyte is hashed by SHA-256, tensor by tensor. A model in the store is
hashed faster; the targets are those of the suite `store`, here for whole processes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import zoo
from benchmarks.measure import Ratio, in_turn, of_code, printed, process, python

MODEL = "gpt2"
BARS = {"zoo.load": 1.1, "zoo.load, verify=False": 0.4}

MAKE = """
from transformers import GPT2Config, GPT2LMHeadModel

GPT2LMHeadModel(GPT2Config()).save_pretrained({folder!r})
"""
# Times the second call in a process, since the first one imports modules.
TIMED = """
import time
{imports}

model = {what}
del model
start = time.perf_counter()
model = {what}
print(time.perf_counter() - start)
"""
WHOLE = """
{imports}

model = {what}
"""


def measure(rounds: int = 5) -> list[Ratio]:
    """Return the ratios of the call alone, and of a whole process that imports and loads."""
    with tempfile.TemporaryDirectory() as folder:
        own, other = str(Path(folder) / "model.safetensors"), str(Path(folder) / "hub")
        zoo.save(zoo.build(MODEL), own)
        Path(own).chmod(0o444)
        printed(MAKE.format(folder=other) + "print(0)\n")
        hub = f"GPT2LMHeadModel.from_pretrained({other!r})"
        imports = "from transformers import GPT2LMHeadModel"
        cases = {
            "from_pretrained": (imports, hub),
            "load_file": (
                "from safetensors.torch import load_file",
                f'load_file({own!r}, backend="pread")',
            ),
            "zoo.load": ("import zoo", f"zoo.load({own!r})"),
            "zoo.load, verify=False": ("import zoo", f"zoo.load({own!r}, verify=False)"),
            'zoo.load, read="bytes"': ("import zoo", f'zoo.load({own!r}, read="bytes")'),
            'zoo.load, read="bytes", verify=False': (
                "import zoo",
                f'zoo.load({own!r}, read="bytes", verify=False)',
            ),
        }
        calls = {
            name: of_code(TIMED.format(imports=first, what=what))
            for name, (first, what) in cases.items()
        }
        times = in_turn(calls, rounds)
        whole = {
            name: process(python(WHOLE.format(imports=first, what=what)))
            for name, (first, what) in cases.items()
            if name in ("from_pretrained", "zoo.load", "zoo.load, verify=False")
        }
        whole_times = in_turn(whole, rounds)
    return [*_ratios("the process", whole_times, BARS), *_ratios("the call", times, {})]


def _ratios(part: str, times: dict[str, float], targets: dict[str, float]) -> list[Ratio]:
    against = "from_pretrained"
    ratios = [
        Ratio(f"{name} of {MODEL}, {part}", against, seconds, times[against], targets.get(name))
        for name, seconds in times.items()
        if name.startswith("zoo")
    ]
    if "load_file" in times:
        name = 'zoo.load, read="bytes", verify=False'
        file = times["load_file"]
        ratios.append(Ratio(f"{name} of {MODEL}, {part}", "load_file", times[name], file))
    return ratios
