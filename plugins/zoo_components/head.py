"""What a model puts out: the `head` slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import model_validator

from zoo.layout import Layout, linear
from zoo.slots import Head

if TYPE_CHECKING:
    from torch import nn


class LinearHead(Head):
    """A linear map to the vocabulary (Vaswani et al. 2017, section 3.4)."""

    bias: bool = False
    """Whether the map has a bias."""
    tied: bool = False
    """Whether the map's weight is the token table of the stack below (Press and Wolf 2017,
    arXiv:1608.05859)."""
    output: Literal["logits", "log_softmax", "softmax"] = "logits"
    """What is put out: the map's values, their log-softmax, or their softmax."""

    @model_validator(mode="after")
    def _check(self) -> LinearHead:
        if self.vocab is None:
            raise ValueError(
                "a linear head needs the size of the vocabulary: state `vocab`, or `target_vocab`, "
                "at the top of the spec, or choose `head = \"none\"`"
            )
        return self

    def ties(self, embedding: str) -> dict[str, str]:
        return {"out.weight": embedding} if self.tied else {}

    def layout(self) -> Layout:
        return Layout({"out": linear(self.d_model, self.vocab or 0, bias=self.bias)}, self.kind)

    def build(self) -> nn.Module:
        from zoo_components.modules.head import LinearHead as Module

        return Module(
            d_model=self.d_model, vocab=self.vocab or 0, bias=self.bias, output=self.output
        )


class NoHead(Head):
    """No head: the model puts out its hidden states."""

    absent: ClassVar[bool] = True

    def build(self) -> nn.Module:
        from torch.nn import Identity

        return Identity()
