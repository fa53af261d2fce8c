"""Patches of images (ViT: Dosovitskiy et al. 2020)."""

from __future__ import annotations

import torch
from torch import nn

from zoo.position import PositionScheme
from zoo_components.modules.dropout import Dropout
from zoo_components.modules.embedding import refuse_types
from zoo_components.modules.norm import is_autocast


class Patches(nn.Module):
    """dropout(norm([class_token, distillation_token, patch_norm(linear(patches))] + positions)),
    with the registers, which have no positions, before the patches; each norm may be None."""

    def __init__(
        self,
        *,
        d_model: int,
        patch_size: int,
        channels: int,
        bias: bool,
        class_token: bool,
        distillation_token: bool,
        n_registers: int,
        patch_norm: nn.Module | None,
        positions: PositionScheme | None,
        norm: nn.Module | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.empty(d_model)) if class_token else None
        self.distillation_token = nn.Parameter(torch.empty(d_model)) if distillation_token else None
        self.registers = nn.Parameter(torch.empty(n_registers, d_model)) if n_registers else None
        self.patches = nn.Conv2d(channels, d_model, patch_size, stride=patch_size, bias=bias)
        self.patch_norm = patch_norm
        self.positions = positions
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(
        self,
        images: torch.Tensor,
        positions: torch.Tensor,
        *,
        token_types: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """images (batch, channels, height, width) to (batch, n_vectors, d_model): the class token,
        the distillation token and the registers, as far as there are any, and the patches row by
        row.

        positions: (n_vectors,), of which registers take none; `mask` changes nothing.

        Raises:
            TypeError: the images are of another dtype than the weights, and autocast converts
                neither.
            ValueError: token types are given.
        """
        refuse_types(token_types)
        check_dtype(images, self.patches.weight.dtype)
        x = self.patches(images).flatten(2).transpose(1, 2)
        if self.patch_norm is not None:
            x = self.patch_norm(x)
        learned = (self.class_token, self.distillation_token)
        tokens: list[torch.Tensor] = [token for token in learned if token is not None]
        if tokens:
            x = torch.cat([torch.stack(tokens).expand(x.shape[0], -1, -1), x], 1)
        if self.positions is not None:
            x = self.positions.embed(x, positions[: x.shape[1]])
        if self.registers is not None:
            before, patches = x.tensor_split([len(tokens)], 1)
            x = torch.cat([before, self.registers.expand(x.shape[0], -1, -1), patches], 1)
        if self.norm is not None:
            x = self.norm(x)
        return self.dropout(x)


def check_dtype(images: torch.Tensor, own: torch.dtype) -> None:
    """Raise TypeError if images are of another dtype than the weights, and autocast converts
    neither."""
    found = images.dtype
    # Autocast leaves float64 alone.
    if found != own and (torch.float64 in (found, own) or not is_autocast(images)):
        raise TypeError(f"these images are {found}, and the model is {own}: `images.to({own})`")
