"""What named models cost: listing many, and loading one from the store, checked, against Hugging
Face's `from_pretrained` of the same checkpoint, unchecked."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import zoo
from benchmarks.measure import Ratio, in_turn, printed, process
from zoo.pretrained import Card, License
from zoo.source import Source
from zoo.store.card_text import card_text
from zoo.store.files import Store, digests
from zoo.store.pulling import pull

N_MODELS = 100_000
LISTING = 1.5  # seconds that listing them may take

TIMED = """
import time
{imports}
start = time.perf_counter()
model = {what}
print(time.perf_counter() - start)
"""


def measure(rounds: int = 7) -> list[Ratio]:
    """The listing against its bar in seconds, and a ratio for loading with and without digests. All
    files are in the page cache."""
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
    return Ratio(what, f"{LISTING} seconds", seconds, LISTING, bar=1.0)


def _loading(folder: Path, rounds: int) -> Iterator[Ratio]:
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder / "published")
    registry, store = _publish(folder), Store(folder / "home")
    os.environ["ZOO_HOME"] = str(store.root)
    pull("gpt2.random", registry, store)
    hugging = "from transformers import GPT2LMHeadModel"
    name = "'gpt2.random'"
    codes = {
        "from_pretrained": (hugging, "GPT2LMHeadModel.from_pretrained('published')"),
        "zoo.load": ("import torch, zoo, zoo.loading", f"zoo.load({name})"),
        "zoo.load, verify=False": (
            "import torch, zoo, zoo.loading",
            f"zoo.load({name}, verify=False)",
        ),
    }

    def timed(imports: str, what: str) -> float:
        (seconds,) = printed(TIMED.format(imports=imports, what=what))
        return seconds

    times = in_turn({key: lambda code=code: timed(*code) for key, code in codes.items()}, rounds)
    for key, bar in (("zoo.load", 1.1), ("zoo.load, verify=False", 0.4)):
        what = f"{key} of GPT-2 small, from the store"
        yield Ratio(what, "from_pretrained", times[key], times["from_pretrained"], bar)


def _publish(folder: Path) -> zoo.Registry:
    """A registry with the checkpoint as a model, as `zoo push` would write it."""
    models = folder / "models"
    models.mkdir()
    (folder / "registry.toml").write_text('format = 1\ncatalog = "models"\n')
    files = digests(folder / "published")
    card = Card(format=1, family="gpt2", license=License(weights="CC0-1.0"), files=files)
    source: Source = zoo.load_registry().source("local")(kind="local", path="../published")
    (models / "gpt2.random.toml").write_text(card_text(card, source))
    return zoo.load_registry()
