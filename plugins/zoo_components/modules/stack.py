"""The module of a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn

from zoo.cache import Cache
from zoo.context import LayerContext
from zoo.linear import Linear
from zoo.position import PositionScheme
from zoo.transformer import check_mask
from zoo_components.modules.masks import join
from zoo_components.modules.packing import places_of_tokens
from zoo_components.modules.scores import add_biases

Maps = dict[str, tuple[torch.Tensor, ...]]


class LayerSchemes(NamedTuple):
    """The position schemes inside a layer's attention, by the names of their modules.

    Args:
        position: the layer's own or the stack's.
        relative: a second one, which counts all tokens.
        read: the one whose tables the attention reads.
    """

    position: str | None = None
    relative: str | None = None
    read: str | None = None


class Stack(nn.Module):
    """Embedding, blocks, final norm. `order` are the numbers of the layers as they run; one that
    stands there again runs again, with the same weights."""

    def __init__(
        self,
        *,
        embed: nn.Module,
        embed_name: str,
        layers: Sequence[nn.Module],
        schemes_of_layers: Sequence[LayerSchemes],
        order: Sequence[int],
        schemes: Mapping[str, PositionScheme],
        norm: nn.Module | None,
        d_model: int,
        output_width: int,
        memory_width: int | None,
        causal: bool,
        pad_id: int | None,
        padding_seen: bool,
        padding_needed: bool,
        count_positions: str,
    ) -> None:
        super().__init__()
        self.embed_name = embed_name
        self.add_module(embed_name, embed)
        self.layers = nn.ModuleList(layers)
        self.schemes_of_layers = tuple(schemes_of_layers)
        self.order = tuple(order)
        for name, scheme in schemes.items():
            self.add_module(name, scheme)
        self.norm = norm
        self.out_proj = (
            Linear(d_model, output_width, bias=False) if output_width != d_model else None
        )
        self.memory_width = memory_width
        self.causal = causal
        self.pad_id = pad_id
        self.padding_seen, self.padding_needed = padding_seen, padding_needed
        self.count_positions = count_positions

    def forward(
        self,
        inputs: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        memory_mask: torch.Tensor | None = None,
        token_types: torch.Tensor | None = None,
        global_tokens: torch.Tensor | None = None,
        cache: Cache | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, Maps]:
        """Run the stack.

        Args:
            inputs: ids (batch, length); or without a vocabulary vectors, (batch, length, width).
                Vectors and memory without a batch are a batch of one, returned without it.
            memory: what cross-attention attends to, (batch, memory length, memory width).
            mask: for self-attention, boolean, True = attend; the shapes of `check_mask`. Its length
                is that of the embedded sequence.
            memory_mask: for cross-attention, likewise.
            token_types: ids of token types, (batch, length); 0 unless given.
            global_tokens: boolean, (batch, length), the tokens that see all and are seen by all.
            cache: what is kept of the tokens before; `inputs` are the next ones, and `mask`, if
                given, is theirs, (batch, length). The batch may be a multiple of the memory's:
                rows in turn then share a row of memory.
            return_weights: also return the attention weights of every layer.

        Returns:
            The states, (batch, length, output_width), and the weights by kind, empty unless asked
            for.

        Raises:
            TypeError: the inputs are no tensor, or of a dtype that the embedding does not take; a
                mask is not boolean.
            ValueError: the inputs, the memory or a mask have a shape that does not fit.
        """
        check_inputs(inputs)
        if inputs.is_floating_point() and inputs.dim() == 2:
            x, maps = self(
                inputs[None],
                None if memory is None else memory[None],
                mask=mask,
                memory_mask=memory_mask,
                token_types=token_types,
                global_tokens=None if global_tokens is None else global_tokens[None],
                cache=cache,
                return_weights=return_weights,
            )
            return x[0], {kind: tuple(w[0] for w in weights) for kind, weights in maps.items()}
        batch, length = inputs.shape[0], self.length(inputs)
        attended = None
        if mask is not None:
            attended = check_mask(mask, batch=batch, query=length, key=length)
        self.check_memory(memory, batch, shared=cache is not None)
        if memory_mask is not None and memory is not None:
            rows, n_keys = memory.shape[:2]
            memory_mask = check_mask(memory_mask, batch=rows, query=length, key=n_keys)
        if global_tokens is not None:
            self.check_global_tokens(global_tokens, batch, length)
        real = self.token_mask(inputs, mask)
        tokens = _by_token(mask) if self.padding_seen else real
        if cache is None:
            keys = positions = self.positions(inputs, mask)
            attended = join(attended, self.padding_mask(inputs))
        else:
            positions = self.append(cache, inputs, mask, tokens)
            keys, attended = cache.positions, cache.mask
        if self.padding_needed and attended is not None:
            # With a row for each query, no part of a layer leaves out what the mask hides.
            attended = attended.expand(-1, -1, length, -1)
        x = getattr(self, self.embed_name)(inputs, positions, token_types=token_types, mask=tokens)
        shared = LayerContext(
            mask=attended,
            tokens=real,
            places=None if return_weights else places_of_tokens(x, attended),
            causal=self.causal,
            positions=positions,
            key_positions=keys,
            memory=memory,
            memory_mask=memory_mask,
            global_tokens=global_tokens,
            return_weights=return_weights,
        )
        contexts = {
            schemes: self.with_schemes(shared, schemes, positions, keys, x.dtype)
            for schemes in dict.fromkeys(self.schemes_of_layers)
        }
        x, maps = self.run_layers(x, contexts, cache)
        if self.norm is not None:
            x = self.norm(x)
        if self.out_proj is not None:
            x = self.out_proj(x)
        return x, maps

    def run_layers(
        self, x: torch.Tensor, contexts: Mapping[LayerSchemes, LayerContext], cache: Cache | None
    ) -> tuple[torch.Tensor, Maps]:
        """The states after the last layer, and the weights by kind; each layer is told the context
        of its position schemes."""
        found: dict[str, list[torch.Tensor]] = {}
        layers = list(self.layers)  # once: a module finds one by its number slowly
        for place, number in enumerate(self.order):
            context = contexts[self.schemes_of_layers[number]]
            if cache is not None:
                context = context._replace(cache=cache.layer(place))
            x, maps = layers[number](x, context)
            for kind, weights in maps.items():
                found.setdefault(kind, []).append(weights)
        return x, {kind: tuple(weights) for kind, weights in found.items()}

    def check_memory(self, memory: torch.Tensor | None, batch: int, *, shared: bool) -> None:
        """Refuse a memory that does not fit, or is missing; with `shared`, several rows of the
        batch have one of its rows.

        Raises:
            ValueError: there is none to attend to, no layer would look at it, or its shape is
                another.
        """
        width = self.memory_width
        if memory is None and width is None:
            return
        if memory is None:
            raise ValueError(
                f"this decoder attends to a memory: pass `memory`, (batch, memory length, {width})"
            )
        if width is None:
            raise ValueError("this decoder attends to no memory: its spec states no `memory_width`")
        shape = tuple(memory.shape)
        if len(shape) != 3 or shape[2] != width:
            raise ValueError(f"a memory is (batch, memory length, {width}), not {shape}")
        rows = shape[0]
        if rows != batch and not (shared and rows > 0 and batch % rows == 0):
            raise ValueError(
                f"{batch} target sequences need a memory of as many rows, one from each source; "
                f"this one has {rows}"
            )

    def check_global_tokens(self, tokens: torch.Tensor, batch: int, length: int) -> None:
        """Refuse what names no tokens, or what no layer would look at.

        Raises:
            TypeError: it is not boolean.
            ValueError: it has another shape, or no attention was made for global tokens.
        """
        if tokens.dtype != torch.bool:
            raise TypeError(f"global_tokens is boolean, True = global, not {tokens.dtype}")
        if tokens.shape != (batch, length):
            raise ValueError(
                f"global_tokens of shape {tuple(tokens.shape)} does not fit: it is (batch, length)"
                f" = ({batch}, {length})"
            )
        if not any(getattr(layer, "takes_global_tokens", False) for layer in self.layers):
            raise ValueError(
                "no attention of this stack takes global tokens; its spec does not say "
                "`global_tokens = true`"
            )

    def append(
        self,
        cache: Cache,
        inputs: torch.Tensor,
        mask: torch.Tensor | None,
        tokens: torch.Tensor | None,
    ) -> torch.Tensor:
        """Note the next tokens in the cache, `tokens` being those that attention sees; their
        positions.

        Raises:
            ValueError: the mask is not one of tokens.
        """
        if mask is not None and mask.dim() != 2:
            raise ValueError("with a cache, a mask is (batch, length), False at padding")
        counted = self.token_mask(inputs, mask) if self.count_positions == "unpadded" else mask
        # Generation waits for each token anyway, and masks of nothing would slow down attention.
        if tokens is not None and bool(tokens.all()):
            tokens = None
        if counted is not None and bool(counted.all()):
            counted = None
        return cache.append(self.length(inputs), seen=tokens, counted=counted, device=inputs.device)

    def with_schemes(
        self,
        context: LayerContext,
        schemes: LayerSchemes,
        positions: torch.Tensor,
        keys: torch.Tensor,
        dtype: torch.dtype,
    ) -> LayerContext:
        """The context of the layers that have these position schemes; `keys` are the positions of
        all tokens so far."""
        rotation = bias = None
        every = torch.arange(keys.shape[-1], device=keys.device)
        new = every[keys.shape[-1] - positions.shape[-1] :]
        counted = (schemes.position, positions, keys), (schemes.relative, new, every)
        for name, at, of_keys in counted:
            if name is not None:
                scheme = self.scheme(name)
                rotation = rotation or scheme.rotation(at, dtype)
                bias = add_biases(bias, scheme.bias(at, of_keys, dtype))
        read = None if schemes.read is None else self.scheme(schemes.read)
        return context._replace(scheme=read, rotation=rotation, bias=bias)

    def scheme(self, name: str) -> PositionScheme:
        """The module of a position scheme."""
        scheme: PositionScheme = getattr(self, name)
        return scheme

    def length(self, inputs: torch.Tensor) -> int:
        """The length of the embedded sequence."""
        length: int = inputs.shape[1]
        embedded_length = getattr(getattr(self, self.embed_name), "embedded_length", None)
        return length if embedded_length is None else embedded_length(length)

    def positions(self, inputs: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """The position of each token: (length,), or (batch, length) where some are not counted,
        which are at -1."""
        counted: torch.Tensor | None = None
        pad_id = None if inputs.is_floating_point() else self.pad_id
        if self.count_positions == "unpadded" and pad_id is not None:
            counted = inputs != pad_id
        elif self.count_positions == "unmasked" and mask is not None and mask.dim() == 2:
            counted = mask
        if counted is None:
            return torch.arange(self.length(inputs), device=inputs.device)
        return counted.cumsum(1) * counted - 1

    def token_mask(self, inputs: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor | None:
        """(batch, length), False at padding and at tokens that the mask hides from all queries."""
        if self.pad_id is None or inputs.is_floating_point():
            return _by_token(mask)
        return join(_by_token(mask), inputs != self.pad_id)

    def padding_mask(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """(batch, 1, 1, length), False at padding; None when attention sees it, or when the spec
        names no `pad_id`."""
        if self.pad_id is None or self.padding_seen or inputs.is_floating_point():
            return None
        return (inputs != self.pad_id)[:, None, None, :]


def check_inputs(inputs: torch.Tensor) -> None:
    """Refuse what are no ids or vectors.

    Raises:
        TypeError: they are no tensor.
        ValueError: they have another shape.
    """
    if not isinstance(inputs, torch.Tensor):
        what = type(inputs).__name__
        raise TypeError(f"a model takes a tensor, such as torch.tensor([[5, 9, 33]]), not a {what}")
    if inputs.is_floating_point():
        if inputs.dim() not in (2, 3):
            raise ValueError(f"vectors are (batch, length, width), not {tuple(inputs.shape)}")
    elif inputs.dim() != 2:
        hint = "; a single sequence is `ids[None]`" if inputs.dim() == 1 else ""
        raise ValueError(f"ids are (batch, length), not {tuple(inputs.shape)}{hint}")


def _by_token(mask: torch.Tensor | None) -> torch.Tensor | None:
    """The mask if it is (batch, length), the same for all queries."""
    return mask if mask is not None and mask.dim() == 2 else None
