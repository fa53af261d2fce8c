"""The slots of a Transformer: the interface of the plugins in each, and of their modules.

The core knows these interfaces, and no component by name. The class of a slot states the dimensions
that the parent passes. Its docstring states the `forward` of the module that `build` returns.
"""

from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field

from zoo.component import Component, Given, Shared, Slot
from zoo.layout import Layout, Placed
from zoo.only_with import NotWith
from zoo.purpose import Classes, Comparison, Generation, Reading, Task, Transcription

if TYPE_CHECKING:
    from torch import nn

    from zoo.distribution import Distribution
    from zoo.position import PositionScheme
    from zoo.transformer import Transformer

NormPlacement = Literal["pre", "post", "sandwich", "post_branch", "parallel", "none"]
NormSite = Literal["pre", "post", "out"]

NORM_SITES: Mapping[str, tuple[NormSite, ...]] = {
    "pre": ("pre",),
    "post": ("out",),
    "sandwich": ("pre", "post"),
    "post_branch": ("post",),
    "parallel": ("pre",),
    "none": (),
}
"""The norms around a sublayer f for each short form: `pre` normalises the input of f, `post` the
output before the residual sum, `out` the sum. "Post-norm" of Vaswani et al. (2017) normalises the
sum."""


class Plugin(Component):
    """A component that a spec names by its `kind`."""

    example: ClassVar[Mapping[str, Any]] = {}
    """Values of a small working component, for `zoo plugin check`. Needed only if it cannot guess
    the value of a required field from its name and type."""
    absent: ClassVar[bool] = False
    """Whether the component stands for no component (`none`): drawings leave it out, and the blocks
    that ship leave out such a branch."""
    kind: str

    def named(self) -> str:
        """The slot and the registered name, such as `ffn.mlp`."""
        slot, name = slot_of(self), super().named()
        return name if slot is None else f"{slot}.{self.kind} ({name})"


class Norm(Plugin):
    """Normalises vectors. Module: `forward(x)`, (..., width) to (..., width)."""

    width: Given[int]
    broadcasts: ClassVar[bool] = False
    """Whether the module also takes parameters of (heads, 1, width) for x (..., heads, length,
    width): a norm with parameters of its own for each head is then called once, and otherwise once
    for each head."""


class Sublayer(Plugin):
    """A residual branch with its norms: x = out(skip_scale * x + residual_scale * post(f(pre(x)))),
    each norm at the place that it is named after.

    The block registers the norms inside the branch's module, as `pre_norm`, `post_norm` and
    `out_norm`, and applies them. A branch that returns a bare `nn.Sequential` cannot hold them.
    """

    d_model: Given[int]
    norm_placement: Given[NormPlacement] = "pre"
    norms: tuple[NormSite, ...] = Field(
        default_factory=lambda data: NORM_SITES[data["norm_placement"]]
    )
    """Which norms are there: of the sublayer's input (`pre`), of its output before the residual sum
    (`post`), of the sum (`out`)."""
    norm: Annotated[Norm | None, Slot("norm", width="d_model"), NotWith("norms", ())]
    """The norm at each of those places; `"none"` if there are none."""
    residual_scale: Shared[float] = 1.0
    """What the branch's output is multiplied with before the sum (muP: Yang et al. 2022,
    arXiv:2203.03466)."""
    skip_scale: Shared[float] = 1.0
    """What the other summand is multiplied with."""

    @property
    def adapters(self) -> tuple[str, ...]:
        """The parts of the module that adapt the others to one layer: layers that share the weights
        of the branch have these each for itself."""
        return ()

    def layout_with_norms(self) -> Layout:
        """The branch's layout with its norms inside, as the block registers them."""
        norms = {f"{site}_norm": self.norm.layout() for site in self.norms if self.norm}
        return self.layout().with_parts(**norms)


class KeyForm(NamedTuple):
    """What has to be equal in layers that attend to the same keys and values."""

    n_kv_heads: int
    """The number of heads of keys and values."""
    head_dim: int
    """The width of a key head."""
    v_head_dim: int
    """The width of a value head."""
    reach: tuple[tuple[str, object], ...] = ()
    """What limits the tokens that a token sees, and with it those that a cache keeps, such as
    `("window", 16)`, by the keys of the spec; empty if nothing does."""


class Attention(Sublayer):
    """Mixes information between positions.

    Module: `forward(x, memory, *, mask, causal, rotation, bias, positions, return_weights)` returns
    the branch's output (..., query, d_model) and, if asked, the weights (..., heads, query, key).
    `memory` (..., key, key_width) is None in self-attention; `mask` is boolean, True = attend,
    and broadcasts to the weights; `rotation` and `bias` come from the position scheme.
    Cross-attention is called with `memory`, `mask` and `return_weights` only.

    With `causal`, the queries are the last of the keys, and each sees those up to its own.

    `forward` of an `incremental` attention also takes `cache`, a `zoo.cache.AttentionCache` or
    None. With a cache, x holds the next tokens only: `cache.extend(keys, values)` stores their keys
    and values and returns those of all tokens so far, to which `mask` and `bias` refer; if only
    the last tokens are kept, the last columns apply. `cache.of_memory` computes the keys and
    values of a memory once. An attention that sums up its tokens keeps a state of fixed size
    instead, by `cache.state` and `cache.keep_state`; of `mask`, the last columns are then those of
    the new tokens.
    """

    key_width: Given[int | None] = None
    """The width of the memory for keys and values; None in self-attention."""
    out_width: Given[int | None] = None
    """The width that the block needs of the output, if it is not d_model."""
    recordable: ClassVar[bool] = False
    """Whether an `incremental` attention also takes the cache of a step that is recorded
    (`zoo.generation.fixed_cache`): `cache.extend` then returns room for all tokens there will be,
    of which `mask` hides what is empty, so that the query is not the last of the keys: it is at
    `cache.places(1, n_keys)`. Of a mask, `cache.of_new(mask, 1)` is the column of the new token. No
    operation waits for the GPU."""
    reads: ClassVar[str | None] = None
    """The `site` of a position scheme whose tables the attention reads: its `forward` then takes
    that scheme's module as `scheme` too."""

    rotates_elsewhere: ClassVar[bool] = False
    """Whether it also rotates vectors at other positions than those of its tokens: its `forward`
    then takes `rotations` too, a function of positions (..., length) to their rotation, or None."""

    @property
    def axes(self) -> int:
        """The number of coordinates of a token that it tells apart, such as the row and the column
        of a patch. With more than one, `forward` takes `coordinates` too, (..., query, axes), or
        None for tokens whose coordinates all are the position."""
        return 1

    @property
    def takes_global_tokens(self) -> bool:
        """Whether `forward` takes `global_tokens` too: boolean, (..., query), or None."""
        return False

    @property
    def takes(self) -> tuple[str, ...]:
        """What `forward` takes beside what that of every attention does: the names of these values
        in `zoo.context.LayerContext`, from which a block passes them on to its self-attention."""
        taken = {
            "scheme": self.reads is not None,
            "global_tokens": self.takes_global_tokens,
            "coordinates": self.axes > 1,
            "rotations": self.rotates_elsewhere,
        }
        return tuple(name for name, is_taken in taken.items() if is_taken)

    @property
    def rotation_key(self) -> str | None:
        """The key of an option without effect unless a position scheme rotates."""
        return None

    @property
    def offers_keys(self) -> KeyForm | Literal["chosen"] | None:
        """What later layers can take over from it: the keys and values that it computes, of this
        form, or `"chosen"`, its choice of the keys that each query attends to. `forward` then takes
        `keys` too, a `zoo.context.SharedKeys` or None, and puts them there. None if nothing."""
        return None

    @property
    def needs_keys(self) -> KeyForm | Literal["chosen"] | None:
        """What it takes over from an earlier layer: keys and values of this form, if it has none of
        its own, or `"chosen"`, the choice of the keys that each query attends to. `forward` then
        takes `keys` too, a `zoo.context.SharedKeys`, and gets them there. None if nothing."""
        return None

    @property
    def past_by_default(self) -> str | None:
        """The key of an option that the spec does not state, and whose default limits how far back
        a position sees, but not how far ahead. A stack that is not causal has to state it."""
        return None

    @property
    def takes_rotation(self) -> bool:
        """Whether `forward` takes the `rotation` of a position scheme; a spec with a scheme that
        rotates is refused otherwise."""
        return True

    @property
    def takes_bias(self) -> bool:
        """Whether `forward` takes the `bias` of a position scheme; a spec with a scheme that adds
        one is refused otherwise."""
        return True

    @property
    def only_causal(self) -> bool:
        """Whether a position sees no later ones even without `causal`, as in a recurrence; a stack
        that is not causal is then refused."""
        return False

    @property
    def longest(self) -> int | None:
        """The most tokens of a sequence; None for no limit."""
        return None

    @property
    def looks_ahead(self) -> bool:
        """Whether a position sees later ones even with `causal`, as in a Fourier transform; a stack
        that is causal is then refused."""
        return False

    @property
    def against_fused(self) -> str | None:
        """The reason why no fused kernel can compute it, None if one can; `auto` reports it
        (`zoo.backends`)."""
        return f"`{self.kind}` computes its weights itself"

    @property
    def incremental(self) -> bool:
        """Whether `forward` takes a `cache`. If not, generation recomputes all tokens each time."""
        return False


class FeedForward(Sublayer):
    """Transforms each position. Module: `forward(x)`, (..., d_model) to (..., d_model)."""

    vocab: Given[int | None] = None
    """The size of the vocabulary, in a stack that is called with ids."""
    recordable: ClassVar[bool] = True
    """Whether no operation waits for the GPU, so that a step of generation can be recorded."""

    @property
    def incremental(self) -> bool:
        """Whether a position's output depends only on its own input, so that generation can
        compute it without the other positions."""
        return True

    @property
    def looks_ahead(self) -> bool:
        """Whether a position's output depends on later ones, even in a causal stack."""
        return False

    @property
    def takes_mask(self) -> bool:
        """Whether `forward` also takes `mask`: boolean, False = padding, (batch, length), or None
        without padding."""
        return False

    @property
    def takes_ids(self) -> bool:
        """Whether `forward` also takes `ids`, those of the tokens x (..., d_model), integers (...).
        A stack that is called with vectors is then refused."""
        return False

    @property
    def takes(self) -> tuple[str, ...]:
        """What `forward` takes beside x, as a block passes it on: of `mask` and `ids`."""
        taken = {"mask": self.takes_mask, "ids": self.takes_ids}
        return tuple(name for name, is_taken in taken.items() if is_taken)


class Position(Plugin):
    """Encodes positions: added to the embeddings, or used inside attention.

    Module (`zoo.position.PositionScheme`): `embed(x, positions)`, `rotation(positions, dtype)` and
    `bias(queries, keys, dtype)`; the default of each has no effect. Padding may be at position -1
    (the stack's `count_positions`).
    """

    d_model: Given[int]
    width: Given[int] = Field(default_factory=lambda data: data["d_model"])
    """The width of the vectors that positions are added to."""
    n_heads: Given[int | None] = None
    head_dim: Given[int | None] = None
    grid: Given[tuple[int, int, int] | None] = None
    """`Embedding.grid` of the embedding below."""
    n_with_positions: Given[int | None] = None
    """`Embedding.n_positions` of the embedding below: the vectors that get a position."""
    embedded: ClassVar[bool] = False
    """Whether the scheme is added to the embeddings, as `embed.positions`, or is for attention."""
    rotates: ClassVar[bool] = False
    """Whether the scheme rotates queries and keys: its module defines `rotation`."""
    axes: ClassVar[int] = 1
    """`axes` of its module: the number of coordinates of a token that it tells apart."""
    adds_bias: ClassVar[bool] = False
    """Whether the scheme adds a bias to the scores: its module defines `bias`."""
    site: ClassVar[str] = "position"
    """The name, in the stack, of the module of a scheme in attention that has tables."""

    @property
    def _builds(self) -> str:
        return "zoo.position.PositionScheme"

    @property
    def longest(self) -> int | None:
        """The number of positions; None if it is unlimited."""
        return None

    def changes(self, before: int, after: int) -> bool:
        """Whether positions are encoded differently in a sequence of `after` tokens than in one of
        `before`, so that cached keys are no longer valid."""
        return False

    def build(self) -> "PositionScheme":
        """The module, on torch's current default device."""
        raise self._lacks("build")


class Embedding(Plugin):
    """Computes the vectors that enter a stack.

    Module: `forward(inputs, positions, *, token_types, mask)` returns (batch, length, d_model).
    `positions` are (length,) or (batch, length); `token_types` and the boolean `mask`, False =
    padding, are (batch, length) or None. `build` receives the module of the position scheme to add,
    or None. The inputs are those of the model, and the description states which:

    - ids (batch, length), if `takes_ids`;
    - vectors (batch, length, `input_width`). If their number changes, it states `most_inputs`, and
      its module has a method `embedded_length(length)`;
    - sounds (batch, samples, 1), if it states a `shortest_sound`;
    - spectrograms of sounds (batch, frames, bands), if it states a `spectrogram_shape`;
    - images (batch, channels, height, width) of one shape, if it states an `image_shape` and their
      `n_vectors`;
    - patches of images of any size, as vectors, if it states a `patch_shape`.

    With a `layer_input_width`, its module has a module `layer_inputs`: `forward(inputs, x)`, where
    x is what the embedding returned for the inputs, returns what each layer gets beside the states,
    (batch, length, n_layers, layer_input_width).
    """

    vocab: Given[int | None] = None
    d_model: Given[int]
    n_layers: Given[int | None] = None
    """The number of layers that follow."""
    takes_ids: ClassVar[bool] = True
    """Whether it is called with ids, and not with vectors or images."""
    takes_inserted: ClassVar[bool] = False
    """Whether `forward` takes `inserted` too, vectors (n, position_width) or None, for which ids
    from the size of the vocabulary on stand: these are their vectors before types and positions are
    added."""
    sum_norm: ClassVar[str | None] = None
    """The field of the norm of the sum with positions, if it has one: a picture shows it there."""
    site: ClassVar[str] = "embed"
    """The name of the module in its stack."""

    @property
    def position_width(self) -> int:
        """The width of the vectors that positions are added to."""
        return self.d_model

    @property
    def layer_input_width(self) -> int | None:
        """The width of what each layer gets beside the states, if it makes that too."""
        return None

    @property
    def axes(self) -> int:
        """The number of coordinates of a token that it tells apart, as `Attention.axes`. With more
        than one, its module has it as `axes` too, and `forward` takes `coordinates`, (batch or 1,
        length, axes), or None for tokens whose coordinates all are the position."""
        return 1

    @property
    def token_types(self) -> int:
        """The number of types that `token_types` tells apart; 0 if it has to be None."""
        return 0

    @property
    def input_width(self) -> int | None:
        """The width of the vectors that it is called with; None for ids, images or any width."""
        return None

    @property
    def shortest_sound(self) -> int | None:
        """The fewest samples of the sounds that it is called with, (batch, samples, 1), if it
        is."""
        return None

    @property
    def spectrogram_shape(self) -> tuple[int | None, int] | None:
        """The (frames, bands) of the spectrograms that it is called with, (batch, frames, bands),
        the logarithms of the power in bands of mel, if it is; without a number of frames, if any
        number fits."""
        return None

    def most_inputs(self, n_vectors: int) -> int:
        """The most vectors of its input that become this many."""
        return n_vectors

    def embedded_length(self, n_inputs: int) -> int:
        """The number of vectors that so many of its input become: the fewest that can be made of as
        many."""
        return next(n for n in count() if self.most_inputs(n) >= n_inputs)

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """The (channels, height, width) of the images that it is called with, if it is."""
        return None

    @property
    def patch_shape(self) -> tuple[int, int, int] | None:
        """The (channels, frames, side) of the patches, of images of any size, whose values are the
        vectors that it is called with, if they are."""
        return None

    @property
    def longest(self) -> int | None:
        """The length of the longest sequence; where the two coordinates of a patch are told apart,
        also the most rows and the most columns of patches. None for no limit."""
        return None

    @property
    def n_vectors(self) -> int | None:
        """The number of vectors that an image becomes; None if it is not called with images."""
        return None

    @property
    def n_positions(self) -> int | None:
        """How many of the vectors get a position: the first ones do. None if inputs become
        different numbers of vectors."""
        return self.n_vectors

    @property
    def grid(self) -> tuple[int, int, int] | None:
        """Of an embedding of images that cuts them into patches, row by row: the number of vectors
        before those of the patches, of rows and of columns. None for others."""
        return None

    @property
    def incremental(self) -> bool:
        """Whether a token's vector depends only on that token and its position."""
        return True

    @property
    def looks_ahead(self) -> bool:
        """Whether a token's vector depends on later tokens, even in a causal stack."""
        return False

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        """The module, which applies `scheme.embed` to the embedded tokens."""
        raise self._lacks("build")


class Head(Plugin):
    """Computes the model's output. Module: `forward(x)`, (..., d_model) to (..., n)."""

    vocab: Given[int | None] = None
    d_model: Given[int]
    pools: ClassVar[bool] = False
    """Whether it returns one output for a whole sequence, (batch, n): `forward` then takes `mask`
    too, boolean, False = padding, (batch, length) or None."""
    reads_vocab: ClassVar[bool] = True
    """Whether it has a use for `vocab`: a vocabulary that nothing reads is refused in a spec."""

    @property
    def takes_ids(self) -> bool:
        """Whether the `forward` of a head that pools takes `ids` too, those of the tokens, (batch,
        length)."""
        return False

    @property
    def reads_padding(self) -> bool:
        """Whether it reads the states of padding too, which are not computed otherwise."""
        return False

    @property
    def vector_width(self) -> int | None:
        """The width of the vector that it makes of each sequence, to be compared with those of
        others; None if it makes something else."""
        return None

    @property
    def task(self) -> Task | None:
        """The task of a model with this head that does not generate."""
        return None

    @property
    def scores_tokens(self) -> bool:
        """Whether its output are logits of the vocabulary, (..., vocab), or anything with the same
        softmax, so that a model with it can generate."""
        return False

    @property
    def transcription(self) -> Transcription | None:
        """How a text is read off its output for a sound; None if none is."""
        return None

    @property
    def classes(self) -> Classes | None:
        """The classes of a head that scores those of a whole sequence, (batch, classes), or of each
        token, (batch, length, classes); None for others."""
        return None

    def labelled(self, labels: tuple[str, ...] | None) -> Self:
        """This head with other names of its classes; with None, without names and without a
        `problem_type`. Only for a head that has `classes`."""
        raise self._lacks("labelled")

    def ties(self, embedding: str) -> dict[str, str]:
        """The head's tensors that are the same as the token table named `embedding`."""
        return {}


class Merging(Component):
    """Makes one state of the residual streams of a token. Module: `forward(x)`, (..., n_streams,
    d_model) to (..., d_model). If not all streams begin as the embedded state, it also has
    `split(x)`, (..., d_model) to (..., n_streams, d_model)."""

    d_model: Given[int]
    n_streams: Given[int]


class Block(Plugin):
    """One layer of a stack. Module: `forward(x, context)` returns the new states (..., length,
    d_model) and the attention weights as a mapping of kind to tensor, empty unless asked for. With
    a `merging`, there are several residual streams, and the states are (..., length, n_streams,
    d_model). Each stream begins as the embedded state, or as what the merging's `split` makes of
    it, and after the last layer the stack merges them."""

    vocab: Given[int | None] = None
    """The size of the vocabulary, in a stack that is called with ids."""
    d_model: Given[int]
    norm_placement: Given[NormPlacement] = "pre"
    memory_width: Given[int | None] = None
    grid: Given[tuple[int, int, int] | None] = None
    """`Embedding.grid` of the embedding below, for position schemes."""
    layer_input_width: Given[int | None] = None
    """`Embedding.layer_input_width` of the embedding below."""
    guiding: ClassVar[tuple[str, ...]] = ()
    """The parts of the layout that run first, one after the other and without residual sums, if
    there are any: what they return is added to what the next branch reads. A drawing shows it."""

    @property
    def n_heads(self) -> int | None:
        """The number of heads of the self-attention, for position schemes that need it."""
        return None

    @property
    def head_dim(self) -> int | None:
        """The width of one of those heads."""
        return None

    @property
    def self_attention(self) -> Attention | None:
        """The self-attention, if it fills a slot: the stack asks it what it takes."""
        return None

    @property
    def attends(self) -> bool:
        """Whether there is a self-attention, in which position schemes have an effect."""
        return self.self_attention is None or not self.self_attention.absent

    @property
    def attends_to_memory(self) -> bool:
        """Whether the layer attends to the memory, in a stack that has a `memory_width`."""
        return True

    @property
    def takes_layer_input(self) -> bool:
        """Whether the layer reads `LayerContext.layer_input`, which is there if there is a
        `layer_input_width`."""
        return False

    @property
    def takes_embedded(self) -> bool:
        """Whether the layer reads `LayerContext.embedded`."""
        return False

    @property
    def takes_ids(self) -> bool:
        """Whether the layer reads `LayerContext.ids`. A stack that is called with vectors is then
        refused."""
        return False

    @property
    def merging(self) -> Merging | None:
        """What merges the residual streams after the last layer, the same for all layers of a
        stack; None if the layer has one stream alone, and no dimension for it."""
        return None

    @property
    def takes_rotation(self) -> bool:
        """Whether the layer takes the `rotation` of a position scheme."""
        return self.self_attention is None or self.self_attention.takes_rotation

    @property
    def takes_bias(self) -> bool:
        """Whether the layer takes the `bias` of a position scheme."""
        return self.self_attention is None or self.self_attention.takes_bias

    @property
    def only_causal(self) -> bool:
        """Whether a position sees no later ones, even in a stack that is not causal."""
        return self.self_attention is not None and self.self_attention.only_causal

    @property
    def own_position(self) -> Position | None:
        """The position scheme of this layer alone, if it has one."""
        return None

    @property
    def not_incremental(self) -> tuple[str, ...]:
        """The parts that need all tokens at once, for a message. Without any, the block uses
        `LayerContext.cache`; a block that does not support it names itself."""
        return (f"block `{self.kind}`",)

    @property
    def not_recordable(self) -> tuple[str, ...]:
        """The parts with which a step of generation cannot be recorded, for a message; a block that
        does not support it names itself (see `Attention.recordable`)."""
        return (f"block `{self.kind}`",)

    @property
    def by_position(self) -> bool:
        """Whether positions interact only in attention, which ignores padding, so that padding can
        be left out of everything else."""
        return False

    @property
    def looks_ahead(self) -> tuple[str, ...]:
        """The parts in which a position sees later ones in a causal stack, for a message."""
        return ()


class Init(Plugin):
    """States the distribution of the initial values of each tensor."""

    def start_of(self, tensor: Placed) -> "Distribution":
        """The distribution of the initial values of `tensor`; a constant has its own value, and a
        cycle its own length."""
        from zoo.distribution import Constant, Cycle

        if tensor.role == "constant":
            return Constant(tensor.value)
        if tensor.role == "cycle":
            return Cycle(int(tensor.value))
        return self.distribution(tensor)

    def distribution(self, tensor: Placed) -> "Distribution":
        """The distribution of a tensor that is not a constant, by its role and fans, its name, or
        its layer."""
        raise self._lacks("distribution")


class Builder(Plugin):
    """A whole Transformer. Its table is the spec's top level, its kind the key `builder`."""

    init: Annotated[Init, Slot("init")]
    """The initial weights."""

    @property
    def _builds(self) -> str:
        return "zoo.Transformer"

    def ties(self) -> dict[str, str]:
        """The tied tensors: maps each alias to its target. Of all names of one tensor, the
        lexicographically first is that under which it is stored, and its layout states the initial
        values."""
        return {}

    @property
    def generation(self) -> Generation | None:
        """How the model generates; None if it does not."""
        return None

    @property
    def reading(self) -> Reading | None:
        """The input of a model that can be called with ids only; None for others."""
        return None

    @property
    def called_with(self) -> tuple[Reading, ...]:
        """The inputs of ids, after any `images`: one, or a source and a target. Empty for a model
        with inputs that are neither."""
        how = self.generation
        if self.reading is not None:
            return (self.reading,)
        if how is None or not (how.from_ids or how.image_shape):
            return ()
        target = Reading(how.target_vocab, how.longest, how.pad_id, mask="target_mask")
        if how.source_vocab is None:
            return (target,)
        return Reading(how.source_vocab, how.longest_source, how.source_pad_id), target

    @property
    def rereads(self) -> Reading | None:
        """The source of a model with an encoder and a decoder whose head says something of a text,
        or of its tokens, and that is called with the text twice: as the source, and as the target,
        where it follows a start token. None for others."""
        return None

    @property
    def called_with_ids_alone(self) -> bool:
        """Whether the model is called with ids, `called_with`, and with nothing else."""
        return bool(self.called_with) and not self.images

    @property
    def images(self) -> Mapping[str, tuple[int, int, int]]:
        """The first arguments of the model's `forward`, if they are images, with the (channels,
        height, width) of each."""
        return {}

    @property
    def shortest_sound(self) -> int | None:
        """The fewest samples of the sounds that the model is called with, (batch, samples, 1); None
        if it is called with anything else."""
        return None

    @property
    def spectrogram_shape(self) -> tuple[int | None, int] | None:
        """The (frames, bands) of the spectrograms of sounds that the model is called with, (batch,
        frames, bands), without a number of frames if any number fits; None if it is called with
        anything else."""
        return None

    @property
    def hears(self) -> bool:
        """Whether the model is called with sounds, or their spectrograms."""
        return self.shortest_sound is not None or self.spectrogram_shape is not None

    @property
    def task(self) -> Task | None:
        """The task of `zoo run` with the model; None if there is none. The module of a model that
        embeds images is a `zoo.transformer.EncodingImages`, and that of one that embeds sounds a
        `zoo.transformer.EncodingSounds`."""
        return None

    @property
    def comparison(self) -> Comparison | None:
        """How the model compares images with texts, its `images` with the ids of `called_with`;
        None if it does not. Its module is a `zoo.transformer.Comparing`."""
        return None

    @property
    def transcription(self) -> Transcription | None:
        """How a text is read off the model's output for a sound, if its task is `transcribe`."""
        return None

    @property
    def classes(self) -> Classes | None:
        """The classes that the model scores for a text, its tokens or an image; None if it scores
        none."""
        return None

    def labelled(self, labels: tuple[str, ...] | None) -> Self:
        """This model with other names of its classes; with None, without names and without a
        `problem_type`. Only for a model that has `classes`."""
        raise self._lacks("labelled")

    def build(self) -> "Transformer":
        """The module, on torch's current default device."""
        raise self._lacks("build")


SLOTS: Mapping[str, type[Plugin]] = {
    "builder": Builder,
    "block": Block,
    "attention": Attention,
    "ffn": FeedForward,
    "norm": Norm,
    "position": Position,
    "embedding": Embedding,
    "head": Head,
    "init": Init,
}


def slot_of(component: object) -> str | None:
    """The slot of a component; None for a part that no spec picks by its kind."""
    return next((slot for slot, base in SLOTS.items() if isinstance(component, base)), None)
