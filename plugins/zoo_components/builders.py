"""Whole Transformers: the `builder` slot."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import GetCoreSchemaHandler, ValidationInfo, model_validator
from pydantic_core import core_schema

from zoo.component import ChildValidator, Component, Part, Size, Slot, contradiction
from zoo.layout import Layout, linear
from zoo.purpose import Classes, Generation, Reading, Task, Transcription
from zoo.slots import Builder, Head
from zoo_components.stack import DecoderStack, EncoderStack, Stack

if TYPE_CHECKING:
    from zoo.transformer import Transformer

TOKENS = "embed.tokens.weight"
"""The name of the token table in a stack, if its embedding has one."""
OF_SOUND: tuple[Task, ...] = ("transcribe", "classify", "embed")
"""The tasks that an encoder of sounds may have."""


class OfStacks(Builder):
    """A builder whose vocabularies are those of ids that a stack is called with, or that a head
    scores."""

    if TYPE_CHECKING:  # each has the field in its own place
        head: Head

    @property
    def _readers(self) -> Mapping[str, tuple[Stack, Sequence[Head]]]:
        """The stack that may read the vocabulary of each name, and the heads that may."""
        raise NotImplementedError

    # No `model_validator`, since one that wraps might accept values of other types.
    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        made = handler(source)
        return core_schema.with_info_wrap_validator_function(cls._leave_out_unread, made)

    @classmethod
    def _leave_out_unread(
        cls, values: Any, made: Callable[[Any], Self], info: ValidationInfo
    ) -> Self:
        """A vocabulary that nothing reads, as in a model of images, has no effect, and the model is
        that without it."""
        model = made(values)
        unread: dict[str, None] = {}
        for name, (stack, heads) in model._readers.items():
            read = stack.vocab_of_ids is not None or any(head.reads_vocab for head in heads)
            if getattr(model, name) is None or read:
                continue
            unread[name] = None
            told = [f"the head `{head.kind}`" for head in heads if not head.absent]
            told.insert(0, f"the embedding `{stack.embedding.kind}`")
            validator: ChildValidator | None = info.context
            if validator is not None:
                reads = "reads" if len(told) == 1 else "read"
                validator.without_effect(
                    name, f"changes nothing: {' and '.join(told)} {reads} no vocabulary"
                )
        return made({**values, **unread}) if unread and isinstance(values, dict) else model

    def labelled(self, labels: tuple[str, ...] | None) -> Self:
        return self.model_copy(update={"head": self.head.labelled(labels)})


class WithEncoder(OfStacks):
    """A builder whose first input is that of its encoder."""

    if TYPE_CHECKING:
        encoder: EncoderStack

    @property
    def images(self) -> Mapping[str, tuple[int, int, int]]:
        shape = self.encoder.embedding.image_shape
        return {} if shape is None else {"source": shape}

    @property
    def shortest_sound(self) -> int | None:
        return self.encoder.embedding.shortest_sound

    @property
    def spectrogram_shape(self) -> tuple[int | None, int] | None:
        return self.encoder.spectrogram_shape


class EncoderDecoder(WithEncoder):
    """An encoder, and a decoder that attends to it (Vaswani et al. 2017, arXiv:1706.03762)."""

    source_vocab: Size | None = None
    """The number of tokens in the source vocabulary."""
    target_vocab: Size | None = None
    """The number of tokens in the target vocabulary."""
    share_embeddings: bool = False
    """Whether encoder and decoder use the same token table."""
    encoder: Annotated[EncoderStack, Part(vocab="source_vocab")]
    """The stack that reads the source."""
    decoder: Annotated[
        DecoderStack, Part(vocab="target_vocab", memory_width="encoder.output_width")
    ]
    """The stack that reads the target."""
    head: Annotated[Head, Slot("head", vocab="target_vocab", d_model="decoder.output_width")]
    """The head, applied to the decoder's states."""

    @property
    def _readers(self) -> Mapping[str, tuple[Stack, Sequence[Head]]]:
        return {
            "source_vocab": (self.encoder, ()),
            "target_vocab": (self.decoder, (self.head,)),
        }

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.share_embeddings and self.source_vocab != self.target_vocab:
            raise contradiction(
                f"one token table cannot serve source_vocab = {self.source_vocab} and "
                f"target_vocab = {self.target_vocab}",
                "share_embeddings",
                "source_vocab",
                "target_vocab",
            )
        check_ids(self.head, self.decoder, "head")
        _check_ties(self)
        return self

    def ties(self) -> dict[str, str]:
        shared = {f"encoder.{TOKENS}": f"decoder.{TOKENS}"} if self.share_embeddings else {}
        return _head_ties(self.head, "decoder") | shared

    @property
    def generation(self) -> Generation | None:
        how = self.decoder.generation
        if how is None or not self.head.scores_tokens:
            return None
        return how._replace(
            has_source=True,
            source_vocab=self.encoder.vocab_of_ids,
            source_width=self.encoder.embedding.input_width,
            image_shape=self.encoder.embedding.image_shape,
            source_pad_id=self.encoder.pad_id,
            longest_source=self.encoder.longest,
        )

    @property
    def rereads(self) -> Reading | None:
        source, target = self.encoder.reading, self.decoder.reading
        if source is None or target is None or source.vocab != target.vocab:
            return None
        if self.head.task not in ("classify", "answer"):
            return None
        longest = filter(None, (source.longest, target.longest))
        return source._replace(longest=min(longest, default=None))

    @property
    def classes(self) -> Classes | None:
        return self.head.classes if self.rereads else None

    @property
    def task(self) -> Task | None:
        if self.rereads:
            return self.head.task
        if self.generation is None:
            return None
        if self.hears:
            return "transcribe"
        return "caption" if self.images else "translate"

    def layout(self) -> Layout:
        return layout_of(encoder=self.encoder, decoder=self.decoder, head=self.head)

    def build(self) -> "Transformer":
        from zoo_components.modules.builders import EncoderDecoder as Module
        from zoo_components.modules.tying import tie

        model = Module(
            encoder=self.encoder.build(),
            decoder=self.decoder.build(padding_read=self.head.reads_padding),
            head=self.head,
        )
        return tie(model, self.ties())


class Encoder(WithEncoder):
    """A stack that sees the whole sequence, and a head (Devlin et al. 2018, arXiv:1810.04805)."""

    vocab: Size | None = None
    """The number of tokens in the vocabulary."""
    encoder: Annotated[EncoderStack, Part(vocab="vocab")]
    """The stack."""
    head: Annotated[Head, Slot("head", vocab="vocab", d_model="encoder.output_width")]
    """The head, applied to the stack's states."""
    pooler: Annotated[
        Head, Slot("head", default="none", inherit=False, d_model="encoder.output_width")
    ]
    """A second head, for whole sequences, called as `model.pooler(states)` (BERT: kind
    `pooler`)."""
    nsp: bool = False
    """Whether there is a third head, for next-sentence prediction: `model.nsp`, a linear map of the
    pooler's output to two classes."""

    @property
    def _readers(self) -> Mapping[str, tuple[Stack, Sequence[Head]]]:
        return {"vocab": (self.encoder, (self.head, self.pooler))}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.nsp and self.pooler.absent:
            raise contradiction(
                '`nsp` classifies what the pooler returns: state `pooler = "pooler"`', "nsp"
            )
        check_ids(self.head, self.encoder, "head")
        check_ids(self.pooler, self.encoder, "pooler")
        _check_ties(self)
        return self

    def ties(self) -> dict[str, str]:
        return _head_ties(self.head, "encoder")

    @property
    def reading(self) -> Reading | None:
        read = self.encoder.reading
        return read and read._replace(token_types=self.encoder.embedding.token_types)

    @property
    def task(self) -> Task | None:
        task = self.head.task
        if self.hears:
            return task if task in OF_SOUND else None
        return task if (self.reading or self.images) and task != "transcribe" else None

    @property
    def transcription(self) -> Transcription | None:
        return self.head.transcription if self.hears else None

    @property
    def classes(self) -> Classes | None:
        return self.head.classes if self.reading or self.images or self.hears else None

    def layout(self) -> Layout:
        whole = layout_of(encoder=self.encoder, head=self.head, pooler=self.pooler)
        nsp = {"nsp": linear(self.encoder.output_width, 2)} if self.nsp else {}
        return whole.with_parts(**nsp)

    def build(self) -> "Transformer":
        from zoo_components.modules.builders import Encoder as Module
        from zoo_components.modules.tying import tie

        reads_padding = self.head.reads_padding or self.pooler.reads_padding
        model = Module(
            encoder=self.encoder.build(padding_read=reads_padding),
            head=self.head,
            pooler=None if self.pooler.absent else self.pooler.build(),
            width=self.encoder.output_width,
            nsp=self.nsp,
            grid=self.encoder.embedding.grid,
        )
        return tie(model, self.ties())


class Decoder(OfStacks):
    """A stack that predicts the next token, and a head (Radford et al. 2018). With a
    `memory_width` it also attends to an external memory of that width."""

    vocab: Size | None = None
    """The number of tokens in the vocabulary."""
    memory_width: Size | None = None
    """The width of the vectors in an external memory that the decoder attends to, if there is
    one."""
    decoder: Annotated[DecoderStack, Part(vocab="vocab", memory_width="memory_width")]
    """The stack."""
    head: Annotated[Head, Slot("head", vocab="vocab", d_model="decoder.output_width")]
    """The head, applied to the stack's states."""

    @property
    def _readers(self) -> Mapping[str, tuple[Stack, Sequence[Head]]]:
        return {"vocab": (self.decoder, (self.head,))}

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_ids(self.head, self.decoder, "head")
        _check_ties(self)
        return self

    def ties(self) -> dict[str, str]:
        return _head_ties(self.head, "decoder")

    @property
    def generation(self) -> Generation | None:
        how = self.decoder.generation
        if how is None or not self.head.scores_tokens:
            return None
        return how._replace(memory_width=self.memory_width)

    @property
    def reading(self) -> Reading | None:
        read = self.decoder.reading
        if read is None or self.memory_width is not None:
            return None
        return read._replace(mask="target_mask")

    @property
    def task(self) -> Task | None:
        if self.generation is not None:
            return "generate"
        return None if self.reading is None or self.head.absent else self.head.task

    @property
    def classes(self) -> Classes | None:
        return self.head.classes if self.reading else None

    def layout(self) -> Layout:
        return layout_of(decoder=self.decoder, head=self.head)

    def build(self) -> "Transformer":
        from zoo_components.modules.builders import Decoder as Module
        from zoo_components.modules.tying import tie

        model = Module(
            decoder=self.decoder.build(padding_read=self.head.reads_padding),
            head=self.head,
        )
        return tie(model, self.ties())


def _head_ties(head: Head, stack: str) -> dict[str, str]:
    """The ties between the head's tensors and the token table of a stack."""
    ties = head.ties(f"{stack}.{TOKENS}")
    return {f"head.{name}": target for name, target in ties.items()}


def layout_of(**parts: Component) -> Layout:
    """The layout of a model of these parts, without those that have no tensors."""
    layouts = {name: part.layout() for name, part in parts.items()}
    return Layout({name: layout for name, layout in layouts.items() if layout.parts})


def check_ids(head: Head, stack: EncoderStack | DecoderStack, key: str) -> None:
    """Raise a contradiction if a head goes by ids of tokens and the stack is called without."""
    if head.takes_ids and not stack.embedding.takes_ids:
        raise contradiction(
            f"the head `{head.kind}` goes by the ids of tokens here, and the embedding "
            f"`{stack.embedding.kind}` takes none",
            f"{key}.pooling",
            f"{key}.kind",
            "embedding.kind",
        )


def check_images(image: EncoderStack) -> None:
    """Raise a contradiction if the stack `image` of a model is not called with images."""
    if image.embedding.image_shape is None:
        raise contradiction(
            f"the embedding `{image.embedding.kind}` takes no images: state one that does under "
            "`image`, such as `patches`",
            "image.embedding.kind",
        )


def _check_ties(model: OfStacks) -> None:
    """Raise a contradiction unless the tensors to be tied exist and have the same shape."""
    ties = model.ties()
    if not ties:
        return  # the layout takes as long to make as everything else that is checked
    layout = model.layout()
    keys = ("head.tied", "share_embeddings", "embedding.kind", "d_embed", "d_model")
    for alias, target in ties.items():
        shapes: list[tuple[int, ...]] = []
        for name in (alias, target):
            try:
                shapes.append(layout.find(name).shape)
            except KeyError:
                raise contradiction(
                    f"`{alias}` and `{target}` cannot be one: there is no `{name}`", *keys
                ) from None
        if shapes[0] != shapes[1]:
            one, other = shapes
            message = f"`{alias}` and `{target}` cannot be one: they are {one} and {other}"
            if hasattr(model.head, "d_hidden") and one[0] == other[0]:
                message += f"; `d_hidden = {other[1]}` in `head` makes them alike"
            raise contradiction(message, *keys)
