"""A stack of layers: embedding, blocks, final norm."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from zoo.cache import Cache
from zoo.context import LayerContext, SharedKeys
from zoo.position import PositionScheme, add_biases, rotation_of
from zoo.transformer import check_mask
from zoo_components.modules.masks import causal_or_same, join
from zoo_components.modules.padding import Padding, by_token
from zoo_components.modules.stack_inputs import Inputs, check_memory
from zoo_components.modules.unpadding import places_of_tokens

Maps = dict[str, tuple[torch.Tensor, ...]]
AfterLayer = Callable[[int, torch.Tensor], torch.Tensor]
"""Called with the place of a layer, from 0, and the states after it, (batch, length, d_model), it
returns those that the next layer takes."""


class LayerSchemes(NamedTuple):
    """The position schemes inside a layer's attention, by the names of their modules.

    Args:
        position: the layer's own or the stack's.
        relative: a second scheme, which counts all tokens.
        read: the scheme whose tables the attention reads.
    """

    position: str | None = None
    relative: str | None = None
    read: str | None = None


class Stack(nn.Module):
    """Embedding, blocks, final norm.

    Args:
        embed: the embedding, a submodule of the name `embed_name`.
        layers: the modules in `layers`, and the position schemes inside each one's attention.
        order: the numbers of the layers in the order in which they run; a layer that is listed
            again runs again, with the same weights.
        key_sources: for places in this order, the earlier place whose keys and values are used
            there.
        schemes: the position schemes inside attention, by the names of their modules.
        n_streams: the number of residual streams of the layers; None if their states have no
            dimension for them.
        merge: makes one state of those of several streams.
        norm: the final norm.
        out_proj: the map to the width of the output, if that is another one.
        memory_width: the width of what cross-attention attends to; None if there is none.
        causal: whether a token attends to no later ones.
        padding: which tokens are padding, and what becomes of it.
        inputs: what the stack is called with.
    """

    def __init__(
        self,
        embed: nn.Module,
        layers: Iterable[tuple[nn.Module, LayerSchemes]],
        *,
        embed_name: str,
        order: Sequence[int],
        key_sources: Mapping[int, int],
        schemes: Mapping[str, PositionScheme],
        n_streams: int | None,
        merge: nn.Module | None,
        norm: nn.Module | None,
        out_proj: nn.Module | None,
        memory_width: int | None,
        causal: bool,
        padding: Padding,
        inputs: Inputs,
    ) -> None:
        super().__init__()
        self.embed_name = embed_name
        self.add_module(embed_name, embed)
        modules, of_layers = zip(*layers, strict=True)
        self.layers = nn.ModuleList(modules)
        self.schemes_of_layers: tuple[LayerSchemes, ...] = of_layers
        self.order = tuple(order)
        self.key_sources = dict(key_sources)
        for name, scheme in schemes.items():
            self.add_module(name, scheme)
        self.n_streams, self.merge = n_streams, merge
        self.norm, self.out_proj = norm, out_proj
        self.memory_width, self.causal = memory_width, causal
        self.padding, self.inputs = padding, inputs

    def extra_repr(self) -> str:
        """Whether positions see no later ones, as `print(model)` shows it."""
        return "causal" if self.causal else ""

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
        inserted: torch.Tensor | None = None,
        blocks: torch.Tensor | None = None,
        block_layers: Collection[int] | None = None,
        steps: torch.Tensor | None = None,
        offsets: torch.Tensor | None = None,
        after_layer: AfterLayer | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, Maps]:
        """Run the stack.

        Args:
            inputs: as the embedding takes them, ids (batch, length), vectors (batch, length, width)
                or images (batch, channels, height, width). Vectors and memory without a batch
                dimension, with masks without one, are treated as a batch of one, and the output has
                no batch dimension either.
            memory: what cross-attention attends to, (batch, memory length, memory width).
            mask: for self-attention, boolean, True = attend; the shapes of `check_mask`. Its length
                is that of the embedded sequence.
            memory_mask: for cross-attention, likewise.
            token_types: ids of token types, (batch, length); by default 0.
            global_tokens: boolean, (batch, length), True = attends to all and is attended to by
                all.
            cache: what is kept of the earlier tokens; `inputs` are the next ones, and `mask`, if
                given, is theirs, (batch, length). The batch may be a multiple of the memory's:
                consecutive rows then share a row of memory.
            inserted: vectors, (n, width), for which ids from the size of the vocabulary on stand
                (`Embedding.takes_inserted`).
            blocks: for a causal stack, (batch, length): tokens of the same number attend to each
                other, also to later ones; those of negative numbers only to earlier ones.
            block_layers: the numbers of the layers in which they do; all if None.
            steps: (batch, length), by how many positions each token is after the one before it; by
                one if None.
            offsets: (batch or 1, length, axes), by how much each coordinate of a token is more than
                its position, for a position scheme of so many axes. None if all are the position.
            after_layer: what is done after each layer; nothing if None.
            return_weights: also return the attention weights of every layer.

        Returns:
            The states, (batch, length, output_width), and the weights by kind, empty unless asked
            for.

        Raises:
            TypeError: the inputs are not a tensor, or have a dtype that the embedding does not
                take; a mask is not boolean.
            ValueError: the shape of the inputs, the memory or a mask does not fit.
        """
        self.inputs.check(inputs)
        if inputs.is_floating_point() and inputs.dim() == 2:
            x, maps = self(
                inputs[None],
                _batch_of_one(memory),
                mask=_batch_of_one(mask),
                memory_mask=_batch_of_one(memory_mask),
                token_types=_batch_of_one(token_types),
                global_tokens=_batch_of_one(global_tokens),
                cache=cache,
                return_weights=return_weights,
            )
            return x[0], {kind: tuple(w[0] for w in weights) for kind, weights in maps.items()}
        attended, memory_mask = self.checked_masks(
            inputs, memory, mask, memory_mask, global_tokens, cached=cache is not None
        )
        real = self.padding.token_mask(inputs, mask)
        tokens = by_token(mask) if self.padding.seen else real
        if cache is None:
            keys = positions = self.positions(inputs, mask, steps)
            attended = join(attended, self.padding.attention_mask(inputs))
        else:
            positions = self.append(cache, inputs, mask, tokens, steps)
            keys, attended = cache.past.positions, cache.past.mask
        if attended is not None and self.needs_hidden(real, mask, cache):
            # With a mask row for each query, no part of a layer leaves out hidden tokens.
            attended = attended.expand(-1, -1, self.length(inputs), -1)
        causal = self.causal
        own_masks: dict[int, torch.Tensor | None] = {}
        if causal and blocks is not None:
            if block_layers is not None:
                own_masks = dict.fromkeys({*self.order} - {*block_layers}, attended)
            attended, causal = join(attended, causal_or_same(blocks, keys.shape[-1])), False
        more = {} if inserted is None else {"inserted": inserted}
        embed = getattr(self, self.embed_name)
        if offsets is not None and getattr(embed, "axes", 1) > 1:
            more["coordinates"] = positions[..., None] + offsets
        x = embed(inputs, positions, token_types=token_types, mask=tokens, **more)
        context = LayerContext(
            mask=attended,
            tokens=real,
            places=None if return_weights else places_of_tokens(x, attended, self.layers),
            causal=causal,
            positions=positions,
            key_positions=keys,
            offsets=offsets,
            memory=memory,
            memory_mask=memory_mask,
            global_tokens=global_tokens,
            embedded=x,
            ids=inputs if self.inputs.takes_ids else None,
            return_weights=return_weights,
        )
        make = getattr(embed, "layer_inputs", None)
        layer_inputs = None if make is None else make(inputs, x).unbind(-2)
        if self.n_streams is not None:
            split = getattr(self.merge, "split", None)
            equal = (*x.shape[:-1], self.n_streams, -1)
            x = x.unsqueeze(-2).expand(equal) if split is None else split(x)
        x, maps = self.run_layers(x, context, cache, layer_inputs, after_layer, own_masks)
        if self.merge is not None:
            x = self.merge(x)
        if self.norm is not None:
            x = self.norm(x)
        if self.out_proj is not None:
            x = self.out_proj(x)
        return x, maps

    def checked_masks(
        self,
        inputs: torch.Tensor,
        memory: torch.Tensor | None,
        mask: torch.Tensor | None,
        memory_mask: torch.Tensor | None,
        global_tokens: torch.Tensor | None,
        *,
        cached: bool,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The masks for self-attention and for cross-attention as attention takes them (see
        `check_mask`), after checking that all that goes with the inputs fits them.

        Raises:
            TypeError: a mask is not boolean.
            ValueError: the shape of the memory or a mask does not fit.
        """
        batch, length = inputs.shape[0], self.length(inputs)
        if mask is not None:
            mask = check_mask(mask, batch=batch, query=length, key=length)
        check_memory(memory, self.memory_width, batch, shared=cached)
        if memory_mask is not None and memory is not None:
            rows, n_keys = memory.shape[:2]
            memory_mask = check_mask(memory_mask, batch=rows, query=length, key=n_keys)
        if global_tokens is not None:
            self.check_global_tokens(global_tokens, batch, length)
        return mask, memory_mask

    def needs_hidden(
        self, real: torch.Tensor | None, mask: torch.Tensor | None, cache: Cache | None
    ) -> bool:
        """Whether the states of tokens are needed that are hidden from all others: of padding for
        the head, or of a generated token that is padding by its id and that the mask (batch,
        length) does not hide, from which the next one is predicted."""
        if self.padding.needed:
            return True
        # Of one token, whose mask has one row anyway, a fixed cache need not wait to be told.
        if cache is None or cache.fixed or real is None:
            return False
        return not bool((real if mask is None else real == mask).all())

    def run_layers(
        self,
        x: torch.Tensor,
        shared: LayerContext,
        cache: Cache | None,
        layer_inputs: Sequence[torch.Tensor] | None,
        after_layer: AfterLayer | None,
        own_masks: Mapping[int, torch.Tensor | None],
    ) -> tuple[torch.Tensor, Maps]:
        """Run the layers, each with the shared context, its position schemes and, if there are
        some, its own of the `layer_inputs`; those of `own_masks`, by number, are causal, with that
        mask. Return the states after the last layer, and the attention weights by kind. Other
        arguments are those of `forward`.

        Raises:
            ValueError: layers were added or removed since the stack was built.
        """
        found: dict[str, list[torch.Tensor]] = {}
        layers = list(self.layers)  # once: a module finds one by its number slowly
        if len(layers) != len(self.schemes_of_layers):
            raise ValueError(
                f"this stack was built with {len(self.schemes_of_layers)} layers and now has "
                f"{len(layers)}: what each layer is comes from the spec. Build a model of a spec "
                "with other `n_layers`, and load the weights of the layers to keep into it"
            )
        contexts = {
            schemes: self.with_schemes(shared, schemes, cache, x.dtype)
            for schemes in dict.fromkeys(self.schemes_of_layers)
        }
        keys = {source: SharedKeys() for source in self.key_sources.values()}
        for place, number in enumerate(self.order):
            context = contexts[self.schemes_of_layers[number]]
            if number in own_masks:
                context = context._replace(mask=own_masks[number], causal=True)
            if keys:
                context = context._replace(keys=keys.get(self.key_sources.get(place, place)))
            if layer_inputs is not None:
                context = context._replace(layer_input=layer_inputs[place])
            if cache is not None:
                context = context._replace(cache=cache.layer(place))
            x, maps = layers[number](x, context)
            if after_layer is not None:
                x = after_layer(place, x)
            for kind, weights in maps.items():
                found.setdefault(kind, []).append(weights)
        return x, {kind: tuple(weights) for kind, weights in found.items()}

    def check_global_tokens(self, tokens: torch.Tensor, batch: int, length: int) -> None:
        """Refuse global tokens that do not fit the inputs, or that no layer would use.

        Raises:
            TypeError: they are not boolean.
            ValueError: their shape is wrong, or no attention was built for global tokens.
        """
        if tokens.dtype != torch.bool:
            raise TypeError(f"global_tokens is boolean, True = global, not {tokens.dtype}")
        if tokens.shape != (batch, length):
            raise ValueError(
                f"global_tokens of shape {tuple(tokens.shape)} does not fit: it is (batch, length)"
                f" = ({batch}, {length})"
            )
        if not any("global_tokens" in getattr(layer, "takes", ()) for layer in self.layers):
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
        steps: torch.Tensor | None,
    ) -> torch.Tensor:
        """Record the next tokens in the cache and return their positions; `tokens` is the mask of
        those that attention sees.

        Raises:
            ValueError: the mask is not (batch, length).
        """
        if mask is not None and mask.dim() != 2:
            raise ValueError("with a cache, a mask is (batch, length), False at padding")
        unpadded = self.padding.count_positions == "unpadded"
        counted = self.padding.token_mask(inputs, mask) if unpadded else mask
        # Generation waits for each token anyway, and masks that hide nothing would slow attention.
        if tokens is not None and not cache.fixed and bool(tokens.all()):
            tokens = None
        if counted is not None and not cache.fixed and bool(counted.all()):
            counted = None
        return cache.past.append(
            self.length(inputs), seen=tokens, counted=counted, device=inputs.device, steps=steps
        )

    def with_schemes(
        self,
        context: LayerContext,
        schemes: LayerSchemes,
        cache: Cache | None,
        dtype: torch.dtype,
    ) -> LayerContext:
        """The context of the layers that have these position schemes."""
        positions, keys = context.positions, context.key_positions
        assert positions is not None  # in every pass
        assert keys is not None
        counted = [(schemes.position, positions, keys)]
        if schemes.relative is not None:
            every = torch.arange(keys.shape[-1], device=keys.device)
            new = every if cache is None else cache.past.places(positions.shape[-1])
            counted.append((schemes.relative, new, every))
        rotation = bias = rotations = None
        for name, at, of_keys in counted:
            if name is not None:
                scheme = self.scheme(name)
                if rotation is None:
                    rotation = rotation_of(scheme, at, context.offsets, dtype)
                    rotations = None if rotation is None else partial(scheme.rotation, dtype=dtype)
                bias = add_biases(bias, scheme.bias(at, of_keys, dtype))
        read = None if schemes.read is None else self.scheme(schemes.read)
        return context._replace(scheme=read, rotation=rotation, rotations=rotations, bias=bias)

    def scheme(self, name: str) -> PositionScheme:
        """The module of a position scheme."""
        scheme: PositionScheme = getattr(self, name)
        return scheme

    def length(self, inputs: torch.Tensor) -> int:
        """The length of the embedded sequence."""
        if self.inputs.n_vectors is not None:
            return self.inputs.n_vectors
        return self.embedded_length(inputs.shape[1])

    def embedded_length(self, length: int) -> int:
        """The number of vectors that an input of this length becomes, which is no image."""
        changed = getattr(getattr(self, self.embed_name), "embedded_length", None)
        return length if changed is None else changed(length)

    def positions(
        self, inputs: torch.Tensor, mask: torch.Tensor | None, steps: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The position of each token: (length,), or (batch, length) if some tokens are not counted,
        which have position -1, or with `steps`."""
        counted = self.padding.counted(inputs, mask)
        if counted is None:
            if steps is None:
                return torch.arange(self.length(inputs), device=inputs.device)
            return steps.cumsum(1) - 1
        moved = counted if steps is None else steps * counted
        return moved.cumsum(1) * counted - 1


def _batch_of_one(one: torch.Tensor | None) -> torch.Tensor | None:
    return None if one is None else one[None]
