"""An embedding of the patches of images of any size by their rows and columns: the `embedding`
slot."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from zoo.component import Size
from zoo.layout import Layout, embedding
from zoo_components.native_images import PatchVectors

if TYPE_CHECKING:
    from torch import nn

    from zoo.position import PositionScheme


class FactorizedPatchVectors(PatchVectors):
    """The embedding `patch_vectors`, with a learned vector of each row and one of each column:
    dropout(linear(patches) + rows[row] + columns[column] + positions) (NaViT: Dehghani et al. 2023,
    arXiv:2307.06304, section 2.1). Of patches without a row and a column, both are the position."""

    example: ClassVar[Mapping[str, Any]] = {"patch_size": 2, "max_patches": 64}
    max_patches: Size
    """The most rows and the most columns."""
    pixels: Literal["as_given", "centered"] = "as_given"
    """Whether the map takes the values of pixels as they are, or 2 x - 1, which centers values from
    0 to 1 around 0 (Gemma 4)."""

    @property
    def axes(self) -> int:
        return 2

    @property
    def longest(self) -> int:
        return self.max_patches

    def layout(self) -> Layout:
        table = embedding(self.max_patches, self.d_model)
        whole = super().layout().with_parts(rows=table, columns=table)
        return replace(whole, label=f"{whole.label}, max_patches {self.max_patches}")

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        from zoo_components.modules.factorized import FactorizedPatchVectors as Module

        cls = partial(Module, max_patches=self.max_patches, centered=self.pixels == "centered")
        return self._module(cls, scheme)
