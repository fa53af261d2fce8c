"""A layer whose mixer is guided by an attention to states and embeddings."""

from __future__ import annotations

import torch

from zoo.context import LayerContext
from zoo.linear import Linear
from zoo_components.modules.block import Branch, TwoMixersBlock
from zoo_components.modules.unpadding import at_places


class GuidedMixerBlock(TwoMixersBlock):
    """x + mixer(pre(x + out_proj(ffn(self_attn([x; e]))))), where e are the embedded states
    (Glorioso et al. 2024, arXiv:2405.16712, section 2)."""

    out_proj: Linear
    second = "mixer"

    def add_out_proj(self, d_model: int) -> None:
        """Give the layer the map of what the network returns."""
        self.out_proj = Linear(d_model, d_model, bias=False)

    def forward(
        self, x: torch.Tensor, context: LayerContext
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """(..., length, d_model) to the same, and the attention weights by sublayer if asked."""
        assert context.embedded is not None  # the stack has it
        maps: dict[str, torch.Tensor] = {}
        guide = torch.cat([x, context.embedded], -1)
        for name in self.names[:-1]:
            f: Branch = getattr(self, name)
            guide = self._branch(name, f, f.pre_norm(guide), context, maps)
        guide = at_places(self.out_proj, guide, context.places)
        mixer: Branch = getattr(self, self.second)
        added = self._branch(self.second, mixer, mixer.pre_norm(x + guide), context, maps)
        return mixer.out_norm(self._skipped(self.second, x) + added), maps
