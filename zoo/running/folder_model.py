"""How models of texts, of images and of sounds are loaded, with the files of their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch

from zoo.loading import OpenModel, open_model
from zoo.registry import Registry
from zoo.transformer import Transformer


class FolderModel:
    """Base class of a model with those files of its folder that its inputs need."""

    __slots__ = ()
    transformer: Transformer

    def __repr__(self) -> str:
        """One line, and not all modules."""
        return f"<{type(self).__name__} {self.transformer.spec.name}>"

    @classmethod
    def load(
        cls,
        path_or_name: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        registry: Registry | None = None,
    ) -> Self:
        """Load a model with the files in its folder that it is run with, such as its tokenizer.

        Args:
            path_or_name: the folder, or the name of a model, as in `zoo.load`.
            device: the device that it computes on; by default the CPU.
            dtype: the dtype that it computes in; by default that of the weights.
            registry: looks up plugins; by default the registries around the working directory.

        Raises:
            ZooError: as `zoo.load`; or a file beside the weights is damaged, or does not fit the
                model.
        """
        with open_model(path_or_name, device=device, dtype=dtype, registry=registry) as opened:
            return cls.of(opened)

    @classmethod
    def of(cls, opened: OpenModel) -> Self:
        """The model that is open, with the files beside it."""
        raise NotImplementedError
