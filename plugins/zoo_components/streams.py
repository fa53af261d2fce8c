"""Several residual streams: layers that read a mixture of them and write to all."""

import math
from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.component import Given, PositiveFloat, Shared, Size, Slot, contradiction
from zoo.layout import Layout, Tensor, vector
from zoo.only_with import OnlyWith
from zoo.slots import Merging, Norm
from zoo_components.block import Residual

if TYPE_CHECKING:
    from torch import nn

FIRST_SCALE = 0.01
"""The initial value of the factors of learned maps, in both papers."""


class Summed(Merging):
    """The sum of the streams, or their mean."""

    mean: Given[bool]

    def layout(self) -> Layout:
        return Layout()

    def build(self) -> "nn.Module":
        from zoo_components.modules.streams import Summed as Module

        return Module(mean=self.mean)


class Weighted(Merging):
    """The sum of the streams, each multiplied by a gate that reads all of them."""

    norm_eps: Given[float]
    gate_eps: Given[float]

    def layout(self) -> Layout:
        return Layout({"read": reading_gate(self.d_model, self.n_streams)})

    def build(self) -> "nn.Module":
        from zoo_components.modules.streams import Weighted as Module

        return Module(self.d_model, self.n_streams, norm_eps=self.norm_eps, gate_eps=self.gate_eps)


def gate(d_model: int, n_streams: int, n_out: int, *, bias: float = 0.0) -> Layout:
    """The layout of `zoo_components.modules.streams.Gate`."""
    n_in = n_streams * d_model
    return Layout(
        {
            "weight": Tensor((n_out, n_in), fan_in=n_in, fan_out=n_out),
            "bias": vector(n_out, value=bias),
            "scale": vector(1, value=FIRST_SCALE),
        }
    )


def reading_gate(d_model: int, n_streams: int) -> Layout:
    """The gate of streams that are summed: it begins near their mean."""
    return gate(d_model, n_streams, n_streams, bias=-math.log(max(n_streams - 1, 1)))


class Streamed(Residual):
    """The common base of layers of several residual streams."""

    # No fields: a branch reads a mixture of the streams, and its output is added to another one.
    arrangement: ClassVar[Literal["sequential"]] = "sequential"  # type: ignore[misc]
    skip_from: ClassVar[Literal["input"]] = "input"  # type: ignore[misc]
    n_streams: Shared[Size] = 4
    """The number of residual streams."""

    @model_validator(mode="after")
    def _check_placement(self) -> Self:
        if self.norm_placement == "parallel":
            raise contradiction(
                "the branches of a layer of several streams run one after the other",
                "norm_placement",
            )
        return self

    @abstractmethod
    def _connection(self) -> Layout:
        """The layout of what stands between the streams and a branch."""

    @abstractmethod
    def _build_connection(self) -> "nn.Module":
        """Its module."""

    def layout(self) -> Layout:
        whole = replace(super().layout(), label=f"{self.n_streams} streams")
        streams = Layout({name: self._connection() for name in self.sublayers()})
        return whole if streams.is_empty else whole.with_parts(streams=streams)

    def build(self) -> "nn.Module":
        from zoo_components.modules.streams import StreamedBlock

        block = self._module(StreamedBlock)
        block.add_streams({name: self._build_connection() for name in self.sublayers()})
        return block


class HyperConnected(Streamed):
    """The layer `residual` with several residual streams. A branch reads a weighted sum of them,
    and each becomes a weighted sum of all, to which the branch's output is added with a weight of
    its own (Hyper-Connections: Zhu et al. 2024, arXiv:2409.19606). In a new model all streams are
    equal, as in a layer `residual`: a branch reads the first one and adds its output to all, and
    they move up by one, so that the next branch reads another one."""

    dynamic: bool = True
    """Whether the weights also depend on the token, by maps of its streams that begin at 0."""
    stream_norm: Annotated[Norm | None, Slot("norm", width="d_model"), OnlyWith("dynamic", True)]
    """The norm of what these maps read."""
    merge: Literal["sum", "mean"] = "sum"
    """What becomes of the streams after the last layer."""

    @property
    def merging(self) -> Merging:
        mean = self.merge == "mean"
        return Summed(d_model=self.d_model, n_streams=self.n_streams, mean=mean)

    def _connection(self) -> Layout:
        n = self.n_streams
        parts: dict[str, Tensor | Layout] = {
            "read": vector(n),
            "mix": Tensor((n, n), "constant"),
            "write": vector(n, value=1.0),
        }
        if self.stream_norm is not None:
            parts |= {
                "norm": self.stream_norm.layout(),
                "read_map": vector(self.d_model),
                "mix_map": Tensor((n, self.d_model), "constant"),
                "write_map": vector(self.d_model),
                "width_scale": vector(1, value=FIRST_SCALE),
                "depth_scale": vector(1, value=FIRST_SCALE),
            }
        return Layout(parts)

    def _build_connection(self) -> "nn.Module":
        from zoo_components.modules.streams import HyperConnection

        norm = None if self.stream_norm is None else self.stream_norm.build()
        return HyperConnection(self.d_model, self.n_streams, norm)


class ManifoldHyperConnected(Streamed):
    """The layer `residual` with several residual streams, whose weights are gates that read all
    streams of a token. A branch reads their weighted sum; its output is added to each of them with
    a weight between 0 and 2, after a matrix has mixed them that is made doubly stochastic, so that
    their mean stays as it is (Manifold-Constrained Hyper-Connections: Xie et al. 2025,
    arXiv:2512.24880; DeepSeek-V4). A new model is near one of layers `residual`: a branch reads
    about the mean of the streams, and adds about its output to all."""

    sinkhorn_steps: Size = 20
    """How often the matrix is divided by the sums of its rows, and then of its columns (Sinkhorn
    and Knopp 1967)."""
    norm_eps: PositiveFloat = 1e-6
    """What is added to the mean of the squares of all streams, by whose root they are divided
    before the gates read them."""
    gate_eps: Annotated[float, Field(ge=0.0)] = 1e-6
    """What is added to the weights of a sum of streams, to the first matrix, and to the sums that
    it is divided by."""
    merge: Literal["sum", "mean", "weighted"] = "sum"
    """What becomes of the streams after the last layer; `weighted` is their sum with such weights
    as a branch reads them with."""

    @property
    def merging(self) -> Merging:
        d_model, n = self.d_model, self.n_streams
        if self.merge == "weighted":
            eps = {"norm_eps": self.norm_eps, "gate_eps": self.gate_eps}
            return Weighted(d_model=d_model, n_streams=n, **eps)
        return Summed(d_model=d_model, n_streams=n, mean=self.merge == "mean")

    def _connection(self) -> Layout:
        n = self.n_streams
        return Layout(
            {
                "read": reading_gate(self.d_model, n),
                "mix": gate(self.d_model, n, n * n),
                "write": gate(self.d_model, n, n),
            }
        )

    def _build_connection(self) -> "nn.Module":
        from zoo_components.modules.streams import ManifoldHyperConnection

        return ManifoldHyperConnection(
            self.d_model,
            self.n_streams,
            steps=self.sinkhorn_steps,
            norm_eps=self.norm_eps,
            gate_eps=self.gate_eps,
        )
