"""What decoders have in common in whose text states stand that another stack has made."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from zoo.component import Part, contradiction
from zoo.layout import Layout
from zoo.only_with import stated
from zoo.purpose import Generation
from zoo_components.builders import Decoder, layout_of
from zoo_components.stack import DecoderStack, Stack

if TYPE_CHECKING:
    from zoo_components.image_text import StatesProjector


class InsertingDecoder(Decoder):
    """A decoder in whose text states stand that another stack has made, mapped by a `projector` to
    the width of the vectors of tokens. The stack is in the field of the name `medium`, and in that
    of the name `medium` and `_id` the token at whose places its states stand."""

    medium: ClassVar[str]
    """What the states are made of: `image` or `sound`."""
    memory_width: ClassVar[None] = None  # type: ignore[misc]  # no field: there is no memory
    decoder: Annotated[DecoderStack, Part(vocab="vocab")]
    """The stack that reads the text."""
    if TYPE_CHECKING:  # each has the field in its own place
        projector: StatesProjector

    @property
    def _reader(self) -> Stack:
        """The stack that makes the states."""
        reader: Stack = getattr(self, self.medium)
        return reader

    @property
    def _inserted_id(self) -> int:
        """The id of the token at whose places they stand."""
        inserted_id: int = getattr(self, f"{self.medium}_id")
        return inserted_id

    def _check_inserted_id(self) -> None:
        """Raise a contradiction if states cannot stand at the places of this token among the
        vectors of the decoder's embedding."""
        key, decoder, inserted_id = f"{self.medium}_id", self.decoder, self._inserted_id
        if not decoder.embedding.takes_inserted:
            raise contradiction(
                f"{self.medium}s cannot stand among the vectors of the embedding "
                f"`{decoder.embedding.kind}`: state one that takes them under `decoder`, such "
                "as `tokens`",
                "decoder.embedding.kind",
            )
        if any(group.block.takes_ids for group in decoder.groups):
            raise contradiction(
                f"a layer of the decoder reads the ids of the tokens, and {self.medium}s have "
                "none: state another network as its `ffn`",
                "decoder.block.ffn.kind",
            )
        vocab = decoder.vocab_of_ids
        if vocab is not None and inserted_id >= vocab:
            raise contradiction(
                f"{key} = {inserted_id} is beyond the vocabulary of {vocab} tokens", key, "vocab"
            )
        if inserted_id == decoder.pad_id:
            raise contradiction(
                f"the id {inserted_id} cannot stand for {self.medium}s and for padding",
                key,
                "decoder.pad_id",
            )

    @property
    def _inserts(self) -> dict[str, Any]:
        """What `generation` says of what may stand in the text."""
        raise self._lacks("_inserts")

    @property
    def generation(self) -> Generation | None:
        how = super().generation
        return how and how._replace(**self._inserts)

    def layout(self) -> Layout:
        return layout_of(
            **{self.medium: self._reader},
            projector=self.projector,
            decoder=self.decoder,
            head=self.head,
        )

    def _parts(self) -> dict[str, Any]:
        """The arguments of the module."""
        return {
            "reader": self._reader.build(),
            "projector": self.projector.build(),
            "decoder": self.decoder.build(padding_read=self.head.reads_padding),
            "head": self.head,
            "vocab": stated(self.decoder.vocab_of_ids),
            "inserted_id": self._inserted_id,
        }
