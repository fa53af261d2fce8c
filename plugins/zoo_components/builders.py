"""Whole Transformers: the `builder` slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import model_validator

from zoo.component import Part, Size, Slot, contradiction
from zoo.layout import Layout
from zoo.slots import Builder, Head
from zoo_components.stack import DecoderStack, EncoderStack

if TYPE_CHECKING:
    from zoo.transformer import Transformer

TOKENS = "embed.tokens.weight"


def _whole(**parts: Layout) -> Layout:
    return Layout({name: part for name, part in parts.items() if part.parts})


class EncoderDecoder(Builder):
    """An encoder, and a decoder that attends to it (Vaswani et al. 2017, arXiv:1706.03762)."""

    source_vocab: Size | None = None
    """Tokens of the source vocabulary."""
    target_vocab: Size | None = None
    """Tokens of the target vocabulary."""
    share_embeddings: bool = False
    """Whether source and target have one token table."""
    encoder: Annotated[EncoderStack, Part(vocab="source_vocab")]
    """The stack over the source."""
    decoder: Annotated[
        DecoderStack, Part(vocab="target_vocab", memory_width="encoder.d_model")
    ]
    """The stack over the target."""
    head: Annotated[Head, Slot("head", vocab="target_vocab", d_model="decoder.d_model")]
    """What is made of the decoder's states."""

    @model_validator(mode="after")
    def _check(self) -> EncoderDecoder:
        for a, b in (("source_vocab", "target_vocab"), ("encoder.d_model", "decoder.d_model")):
            sizes = [_dig(self, name) for name in (a, b)]
            if self.share_embeddings and sizes[0] != sizes[1]:
                raise contradiction(
                    f"one token table cannot serve {a} = {sizes[0]} and {b} = {sizes[1]}",
                    "share_embeddings",
                    a,
                    b,
                )
        return self

    def ties(self) -> dict[str, str]:
        table = f"decoder.{TOKENS}"
        ties = {f"head.{name}": target for name, target in self.head.ties(table).items()}
        return ties | ({f"encoder.{TOKENS}": table} if self.share_embeddings else {})

    def layout(self) -> Layout:
        return _whole(
            encoder=self.encoder.layout(), decoder=self.decoder.layout(), head=self.head.layout()
        )

    def build(self) -> Transformer:
        from zoo_components.modules.builders import EncoderDecoder as Module

        model = Module(
            encoder=self.encoder.build(), decoder=self.decoder.build(), head=self.head.build()
        )
        return model.tie(self.ties())


class Encoder(Builder):
    """A stack that sees the whole sequence, and a head (Devlin et al. 2018, arXiv:1810.04805)."""

    vocab: Size | None = None
    """Tokens of the vocabulary."""
    encoder: Annotated[EncoderStack, Part(vocab="vocab")]
    """The stack."""
    head: Annotated[Head, Slot("head", vocab="vocab", d_model="encoder.d_model")]
    """What is made of its states."""

    def ties(self) -> dict[str, str]:
        return {f"head.{k}": v for k, v in self.head.ties(f"encoder.{TOKENS}").items()}

    def layout(self) -> Layout:
        return _whole(encoder=self.encoder.layout(), head=self.head.layout())

    def build(self) -> Transformer:
        from zoo_components.modules.builders import Encoder as Module

        return Module(encoder=self.encoder.build(), head=self.head.build()).tie(self.ties())


class Decoder(Builder):
    """A stack that predicts the next token, and a head (Radford et al. 2018). With a
    `memory_width` it also attends to an external memory of that width."""

    vocab: Size | None = None
    """Tokens of the vocabulary."""
    memory_width: Size | None = None
    """The width of the vectors of an external memory, if there is one."""
    decoder: Annotated[DecoderStack, Part(vocab="vocab", memory_width="memory_width")]
    """The stack."""
    head: Annotated[Head, Slot("head", vocab="vocab", d_model="decoder.d_model")]
    """What is made of its states."""

    def ties(self) -> dict[str, str]:
        return {f"head.{k}": v for k, v in self.head.ties(f"decoder.{TOKENS}").items()}

    def layout(self) -> Layout:
        return _whole(decoder=self.decoder.layout(), head=self.head.layout())

    def build(self) -> Transformer:
        from zoo_components.modules.builders import Decoder as Module

        return Module(decoder=self.decoder.build(), head=self.head.build()).tie(self.ties())


def _dig(component: object, name: str) -> object:
    for part in name.split("."):
        component = getattr(component, part)
    return component
