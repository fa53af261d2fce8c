"""What is asked of a model, beside the texts, images or sounds that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zoo.errors import InputError
from zoo.generation import Beam, Draft, Greedy, Lookup, Sampling

if TYPE_CHECKING:
    from zoo.running.chat import Tools
    from zoo.running.image_reader import ImageFile
    from zoo.running.sounds_in_text import SoundFile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """The arguments of `TextModel.run`, `ImageModel.run` and `SoundModel.run` of these names; each
    is for some tasks. Of generating, what is left out is as the model's folder says."""

    max_new_tokens: int = 64
    method: Greedy | Sampling | Beam | None = None
    eos: int | None = None
    start: int | Sequence[int] | None = None
    stop: Sequence[str] = ()
    draft: Draft | Lookup | None = None
    cuda_graph: bool = False
    timestamps: bool = False
    labels: Sequence[str] | None = None
    images: Sequence[Sequence[ImageFile]] = ()
    sounds: Sequence[Sequence[SoundFile]] = ()
    mask_id: int | None = None
    tools: Tools | None = None
    top: int | None = None

    def refuse_generating(self, name: str) -> None:
        """Raise InputError if something about generating is asked of a model of this name, which
        generates nothing."""
        given = {
            "method": self.method,
            "eos": self.eos,
            "start": self.start,
            "stop": self.stop or None,
            "draft": self.draft,
            "cuda_graph": self.cuda_graph or None,
            "timestamps": self.timestamps or None,
            "tools": self.tools,
        }
        for argument, value in given.items():
            if value is not None:
                raise InputError(f"{name} generates no text: leave `{argument}` out")
