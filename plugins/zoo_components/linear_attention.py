"""Linear attention: the `attention` slot."""

from typing import TYPE_CHECKING

from zoo.component import Shared
from zoo.layout import Layout, column_wise, linear, row_wise
from zoo_components.heads import OfHeads, heads_text
from zoo_components.projections import ALL, Projections
from zoo_components.recurrent import WithoutSoftmax

if TYPE_CHECKING:
    from torch import nn


class Linear(OfHeads, WithoutSoftmax):
    """Linear attention (Katharopoulos et al. 2020, arXiv:2006.16236): the weight of a key is
    phi(q) . phi(k), divided by the sum of those of all keys, with phi(x) = elu(x) + 1, the feature
    map of the paper. So the sums over keys do not depend on the query: time grows with the length
    instead of its square, and generation keeps these sums, of fixed size, and nothing of each
    token. It takes no rotation or bias of a position scheme."""

    bias: Shared[Projections] = ALL
    """Which projections have a bias: a list of `q`, `k`, `v` and `o`, or `true` for all or `false`
    for none."""

    def layout(self) -> Layout:
        key_width, width = self.key_width or self.d_model, self.n_heads * self.head_dim
        heads = column_wise(self.n_heads)
        return Layout(
            {
                "q_proj": linear(self.d_model, width, bias="q" in self.bias, cut=heads),
                "k_proj": linear(key_width, width, bias="k" in self.bias, cut=heads),
                "v_proj": linear(key_width, width, bias="v" in self.bias, cut=heads),
                "o_proj": linear(
                    width,
                    self.d_model,
                    bias="o" in self.bias,
                    residual=True,
                    cut=row_wise(self.n_heads),
                ),
            },
            heads_text(self.n_heads, self.n_heads, self.head_dim),
            state=self.n_heads * self.head_dim * (self.head_dim + 1),
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.linear_attention import LinearAttention

        return LinearAttention(
            d_model=self.d_model,
            key_width=self.key_width or self.d_model,
            n_heads=self.n_heads,
            head_dim=self.head_dim,
            bias=self.bias,
        )
