"""Operations on the vectors of single heads, (..., heads, length, width)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from zoo.position import Rotation
from zoo_components.modules.norm import Norm


class Heads(NamedTuple):
    """The numbers and widths of the heads of an attention.

    Args:
        n_heads: the number of query heads.
        n_kv_heads: the number of key-value heads; each serves n_heads / n_kv_heads query heads.
        head_dim: the width of a query and key head.
        v_head_dim: the width of a value head.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    v_head_dim: int


def split_heads(x: torch.Tensor, width: int) -> torch.Tensor:
    """(..., length, heads * width) to (..., heads, length, width). In a process that holds some of
    the heads, `heads` is their number."""
    return torch.unflatten(x, -1, (-1, width)).transpose(-3, -2)


def merge_heads(x: torch.Tensor) -> torch.Tensor:
    """(..., heads, length, width) to (..., length, heads * width)."""
    return x.transpose(-3, -2).flatten(-2)


class PerHeadNorm(nn.Module):
    """A norm with separate parameters for each head: those of `norm`, with a first dimension of
    n_heads. A norm that `broadcasts` is called once for all heads, others once for each."""

    def __init__(self, norm: nn.Module, *, n_heads: int, broadcasts: bool) -> None:
        super().__init__()
        # In a tuple, the norm is not a submodule. Its own tensors make way for those of the heads.
        self.norm = (norm,)
        self.broadcasts = broadcasts
        tensors = dict(norm.named_parameters())
        self.names = tuple(tensors)
        for name, tensor in tensors.items():
            self.register_parameter(name, nn.Parameter(tensor.new_empty(n_heads, *tensor.shape)))
            delattr(norm, name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., heads, length, width) to the same."""
        # Not `get_parameter`, which refuses the plain tensors of `torch.func.functional_call`.
        tensors = [getattr(self, name) for name in self.names]
        if self.broadcasts:
            return self._normed([tensor.unsqueeze(1) for tensor in tensors], x)
        heads = zip(x.unbind(-3), *(tensor.unbind() for tensor in tensors), strict=True)
        return torch.stack([self._normed(own, one) for one, *own in heads], -3)

    def _normed(self, tensors: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """Call the norm with these tensors, as `functional_call` does, which cannot be traced."""
        (norm,) = self.norm
        for name, tensor in zip(self.names, tensors, strict=True):
            setattr(norm, name, tensor)
        try:
            normed: torch.Tensor = norm(x)
        finally:
            for name in self.names:
                delattr(norm, name)
        return normed


class Temperature(NamedTuple):
    """The factor of a query by its position p, so that long contexts do not blur attention
    (Nakanishi 2025, arXiv:2501.19399): `log` is 1 + scale * log(1 + floor((p + shift) / floor)),
    `power` is (1 + (p + shift) / floor)**scale."""

    form: Literal["log", "power"]
    scale: float
    floor: float
    shift: int

    def __call__(self, q: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Scale q (..., heads, query, width) by positions (..., query). The factor is computed in
        float32, or float64 for a float64 model."""
        exact = torch.promote_types(q.dtype, torch.float32)
        # Masked tokens may stand at position -1.
        steps = (positions.clamp(min=0).to(exact) + self.shift) / self.floor
        if self.form == "log":
            factor = 1.0 + self.scale * torch.log1p(steps.floor())
        else:
            factor = (1.0 + steps) ** self.scale
        return q * factor.to(q.dtype)[..., None, :, None]


class Preparation(NamedTuple):
    """What is done to the projected queries, keys and values before they are matched and mixed.

    Args:
        clip: a bound that they are clamped to.
        norm_spans_heads: whether the norm of queries and that of keys see all heads of a token as
            one vector.
        norm_after_rotation: whether these norms come after the rotation by rotary positions.
        rotate_values: whether values are rotated too.
        temperature: a factor of the queries.
    """

    clip: float | None
    norm_spans_heads: bool
    norm_after_rotation: bool
    rotate_values: bool
    temperature: Temperature | None

    def query(
        self,
        q: torch.Tensor,
        norm: Norm,
        rotation: Rotation | None,
        positions: torch.Tensor | None,
    ) -> torch.Tensor:
        """Queries (..., heads, query, width), normalised, rotated and multiplied by their
        temperature, for which `positions` (..., query) are needed."""
        q = self.key(q, norm, rotation)
        if self.temperature is None:
            return q
        assert positions is not None
        return self.temperature(q, positions)

    def key(self, k: torch.Tensor, norm: Norm, rotation: Rotation | None) -> torch.Tensor:
        """Keys (..., heads, key, width), normalised and rotated."""
        if self.norm_spans_heads:
            norm = partial(_merged, norm)
        if rotation is None:
            return norm(k)
        return norm(rotation(k)) if self.norm_after_rotation else rotation(norm(k))

    def value(self, v: torch.Tensor, norm: Norm, rotation: Rotation | None) -> torch.Tensor:
        """Values (..., heads, key, width), normalised and, with `rotate_values`, rotated."""
        v = norm(v)
        return rotation(v) if self.rotate_values and rotation is not None else v


def _merged(norm: Norm, heads: torch.Tensor) -> torch.Tensor:
    """A norm of heads (..., heads, length, width) that sees those of a token as one vector."""
    return split_heads(norm(merge_heads(heads)), heads.shape[-1])


class Gate(NamedTuple):
    """The form of the output gate: one for each element of a head's output or one `per_head`, and
    whether the bias is that of the `projection` or one for all gates of a `head`."""

    activation: Literal["sigmoid", "softplus"]
    per_head: bool
    bias: Literal["none", "projection", "head"]

    def __call__(self, gates: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        return gates.sigmoid() if self.activation == "sigmoid" else F.softplus(gates)
