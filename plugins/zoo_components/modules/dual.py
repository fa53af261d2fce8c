"""Two encoders whose vectors are compared."""

from __future__ import annotations

import torch
from torch import nn

from zoo.transformer import Transformer
from zoo_components.modules.stack import Stack


class DualEncoder(Transformer):
    """model(images, texts) = exp(logit_scale) * encode_image(images) encode_text(texts)^T +
    logit_bias (CLIP: Radford et al. 2021, arXiv:2103.00020, figure 3)."""

    def __init__(
        self,
        *,
        image: Stack,
        text: Stack,
        image_head: nn.Module,
        text_head: nn.Module,
        text_head_takes_ids: bool,
        has_bias: bool,
    ) -> None:
        super().__init__()
        self.image, self.image_head = image, image_head
        self.text, self.text_head = text, text_head
        self.text_head_takes_ids = text_head_takes_ids
        self.logit_scale = nn.Parameter(torch.empty(()))
        self.logit_bias = nn.Parameter(torch.empty(())) if has_bias else None

    def encode_image(self, images: torch.Tensor) -> torch.Tensor:
        """The vector of each image, (batch, width), of images (batch, channels, height, width)."""
        states, _ = self.image(images)
        vectors: torch.Tensor = self.image_head(states, mask=None)
        return vectors

    def encode_text(
        self, texts: torch.Tensor, *, text_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The vector of each text, (batch, width), of ids (batch, length). `text_mask` hides
        padding: boolean, True = attend, in a shape of `zoo.transformer.check_mask`."""
        states, _ = self.text(texts, mask=text_mask)
        ids = {"ids": texts} if self.text_head_takes_ids else {}
        mask = self.text.token_mask(texts, text_mask)
        vectors: torch.Tensor = self.text_head(states, mask=mask, **ids)
        return vectors

    def forward(
        self,
        images: torch.Tensor,
        texts: torch.Tensor,
        *,
        text_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Score each text for each image: (number of images, number of texts). The softmax of a row
        are the probabilities that CLIP gives the texts; SigLIP gives each text the sigmoid.

        Args:
            images: (number of images, channels, height, width).
            texts: ids, (number of texts, length).
            text_mask: as in `encode_text`.
        """
        vectors = self.encode_text(texts, text_mask=text_mask)
        logits = self.logit_scale.exp() * (self.encode_image(images) @ vectors.T)
        return logits if self.logit_bias is None else logits + self.logit_bias
