"""The time of listing many named models, and of loading one of the size of GPT-2 small from the
store, checked and unchecked, compared with Hugging Face's unchecked `from_pretrained` of the same
checkpoint.

Each load is the first in its process, which has imported the libraries. `zoo.load` finds the model
in the file, and imports its components within the call. So does `AutoModelForCausalLM`. Importing
`GPT2LMHeadModel` imports the code of that model beforehand; it is compared with the zoo with its
components imported beforehand, which is like for like, and without. Both sides map the file and,
unchecked, may have read none of it when they return; so other rows include the first logits.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import zoo
from benchmarks.measure import Ratio, in_turn, of_code, process
from zoo.source import Source
from zoo.store.files import Store, digests
from zoo.store.manifest_text import manifest_text
from zoo.store.pretrained import License, Manifest
from zoo.store.pulling import pull

N_MODELS = 100_000
LISTING = 1.5  # the most seconds for listing them

AUTO = "AutoModelForCausalLM"
GPT2 = "GPT2LMHeadModel"
VERIFIED = "zoo.load"
UNVERIFIED = "zoo.load, verify=False"
IMPORTED = ", its components imported before"
LOGITS = ", with the first logits"

LOAD = """
import time, torch, zoo, zoo.loading
{before}
start = time.perf_counter()
model = {what}
{then}
print(time.perf_counter() - start)
"""
FORWARD = """
with torch.inference_mode():
    model.eval()(torch.tensor([[464, 3290, 318]]))
"""

# The least work of checking every byte by SHA-256.
HASHING = """
import hashlib, mmap, os, time
from concurrent.futures import ThreadPoolExecutor

n = os.cpu_count()
with open({path!r}, "rb") as file, ThreadPoolExecutor(n) as pool:
    data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    parts = [data[len(data) * i // n : len(data) * (i + 1) // n] for i in range(n)]
    hashlib.sha256(data)  # every page is mapped
    start = time.perf_counter()
    list(pool.map(hashlib.sha256, parts))
print(time.perf_counter() - start)
"""


def measure(rounds: int = 7) -> list[Ratio]:
    """Return the time of the listing with its target in seconds, and the ratios of loading with and
    without digests. All files are in the page cache."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return [_listing(Path(folder), rounds), *_loading(Path(folder), rounds)]


def _listing(folder: Path, rounds: int) -> Ratio:
    models = folder / "many"
    models.mkdir()
    (folder / "registry.toml").write_text('format = 1\ncatalog = "many"\n')
    for number in range(N_MODELS):
        (models / f"model-{number // 3}.tag{number % 3}.toml").touch()
    command = [sys.executable, "-m", "zoo", "list", "models"]
    seconds = in_turn({"list": process(command)}, rounds)["list"]
    what = f"zoo list models, of {N_MODELS:,}"
    return Ratio(what, f"{LISTING} seconds", seconds, LISTING, target=1.0)


def _loading(folder: Path, rounds: int) -> Iterator[Ratio]:
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder / "published")
    registry, store = _publish(folder), Store(folder / "home")
    os.environ["ZOO_HOME"] = str(store.root)
    ref = pull("gpt2.random", registry, store)
    times = in_turn(_cases(store.snapshot(ref.files) / "model.safetensors"), rounds)
    for what, peer, target in (
        (VERIFIED, AUTO, 1.1),
        (UNVERIFIED, AUTO, 0.4),
        (VERIFIED + IMPORTED, GPT2, 1.1),
        (UNVERIFIED + IMPORTED, GPT2, 0.4),
        (VERIFIED, GPT2, None),
        (UNVERIFIED, GPT2, None),
    ):
        for until in ("", LOGITS):
            least = None if until else target
            times_of = times[what + until], times[peer + until]
            yield Ratio(what + until, peer + until, *times_of, least)
    yield Ratio(VERIFIED, "SHA-256 of its bytes on all cores", times[VERIFIED], times["hashing"])


def _cases(weights: Path) -> dict[str, Callable[[], float]]:
    """Return the cases to time, each of which runs in a process of its own."""
    plugins = "zoo.build('gpt2', device='meta')"
    calls = {
        VERIFIED: ("", "zoo.load('gpt2.random')"),
        UNVERIFIED: ("", "zoo.load('gpt2.random', verify=False)"),
        VERIFIED + IMPORTED: (plugins, "zoo.load('gpt2.random')"),
        UNVERIFIED + IMPORTED: (plugins, "zoo.load('gpt2.random', verify=False)"),
    }
    for peer in (AUTO, GPT2):
        calls[peer] = f"from transformers import {peer}", f"{peer}.from_pretrained('published')"

    cases = {"hashing": of_code(HASHING.format(path=str(weights)))}
    for name, (before, what) in calls.items():
        cases[name] = of_code(LOAD.format(before=before, what=what, then=""))
        cases[f"{name}{LOGITS}"] = of_code(LOAD.format(before=before, what=what, then=FORWARD))
    return cases


def _publish(folder: Path) -> zoo.Registry:
    """Return a registry with the checkpoint as a model, as `zoo push` would write it."""
    models = folder / "models"
    models.mkdir()
    (folder / "registry.toml").write_text('format = 1\ncatalog = "models"\n')
    files = digests(folder / "published")
    manifest = Manifest(format=1, family="gpt2", license=License(weights="CC0-1.0"), files=files)
    source: Source = zoo.load_registry().source("local")(kind="local", path="../published")
    (models / "gpt2.random.toml").write_text(manifest_text(manifest, source))
    return zoo.load_registry()
