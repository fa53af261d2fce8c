"""No attention and no feed-forward network: layers of fewer branches."""

from typing import TYPE_CHECKING, ClassVar

from zoo.slots import FeedForward, NormSite, Sublayer
from zoo_components.recurrent import WithoutSoftmax

if TYPE_CHECKING:
    from torch import nn


class NoBranch(Sublayer):
    """A branch that is not there: it has no norms and no sum, and so none of their options."""

    absent: ClassVar[bool] = True
    # No fields: they would say something of a branch that is not there.
    norms: ClassVar[tuple[NormSite, ...]] = ()  # type: ignore[misc]
    norm: ClassVar[None] = None  # type: ignore[misc]
    residual_scale: ClassVar[float] = 1.0  # type: ignore[misc]
    skip_scale: ClassVar[float] = 1.0  # type: ignore[misc]


class NoAttention(NoBranch, WithoutSoftmax):
    """No attention: a layer without the branch, in which no position sees another (a choice in
    models whose layers were found by search: Bercovich et al. 2024, arXiv:2411.19146)."""

    @property
    def against_fused(self) -> None:
        return None

    def build(self) -> "nn.Module":
        from zoo_components.modules.no_branch import NoAttention as Module

        return Module()


class NoFeedForward(NoBranch, FeedForward):
    """No feed-forward network: a layer without the branch, as in attention-only Transformers
    (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits")."""

    def build(self) -> "nn.Module":
        from zoo_components.modules.no_branch import NoFeedForward as Module

        return Module()
