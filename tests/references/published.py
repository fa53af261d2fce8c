"""Published models: tiny ones of `transformers`, and our specs for the same.

They test the parts around attention and feed-forward network: embeddings, positions, stacks and
heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EPS = 1e-3
NORM = {"kind": "layer_norm", "eps": EPS}
RMS = {"kind": "rms_norm", "eps": EPS}
V, D, FF, H, N, LONGEST = 41, 24, 36, 4, 2, 30


@dataclass(frozen=True)
class Published:
    """A model class of `transformers` with its configuration, and our spec.

    Args:
        model: the class, whose configuration class is `config_class`.
        config: its configuration, in addition to the defaults.
        spec: our spec, in addition to the common sizes.
        names: parts of our tensors' names with those of theirs, replaced in order.
        inputs: `ids`, or `features` for an encoder of audio.
        pads: the sides on which sequences are padded in the test.
        pad_id: the padding id of both.
        token_types: whether both are called with token types.
        left: the prefixes of their tensors that ours do not have.
        within: whether outputs at padding are compared, too.
    """

    model: str
    config: dict[str, Any]
    spec: dict[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)
    inputs: str = "ids"
    pads: tuple[str, ...] = ("right",)
    pad_id: int = 1
    token_types: bool = False
    left: tuple[str, ...] = ()
    within: bool = False

    def renamed(self, name: str) -> str:
        """Return their name of our tensor."""
        for ours, theirs in self.names.items():
            name = name.replace(ours, theirs)
        return name

    @property
    def config_class(self) -> str:
        """The name of the configuration's class."""
        stem = self.model.split("For")[0].split("With")[0]
        return {"Gemma3": "Gemma3Text"}.get(stem, stem) + "Config"
