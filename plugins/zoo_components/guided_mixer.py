"""A layer whose mixer is guided by an attention to states and embeddings: the `block` slot."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.component import Given, Slot, contradiction
from zoo.layout import Layout, linear
from zoo.slots import Attention, Block, FeedForward, Sublayer
from zoo_components.block import Residual
from zoo_components.two_mixers import check_positionless

if TYPE_CHECKING:
    from torch import nn


class _TwoWide(Block):
    """A layer of which a part reads vectors of 2 d_model."""

    # Only a field can be passed on, and no parent states this one.
    both_widths: Given[int] = Field(default_factory=lambda data: 2 * data["d_model"])


class GuidedMixer(Residual, _TwoWide):
    """A layer with one residual branch, a mixer such as `mamba2`, which reads the states plus what
    an attention makes of them and of the embeddings: x + mixer(pre(x + guide(x))). The guide is
    out_proj(ffn(self_attn([x; e]))), with the norms of each and without residual sums, where [x; e]
    are the states and what entered the first layer, side by side (Zamba: Glorioso et al. 2024,
    arXiv:2405.16712, section 2). There, all such layers share the weights of `self_attn` and `ffn`
    (`share_parts`), and `out_proj` is each layer's own."""

    guiding: ClassVar[tuple[str, ...]] = ("self_attn", "ffn", "out_proj")
    # No fields: the layer has one residual branch.
    arrangement: ClassVar[Literal["sequential"]] = "sequential"  # type: ignore[misc]
    skip_from: ClassVar[Literal["input"]] = "input"  # type: ignore[misc]
    layer_scale: ClassVar[Literal["none"]] = "none"  # type: ignore[misc]
    cross_attn: ClassVar[None] = None  # type: ignore[misc]
    self_attn: Annotated[Attention, Slot("attention", d_model="both_widths", out_width="d_model")]
    """The attention, which reads 2 d_model and returns d_model."""
    mixer: Annotated[Attention, Slot("attention", default="mamba2", inherit=False)]
    """The mixer of the residual branch, one with a state or another that needs no positions."""

    @model_validator(mode="after")
    def _check_guide(self) -> Self:
        if self.memory_width is not None:
            raise contradiction(
                "this layer has no place for the attention to a memory: choose another block, such "
                "as `residual`, or a model without a memory",
                "memory_width",
                "kind",
            )
        if self.norm_placement == "parallel":
            raise contradiction("the parts of this layer run one after the other", "norm_placement")
        if self.self_attn.absent:
            raise contradiction(
                "without an attention the layer is the block `residual`, with the mixer as its "
                "`self_attn`",
                "self_attn.kind",
            )
        sites = {"self_attn": ("pre",), "ffn": ("pre", "post")}
        for name, known in sites.items():
            branch: Sublayer = getattr(self, name)
            unknown = [site for site in branch.norms if site not in known]
            if unknown:
                raise contradiction(
                    f"`{name}` cannot have the norm `{unknown[0]}` here, where it is no residual "
                    "branch",
                    f"{name}.norms",
                    "norm_placement",
                )
            if branch.residual_scale != 1.0 or branch.skip_scale != 1.0:
                raise contradiction(
                    f"`{name}` is no residual branch here, and scales no sum",
                    f"{name}.residual_scale",
                    f"{name}.skip_scale",
                )
        if self.mixer.absent:
            raise contradiction(
                "without a mixer the layer leaves its states as they are", "mixer.kind"
            )
        check_positionless(self.mixer, "mixer", "the mixer")
        return self

    @property
    def takes_embedded(self) -> bool:
        return True

    @property
    def only_causal(self) -> bool:
        return super().only_causal or self.mixer.only_causal

    def _mixing(self) -> list[tuple[str, Attention | FeedForward]]:
        return [*super()._mixing(), (f"attention `{self.mixer.kind}`", self.mixer)]

    def _branches(self) -> dict[str, Sublayer | None]:
        return {"self_attn": self.self_attn, "ffn": self.ffn, "mixer": self.mixer}

    def layout(self) -> Layout:
        out = linear(self.d_model, self.d_model, bias=False)
        return super().layout().with_parts(out_proj=out)

    def build(self) -> "nn.Module":
        from zoo_components.modules.guided_mixer import GuidedMixerBlock

        block = self._module(GuidedMixerBlock)
        block.add_out_proj(self.d_model)
        return block
