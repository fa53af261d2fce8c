"""Text from models: `generate` and `stream`, with the methods `Greedy`, `Sampling` and `Beam`.

One file for each step: `prompts` and `inputs` (check the arguments), `decoding` (the model and its
cache: from tokens to the scores of the next token), `ends` (when a sequence ends), `search` (the loop
of greedy search and sampling), `scores` and `sampling` (what is forbidden or forced; from scores to
probabilities) and `beam` (beam search).
"""

from zoo.generation.arrange import arrange_weights
from zoo.generation.decoding import RecomputeWarning
from zoo.generation.generate import generate, stream
from zoo.generation.methods import Beam, Generated, Greedy, Sampling

__all__ = [
    "Beam",
    "Generated",
    "Greedy",
    "RecomputeWarning",
    "Sampling",
    "arrange_weights",
    "generate",
    "stream",
]
