"""Text from models: `generate` and `stream`, with the methods `Greedy`, `Sampling` and `Beam`.

generate.py             both functions
request.py, methods.py  what is asked, and how tokens are chosen
prompts.py, inputs.py   what the model is given, checked; media.py, the images or sounds in it
decoding.py             the model and its cache: from tokens to the scores of the next one;
                        recorded.py, as a CUDA graph, with the cache of fixed_cache.py
outputs.py              outputs that are no numbers
scores.py               what is forbidden or forced
choosing.py             from scores to the chosen token; sampling.py, to a drawn one
search.py               the loop of greedy search and sampling
drafts.py               guessed tokens; speculative.py, the loop with them
beam.py                 beam search
ends.py                 when a sequence ends
evaluating.py           evaluation mode while a model computes

arrange.py packs weights, and quantize.py keeps them in 8 bits, both for speed.
"""

from zoo.generation.arrange import arrange_weights
from zoo.generation.decoding import RecomputeWarning
from zoo.generation.generate import generate, stream
from zoo.generation.methods import Beam, Generated, Greedy, Sampling
from zoo.generation.quantize import quantize_weights
from zoo.generation.request import Draft, Lookup

__all__ = [
    "Beam",
    "Draft",
    "Generated",
    "Greedy",
    "Lookup",
    "RecomputeWarning",
    "Sampling",
    "arrange_weights",
    "generate",
    "quantize_weights",
    "stream",
]
