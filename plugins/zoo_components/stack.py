"""A stack: embedding, positions, a number of blocks, a final norm."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.component import Component, Given, LayerRules, Shared, Size, Slot, contradiction
from zoo.layout import LayerList, Layout, linear
from zoo.only_with import UNSTATED, NotWith, OnlyWith
from zoo.purpose import Generation, Reading
from zoo.slots import Attention, Block, Embedding, Merging, Norm, NormPlacement, Position
from zoo_components.attended import WhereAttended
from zoo_components.key_sharing import key_sources
from zoo_components.schemes import check_relative, check_rotation, check_tables, check_taken
from zoo_components.sharing import (
    Alike,
    SharedLayers,
    SharedParts,
    alike_weights,
    check_sharing,
    ties_of_parts,
    weights_of_layers,
)

if TYPE_CHECKING:
    from torch import nn

    from zoo_components.modules.stack import Stack as StackModule

MOST_SOURCES = 4
"""Of more layers whose keys and values others attend to, only the first are listed."""

CountPositions = Literal["all", "unpadded", "unmasked"]


class LayerGroup(Component):
    """The values that differ in some layers of a stack."""

    memory_width: Given[int | None] = None
    d_model: Given[int]
    norm_placement: Given[NormPlacement]
    causal: Given[bool]
    width: Given[int]
    grid: Given[tuple[int, int, int] | None] = None
    n_with_positions: Given[int | None] = None
    count_positions: Given[CountPositions] = "all"
    layer_input_width: Given[int | None] = None
    vocab: Given[int | None] = None
    at: tuple[int, ...]
    """The numbers of these layers, from 0."""
    block: Annotated[Block, Slot("block")]
    """The block of these layers."""
    position: Annotated[
        Position,
        Slot("position", n_heads="block.n_heads", head_dim="block.head_dim"),
        WhereAttended(),
    ]
    """The position scheme of these layers."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_taken(self.block, self.position)
        return self


class Stack(Component):
    """The common base of encoder and decoder stacks."""

    vocab: Given[int | None] = None
    memory_width: Given[int | None] = None
    d_model: Shared[Size]
    """The width of the residual stream."""
    n_layers: Shared[Size]
    """The number of layers."""
    norm_placement: Shared[NormPlacement] = "pre"
    """Where the sublayers' norms are, unless a sublayer states its `norms`: before the sublayer
    (`pre`), on the residual sum (`post`: Vaswani et al. 2017), before the sublayer and on its
    output (`sandwich`), or on its output alone (`post_branch`: OLMo 2); `parallel` is `pre` with
    all sublayers side by side, each with a norm of its own unless `ffn` states `norms = []`; `none`
    has none at all."""
    final_norm: bool = Field(
        default_factory=lambda data: data["norm_placement"] not in ("post", "none")
    )
    """Whether a norm follows the last block."""
    causal: bool
    """Whether a position attends only to itself and earlier positions."""
    share_layers: SharedLayers = False
    """Whether all layers use the same weights (ALBERT: Lan et al. 2019, arXiv:1909.11942); or a
    list with the number of the weights that each layer uses, counted from 0, such as
    `[0, 0, 1, 1]`."""
    share_parts: Annotated[SharedParts | None, NotWith("share_layers", False)] = UNSTATED
    """The parts of a layer whose weights are shared, such as `["self_attn"]` (the attention alone,
    as in a comparison of ALBERT: Lan et al. 2019, section 4.5); by default whole layers are. Other
    parts and adapters of shared ones are each layer's own, so that layers may differ in them (a
    shared attention with adapters for each use: Zamba2, Glorioso et al. 2024,
    arXiv:2411.15242)."""
    pad_id: Shared[int | None] = Field(default=None, ge=0)
    """The id of the padding token; padding is hidden from attention and left out of pooling."""
    padding: Shared[Literal["hidden", "seen"]] = "hidden"
    """Whether padding that no mask hides is hidden, or seen by attention and kept among the
    embeddings, as in `transformers`."""
    count_positions: CountPositions = "all"
    """How the position of a token is counted: as its place in the sequence, or as the number of
    earlier tokens that are not padding (RoBERTa) or not masked (OPT); padding or masked tokens
    themselves then have position -1."""
    output_width: Size = Field(default_factory=lambda data: data["d_model"])
    """The width of the output states; if it is not d_model, a linear map is added (OPT-350m)."""
    embedding: Annotated[Embedding, Slot("embedding")]
    """The embedding of the inputs."""
    block: Annotated[
        Block,
        Slot("block", grid="embedding.grid", layer_input_width="embedding.layer_input_width"),
    ]
    """The block that each layer consists of."""
    position: Annotated[
        Position,
        Slot(
            "position",
            width="embedding.position_width",
            grid="embedding.grid",
            n_with_positions="embedding.n_positions",
            n_heads="block.n_heads",
            head_dim="block.head_dim",
        ),
        WhereAttended(),
    ]
    """The position scheme."""
    relative: Annotated[
        Position,
        Slot(
            "position",
            default="none",
            inherit=False,
            grid="embedding.grid",
            n_with_positions="embedding.n_positions",
            n_heads="block.n_heads",
            head_dim="block.head_dim",
        ),
    ]
    """A second position scheme, for attention, beside one that is added to the embeddings (MPNet).
    It counts all tokens, whatever `count_positions` says."""
    layers: Annotated[
        tuple[LayerGroup, ...],
        LayerRules(
            LayerGroup,
            count="n_layers",
            width="embedding.position_width",
            grid="embedding.grid",
            n_with_positions="embedding.n_positions",
            layer_input_width="embedding.layer_input_width",
        ),
    ] = ()
    """Rules for values that differ in single layers."""
    norm: Annotated[Norm | None, Slot("norm", width="d_model"), OnlyWith("final_norm", True)]
    """The final norm."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_padding()
        _ = self._tied_parts  # raises if layers cannot share them
        if self._whole_shared and self.layers:
            check_sharing(self._alike_layers, self._weights_of_layers)
        _ = self._key_sources  # raises if a layer finds no keys
        check_rotation(self.groups, self.relative)
        for group in self.groups:
            check_taken(group.block, group.position)
        check_relative([group.block for group in self.groups], self.relative)
        self._check_memory()
        self._check_global_tokens()
        self._check_sides()
        self._check_direction()
        self._check_layer_inputs()
        self._check_ids()
        self._check_streams()
        self._check_positions()
        self._check_n_positions()
        check_tables(self._inner_keys(), [group.block.self_attention for group in self.groups])
        return self

    def _check_padding(self) -> None:
        for key, value in (("count_positions", "unpadded"), ("padding", "seen")):
            if getattr(self, key) == value and self.pad_id is None:
                raise contradiction(
                    f'`{key} = "{value}"` needs to know what padding is: state `pad_id`', key
                )
        if self.pad_id is not None and self.pad_id >= (self.vocab or math.inf):
            raise contradiction(
                f"pad_id = {self.pad_id} is beyond the vocabulary of {self.vocab} tokens",
                "pad_id",
                "vocab",
            )

    def _self_attentions(self) -> Iterator[Attention]:
        attentions = (group.block.self_attention for group in self.groups)
        return (attention for attention in attentions if attention is not None)

    def _check_memory(self) -> None:
        """Raise a contradiction if there is a memory, and no layer attends to it."""
        blocks = [group.block for group in self.groups]
        if self.memory_width is None or any(block.attends_to_memory for block in blocks):
            return
        raise contradiction(
            "no layer attends to the memory, which then changes nothing: choose an attention as "
            "`cross_attn` in one layer at least, or a model without a memory "
            '(`builder = "decoder"`)',
            "block.cross_attn.kind",
            *(f"layers.{rule}.block.cross_attn.kind" for rule in range(len(self.layers))),
            "memory_width",
        )

    def _check_global_tokens(self) -> None:
        if self.causal and any(one.takes_global_tokens for one in self._self_attentions()):
            raise contradiction(
                "global tokens see all and are seen by all, and in a causal stack no token sees "
                "later ones: state `global_tokens` in an encoder alone",
                "block.self_attn.global_tokens",
                "causal",
            )

    def _check_sides(self) -> None:
        """Raise a contradiction if a layer that sees later tokens leaves open whether its window
        limits them too."""
        keys = {attention.past_by_default for attention in self._self_attentions()} - {None}
        if keys and not self.causal:
            key = min(filter(None, keys))
            raise contradiction(
                f'state `{key} = "both"`: tokens see later ones here, and by default a window '
                f'limits the earlier ones alone, which `{key} = "past"` says',
                "block.self_attn.window",
                "layers",
            )

    def _check_direction(self) -> None:
        """Raise a contradiction if tokens see later ones, and a layer has no way to, or if they do
        not, and a layer has no way to hide these."""
        if not self.causal and any(group.block.only_causal for group in self.groups):
            raise contradiction(
                "no token sees later ones in these layers, and in this stack tokens do: state "
                "`causal = true` in its table, or use them in a decoder",
                "block.self_attn.kind",
                "block.kind",
                "causal",
            )
        ahead = [one.kind for one in self._self_attentions() if one.looks_ahead]
        if self.causal and ahead:
            rules = [
                f"layers.{number}.block.self_attn.kind"
                for number, group in enumerate(self.layers)
                if group.block.self_attention and group.block.self_attention.looks_ahead
            ]
            raise contradiction(
                f"`{ahead[0]}` mixes each token with later ones too, and in this stack no token "
                "sees these: use it in an encoder, or state `causal = false` in the stack's table",
                *(rules or ["block.self_attn.kind"]),
                "causal",
            )

    def _check_layer_inputs(self) -> None:
        """Raise a contradiction if the embedding makes inputs of layers, and no layer reads its
        own."""
        made = self.embedding.layer_input_width is not None
        if made and not any(group.block.takes_layer_input for group in self.groups):
            raise contradiction(
                f"the embedding `{self.embedding.kind}` makes an input for each layer, and no "
                'layer reads its own: state a block that does, such as `block = "layer_input"`',
                "block.kind",
                "embedding.kind",
            )

    def _check_ids(self) -> None:
        """Raise a contradiction if a layer reads the ids of tokens, and the stack is called with
        none."""
        if self.vocab_of_ids is None and any(group.block.takes_ids for group in self.groups):
            raise contradiction(
                "a layer reads the ids of the tokens, and this stack is called with vectors: state "
                "another network as its `ffn`, or an embedding of ids, such as `tokens`",
                "block.ffn.kind",
                *(f"layers.{rule}.block.ffn.kind" for rule in range(len(self.layers))),
                "embedding.kind",
            )

    def _check_streams(self) -> None:
        """Raise a contradiction if layers differ in their residual streams, which go through all of
        them."""
        if any(group.block.merging != self._merging for group in self.groups):
            raise contradiction(
                "the residual streams go through all layers, and are merged after the last one: "
                "state blocks with as many of them for all layers, and the same `merge`",
                "layers",
                "block.n_streams",
                "block.kind",
            )

    def _check_positions(self) -> None:
        """Raise a contradiction if layers differ in positions that are added to the embeddings,
        which happens once, before the layers."""
        for group in self.layers:
            own = group.position
            heads = {"n_heads": own.n_heads, "head_dim": own.head_dim}  # which matter in attention
            if self.position.model_copy(update=heads) != own and (
                self.position.embedded or own.embedded
            ):
                raise contradiction(
                    "positions that are added to the embeddings are the same for all layers",
                    "layers",
                    "position.kind",
                )

    def _check_n_positions(self) -> None:
        """Raise a contradiction if every input becomes more vectors than there are positions."""
        longest, n_positions = self.position.longest, self.embedding.n_positions
        if n_positions is not None and longest is not None and n_positions > longest:
            raise contradiction(
                f"an input becomes {n_positions} vectors with positions, and there are {longest} "
                "positions",
                "position.max_length",
                "embedding.image_size",
                "embedding.n_frames",
            )
        n_vectors, most = self.embedding.n_vectors, min(self._limits, default=None)
        if n_vectors is not None and most is not None and n_vectors > most:
            raise contradiction(
                f"an input becomes {n_vectors} vectors, and an attention is for {most} at most",
                "block.self_attn.max_length",
                "layers",
                "embedding.image_size",
                "embedding.n_frames",
            )

    @cached_property
    def _alike_layers(self) -> list[Alike]:
        """The groups of layers with the same description, in the order of their first layers."""
        special = {number for group in self.layers for number in group.at}
        plain = [number for number in range(self.n_layers) if number not in special]
        groups = [Alike(group.at, group.block, group.position) for group in self.layers]
        if plain:
            groups.append(Alike(plain, self.block, self.position))
        return sorted(groups, key=lambda group: group.at[0])

    @property
    def _weights_of_layers(self) -> Sequence[int]:
        """The number of the module in `layers` that each layer runs."""
        return weights_of_layers(self._whole_shared, self.n_layers)

    @property
    def _whole_shared(self) -> bool | tuple[int, ...]:
        """`share_layers` where whole layers share their weights, and so are one module."""
        return self.share_layers if self.share_parts is None else False

    @cached_property
    def _tied_parts(self) -> dict[str, str]:
        """The tensors of layers that are those of earlier layers, where they share some parts."""
        if self.share_parts is None:
            return {}
        numbers = weights_of_layers(self.share_layers, self.n_layers)
        return ties_of_parts(self._alike_layers, numbers, self.share_parts)

    @cached_property
    def _key_sources(self) -> dict[int, int]:
        """The layer whose keys and values each layer without own ones attends to."""
        return key_sources(self._alike_layers, [group.at for group in self.layers])

    @cached_property
    def groups(self) -> list[Alike]:
        """The groups of modules in `layers` with the same description. There is one module for each
        layer unless layers share their weights."""
        return alike_weights(self._alike_layers, self._whole_shared)

    @property
    def _merging(self) -> Merging | None:
        """What merges the residual streams of the layers, if they have several."""
        return self.groups[0].block.merging

    @property
    def vocab_of_ids(self) -> int | None:
        """The bound of the ids that the stack is called with; None if it is called with vectors."""
        return self.embedding.vocab if self.embedding.takes_ids else None

    @property
    def longest(self) -> int | None:
        """The most tokens that positions, the embedding and attentions allow; None for no limit."""
        own = [one for one in (self.position.longest, self.embedding.longest) if one is not None]
        return min([*self._limits, *own], default=None)

    @property
    def _limits(self) -> list[int]:
        """The most tokens of each attention that has a limit."""
        limits = (attention.longest for attention in self._self_attentions())
        return [limit for limit in limits if limit is not None]

    @property
    def reading(self) -> Reading | None:
        """The ids that the stack is called with; None if it is called with vectors."""
        vocab = self.vocab_of_ids
        return None if vocab is None else Reading(vocab, self.longest, self.pad_id)

    @property
    def not_incremental(self) -> tuple[str, ...]:
        """The parts that need all tokens at once, without repetitions, for a message."""
        parts = [part for group in self.groups for part in group.block.not_incremental]
        if not self.embedding.incremental:
            parts.append(f"embedding `{self.embedding.kind}`")
        if not self.causal:
            parts.append("`causal = false`")
        return tuple(dict.fromkeys(parts))

    @property
    def not_recordable(self) -> tuple[str, ...]:
        """The parts with which a step of generation cannot be recorded, without repetitions, for a
        message."""
        parts = (part for group in self.groups for part in group.block.not_recordable)
        return tuple(dict.fromkeys(parts))

    @property
    def looks_ahead(self) -> tuple[str, ...]:
        """The parts by which a position depends on later ones, without repetitions, for a
        message."""
        parts = [part for group in self.groups for part in group.block.looks_ahead]
        if self.embedding.looks_ahead:
            parts.append(f"embedding `{self.embedding.kind}`")
        if not self.causal:
            parts.append("`causal = false`")
        return tuple(dict.fromkeys(parts))

    def changes(self, before: int, after: int) -> bool:
        """`Position.changes` of any scheme in the stack."""
        return any(scheme.changes(before, after) for scheme in self._in_attention())

    def _in_attention(self) -> list[Position]:
        """The schemes that work inside attention: those of `_inner`, and of each layer alone."""
        own = (group.block.own_position for group in self.groups)
        return [*self._inner(), *(scheme for scheme in own if scheme is not None)]

    def _inner(self) -> list[Position]:
        """The different schemes of the stack that work inside attention."""
        all_schemes = [*(group.position for group in self.groups), self.relative]
        inner = (scheme for scheme in all_schemes if not (scheme.embedded or scheme.absent))
        return list(dict.fromkeys(inner))

    def _inner_keys(self) -> dict[str, Position]:
        """The schemes that work inside attention, by the keys of the spec that state them."""
        of_rules = {f"layers.{rule}.position": one.position for rule, one in enumerate(self.layers)}
        stated = {"position": self.position, **of_rules, "relative": self.relative}
        used = self._inner()
        return {key: scheme for key, scheme in stated.items() if scheme in used}

    @property
    def axes(self) -> frozenset[int]:
        """The numbers of coordinates of a token that position schemes, attentions and the embedding
        tell apart: `Position.axes`, `Attention.axes` and `Embedding.axes`, where these are more
        than one."""
        of_schemes = {scheme.axes for scheme in self._in_attention()}
        of_attentions = {attention.axes for attention in self._self_attentions()}
        return frozenset({*of_schemes, *of_attentions, self.embedding.axes}) - {1}

    @cached_property
    def schemes(self) -> dict[str, Position]:
        """The schemes that work inside attention, by the names of their modules."""
        return {
            scheme.site if scheme.layout().parts else f"position_{number}": scheme
            for number, scheme in enumerate(self._inner())
        }

    def layout(self) -> Layout:
        embed = self.embedding.layout()
        if self.position.embedded and not (table := self.position.layout()).is_empty:
            embed = embed.with_parts(positions=table)
        schemes = {name: scheme.layout() for name, scheme in self.schemes.items()}
        parts: dict[str, Layout | LayerList] = {
            self.embedding.site: embed,
            **{name: scheme for name, scheme in schemes.items() if not scheme.is_empty},
            "layers": self._layer_list(),
        }
        if self._merging and not (merge := self._merging.layout()).is_empty:
            parts["merge"] = merge
        if self.norm:
            parts["norm"] = self.norm.layout()
        if self.output_width != self.d_model:
            parts["out_proj"] = linear(self.d_model, self.output_width, bias=False)
        label = "causal" if self.causal else ""
        return Layout(parts, label, generates=not self.not_incremental)

    def _layer_list(self) -> LayerList:
        layers = tuple((at, self._told(block.layout(), at)) for at, block, _ in self.groups)
        shared = self._whole_shared
        if isinstance(shared, tuple):
            return LayerList(layers, order=shared)
        return LayerList(layers, passes=self.n_layers if shared else 1, ties=self._tied_parts)

    def _told(self, layer: Layout, at: Sequence[int]) -> Layout:
        """The layout of layers, whose label also tells which keys are shared."""
        return replace(layer, label=", ".join(filter(None, [layer.label, self._keys_of(at)])))

    def _keys_of(self, at: Sequence[int]) -> str:
        """Whose keys and values these modules of `layers` attend to, for a label."""
        modules = self._weights_of_layers
        sources = {there for here, there in self._key_sources.items() if modules[here] in at}
        if not sources:
            return ""
        first = ", ".join(map(str, sorted(sources)[:MOST_SOURCES]))
        more = ", ..." if len(sources) > MOST_SOURCES else ""
        return f"keys of {'layer' if len(sources) == 1 else 'layers'} {first}{more}"

    def build(self, *, padding_read: bool = False) -> "StackModule":
        """The module; `padding_read` says whether the head reads the states of padding too."""
        from zoo.linear import Linear
        from zoo_components.modules.padding import Padding
        from zoo_components.modules.stack import LayerSchemes
        from zoo_components.modules.stack import Stack as Module
        from zoo_components.modules.stack_inputs import Inputs
        from zoo_components.modules.tying import tie

        names = {scheme: name for name, scheme in self.schemes.items()}
        layers: dict[int, tuple[nn.Module, LayerSchemes]] = {}
        for at, block, position in self.groups:
            read = None if block.self_attention is None else block.self_attention.reads
            schemes = LayerSchemes(names.get(position), names.get(self.relative), read)
            layers |= {number: (block.build(), schemes) for number in at}
        projects = self.output_width != self.d_model
        merging = self._merging
        module = Module(
            self.embedding.build(self.position.build() if self.position.embedded else None),
            [layers[number] for number in sorted(layers)],
            embed_name=self.embedding.site,
            order=self._weights_of_layers,
            key_sources=self._key_sources,
            schemes={name: scheme.build() for name, scheme in self.schemes.items()},
            n_streams=merging.n_streams if merging else None,
            merge=merging.build() if merging else None,
            norm=self.norm.build() if self.norm else None,
            out_proj=Linear(self.d_model, self.output_width, bias=False) if projects else None,
            memory_width=self.memory_width,
            causal=self.causal,
            padding=Padding(
                id=self.pad_id,
                seen=self.padding == "seen",
                needed=padding_read or not all(g.block.by_position for g in self.groups),
                count_positions=self.count_positions,
            ),
            inputs=Inputs(
                takes_ids=self.embedding.takes_ids,
                width=self.embedding.input_width,
                image_shape=self.embedding.image_shape,
                n_vectors=self.embedding.n_vectors,
            ),
        )
        return tie(module, {f"layers.{a}": f"layers.{b}" for a, b in self._tied_parts.items()})


class EncoderStack(Stack):
    """A stack in which every position attends to every other."""

    causal: bool = False

    @property
    def spectrogram_shape(self) -> tuple[int | None, int] | None:
        """`Embedding.spectrogram_shape`; where any number of frames fits the embedding, that which
        becomes as many vectors as there are positions."""
        shape, longest = self.embedding.spectrogram_shape, self.longest
        if shape is None or shape[0] is not None or longest is None:
            return shape
        return self.embedding.most_inputs(longest), shape[1]

    def layout(self) -> Layout:
        return replace(super().layout(), generates=False)  # causal or not


class SignalStack(EncoderStack):
    """An encoder stack that reads images or sounds, and no ids, of which one could be padding."""

    pad_id: ClassVar[None] = None  # type: ignore[misc]  # no fields: they are about padding
    padding: ClassVar[Literal["hidden"]] = "hidden"  # type: ignore[misc]
    count_positions: ClassVar[Literal["all"]] = "all"  # type: ignore[misc]


class ImageStack(SignalStack):
    """An encoder stack that reads images."""


class SoundStack(SignalStack):
    """An encoder stack that reads spectrograms of sounds."""


class DecoderStack(Stack):
    """A stack in which a position attends only to itself and earlier positions."""

    causal: bool = True

    @property
    def generation(self) -> Generation | None:
        """How ids are generated with a head that scores them; None if the stack takes none."""
        vocab = self.vocab_of_ids
        if vocab is None:
            return None
        return Generation(
            target_vocab=vocab,
            pad_id=self.pad_id,
            longest=self.longest,
            not_incremental=self.not_incremental,
            not_recordable=self.not_recordable,
            looks_ahead=self.looks_ahead,
            changes=self.changes,
        )
