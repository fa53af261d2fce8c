"""Attention in which queries are matched with their distances to the keys: the `attention`
slot."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from zoo.component import PositiveFloat
from zoo.layout import Layout, Tensor, embedding, linear
from zoo_components.self_attention import SelfAttention

if TYPE_CHECKING:
    from torch import nn


class Relative(SelfAttention):
    """Multi-head attention with sinusoids of distances (Transformer-XL: Dai et al. 2019,
    arXiv:1901.02860, section 3.3; the layers of the Conformer: Gulati et al. 2020,
    arXiv:2005.08100): the score of a query for a key is
    ((q + content_bias) k^T + (q + position_bias) (distance_proj(r))^T) / sqrt(head_dim), where r
    are the sinusoids of the distance from the key to the query, negative if the key comes later, as
    in the scheme `sinusoidal`. The two biases are learned vectors of each head. It needs no
    position scheme."""

    distance_base: PositiveFloat = 10000.0
    """The base b of the sinusoids: sin and cos of distance / b**(2 k / d_model)."""

    def _own_parts(self) -> dict[str, Tensor | Layout]:
        vectors = Tensor((self.n_heads, self.head_dim), "bias")
        return {
            "distance_proj": linear(self.d_model, self.d_model, bias=False),
            "content_bias": vectors,
            "position_bias": vectors,
        }

    def build(self) -> "nn.Module":
        from zoo_components.modules.relative_attention import RelativeAttention

        return RelativeAttention(self._common, base=self.distance_base)


class RelativeKeys(SelfAttention):
    """Multi-head attention with a learned vector for each distance, which is added to the key (Shaw
    et al. 2018, arXiv:1803.02155, without the vectors that they add to values): the score of a
    query for a key is q (k + distances[i])^T / sqrt(head_dim), where i tells how far the key is
    behind the query. All heads share the vectors. It needs no position scheme."""

    max_before: Annotated[int, Field(ge=0)] = 64
    """The distance from which on all keys before a query share one vector."""
    max_after: Annotated[int, Field(ge=0)] = 64
    """The same for the keys after a query."""

    def _own_parts(self) -> dict[str, Tensor | Layout]:
        return {"distances": embedding(self.max_before + self.max_after + 1, self.head_dim)}

    def build(self) -> "nn.Module":
        from zoo_components.modules.relative_attention import RelativeKeysAttention

        return RelativeKeysAttention(
            self._common, max_before=self.max_before, max_after=self.max_after
        )
