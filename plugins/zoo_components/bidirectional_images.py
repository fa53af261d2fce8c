"""A decoder whose text has images of any size in it, each of which sees all of itself, in the
`builder` slot."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import model_validator

from zoo.component import contradiction
from zoo_components.attention import MultiHead
from zoo_components.native_images import NativeImageTextDecoder

if TYPE_CHECKING:
    from zoo.transformer import Transformer


class BidirectionalImageTextDecoder(NativeImageTextDecoder):
    """The builder `native_image_text_decoder`, in which the states of an image attend to each other
    in both directions in the layers that have a `window`, as far as it reaches; in other layers no
    token sees later ones (the larger Gemma 4)."""

    example: ClassVar[Mapping[str, Any]] = {
        **NativeImageTextDecoder.example,
        "decoder": {"self_attn": {"window": 4}},
    }

    @model_validator(mode="after")
    def _check_windows(self) -> Self:
        if not self._windowed:
            raise contradiction(
                "an image sees all of itself in layers with a window, and no layer has one: state "
                "a `window`, or the builder `native_image_text_decoder`",
                "kind",
                "decoder.self_attn.window",
            )
        return self

    @property
    def _windowed(self) -> tuple[int, ...]:
        """The numbers of the decoder's layers that have a window."""
        windowed: list[int] = []
        for group in self.decoder.groups:
            attention = group.block.self_attention
            if isinstance(attention, MultiHead) and attention.window != "none":
                windowed += group.at
        return tuple(sorted(windowed))

    def build(self) -> "Transformer":
        from zoo_components.modules.bidirectional_images import BidirectionalImageTextDecoder
        from zoo_components.modules.tying import tie

        module = BidirectionalImageTextDecoder(**self._parts(), windowed=self._windowed)
        return tie(module, self.ties())
