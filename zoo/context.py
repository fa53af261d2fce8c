"""The inputs that a stack passes to each of its layers in one forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from zoo.cache import LayerCache
from zoo.position import PositionScheme, Rotation


class SharedKeys:
    """What one layer hands on to later ones in one forward pass: its keys and values, if they
    attend to the same; or its choice of keys, if they attend to those keys of their own."""

    def __init__(self) -> None:
        self._held: tuple[torch.Tensor, torch.Tensor, Any] | None = None
        self._chosen: tuple[torch.Tensor | None] | None = None

    def put(self, keys: torch.Tensor, values: torch.Tensor, *, mesh: Any) -> None:
        """Store the keys and values that the layer itself attends to: with a cache, those of all
        tokens that it keeps.

        Args:
            keys: (..., n_kv_heads, key, head_dim), normalised and rotated.
            values: (..., n_kv_heads, key, v_head_dim).
            mesh: what `zoo.sharding.parts.mesh_of` says of the map that made the keys: where it is
                cut, each process has some of the heads.
        """
        self._held = keys, values, mesh

    def get(self) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """The arguments of `put`.

        Raises:
            ValueError: there are none yet.
        """
        if self._held is None:
            raise ValueError("the layer whose keys and values are shared has not put them here")
        return self._held

    def put_chosen(self, chosen: torch.Tensor | None) -> None:
        """Store which keys each query attends to, of those that its mask leaves visible: boolean,
        (..., heads or 1, query, key); None = all. With a cache, the keys are those of all tokens
        that are kept."""
        self._chosen = (chosen,)

    def get_chosen(self) -> torch.Tensor | None:
        """The argument of `put_chosen`.

        Raises:
            ValueError: there is none yet.
        """
        if self._chosen is None:
            raise ValueError("the layer that chooses the keys has not put its choice here")
        return self._chosen[0]


class LayerContext(NamedTuple):
    """The inputs of one forward pass, the same for all layers with the same position scheme.

    Args:
        mask: for self-attention: boolean, True = attend, broadcasts to (batch, heads, query, key).
        tokens: False for padding, boolean, (batch, length); None if there is no padding.
        places: the indices of the tokens that are not padding in the flattened batch; None if
            token-wise maps are computed for all tokens.
        causal: whether self-attention sees no later positions, in addition to `mask`.
        positions: the position of each token, (length,) or (batch, length).
        key_positions: the position of each key of self-attention; with a cache, of all tokens so
            far.
        offsets: each coordinate of a token minus its position, (batch or 1, length, axes); None if
            all coordinates are the position.
        scheme: the position scheme inside attention, for attention that reads its tables.
        rotation: the rotation that the scheme applies to queries and keys.
        rotations: maps any positions, (..., length), to their rotation, for attention that also
            rotates vectors at other positions than those of its tokens.
        bias: the bias that the scheme adds to the scores, (heads, query, key), optionally with a
            leading batch dimension.
        memory: the states that cross-attention attends to, (batch, key, memory_width).
        memory_mask: the mask for cross-attention, as `mask`.
        global_tokens: tokens that see all tokens and are seen by all, (batch, length), for
            self-attention that supports them.
        keys: where the layer puts its keys and values for later ones, or finds those of an earlier
            one; None if it shares none.
        embedded: the states as they enter the first layer, (batch, length, d_model), which later
            layers may read beside their own input.
        layer_input: what the embedding made for this layer alone, (batch, length,
            layer_input_width); None if it makes no such inputs.
        ids: those of the tokens, (batch, length), for networks that read them; None in a stack that
            is called with vectors.
        cache: the layer's cache of earlier tokens; None if all tokens are in the input.
        return_weights: whether attention weights are returned.
    """

    mask: torch.Tensor | None = None
    tokens: torch.Tensor | None = None
    places: torch.Tensor | None = None
    causal: bool = False
    positions: torch.Tensor | None = None
    key_positions: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    scheme: PositionScheme | None = None
    rotation: Rotation | None = None
    rotations: Callable[[torch.Tensor], Rotation | None] | None = None
    bias: torch.Tensor | None = None
    memory: torch.Tensor | None = None
    memory_mask: torch.Tensor | None = None
    global_tokens: torch.Tensor | None = None
    keys: SharedKeys | None = None
    embedded: torch.Tensor | None = None
    layer_input: torch.Tensor | None = None
    ids: torch.Tensor | None = None
    cache: LayerCache | None = None
    return_weights: bool = False

    @property
    def coordinates(self) -> torch.Tensor | None:
        """The coordinates of each token, (batch or 1, length, axes); None if all are the
        position."""
        if self.offsets is None or self.positions is None:
            return None
        return self.positions[..., None] + self.offsets
