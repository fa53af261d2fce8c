"""Transformer layers: sublayers in residual branches (Vaswani et al. 2017, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Protocol, get_args

import torch
from torch import nn

from zoo.context import LayerContext
from zoo.errors import PluginError
from zoo.position import PositionScheme, Rotation, add_biases, rotation_of
from zoo.sharding.parts import local
from zoo.slots import NormSite, Sublayer
from zoo_components.modules.dropout import Dropout
from zoo_components.modules.norm import Norm, put_norm
from zoo_components.modules.unpadding import at_places, taken


class Branch(Protocol):
    """A sublayer's module with its norms, as `with_norms` makes it."""

    pre_norm: Norm
    post_norm: Norm
    out_norm: Norm

    def __call__(self, x: torch.Tensor, *arguments: Any, **options: Any) -> Any: ...


def with_norms(sublayer: Sublayer) -> nn.Module:
    """Build a branch's module with its norms registered inside it, so that their names are
    `self_attn.pre_norm` and so on.

    Raises:
        PluginError: the module is a container that would run the norms as its own children, or has
            something else under a norm's name.
    """
    module = sublayer.build()
    if isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        raise PluginError(
            f"the module of {sublayer.kind!r} is a bare {type(module).__name__}; return a module "
            "of a class of your own, which can hold the norms around it"
        )
    for site in get_args(NormSite):
        name, here = f"{site}_norm", sublayer.norm if site in sublayer.norms else None
        if hasattr(module, name):
            raise PluginError(
                f"the module of {sublayer.kind!r} has a `{name}` of its own, which is what the "
                "norm around it is called; choose another name"
            )
        put_norm(module, name, here.build() if here else None)
    return module


class ResidualBlock(nn.Module):
    """x = out_norm(x + dropout(post_norm(f(pre_norm(x))))) for each sublayer f: one after the
    other, or all from the same x and summed at once.

    Args:
        sublayers: the sublayers by name, in the order in which they run, each with its norms.
        feed_forwards: the names of the feed-forward networks, and what each takes beside the
            states: `mask`, `ids`, both or neither.
        takes: what the self-attention takes beside what every attention does, by its name in the
            context.
        scheme_name: the name, in the self-attention, of a position scheme of this layer alone.
        incremental: whether the sublayers can compute the next tokens with a cache.
        dropout: of the output of each sublayer.
        parallel: whether all sublayers read the same x.
        shared_norm: whether the `ffn` of a parallel layer reads what the norm of the attention
            returns.
        scales: what multiplies each sublayer's output, and the other summand.
        skip_from_normed: whether a sublayer's output is added to the output of its `pre_norm`.
        learned_scale: whether one learned number multiplies the output.
    """

    self_attn: Branch

    def __init__(
        self,
        sublayers: Mapping[str, nn.Module],
        *,
        feed_forwards: Mapping[str, Collection[str]],
        takes: Iterable[str],
        scheme_name: str | None,
        incremental: bool,
        dropout: float,
        parallel: bool,
        shared_norm: bool,
        scales: Mapping[str, tuple[float, float]],
        skip_from_normed: bool,
        learned_scale: bool,
    ) -> None:
        super().__init__()
        self.names = tuple(sublayers)
        for name, module in sublayers.items():
            self.add_module(name, module)
        self.feed_forwards = dict(feed_forwards)
        self.takes = tuple(takes)
        self.scheme_name = scheme_name
        self.incremental = incremental
        self.dropout = Dropout(dropout)
        self.parallel, self.shared_norm = parallel, shared_norm
        self.residual_scales = {name: scale for name, (scale, _) in scales.items()}
        self.skip_scales = {name: scale for name, (_, scale) in scales.items()}
        self.skip_from_normed = skip_from_normed
        self.scalar = nn.Parameter(torch.ones(1)) if learned_scale else None

    def forward(
        self, x: torch.Tensor, context: LayerContext
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """(..., length, d_model) to the same, and the attention weights by sublayer if asked."""
        maps: dict[str, torch.Tensor] = {}
        if self.parallel:
            x = self._parallel(x, context, maps)
        else:
            for name in self.names:
                f: Branch = getattr(self, name)
                normed = f.pre_norm(x)
                added = self._branch(name, f, normed, context, maps)
                skip = normed if self.skip_from_normed else x
                x = f.out_norm(self._skipped(name, skip) + added)
        return (x if self.scalar is None else x * self.scalar), maps

    def _parallel(
        self, x: torch.Tensor, context: LayerContext, maps: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        summed, normed = None, x
        for name in self.names:
            f: Branch = getattr(self, name)
            if name != "ffn" or not self.shared_norm:
                normed = f.pre_norm(x)
            added = self._branch(name, f, normed, context, maps)
            summed = added if summed is None else summed + added
        return x if summed is None else self._skipped(self.names[0], x) + summed

    def _skipped(self, name: str, x: torch.Tensor) -> torch.Tensor:
        scale = self.skip_scales[name]
        return x if scale == 1.0 else x * scale

    def _branch(
        self,
        name: str,
        f: Branch,
        x: torch.Tensor,
        context: LayerContext,
        maps: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        """What the sublayer f of this name adds to the sum for x; its weights go into `maps`."""
        weights: torch.Tensor | None = None
        if name in self.feed_forwards:
            x = self._fed(name, f, x, context)
        elif name == "cross_attn":
            x, weights = self._crossed(f, x, context)
        else:
            x, weights = self._attended(f, x, context)
        if weights is not None:
            maps[name] = weights
        return self.scaled(name, self.dropout(f.post_norm(x)))

    def scaled(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """residual_scale * x, where x = dropout(post_norm(f(...))) for the sublayer f `name`."""
        scale = self.residual_scales[name]
        return x if scale == 1.0 else x * scale

    def _attended(
        self, f: Branch, x: torch.Tensor, context: LayerContext
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Self-attention, with the position schemes of the stack and of the layer."""
        rotation, bias = self._positions(context, x.dtype)
        further: dict[str, Any] = {name: getattr(context, name) for name in self.takes}
        if "rotations" in further:
            further["rotations"] = self._rotations(context, x.dtype)
        if context.keys is not None:
            further["keys"] = context.keys
        if context.cache is not None and self.incremental:
            further["cache"] = context.cache.of("self_attn")
        output, weights = f(
            x,
            mask=context.mask,
            causal=context.causal,
            rotation=rotation,
            bias=bias,
            positions=context.positions,
            return_weights=context.return_weights,
            **further,
        )
        return output, weights

    def _fed(self, name: str, f: Branch, x: torch.Tensor, context: LayerContext) -> torch.Tensor:
        """The output of the feed-forward network f `name` for x, (batch, length, d_model)."""
        takes = self.feed_forwards[name]
        further: dict[str, Any] = {}
        if "mask" in takes:  # where padding is left out, none is needed
            further["mask"] = context.tokens if context.places is None else None
        if "ids" in takes:
            assert context.ids is not None  # the description has checked it
            further["ids"] = taken(context.ids[..., None], context.places)[..., 0]
        return at_places(partial(f, **further), x, context.places)

    def _crossed(
        self, f: Branch, x: torch.Tensor, context: LayerContext
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Cross-attention. With a cache, several consecutive rows may share one row of memory: they
        are treated as queries of the same memory, which is then read once for all of them."""
        memory = context.memory
        assert memory is not None  # the stack has checked it
        further: dict[str, Any] = {}
        queries = x
        if context.cache is not None and self.incremental:
            further["cache"] = context.cache.of("cross_attn")
            queries = x.reshape(memory.shape[0], -1, x.shape[-1])
        attended, weights = f(
            queries,
            memory,
            mask=context.memory_mask,
            return_weights=context.return_weights,
            **further,
        )
        return attended.view(x.shape), weights

    def _positions(
        self, context: LayerContext, dtype: torch.dtype
    ) -> tuple[Rotation | None, torch.Tensor | None]:
        """The rotation and bias of the stack, combined with those of the layer's own scheme."""
        if self.scheme_name is None:
            return context.rotation, context.bias
        scheme, at = getattr(self.self_attn, self.scheme_name), context.positions
        assert at is not None  # in every pass
        keys = at if context.key_positions is None else context.key_positions
        rotation = rotation_of(scheme, at, context.offsets, dtype) or context.rotation
        return rotation, add_biases(context.bias, scheme.bias(at, keys, dtype))

    def _rotations(
        self, context: LayerContext, dtype: torch.dtype
    ) -> Callable[[torch.Tensor], Rotation | None] | None:
        """The rotation at any positions, by the scheme of the layer alone or of the stack."""
        if self.scheme_name is None:
            return context.rotations
        own: PositionScheme = getattr(self.self_attn, self.scheme_name)
        return partial(own.rotation, dtype=dtype)


class ChannelScaledBlock(ResidualBlock):
    """A `ResidualBlock` with `channel_scale` beside the norms of each branch: a factor for each
    channel of what the branch adds (LayerScale: Touvron et al. 2021, arXiv:2103.17239)."""

    def add_channel_scales(self, d_model: int) -> None:
        """Give each branch its factors, (d_model,)."""
        for name in self.names:
            factors = nn.Parameter(torch.empty(d_model))
            getattr(self, name).register_parameter("channel_scale", factors)

    def scaled(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """channel_scale * residual_scale * x. Dropout sets the same elements to zero before the
        factors as it would after them."""
        return local(getattr(self, name).channel_scale) * super().scaled(name, x)


class ReZeroBlock(ResidualBlock):
    """A `ResidualBlock` with `alpha`, a number that multiplies what each branch adds (ReZero:
    Bachlechner et al. 2020, arXiv:2003.04887)."""

    def add_alpha(self) -> None:
        """Give the layer its number, (1,), if it has branches."""
        if self.names:
            self.alpha = nn.Parameter(torch.empty(1))

    def scaled(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """alpha * residual_scale * x."""
        return local(self.alpha) * super().scaled(name, x)


class ConformerBlock(ResidualBlock):
    """A `ResidualBlock` with a norm of its output, `norm` (Gulati et al. 2020, arXiv:2005.08100,
    section 2.4)."""

    norm: Norm

    def forward(
        self, x: torch.Tensor, context: LayerContext
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """(..., length, d_model) to the same, and the attention weights by sublayer if asked."""
        x, maps = super().forward(x, context)
        return self.norm(x), maps


class TwoMixersBlock(ResidualBlock):
    """A `ResidualBlock` with another mixer of tokens, the branch `second`, which needs no
    positions."""

    second: ClassVar[str] = "second_mixer"

    def _branch(
        self,
        name: str,
        f: Branch,
        x: torch.Tensor,
        context: LayerContext,
        maps: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        if name != self.second:
            return super()._branch(name, f, x, context, maps)
        further: dict[str, Any] = {}
        if context.cache is not None and self.incremental:
            further["cache"] = context.cache.of(name)
        at = context.positions
        x, _ = f(x, mask=context.mask, causal=context.causal, positions=at, **further)
        return self.scaled(name, self.dropout(f.post_norm(x)))
