"""A decoder whose text has sounds in it, in the `builder` slot."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.component import Given, Part, Size, contradiction
from zoo.only_with import UNSTATED, NotWith, stated
from zoo.purpose import InsertedSounds, Silence
from zoo_components.image_text import StatesProjector
from zoo_components.inserting import InsertingDecoder
from zoo_components.stack import DecoderStack, SoundStack

if TYPE_CHECKING:
    from zoo.transformer import Transformer


class SoundProjector(StatesProjector):
    """The map from the states of sounds to the width of the decoder's embeddings, a single linear
    map (`none`), or two with an activation between. States that follow each other may become one
    before."""

    merge: Size = 1
    """So many states that follow each other become one. The last of a window are left out if they
    are fewer."""
    merge_by: Annotated[
        Literal["concatenation", "mean"] | None,
        NotWith("merge", 1, default="concatenation"),
    ] = UNSTATED
    """How they do: as one vector, in their order (Voxtral: arXiv:2507.13264, section 2.2), or as
    their mean (Qwen2-Audio: Chu et al. 2024, arXiv:2407.10759, section 2)."""
    d_merged: Given[int] = Field(
        default_factory=lambda data: (
            data["d_in"] * (data["merge"] if data["merge_by"] == "concatenation" else 1)
        )
    )

    @property
    def _merged_shape(self) -> tuple[int, int]:
        return 1, self.merge


class SoundTextDecoder(InsertingDecoder):
    """A stack that predicts the next token of a text with sounds in it, and a head (Qwen2-Audio:
    Chu et al. 2024, arXiv:2407.10759). At the places of the token `sound_id` stand, in the place of
    its vector, the states of sounds, mapped to the width of the vectors of tokens; the longer a
    sound, the more there are. A long sound is read in windows."""

    example: ClassVar[Mapping[str, Any]] = {
        "sound_id": 1,
        "sound": {"embedding": {"kind": "conv_frontend", "n_features": 4}},
    }

    medium: ClassVar[str] = "sound"
    decoder: Annotated[DecoderStack, Part(vocab="vocab")]
    """The stack that reads the text with its sounds."""
    sound_id: int = Field(ge=0)
    """The id of the token at whose places the states of sounds stand. A sound takes as many of
    these tokens as it has states."""
    sound: Annotated[SoundStack, Part()]
    """The stack that reads windows of spectrograms of sounds."""
    silence: Silence = "hidden"
    """What becomes of the silence that fills up the last window of a sound: it is hidden from
    attention (`hidden`; Qwen2-Audio); it is read, and its states are left out of the text
    (`left_out`; GLM-ASR); or these stand in the text too (`inserted`; Voxtral)."""
    projector: Annotated[
        SoundProjector,
        Part(d_in="sound.output_width", d_out="decoder.embedding.position_width"),
    ]
    """The map of these states to the width of the vectors of tokens."""

    @model_validator(mode="after")
    def _check_sounds(self) -> Self:
        embedding = self.sound.embedding
        shape = embedding.spectrogram_shape
        if shape is None or shape[0] is not None:
            raise contradiction(
                f"the embedding `{embedding.kind}` does not make vectors of spectrograms of any "
                "length, one after the other: state one that does under `sound`, such as "
                "`conv_frontend`",
                "sound.embedding.kind",
            )
        self._check_inserted_id()
        longest = self.sound.longest
        if longest is not None and longest < self.projector.merge:
            raise contradiction(
                f"{self.projector.merge} states become one, and there are positions for {longest}",
                "projector.merge",
                "sound.position.max_length",
            )
        return self

    @property
    def _inserts(self) -> dict[str, Any]:
        embedding, merge = self.sound.embedding, self.projector.merge
        _, bands = stated(embedding.spectrogram_shape)
        longest, _ = stated(self.sound.spectrogram_shape)
        n_states = 2 if self.sound.longest is None else min(2, self.sound.longest // merge)
        return {
            "inserted_sounds": InsertedSounds(
                sound_id=self.sound_id,
                shape=(embedding.most_inputs(n_states * merge), bands),
                n_states=n_states,
                longest=longest,
                silence=self.silence,
                states_of_frames=self._states_of_frames,
            )
        }

    def _states_of_frames(self, frames: int) -> int:
        """The number of states that so many frames of a window become."""
        return self.sound.embedding.embedded_length(frames) // self.projector.merge

    def build(self) -> "Transformer":
        from zoo_components.modules.sound_text import SoundTextDecoder as Module
        from zoo_components.modules.tying import tie

        how = self._inserts["inserted_sounds"]
        return tie(Module(**self._parts(), how=how, merge=self.projector.merge), self.ties())
