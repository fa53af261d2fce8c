"""`siamese`: two encoders with the same weights, compared."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated

from zoo.component import Part, Size
from zoo.layout import Layout
from zoo.slots import Builder
from zoo_components.stack import EncoderStack

if TYPE_CHECKING:
    import torch
    from torch import nn

    from zoo.transformer import AttentionMaps, Transformer


class Siamese(Builder):
    """The inner products of the first states of two stacks (Karpukhin et al. 2020,
    arXiv:2004.04906), which have the same weights (Reimers and Gurevych 2019, arXiv:1908.10084)."""

    vocab: Size | None = None
    """The number of tokens in the vocabulary."""
    document: Annotated[EncoderStack, Part(vocab="vocab")]
    """The stack that reads passages."""
    query: Annotated[EncoderStack, Part(vocab="vocab")]
    """The stack that reads questions."""

    def ties(self) -> dict[str, str]:
        return {f"query.{name}": f"document.{name}" for name, _ in self.query.layout().tensors()}

    def layout(self) -> Layout:
        return Layout({"document": self.document.layout(), "query": self.query.layout()})

    def build(self) -> Transformer:
        model = module_class()(self.document.build(), self.query.build())
        for alias, target in self.ties().items():
            owner, _, attribute = alias.rpartition(".")
            setattr(model.get_submodule(owner), attribute, model.get_parameter(target))
        return model


@cache
def module_class() -> type[Transformer]:
    """The class of the module, made when it is first built: a description imports no torch."""
    from zoo.transformer import AttentionMaps, Transformer

    class Module(Transformer):
        def __init__(self, document: nn.Module, query: nn.Module) -> None:
            super().__init__()
            self.document = document
            self.query = query

        def forward(
            self,
            source: torch.Tensor,
            target: torch.Tensor,
            *,
            source_mask: torch.Tensor | None = None,
            target_mask: torch.Tensor | None = None,
            return_attention: bool = False,
        ) -> torch.Tensor | tuple[torch.Tensor, AttentionMaps]:
            """Questions (n, length) and passages (m, length) to their scores, (n, m)."""
            asked, maps = self.query(source, mask=source_mask, return_weights=return_attention)
            told, others = self.document(target, mask=target_mask, return_weights=return_attention)
            scores = asked[:, 0] @ told[:, 0].T
            if not return_attention:
                return scores
            return scores, AttentionMaps(maps["self_attn"] + others["self_attn"])

    return Module
