"""Text from models: `generate` and `stream`, with the methods `Greedy`, `Sampling` and `Beam`.

One file for each step: `request` (what is asked), `prompts` and `inputs` (check what the model is
given), `decoding` (the model and its cache: from tokens to the scores of the next token), `scores`
(what is forbidden or forced), `choosing` and `sampling` (from scores to the chosen token), `search`
(the loop of greedy search and sampling), `drafts` and `speculative` (the same with guessed tokens),
`beam` (beam search), `copies` (several sequences for a prompt) and `ends` (when a sequence ends).
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
