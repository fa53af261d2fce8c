"""Mixtures of experts with norms inside, in the `ffn` slot."""

from typing import TYPE_CHECKING, Annotated, ClassVar

from zoo.component import Part, Slot
from zoo.layout import Layout, vector
from zoo.slots import Norm
from zoo_components.moe import MixtureOfExperts, Router

if TYPE_CHECKING:
    from torch import nn

    from zoo_components.modules.routing import Router as RouterModule


class NormedRouter(Router):
    """Chooses the `top_k` experts of each token and their weights, from the logits of a linear map
    of norm(x) / sqrt(d_model). A learned factor of each expert multiplies its weight."""

    norm: Annotated[Norm, Slot("norm", width="d_model")]
    """The norm of what the router reads."""

    def layout(self) -> Layout:
        scale = vector(self.n_experts, value=1.0)
        return super().layout().with_parts(norm=self.norm.layout(), expert_scale=scale)

    def build(self) -> "RouterModule":
        from zoo_components.modules.normed_moe import NormedRouter as Module

        router = self._module(Module)
        router.add_norm(self.norm.build())
        return router


class NormedMixtureOfExperts(MixtureOfExperts):
    """The mixture of experts `moe` with norms inside, each with weights of its own (Gemma 4): of
    what the router reads, of what the experts read and of the weighted sum of what they write, and
    of what the shared expert reads and writes."""

    d_latent: ClassVar[None] = None  # type: ignore[misc]  # no field: the norms are d_model wide
    router: Annotated[NormedRouter, Part()]
    expert_norm: Annotated[Norm, Slot("norm", width="d_model")]
    """The norm of what the experts, and the shared expert, read and write."""

    def layout(self) -> Layout:
        whole = super().layout()
        norms = {
            f"{name}_{site}_norm": self.expert_norm.layout()
            for name in ("experts", "shared")
            if name in whole.parts
            for site in ("pre", "post")
        }
        return whole.with_parts(**norms)

    def build(self) -> "nn.Module":
        from zoo_components.modules.normed_moe import NormedMixtureOfExperts as Module

        mixture = self._module(Module)
        mixture.add_norms(self.expert_norm.build)
        return mixture
