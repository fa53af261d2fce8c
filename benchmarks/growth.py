"""How cost grows with length, layers and batch, against the growth of the arithmetic itself."""

from __future__ import annotations

from itertools import pairwise

import torch

import zoo
from benchmarks.forward import ids, timed
from benchmarks.measure import Ratio, in_turn

WIDTH, HEADS, VOCAB = 128, 4, 1000
LENGTHS, LAYERS, BATCHES = (128, 512, 2048, 8192), (2, 8, 32, 96), (1, 4, 16, 64)


def measure(rounds: int = 5) -> list[Ratio]:
    """For each step of a size, the time of the larger over what the arithmetic makes of the
    smaller's."""
    return [
        *_steps("length", [(2, 1, length) for length in LENGTHS], rounds),
        *_steps("layers", [(layers, 1, 128) for layers in LAYERS], rounds),
        *_steps("batch", [(2, batch, 128) for batch in BATCHES], rounds),
    ]


def operations(layers: int, batch: int, length: int) -> float:
    """Multiplications of a causal decoder: its linear maps, its attention, and its head."""
    maps = 12 * WIDTH**2 * length
    attention = WIDTH * length**2
    return batch * (layers * (maps + attention) + WIDTH * VOCAB * length)


def _steps(what: str, sizes: list[tuple[int, int, int]], rounds: int) -> list[Ratio]:
    models = {layers: _model(layers) for layers, _, _ in sizes}
    inputs = {size: ids(size[1], size[2]) % VOCAB for size in sizes}
    with torch.inference_mode():
        times = in_turn(
            {
                str(size): timed(lambda size=size: models[size[0]](inputs[size]))  # type: ignore[misc]
                for size in sizes
            },
            rounds,
        )
    found: list[Ratio] = []
    for small, large in pairwise(sizes):
        place = {"length": 2, "layers": 0, "batch": 1}[what]
        grown = times[str(small)] * operations(*large) / operations(*small)
        name = f"forward, {what} {small[place]} to {large[place]}"
        found.append(Ratio(name, "growth of the arithmetic", times[str(large)], grown, 1.2))
    return found


def _model(layers: int) -> zoo.Transformer:
    sizes = {"n_layers": layers, "d_model": WIDTH, "n_heads": HEADS, "d_ff": 4 * WIDTH}
    spec = {"format": 1, "name": "m", "builder": "decoder", "vocab": VOCAB, **sizes}
    return zoo.build({**spec, "position": "rotary"}).eval()
