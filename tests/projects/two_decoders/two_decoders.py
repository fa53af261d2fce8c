"""`two_decoders`: two decoders beside each other, whose states a gate mixes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated

from pydantic import model_validator

from zoo.component import Part, Shared, Size, Slot, contradiction
from zoo.layout import Layout, linear
from zoo.purpose import Generation, Reading
from zoo.slots import Builder, Head
from zoo_components.stack import DecoderStack

if TYPE_CHECKING:
    import torch
    from torch import nn

    from zoo.cache import Cache
    from zoo.transformer import AttentionMaps, Transformer


class TwoDecoders(Builder):
    """head(g * left(x) + (1 - g) * right(x)) with g = sigmoid(gate([left(x); right(x)]))."""

    vocab: Size
    """The number of tokens in the vocabulary."""
    d_model: Shared[Size]
    """The width of both."""
    left: Annotated[DecoderStack, Part(vocab="vocab")]
    """The first decoder."""
    right: Annotated[DecoderStack, Part(vocab="vocab")]
    """The second decoder."""
    head: Annotated[Head, Slot("head")]
    """What is made of the mixed states."""

    @model_validator(mode="after")
    def _check(self) -> TwoDecoders:
        if self.head.ties("left.embed.tokens.weight"):
            raise contradiction("each decoder has its table, and the head is tied to one", "head")
        return self

    @property
    def reading(self) -> Reading:
        return Reading(self.vocab, mask="target_mask")

    @property
    def generation(self) -> Generation:
        both = self.left, self.right
        ends = [one.longest for one in both if one.longest is not None]
        return Generation(
            self.vocab,
            longest=min(ends) if ends else None,
            not_incremental=tuple(part for one in both for part in one.not_incremental),
            looks_ahead=tuple(part for one in both for part in one.looks_ahead),
            changes=lambda before, after: any(one.changes(before, after) for one in both),
        )

    def layout(self) -> Layout:
        return Layout(
            {
                "left": self.left.layout(),
                "right": self.right.layout(),
                "gate": linear(2 * self.d_model, self.d_model),
                "head": self.head.layout(),
            }
        )

    def build(self) -> Transformer:
        return module_class()(
            left=self.left.build(),
            right=self.right.build(),
            head=self.head.build(),
            d_model=self.d_model,
        )


@cache
def module_class() -> type[Transformer]:
    """The class of the module, made when it is first built: a description imports no torch."""
    import torch
    from torch import nn

    from zoo.transformer import AttentionMaps, Transformer

    class Module(Transformer):
        def __init__(
            self, *, left: nn.Module, right: nn.Module, head: nn.Module, d_model: int
        ) -> None:
            super().__init__()
            self.left, self.right, self.head = left, right, head
            self.gate = nn.Linear(2 * d_model, d_model)

        def forward(
            self,
            target: torch.Tensor,
            *,
            target_mask: torch.Tensor | None = None,
            return_attention: bool = False,
        ) -> torch.Tensor | tuple[torch.Tensor, AttentionMaps]:
            """Ids (batch, length) to logits (batch, length, vocab), and the maps if asked."""
            states, maps = self.states(target, target_mask, None, return_attention)
            logits: torch.Tensor = self.head(states)
            return (logits, AttentionMaps(decoder=maps)) if return_attention else logits

        def decode(
            self,
            target: torch.Tensor,
            memory: torch.Tensor | None,
            *,
            target_mask: torch.Tensor | None,
            memory_mask: torch.Tensor | None,
            cache: Cache | None,
        ) -> torch.Tensor:
            """The states of the next tokens, (batch, length, d_model)."""
            return self.states(target, target_mask, cache, False)[0]

        def states(
            self,
            target: torch.Tensor,
            mask: torch.Tensor | None,
            cache: Cache | None,
            return_weights: bool,
        ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
            """The mixed states (batch, length, d_model), and the weights of both decoders."""
            found, maps = [], []
            for name in ("left", "right"):
                states, weights = self.get_submodule(name)(
                    target,
                    mask=mask,
                    cache=None if cache is None else cache.part(name),
                    return_weights=return_weights,
                )
                found.append(states)
                maps += [one for of_kind in weights.values() for one in of_kind]
            gate = self.gate(torch.cat(found, -1)).sigmoid()
            return gate * found[0] + (1 - gate) * found[1], tuple(maps)

    return Module
