"""A feed-forward network of this project's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.component import Shared, Size
from zoo.layout import Layout, linear
from zoo.slots import FeedForward

if TYPE_CHECKING:
    from torch import nn


class Bilinear(FeedForward):
    """The bilinear gated linear unit (Shazeer 2020, arXiv:2002.05202): down(left(x) * right(x))."""

    d_ff: Shared[Size]
    """The inner width."""

    def layout(self) -> Layout:
        return Layout(
            {
                "left_proj": linear(self.d_model, self.d_ff, bias=False),
                "right_proj": linear(self.d_model, self.d_ff, bias=False),
                "down_proj": linear(self.d_ff, self.d_model, bias=False, residual=True),
            },
            f"bilinear, d_ff {self.d_ff}",
        )

    def build(self) -> nn.Module:
        import torch
        from torch import nn

        class Module(nn.Module):
            def __init__(self, d_model: int, d_ff: int) -> None:
                super().__init__()
                self.left_proj = nn.Linear(d_model, d_ff, bias=False)
                self.right_proj = nn.Linear(d_model, d_ff, bias=False)
                self.down_proj = nn.Linear(d_ff, d_model, bias=False)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                """(..., d_model) to (..., d_model)."""
                return self.down_proj(self.left_proj(x) * self.right_proj(x))

        return Module(self.d_model, self.d_ff)
