"""Layers of a stack: the `block` slot."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from zoo.component import Given, PositiveFloat, Probability, Shared, Slot, contradiction
from zoo.layout import LayerList, Layout, Tensor, vector
from zoo.slots import Attention, Block, FeedForward, Norm, Position, Sublayer

if TYPE_CHECKING:
    from torch import nn

    from zoo_components.modules.block import ResidualBlock

Module = TypeVar("Module", bound="ResidualBlock")


def check_width(name: str, branch: Sublayer, d_model: int) -> None:
    """Raise a contradiction if the output of the branch `name` has not the width of the residual
    sum."""
    width = getattr(branch, "d_out", branch.d_model)
    if width != d_model:
        raise contradiction(
            f"`{name}` is {width} wide at its output; the residual sum needs d_model = {d_model}",
            f"{name}.d_out",
            "d_model",
        )


class Residual(Block):
    """Sublayers, each a residual branch: x = out(x + dropout(post(f(pre(x))))) (Vaswani et al.
    2017, section 3.1; the placements are compared by Xiong et al. 2020, arXiv:2002.04745). In
    parallel, all branches read the same x and are summed at once (Wang and Komatsuzaki 2021,
    GPT-J)."""

    causal: Given[bool] = False
    self_attn: Annotated[Attention, Slot("attention")]
    """The attention of the sequence to itself."""
    # Values for the position scheme of this layer alone. Only fields can be passed on to it, and no
    # parent states these two.
    self_heads: Given[int | None] = Field(
        default_factory=lambda data: getattr(data["self_attn"], "n_heads", None)
    )
    self_head_dim: Given[int | None] = Field(
        default_factory=lambda data: getattr(data["self_attn"], "head_dim", None)
    )
    self_position: Annotated[
        Position,
        Slot(
            "position",
            default="none",
            inherit=False,
            n_heads="self_heads",
            head_dim="self_head_dim",
        ),
    ]
    """A position scheme of this layer alone, beside the stack's, in its self-attention (UMT5)."""
    cross_attn: Annotated[
        Attention | None, Slot("attention", needs="memory_width", key_width="memory_width")
    ] = None
    """The attention to the memory; only in a stack that attends to one."""
    ffn: Annotated[FeedForward, Slot("ffn")]
    """The position-wise feed-forward network."""
    dropout: Shared[Probability] = 0.0
    """Dropout on the output of each branch, before the sum."""
    arrangement: Literal["sequential", "parallel"] = Field(
        default_factory=lambda data: (
            "parallel" if data["norm_placement"] == "parallel" else "sequential"
        )
    )
    """Whether each branch reads the residual sum after the previous branch (`sequential`), or all
    read the layer's input (`parallel`). A parallel `ffn` with `norms = []` reads the output of the
    attention's norm."""
    skip_from: Literal["input", "normed"] = "input"
    """What the branch's output is added to: the branch's input, or the output of its norm (an
    option of BLOOM)."""
    layer_scale: Literal["none", "learned"] = "none"
    """Whether the layer's output is multiplied by one learned number (Gemma 4)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.arrangement == "parallel":
            self._check_parallel()
        own = self.self_position
        if self.self_attn.absent and not own.absent:
            raise contradiction(
                "a layer without self-attention has no use for positions of its own",
                "self_position.kind",
                "self_attn.kind",
            )
        if own.embedded:
            raise contradiction(
                f"`{own.kind}` positions are added to the embeddings; a layer cannot have its own",
                "self_position.kind",
            )
        if not (own.absent or own.rotates or own.adds_bias):
            raise contradiction(
                f"`{own.kind}` positions are read from the stack: state them as `position` or "
                "`relative`",
                "self_position.kind",
            )
        for name, branch in self.sublayers().items():
            check_width(name, branch, self.d_model)
        return self

    def _check_parallel(self) -> None:
        branches = self.sublayers()
        if "cross_attn" in branches:
            raise contradiction(
                "a parallel layer has no place for the cross-attention of this decoder",
                "arrangement",
                "norm_placement",
            )
        if self.skip_from == "normed":
            raise contradiction(
                "the branches of a parallel layer may have different norms: the other summand is "
                "the layer's input",
                "skip_from",
                "arrangement",
                "norm_placement",
            )
        if len({branch.skip_scale for branch in branches.values()}) > 1:
            raise contradiction(
                "a parallel layer has one sum, and so one `skip_scale`",
                "ffn.skip_scale",
                "self_attn.skip_scale",
                "arrangement",
                "norm_placement",
            )
        for name, sublayer in branches.items():
            if "out" in sublayer.norms:
                raise contradiction(
                    f"a parallel layer has one sum: `{name}` cannot have a norm after its own",
                    f"{name}.norms",
                    "arrangement",
                    "norm_placement",
                )

    @property
    def n_heads(self) -> int | None:
        return self.self_heads

    @property
    def head_dim(self) -> int | None:
        return self.self_head_dim

    @property
    def self_attention(self) -> Attention:
        return self.self_attn

    @property
    def attends_to_memory(self) -> bool:
        return self.cross_attn is not None and not self.cross_attn.absent

    @property
    def takes_ids(self) -> bool:
        return any(part.takes_ids for part in self._feed_forwards().values())

    @property
    def own_position(self) -> Position:
        return self.self_position

    @property
    def not_incremental(self) -> tuple[str, ...]:
        return tuple(name for name, part in self._mixing() if not part.incremental)

    @property
    def not_recordable(self) -> tuple[str, ...]:
        return tuple(name for name, part in self._mixing() if not part.recordable)

    def _mixing(self) -> list[tuple[str, Attention | FeedForward]]:
        """The parts by which a token may depend on others, by what they are called in a message."""
        attentions = [part for part in (self.self_attn, self.cross_attn) if part is not None]
        return [
            *((f"attention `{part.kind}`", part) for part in attentions),
            *((f"ffn `{part.kind}`", part) for part in self._feed_forwards().values()),
        ]

    @property
    def by_position(self) -> bool:
        return all(part.incremental for part in self._feed_forwards().values())

    @property
    def looks_ahead(self) -> tuple[str, ...]:
        return tuple(
            f"ffn `{part.kind}`" for part in self._feed_forwards().values() if part.looks_ahead
        )

    def _branches(self) -> dict[str, Sublayer | None]:
        """The branches by name, in the order in which they run, with those that are not there."""
        return {"self_attn": self.self_attn, "cross_attn": self.cross_attn, "ffn": self.ffn}

    def sublayers(self) -> dict[str, Sublayer]:
        """The branches that the layer has, by name, in the order in which they run."""
        return {name: one for name, one in self._branches().items() if one and not one.absent}

    def _feed_forwards(self) -> dict[str, FeedForward]:
        """The branches in the slot `ffn`, by name, with those that are not there."""
        return {n: one for n, one in self._branches().items() if isinstance(one, FeedForward)}

    def _scales(self) -> dict[str, tuple[float, float]]:
        """What multiplies each branch's output and the other summand, by the name of the branch."""
        return {n: (one.residual_scale, one.skip_scale) for n, one in self.sublayers().items()}

    def layout(self) -> Layout:
        parts: dict[str, Tensor | Layout | LayerList] = {
            name: sublayer.layout_with_norms() for name, sublayer in self.sublayers().items()
        }
        if (own := self.self_position.layout()).parts:
            attention = self.self_attn.layout_with_norms()
            parts["self_attn"] = attention.with_parts(**{self.self_position.site: own})
        if self.layer_scale == "learned":
            parts["scalar"] = vector(1, value=1.0)
        return Layout(parts)

    def build(self) -> "nn.Module":
        from zoo_components.modules.block import ResidualBlock

        return self._module(ResidualBlock)

    def _module(self, cls: "type[Module]") -> "Module":
        from zoo_components.modules.block import with_norms

        sublayers = {name: with_norms(s) for name, s in self.sublayers().items()}
        own = self.self_position
        if not own.absent:
            sublayers["self_attn"].add_module(own.site, own.build())
        return cls(
            sublayers,
            feed_forwards={name: one.takes for name, one in self._feed_forwards().items()},
            takes=self.self_attn.takes,
            scheme_name=None if own.absent else own.site,
            incremental=not self.not_incremental,
            dropout=self.dropout,
            parallel=self.arrangement == "parallel",
            shared_norm=not self.ffn.norms,
            scales=self._scales(),
            skip_from_normed=self.skip_from == "normed",
            learned_scale=self.layer_scale == "learned",
        )


class ChannelScaled(Residual):
    """The layer `residual`, in which each branch has a learned factor for each channel of its
    output: x = out(x + dropout(channel_scale * post(f(pre(x))))) (LayerScale: Touvron et al. 2021,
    arXiv:2103.17239, equation 4)."""

    example: ClassVar[Mapping[str, Any]] = {"channel_scale": 1e-5}

    channel_scale: Shared[PositiveFloat]
    """The initial value of the factors: 0.1 up to 18 layers, 1e-5 for 24, 1e-6 for more (Touvron et
    al., section 4.1); DINOv2 has 1e-5."""

    def layout(self) -> Layout:
        whole, factors = super().layout(), vector(self.d_model, value=self.channel_scale)
        scaled: dict[str, Layout] = {}
        for name in self.sublayers():
            branch = whole.parts[name]
            assert isinstance(branch, Layout)
            scaled[name] = branch.with_parts(channel_scale=factors)
        return whole.with_parts(**scaled)

    def build(self) -> "nn.Module":
        from zoo_components.modules.block import ChannelScaledBlock

        block = self._module(ChannelScaledBlock)
        block.add_channel_scales(self.d_model)
        return block


class ReZero(Residual):
    """The layer `residual`, in which one learned number multiplies the output of each branch:
    x = out(x + alpha * dropout(post(f(pre(x))))). It starts at 0, so that a layer begins as the
    identity (ReZero: Bachlechner et al. 2020, arXiv:2003.04887, which has no norms:
    `norm_placement = "none"`)."""

    alpha: Shared[Annotated[float, Field(ge=0.0)]] = 0.0
    """The initial value of the layer's number."""

    def layout(self) -> Layout:
        whole, alpha = super().layout(), vector(1, value=self.alpha)
        return whole.with_parts(alpha=alpha) if self.sublayers() else whole

    def build(self) -> "nn.Module":
        from zoo_components.modules.block import ReZeroBlock

        block = self._module(ReZeroBlock)
        block.add_alpha()
        return block


class Conformer(Residual):
    """The layer `residual` with half a feed-forward network before the attention, a convolution
    after it, half of another feed-forward network and a norm: x + ffn(x) / 2 with `first_ffn`, then
    the attention, x + conv(x), and norm(x + ffn(x) / 2), each branch with its own norms too
    (Conformer: Gulati et al. 2020, arXiv:2005.08100, section 2.4)."""

    arrangement: ClassVar[Literal["sequential"]] = "sequential"  # type: ignore[misc]  # no field
    first_ffn: Annotated[FeedForward, Slot("ffn")]
    """The feed-forward network before the attention. Half of its output is added, as of that of
    `ffn`, which comes last."""
    conv: Annotated[FeedForward, Slot("ffn", default="gated_conv1d", inherit=False)]
    """The convolution after the attention."""
    norm: Annotated[Norm, Slot("norm", width="d_model")]
    """The norm of the layer's output."""

    @model_validator(mode="after")
    def _check_placement(self) -> Self:
        if self.norm_placement == "parallel":
            raise contradiction(
                "the branches of a Conformer layer run one after the other", "norm_placement"
            )
        return self

    def _branches(self) -> dict[str, Sublayer | None]:
        return {
            "first_ffn": self.first_ffn,
            "self_attn": self.self_attn,
            "cross_attn": self.cross_attn,
            "conv": self.conv,
            "ffn": self.ffn,
        }

    def _scales(self) -> dict[str, tuple[float, float]]:
        halves = {"first_ffn": 0.5, "ffn": 0.5}
        return {n: (halves.get(n, 1.0) * one, skip) for n, (one, skip) in super()._scales().items()}

    def layout(self) -> Layout:
        return super().layout().with_parts(norm=self.norm.layout())

    def build(self) -> "nn.Module":
        from zoo_components.modules.block import ConformerBlock
        from zoo_components.modules.norm import put_norm

        block = self._module(ConformerBlock)
        put_norm(block, "norm", self.norm.build())
        return block
