"""Linear maps whose inputs and outputs are clamped, in an attention and in a feed-forward network:
the `attention` and `ffn` slots."""

from dataclasses import replace
from typing import TYPE_CHECKING

from zoo.component import Component
from zoo.layout import Cut, Layout, Tensor
from zoo_components.attention import MultiHead
from zoo_components.ffn import Glu

if TYPE_CHECKING:
    from torch import nn

MOST = 3.4028234663852886e38
"""The largest number of float32."""


class Clipped(Component):
    """A base to name before the component whose linear maps are clamped."""

    def layout(self) -> Layout:
        """The component's, with the bounds of each linear map."""
        whole = super().layout()
        least = Tensor((), "constant", value=-MOST, buffer=True)
        most = replace(least, value=MOST)
        bounds = {"input_min": least, "input_max": most, "output_min": least, "output_max": most}
        maps = {
            name: part.with_parts(**bounds)
            for name, part in whole.parts.items()
            if isinstance(part, Layout) and name.endswith("_proj")
        }
        return whole.with_parts(**maps)

    def build(self) -> "nn.Module":
        from zoo_components.modules.clipped import with_bounds

        return with_bounds(super().build())


class ClippedMultiHead(Clipped, MultiHead):
    """The attention `multi_head`, each of whose linear maps clamps its inputs and its outputs to
    bounds that were measured in training and are not learned (the encoders of the smaller Gemma 4).
    Those of a new model bound nothing."""

    def _by_heads(self, cut: Cut) -> None:
        return None


class ClippedGlu(Clipped, Glu):
    """The gated linear unit `glu`, each of whose linear maps clamps its inputs and its outputs to
    bounds that were measured in training and are not learned (the encoders of the smaller Gemma 4).
    Those of a new model bound nothing."""

    def _cuts(self) -> tuple[None, None]:
        return None, None
