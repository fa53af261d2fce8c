"""Several residual streams, of which the layer computes one and predicts the others: the `block`
slot."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import model_validator

from zoo.component import Shared, Size, Slot, contradiction
from zoo.layout import LayerList, Layout, linear, vector
from zoo.slots import Merging, Norm
from zoo_components.block import Residual
from zoo_components.layer_inputs import LayerInput
from zoo_components.optional import SizeOrNone, number

if TYPE_CHECKING:
    from torch import nn

    from zoo_components.modules.alternating import AlternatingBlock

Module = TypeVar("Module", bound="AlternatingBlock")


class Projected(Merging):
    """Maps of each stream but the first: from the embedded state, and to the final one."""

    def layout(self) -> Layout:
        maps = linear(self.d_model, self.d_model, bias=False)
        each = LayerList(((range(self.n_streams - 1), maps),))
        return Layout({"spread": each, "merge": each})

    def build(self) -> "nn.Module":
        from zoo_components.modules.alternating import Projected as Module

        return Module(self.d_model, self.n_streams)


class AlternatingUpdates(Residual):
    """The layer `residual` with several residual streams, of which it computes the first alone
    (AltUp: Baykal et al. 2023, arXiv:2301.13310; Gemma 3n). What a token's streams x_i become is
    first predicted, y_i = x_i + sum_j p_ij x_j; the branches make z of y_0; and each stream is
    corrected by what they found, y_i + g_i (z - y_0). The p_ij and the g_i are linear maps of
    tanh(router(norm(s)) / d_model), where s is x_0 for the former and z for the latter. Learned
    maps make the streams of the embedded state, each as large as that, and one state of them after
    the last layer, their mean."""

    # No fields: each branch reads what the one before has added to.
    arrangement: ClassVar[Literal["sequential"]] = "sequential"  # type: ignore[misc]
    skip_from: ClassVar[Literal["input"]] = "input"  # type: ignore[misc]
    n_streams: Shared[Size] = 4
    """The number of residual streams."""
    router_norm: Annotated[Norm, Slot("norm", width="d_model")]
    """The norm of what the router reads."""
    laurel_rank: SizeOrNone = "none"
    """The rank r of a learned residual beside the self-attention (LAuReL: Menghani et al. 2024,
    arXiv:2411.07501), whose sum is then (x + attention(n) + n + laurel_norm(up(down(n)))) / sqrt(2)
    with n = pre(x), where `down` is a linear map to r numbers and `up` one back."""
    laurel_norm: Annotated[Norm, Slot("norm", width="d_model")]
    """The norm of that residual."""

    @model_validator(mode="after")
    def _check_streams(self) -> Self:
        if self.norm_placement == "parallel":
            raise contradiction(
                "the branches of a layer of several streams run one after the other",
                "norm_placement",
            )
        if self.n_streams == 1:
            raise contradiction(
                "a single stream has no others to predict: state a block of one stream, such as "
                "`residual`",
                "n_streams",
                "kind",
            )
        if self.laurel_rank != "none" and self.self_attn.absent:
            raise contradiction(
                "the learned residual stands beside the self-attention, and there is none",
                "laurel_rank",
                "self_attn.kind",
            )
        return self

    @property
    def merging(self) -> Merging:
        return Projected(d_model=self.d_model, n_streams=self.n_streams)

    def layout(self) -> Layout:
        d_model, n, rank = self.d_model, self.n_streams, number(self.laurel_rank)
        parts = {
            "altup": Layout(
                {
                    "router_norm": self.router_norm.layout(),
                    "router": linear(d_model, n, bias=False),
                    "predict": linear(n, n * n, bias=False),
                    "correct": linear(n, n, bias=False),
                }
            )
        }
        if rank is not None:
            parts["laurel"] = Layout(
                {
                    "down_proj": linear(d_model, rank, bias=False),
                    "up_proj": linear(rank, d_model, bias=False, residual=True),
                    "norm": self.laurel_norm.layout(),
                },
                f"rank {rank}",
            )
        label = f"{n} streams" if rank is None else f"{n} streams, laurel_rank {rank}"
        return replace(super().layout().with_parts(**parts), label=label)

    def build(self) -> "nn.Module":
        from zoo_components.modules.alternating import AlternatingBlock

        return self._alternating(AlternatingBlock)

    def _alternating(self, cls: "type[Module]") -> "Module":
        from zoo_components.modules.alternating import Laurel, Router

        block, rank = self._module(cls), number(self.laurel_rank)
        block.altup = Router(self.d_model, self.n_streams, self.router_norm.build())
        block.laurel = (
            None if rank is None else Laurel(self.d_model, rank, self.laurel_norm.build())
        )
        return block


class AlternatingLayerInput(AlternatingUpdates, LayerInput):
    """The layer `alternating_updates` with one more branch, the last: what a gate lets through of
    an input of the layer's own, as in `layer_input` (Gemma 3n). It reads the first stream, each
    channel times a learned factor, and what it makes is added to all streams but the first."""

    def layout(self) -> Layout:
        return super().layout().with_parts(input_scale=vector(self.d_model, value=1.0))

    def build(self) -> "nn.Module":
        from zoo_components.modules.alternating import AlternatingLayerInputBlock

        block = self._alternating(AlternatingLayerInputBlock)
        block.add_input_scale(self.d_model)
        return block
