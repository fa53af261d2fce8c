"""Two encoders whose vectors are compared."""

from __future__ import annotations

import torch
from torch import nn

from zoo.transformer import AttentionMaps, Transformer
from zoo_components.modules.stack import Stack

_Vectors = tuple[torch.Tensor, tuple[torch.Tensor, ...]]
"""Vectors, and the attention maps that led to them if they are asked for."""


class DualEncoder(Transformer):
    """model(image, text) = exp(logit_scale) * encode_image(image) encode_text(text)^T +
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
        self.logit_scale = nn.Parameter(torch.empty(1))
        self.logit_bias = nn.Parameter(torch.empty(1)) if has_bias else None

    def encode_image(self, image: torch.Tensor) -> torch.Tensor:
        """The vector of each image, (batch, width), of images (batch, channels, height, width)."""
        return self._image_vectors(image, return_attention=False)[0]

    def encode_text(
        self, text: torch.Tensor, *, text_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The vector of each text, (batch, width), of ids (batch, length). `text_mask` hides
        padding: boolean, True = attend, in a shape of `zoo.transformer.check_mask`."""
        return self._text_vectors(text, text_mask, return_attention=False)[0]

    def forward(
        self,
        image: torch.Tensor,
        text: torch.Tensor,
        *,
        text_mask: torch.Tensor | None = None,
        return_attention: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, AttentionMaps]:
        """Score each text for each image: (number of images, number of texts). CLIP takes the
        softmax of a row for the probabilities of the texts, SigLIP the sigmoid of each score.

        Args:
            image: images, (number of images, channels, height, width).
            text: ids, (number of texts, length).
            text_mask: as in `encode_text`.
            return_attention: also return the attention maps of the encoders, those of the layers
                that read images before those of the layers that read texts.
        """
        images, of_images = self._image_vectors(image, return_attention=return_attention)
        texts, of_texts = self._text_vectors(text, text_mask, return_attention=return_attention)
        logits = self.compare(images, texts)
        return (logits, AttentionMaps((*of_images, *of_texts))) if return_attention else logits

    def compare(self, images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        """The score of each text for each image, (number of images, number of texts), of the
        vectors of images, (number of images, width), and of texts, (number of texts, width)."""
        logits = self.logit_scale.exp() * (images @ texts.T)
        return logits if self.logit_bias is None else logits + self.logit_bias

    def _image_vectors(self, image: torch.Tensor, *, return_attention: bool) -> _Vectors:
        states, maps = self.image(image, return_weights=return_attention)
        return self.image_head(states, mask=None), maps.get("self_attn", ())

    def _text_vectors(
        self, text: torch.Tensor, mask: torch.Tensor | None, *, return_attention: bool
    ) -> _Vectors:
        states, maps = self.text(text, mask=mask, return_weights=return_attention)
        ids = {"ids": text} if self.text_head_takes_ids else {}
        vectors = self.text_head(states, mask=self.text.padding.token_mask(text, mask), **ids)
        return vectors, maps.get("self_attn", ())
