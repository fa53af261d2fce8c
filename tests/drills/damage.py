"""Damaged weight files: none is loaded, and none raises anything but the zoo's own error.

A small file is damaged at random, by bits, bytes and runs, in its header and in its tensors, from a
fixed seed. The same damage is given to plain safetensors, as the yardstick of what a format without
digests notices.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

import zoo

TINY = {
    "format": 1,
    "name": "tiny",
    "builder": "encoder",
    "vocab": 40,
    "n_layers": 1,
    "d_model": 16,
    "n_heads": 2,
    "d_ff": 32,
}


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """The bytes with one to three random changes, half of them before the tensors."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        header = 8 + int.from_bytes(raw[:8], "little")
        at = rng.randrange(rng.choice((8, header, len(raw))))
        at = min(at, len(data) - 1)
        match rng.randrange(9):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.randrange(256)
            case 2:
                data[at] = rng.choice(b"0123456789")
            case 3:
                del data[at : at + rng.randint(1, 64)]
            case 4:
                data[at:at] = rng.randbytes(rng.randint(1, 64))
            case 5:
                size = rng.randint(1, 256)
                data[at : at + size] = bytes(len(data[at : at + size]))
            case 6:
                other, size = rng.randrange(len(data)), rng.randint(1, 256)
                data[at : at + size] = data[other : other + size]
            case 7:
                data[:] = data[: max(1, at)]
            case _:
                data += rng.randbytes(rng.randint(1, 64))
        if not data:
            data[:] = b"\0"
    return bytes(data)


@dataclass
class Damage:
    """How many damaged files there were, and how many were loaded: by the zoo, and by plain
    safetensors."""

    files: int = 0
    loaded: int = 0
    plain: int = 0


def run_damage(count: int) -> Damage:
    """Damage a file `count` times. Raises what `zoo.load` raises, unless it is a `WeightsError`."""
    tally = Damage()
    registry = zoo.load_registry()
    rng = random.Random(5)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        zoo.save(zoo.build(TINY), path)
        raw = path.read_bytes()
        for _ in range(count):
            changed = damaged(raw, rng)
            if changed == raw:
                continue
            path.write_bytes(changed)
            tally.files += 1
            try:
                zoo.load(path, registry=registry)
                tally.loaded += 1
            except zoo.WeightsError:
                pass
            try:
                load_file(path)
                tally.plain += 1
            except (SafetensorError, ValueError, OverflowError, KeyError):
                pass
    return tally
