"""Heads that return an output for each position: the `head` slot."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from zoo.component import (
    PositiveFloat,
    Probability,
    Shared,
    Size,
    Slot,
    contradiction,
    missing_dimension,
)
from zoo.layout import BY_VOCABULARY, Layout, Tensor, linear
from zoo.only_with import stated
from zoo.purpose import Task, Transcription
from zoo.slots import Head, Norm
from zoo_components.activation import Activated, Activation
from zoo_components.optional import PositiveFloatOrNone, SizeOrNone, number

if TYPE_CHECKING:
    from torch import nn

    from zoo_components.modules.head import LinearHead as LinearModule

Module = TypeVar("Module", bound="LinearModule")


class LinearHead(Head):
    """A linear map to the vocabulary (Vaswani et al. 2017, section 3.4)."""

    bias: bool = False
    """Whether the map has a bias."""
    tied: bool = False
    """Whether the map's weight is the token table of the stack below (Press and Wolf 2017,
    arXiv:1608.05859)."""
    input_scale: PositiveFloat | Literal["inverse_sqrt_d_model"] = 1.0
    """The factor that multiplies the states before the map (T5 with a tied head)."""
    logits_bias: bool = False
    """Whether a vector is added to the map's output that is stored with the weights and not trained
    (BART)."""
    scale: PositiveFloat = 1.0
    """The factor that multiplies the sum of the map's output and its biases (Cohere, Granite)."""
    softcap: PositiveFloatOrNone = "none"
    """A bound c that the logits approach: c * tanh(logit / c) (Gemma 2, arXiv:2408.00118)."""
    output: Literal["logits", "log_softmax", "softmax"] = "logits"
    """What the head returns: the logits, their log-softmax, or their softmax."""

    @model_validator(mode="after")
    def _check_vocab(self) -> Self:
        if self.vocab is None:
            raise missing_dimension("vocab", 'choose `head = "none"`')
        return self

    @property
    def scores_tokens(self) -> bool:
        return self.output != "softmax"

    @property
    def task(self) -> Task | None:
        return "fill_mask" if self.scores_tokens else None

    def ties(self, embedding: str) -> dict[str, str]:
        return {"out.weight": embedding} if self.tied else {}

    @property
    def out_width(self) -> int:
        """The width of the vectors that the map to the vocabulary takes."""
        return self.d_model

    def layout(self) -> Layout:
        parts: dict[str, Tensor | Layout] = {
            "out": linear(self.out_width, stated(self.vocab), bias=self.bias, cut=BY_VOCABULARY)
        }
        if self.logits_bias:
            parts["logits_bias"] = Tensor((stated(self.vocab),), "constant", buffer=True)
        return Layout(parts)

    def build(self) -> "nn.Module":
        from zoo_components.modules.head import LinearHead

        return self._module(LinearHead)

    def _module(self, cls: "type[Module]") -> "Module":
        from zoo_components.modules.head import Logits

        scale = self.input_scale
        return cls(
            width=self.out_width,
            vocab=stated(self.vocab),
            bias=self.bias,
            input_scale=self.d_model**-0.5 if isinstance(scale, str) else float(scale),
            logits_bias=self.logits_bias,
            logits=Logits(scale=self.scale, softcap=number(self.softcap), output=self.output),
        )


class MlmHead(Activated, LinearHead):
    """The head of masked language models (Devlin et al. 2018, arXiv:1810.04805):
    out(norm(activation(dense(x))))."""

    bias: bool = True
    """Whether the map to the vocabulary has a bias."""
    activation: Activation = "gelu"
    """The activation after each dense layer."""
    d_wide: SizeOrNone = "none"
    """The width of an additional first dense layer, followed by the activation."""
    d_hidden: Size = Field(default_factory=lambda data: data["d_model"])
    """The width of the dense layer; if the head is tied, it must be that of the token table, the
    `d_embed` of the embedding."""
    dense_bias: bool = True
    """Whether the dense layers have a bias."""
    norm: Annotated[Norm, Slot("norm", width="d_hidden")]
    """The norm before the map to the vocabulary."""

    @property
    def out_width(self) -> int:
        return self.d_hidden

    @property
    def dense_widths(self) -> list[int]:
        """The input width of the first dense layer and the output width of each."""
        widths = [self.d_model, number(self.d_wide), self.d_hidden]
        return [width for width in widths if width is not None]

    def layout(self) -> Layout:
        widths = self.dense_widths
        dense = {
            name: linear(n_in, n_out, bias=self.dense_bias)
            for name, n_in, n_out in zip(("dense", "dense2"), widths, widths[1:], strict=False)
        }
        parts = {**dense, **self.activation_parts(), "norm": self.norm.layout()}
        return Layout({**parts, **super().layout().parts})

    def build(self) -> "nn.Module":
        from zoo_components.modules.head import MlmHead

        head, activation, norm = self._module(MlmHead), self.build_activation(), self.norm.build()
        head.add_dense(self.dense_widths, bias=self.dense_bias, activation=activation, norm=norm)
        return head


class Ctc(Head):
    """Scores of the tokens for each position of what is heard, out(dropout(x)), for connectionist
    temporal classification (Graves et al. 2006): a text is read off by the likeliest token of each
    position, without repetitions and without blanks."""

    blank: int = Field(default=0, ge=0)
    """The id that stands for no token, and separates two that are the same."""
    dropout: Shared[Probability] = 0.0
    """Dropout before the map."""
    bias: bool = True
    """Whether the map to the vocabulary has a bias."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.vocab is None:
            raise missing_dimension("vocab", 'choose `head = "none"`')
        if self.blank >= self.vocab:
            raise contradiction(
                f"blank = {self.blank} is beyond the vocabulary of {self.vocab} tokens",
                "blank",
                "vocab",
            )
        return self

    @property
    def scores_tokens(self) -> bool:
        return False  # of what is heard at a position, and not of the next token

    @property
    def task(self) -> Task:
        return "transcribe"

    @property
    def transcription(self) -> Transcription:
        return Transcription(stated(self.vocab), self.blank)

    def layout(self) -> Layout:
        out = linear(self.d_model, stated(self.vocab), bias=self.bias, cut=BY_VOCABULARY)
        return Layout({"out": out})

    def build(self) -> "nn.Module":
        from zoo_components.modules.head import Ctc as Module

        return Module(self.d_model, stated(self.vocab), dropout=self.dropout, bias=self.bias)


class NoHead(Head):
    """No head: the model returns its hidden states."""

    reads_vocab: ClassVar[bool] = False
    absent: ClassVar[bool] = True

    @property
    def task(self) -> Task:
        return "embed"

    def build(self) -> "nn.Module":
        from torch.nn import Identity

        return Identity()
