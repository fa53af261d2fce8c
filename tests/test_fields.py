"""Every field of every component changes something that can be observed.

The test takes each field of each registered component, and of the parts inside, and builds a small
model around the component with the value of the field and with other values. Models are compared
from the cheapest observation to the most expensive: stored tensors and caches, initial weights,
output, attention maps, output in training, gradients, running statistics, auxiliary loss. A change
of printed text alone does not count.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import tee
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest
import torch

import zoo
from zoo.component import GIVEN, Component, LayerRules, Part, Slot, fields_of
from zoo.only_with import OnlyWith
from zoo.plugin_kit.hosts import SIZES, complete, with_hosts
from zoo.plugin_kit.parts import MIXING_KIND
from zoo.registry import Registry, read_layers, shipped_registry
from zoo.showing.show import summary_data, summary_text
from zoo.spec import ModelSpec
from zoo.transformer import Spectrogram, TiledImage
from zoo_components.image_text import ImageTextDecoder
from zoo_components.native_images import NativeImageTextDecoder
from zoo_components.sound_text import SoundTextDecoder
from zoo_components.tiled_images import TiledImageTextDecoder

Data = dict[str, Any]
Keys = tuple[str | int, ...]

LENGTH = 12
VOCAB, WIDTH = SIZES["vocab"], SIZES["d_model"]
BASE: Data = {"format": 1, "name": "walk", "builder": "decoder"}
HOMES: Mapping[str, Keys] = {
    "builder": (),
    "block": ("decoder", "block"),
    "attention": ("decoder", "block", "self_attn"),
    "ffn": ("decoder", "block", "ffn"),
    "norm": ("decoder", "norm"),
    "position": ("decoder", "position"),
    "embedding": ("decoder", "embedding"),
    "head": ("head",),
    "init": ("init",),
}
"""The place in the model for a component of each slot."""

# --- the walk -----------------------------------------------------------------------------------


class Walked(NamedTuple):
    """A field: the registered component, the path to the part inside it, and the name."""

    slot: str
    kind: str
    inside: Keys
    cls: type[Component]
    name: str

    @property
    def owner(self) -> str:
        return ".".join([self.slot, self.kind, *(str(key) for key in self.inside if key != 0)])

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}"


def walk(registry: Registry) -> Iterator[Walked]:
    """Yield every field of every registered component and of its parts."""
    for slot, entries in registry.plugins.items():
        for kind in entries:
            yield from _fields(slot, kind, (), registry.plugin(slot, kind))


def _fields(slot: str, kind: str, inside: Keys, cls: type[Component]) -> Iterator[Walked]:
    for name, mark in fields_of(cls).items():
        if mark is GIVEN or name == "kind":
            continue
        if isinstance(mark, LayerRules):
            yield Walked(slot, kind, inside, cls, name)
            yield from _fields(slot, kind, (*inside, name, 0), mark.group)
        elif isinstance(mark, Part) and not isinstance(mark, Slot):  # it consists of its fields
            yield from _fields(slot, kind, (*inside, name), cls.model_fields[name].annotation)
        else:
            yield Walked(slot, kind, inside, cls, name)


# --- what makes a field observable --------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A context in which a field has an effect.

    Args:
        beside: other values of the same table; a value of the field itself is its initial value.
        around: other keys of the spec.
        instead: the other values of the field, if those of its type are not suitable.
        also: values of the same table that the other value requires.
        place: the place of the component in the model; by default the usual place of its slot.
        dtype: the dtype of the model.
    """

    beside: Data = field(default_factory=dict)
    around: Data = field(default_factory=dict)
    instead: Sequence[Any] = ()
    also: Data = field(default_factory=dict)
    place: Keys | None = None
    dtype: torch.dtype = torch.float64


RMS: Data = {"kind": "rms_norm"}
ROTARY: Data = {"decoder": {"position": {"kind": "rotary"}}}
IMAGES: Data = {"kind": "patches", "image_size": 6, "patch_size": 2}
TILED = (12, 6)
"""The size of an image with tiles."""
N_PATCHES = 9
"""Of an image in the `example` of `ImageTextDecoder`."""
HEARD = 6
"""The frames of a sound, after which there is silence."""
WITH_IMAGES: Data = {
    "builder": "native_image_text_decoder",
    "image_id": 1,
    "image": {"embedding": {"kind": "patch_vectors", "patch_size": 2}},
}
"""Of tokens of text alone, all coordinates are the position."""
LAYERED: Data = {"decoder": {"embedding": {"kind": "layered_tokens", "d_layer_input": 4}}}
HALVED: Data = {"kind": "residual", "skip_scale": 0.5}
"""A block that differs from the default one."""

OF_ONE_WIDTH: Data = {"image_head": {"d_out": 4}, "text_head": {"d_out": 4}}


def _multi_head(layer: int, **values: Any) -> Data:
    """Return the rule of a layer with keys and values of its own."""
    return {"at": [layer], "block": {"self_attn": {"kind": "multi_head", **values}}}


SOURCES: Data = {
    "decoder": {
        "n_layers": 8,
        "n_heads": SIZES["n_heads"],
        "d_ff": SIZES["d_ff"],
        "layers": [
            _multi_head(0),
            _multi_head(1, window=2, n_kv_heads=1),
            _multi_head(2, window=3, head_dim=6, v_head_dim=8),
            _multi_head(3, window=4, v_head_dim=6),
            _multi_head(4, chunk=3),
            _multi_head(5, window=5),
            _multi_head(6, window=5, window_sides="both"),
        ],
    }
}
"""Layers whose keys and values the last one can attend to."""

CHOOSING: Data = {
    "decoder": {
        "d_ff": SIZES["d_ff"],
        "position": {"kind": "rotary"},
        "layers": [
            {
                "at": [0],
                "block": {
                    "self_attn": {
                        "kind": "sparse_latent",
                        "n_heads": SIZES["n_heads"],
                        "kv_lora_rank": 4,
                        "qk_nope_head_dim": 4,
                        "qk_rope_head_dim": 4,
                        "v_head_dim": 4,
                        "index_n_heads": 2,
                        "index_head_dim": 4,
                        "index_topk": 3,
                    }
                },
            }
        ],
    }
}
"""A layer that chooses the keys of those after it."""

COMPONENTS: Mapping[str, Case] = {
    "attention.latent": Case({}, ROTARY),
    "attention.sparse_latent": Case({"index_head_dim": 8}, ROTARY),
    "attention.shared_sparse_latent": Case({}, CHOOSING),
    "attention.shared_kv": Case({}, ROTARY),
    "attention.heavily_compressed": Case({}, ROTARY),
    "attention.compressed_sparse": Case({"index_head_dim": 8}, ROTARY),
    "attention.cross_layer": Case({}, SOURCES),
    "attention.disentangled": Case({}, {"decoder": {"position": {"kind": "disentangled"}}}),
    "attention.gated_bias": Case({}, {"decoder": {"position": {"kind": "t5_buckets"}}}),
    "attention.rotated_input": Case({}, ROTARY),
    "attention.fourier": Case({}, {"decoder": {"causal": False}}),
    "ffn.moe": Case({"n_experts": 8}),
    "ffn.normed_moe": Case({"n_experts": 8}),
    "ffn.hash_moe": Case({"n_experts": 8}),
    "block.layer_input": Case({}, LAYERED),
    "block.alternating_layer_input": Case({}, LAYERED),
    "embedding.layered_tokens": Case({"d_layer_input": 4}, {"decoder": {"block": "layer_input"}}),
    "embedding.partly_layered_tokens": Case(
        {"d_layer_input": 4, "layer_vocab": 3}, {"decoder": {"block": "layer_input"}}
    ),
    "embedding.spectrogram_patches": Case({"n_frames": LENGTH}),
    "position.rotary_linear": Case({"factor": 2.0}),
    "position.rotary_dynamic": Case({"factor": 2.0, "original_length": 4}),
    "position.rotary_yarn": Case({"factor": 4.0, "original_length": 4096}),
    "position.rotary_llama3": Case({"factor": 4.0, "original_length": 64}),
    "position.sinusoidal_grid": Case({}, {"decoder": {"embedding": IMAGES}}),
    "position.rotary_grid": Case({}, {"decoder": {"embedding": IMAGES}}),
    "position.rotary_class_grid": Case({}, {"decoder": {"embedding": IMAGES}}),
    "position.rotary_counted_grid": Case({}, {"decoder": {"embedding": IMAGES}}),
    "position.disentangled": Case(
        {"max_distance": 4}, {"decoder": {"block": {"self_attn": {"kind": "disentangled"}}}}
    ),
}
"""The values that a component needs to have any effect, besides its `example` and sizes."""

TEMPERATURE: Data = {"q_temperature": "log", "q_temperature_floor": 2.0}
GROUPS: Data = {"n_groups": 4, "top_groups": 1}

OF_HEADS: Mapping[str, Case] = {
    "qk_norm_scope": Case({"qk_norm": RMS}),
    "qk_norm_site": Case({"qk_norm": RMS}, ROTARY),
    "q_temperature": Case({"q_temperature": "power"}),
    "q_temperature_*": Case(TEMPERATURE),
    "output_gate_*": Case({"output_gate": "sigmoid"}),
}
"""The cases of the attention with keys and values of its own and of that without."""

FIELDS: Mapping[str, Case] = {
    **{
        f"attention.{kind}.{name}": case
        for kind in (
            "multi_head",
            "adapted_multi_head",
            "cross_layer",
            "talking_heads",
            "clipped_multi_head",
        )
        for name, case in OF_HEADS.items()
    },
    **{f"attention.*latent.{n}": OF_HEADS[n] for n in ("q_temperature", "q_temperature_*")},
    "builder.encoder.nsp": Case({"pooler": {"kind": "pooler"}}),
    "builder.image_text_decoder.projector.merge": Case(instead=[3]),
    "builder.glu_image_text_decoder.projector.activation": Case({"activation": "none"}),
    "builder.adapted_image_text_decoder.projector.merge": Case(instead=[3]),
    "builder.adapted_image_text_decoder.projector.merge_by": Case({"merge": 3}),
    "builder.glu_image_text_decoder.projector.merge": Case(instead=[3]),
    "builder.glu_image_text_decoder.projector.merge_by": Case({"merge": 3}),
    "builder.tiled_image_text_decoder.projector.merge": Case(instead=[3]),
    "builder.image_text_decoder.projector.merge_by": Case({"merge": 3}),
    "builder.tiled_image_text_decoder.projector.merge_by": Case({"merge": 3}),
    "builder.tiled_image_text_decoder.grids": Case(instead=[[[1, 1]], [[1, 2], [1, 1]]]),
    "builder.tiled_image_text_decoder.most_tiles": Case(instead=[1]),
    "builder.native_image_text_decoder.projector.merge_by": Case({"merge": 2}),
    "builder.deepstack_image_text_decoder.projector.merge_by": Case({"merge": 2}),
    "builder.sound_text_decoder.projector.merge_by": Case({"merge": 2}),
    "builder.bidirectional_image_text_decoder.projector.merge_by": Case({"merge": 2}),
    "builder.deepstack_image_text_decoder.deep_projector.merge_by": Case(
        around={"projector": {"merge": 2}}
    ),
    # Without a norm, states are so large that these activations are the same.
    "builder.deepstack_image_text_decoder.deep_projector.activation": Case({"norm": RMS}),
    "builder.deepstack_image_text_decoder.deep_layers": Case(instead=[[1], [0, 1]]),
    "builder.bidirectional_image_text_decoder.decoder.causal": Case(
        around={"decoder": {"self_attn": {"window_sides": "both"}}}
    ),
    "builder.bidirectional_image_text_decoder.image.embedding": Case(
        instead=[{"kind": "patch_vectors", "patch_size": 2, "frames": 2}]
    ),
    "builder.native_image_text_decoder.image.embedding": Case(
        instead=[{"kind": "patch_vectors", "patch_size": 2, "frames": 2}]
    ),
    "builder.dual_encoder.*.d_model": Case(around=OF_ONE_WIDTH),
    "builder.dual_encoder.*.output_width": Case(around=OF_ONE_WIDTH),
    "builder.*.count_positions": Case({"pad_id": 0}),
    "builder.*.padding": Case({"pad_id": 0}),
    "builder.*.layers": Case(instead=[[{"at": [0], "block": HALVED}]]),
    "builder.*.layers.at": Case({"at": [0], "block": HALVED}, instead=[[1], [0, 1]]),
    "builder.*.layers.block": Case({"at": [0]}, instead=[HALVED]),
    "builder.*.layers.position": Case(
        {"at": [0]},
        {"position": {"kind": "none"}},
        instead=[{"kind": "rotary"}, {"kind": "alibi"}],
    ),
    "builder.*.block": Case(instead=[HALVED]),
    "builder.*.share_parts": Case(
        {"share_layers": True, "share_parts": ["ffn"]}, instead=[["self_attn"]]
    ),
    # The branches inherit the values of a block, so here they state their own.
    "block.residual.dropout": Case(
        {
            "self_attn": {"kind": "multi_head", "dropout": 0.0},
            "ffn": {"kind": "mlp", "dropout": 0.0},
        }
    ),
    "block.residual.cross_attn": Case(around={"memory_width": 12}),
    "block.channel_scaled.cross_attn": Case(around={"memory_width": 12}),
    "block.rezero.cross_attn": Case(around={"memory_width": 12}),
    "block.conformer.cross_attn": Case(around={"memory_width": 12}),
    "block.two_mixers.cross_attn": Case(around={"memory_width": 12}),
    "block.*layer_input.cross_attn": Case(around={"memory_width": 12}),
    "block.alternating_updates.cross_attn": Case(around={"memory_width": 12}),
    "block.alternating_*.laurel_norm": Case({"laurel_rank": 2}),
    "block.*hyper_connected.cross_attn": Case(around={"memory_width": 12}),
    # The attention of a block has the width d_model; only attention elsewhere has another.
    "attention.*_head*.d_out": Case(around={"builder": "check_attention"}, place=("part",)),
    "attention.*_head*.n_kv_heads": Case(instead=[1]),
    "attention.differential.n_kv_heads": Case({"n_heads": 4}, instead=[2]),
    "attention.gated_delta.n_key_heads": Case(instead=[1]),
    "attention.forgetting.n_kv_heads": Case(instead=[1]),
    "attention.mamba2_scaled.eps": Case({"gated_norm": "after_gate"}),
    "attention.mlstm.divisor_eps": Case(instead=[0.5]),  # the norm takes away most of it
    "attention.*_head*.rotate_values": Case(around=ROTARY),
    "attention.*multi_head.global_tokens": Case(around={"decoder": {"causal": False}}),
    "attention.*_head*.window_sides": Case({"window": 3}),
    # What the last layer attends to is that of another one if this value differs.
    "attention.cross_layer.n_heads": Case(also={"n_kv_heads": 2, "head_dim": 8}),
    "attention.cross_layer.n_kv_heads": Case(instead=[1], also={"window": 2}),
    "attention.cross_layer.head_dim": Case(instead=[6], also={"window": 3, "v_head_dim": 8}),
    "attention.cross_layer.v_head_dim": Case(instead=[6], also={"window": 4}),
    "attention.cross_layer.window": Case(instead=[5]),
    "attention.cross_layer.window_sides": Case({"window": 5}),
    "attention.cross_layer.chunk": Case(instead=[3]),
    "*.slope": Case({"activation": "prelu"}),
    "*.beta": Case({"activation": "swish"}),
    # Without gates below 0, `relu` is `none`.
    "ffn.sparse_glu.activation": Case({"activation": "none"}, instead=["gelu", "silu"]),
    "ffn.*.activation": Case({"activation": "none"}),
    "ffn.*moe.limit": Case({"expert": "clamped_glu"}),
    "ffn.*moe.shared_gate": Case({"shared_d_ff": 4}),
    "ffn.*moe.shared_average": Case({"shared_d_ff": 4}),
    "ffn.*moe.router.threshold": Case(
        {"score": "sparsemixer", "threshold": 0.2}, instead=[0.05, 0.4]
    ),
    "ffn.*moe.router.n_groups": Case({"top_groups": 1}),
    "ffn.*moe.router.top_groups": Case(GROUPS, instead=[2, 3]),
    "ffn.*moe.router.group_score": Case({**GROUPS, "score": "sigmoid"}),
    "ffn.*moe.router.normalize_*": Case({"normalize": True}, instead=[2.0]),
    "norm.rms_norm.cast": Case(dtype=torch.bfloat16),
    "norm.scale_norm.eps": Case(instead=[1000.0]),
    "position.sinusoidal.max_length": Case(instead=[LENGTH - 1]),
    "position.sinusoidal.zero_padding": Case(
        around={"decoder": {"pad_id": 0, "count_positions": "unpadded"}}
    ),
    "position.rotary_multimodal.fraction": Case(instead=[0.75], also={"sections": [1, 1, 1]}),
    "position.rotary_multimodal.sections": Case(around=WITH_IMAGES, instead=[[1, 2, 1]]),
    "position.rotary_multimodal_interleaved.fraction": Case(
        instead=[0.75], also={"sections": [1, 1, 1]}
    ),
    "position.rotary_multimodal_interleaved.sections": Case(
        {"sections": [4, 2, 2]},
        {**WITH_IMAGES, "decoder": {"self_attn": {"kind": "multi_head", "head_dim": 16}}},
        instead=[[5, 2, 1]],
    ),
    "position.rotary_yarn.original_length": Case(instead=[64]),
    "position.rotary_yarn.beta_*": Case({"truncate": False}),
    "position.rotary_longrope.fraction": Case(
        instead=[0.5], also={"short_factors": [1.0, 1.5], "long_factors": [1.0, 2.0]}
    ),
    "position.rotary_longrope.short_factors": Case(
        {"original_length": LENGTH}, instead=[[1.0, 1.5, 2.0, 3.0]]
    ),
    "position.rotary_longrope.long_factors": Case(instead=[[1.0, 2.0, 4.0, 9.0]]),
    "position.alibi.rounding": Case({"max_exponent": 7.0}),
    "position.t5_buckets.max_distance": Case({"n_buckets": 8, "max_distance": 8}),
    "position.disentangled.max_distance": Case({"n_buckets": 8, "max_distance": 8}),
    "position.disentangled.n_buckets": Case({"max_distance": 8}, instead=[4, 6]),
    "embedding.*tokens.projection_bias": Case({"d_embed": 4}),
    "embedding.*tokens.token_dropout": Case({"token_dropout": 0.1, "mask_id": 3}),
    "embedding.*tokens.mask_id": Case({"token_dropout": 0.1, "mask_id": 3}),
    "embedding.conv_frontend.kernel_sizes": Case(instead=[[5, 3]]),
    "embedding.conv_frontend.strides": Case(instead=[[1, 2], [2, 1]]),
    "embedding.waveform.kernel_sizes": Case(instead=[[3, 3], [4, 2]]),
    "embedding.waveform.strides": Case(instead=[[1, 2], [2, 1]]),
    "embedding.waveform_stem.widths": Case(instead=[[4, 6], [5, 6]]),
    "embedding.waveform_stem.kernel_sizes": Case(instead=[[3, 3, 1], [4, 2, 1]]),
    "embedding.waveform_stem.strides": Case(instead=[[1, 2, 1], [2, 1, 1]]),
    "head.ctc.blank": Case(
        around={"builder": "encoder", "encoder": {"embedding": {"kind": "waveform"}}}
    ),
    "head.classifier.labels": Case({"n_classes": 2}, instead=[["no", "yes"], ["yes", "no"]]),
    "head.token_classifier.labels": Case({"n_classes": 2}, instead=[["no", "yes"], ["yes", "no"]]),
    "head.token_classifier.dense_bias": Case({"dense": "tanh"}),
    "head.span.dense_bias": Case({"dense": "tanh"}),
    "head.joint_embedding.end_id": Case({"pooling": "end_token", "end_id": 3}),
    "head.two_map_embedding.end_id": Case({"pooling": "end_token", "end_id": 3}),
    "head.joint_embedding.bias": Case({"d_out": 4}),
    "head.sentence.pooling": Case({"normalize": False}),
    "head.sentence.d_hidden": Case({"d_out": 4}),
    "head.sentence.activation": Case({"d_out": 4}),
    "head.sentence.dense_bias": Case({"d_out": 4}),
}
"""The cases of single fields, by the first pattern that matches. A field without an entry gets
other values by its type."""


def case_of(walked: Walked) -> Case:
    fitting = (case for pattern, case in FIELDS.items() if fnmatchcase(str(walked), pattern))
    return next(fitting, Case())


def component_case(slot: str, kind: str) -> Case:
    return COMPONENTS.get(f"{slot}.{kind}", Case())


def own_values(slot: str, kind: str, registry: Registry) -> Data:
    """Return a component's table with its required keys."""
    example = registry.plugin(slot, kind).example
    return {"kind": kind, **example, **component_case(slot, kind).beside}


def start(walked: Walked, registry: Registry) -> Data:
    """Return the spec in which the field has the value that the others are compared with."""
    case, component = case_of(walked), component_case(walked.slot, walked.kind)
    own, data = own_values(walked.slot, walked.kind, registry), BASE
    if walked.slot == "builder":
        own["builder"] = own.pop("kind")
    for more in (component.around, case.around, _at(home_of(walked), own)):
        data = merged(data, more)
    return merged(data, _at(place_of(walked), case.beside))


def home_of(walked: Walked) -> Keys:
    place = case_of(walked).place
    return HOMES[walked.slot] if place is None else place


def place_of(walked: Walked) -> Keys:
    return (*home_of(walked), *walked.inside)


def _at(path: Keys, value: Any) -> Any:
    """Nest the value in the tables and lists of its path."""
    for key in reversed(path):
        value = [value] if key == 0 else {key: value}
    return value


def merged(old: Any, new: Any) -> Any:
    """Merge the new data over the old, table by table; a list of one table counts as the table."""
    if isinstance(old, list) and isinstance(new, list) and [*map(type, old + new)] == [dict, dict]:
        return [merged(old[0], new[0])]
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return deepcopy(new)
    return old | {key: merged(old.get(key), value) for key, value in new.items()}


def with_value(data: Data, path: Keys, value: Any) -> Data:
    changed = deepcopy(data)
    table: Any = changed
    for key in path[:-1]:
        table = table[key] if key == 0 else table.setdefault(key, {})
    table[path[-1]] = value
    return changed


def value_at(spec: ModelSpec, path: Keys) -> Any:
    found: Any = spec.model
    for key in path:
        found = found[key] if isinstance(key, int) else getattr(found, key)
    return found


def other_values(walked: Walked, value: Any, registry: Registry) -> list[Any]:
    """Other values of a field, by its type; some may not be allowed beside the rest."""
    mark = fields_of(walked.cls)[walked.name]
    if isinstance(mark, Slot):
        present = value.kind if isinstance(value, Component) else None
        # Of those that only the check of plugins has, the positions cannot be built.
        not_built = MIXING_KIND if mark.slot == "position" else None
        kinds = [kind for kind in registry.plugins[mark.slot] if kind not in (present, not_built)]
        return [own_values(mark.slot, kind, registry) for kind in kinds]
    found: list[Any] = []
    for leaf in _leaves(walked.cls.model_fields[walked.name].annotation):
        if get_origin(leaf) is Literal:
            found += [other for other in get_args(leaf) if other != value]
        elif leaf is bool:
            found += [not value] if value is not None else [True, False]
        elif get_origin(leaf) is tuple:
            found += [[x for x in value if x != dropped] for dropped in value or ()]
        elif leaf in (int, float):
            number = value if isinstance(value, int | float) else 0
            found += [number + 1, 2 * number] if leaf is int else [number + 0.5, number / 2]
    return [other for other in found if other != value]


def _leaves(kind: Any) -> Iterator[Any]:
    """Yield the types of a union, without annotations."""
    if hasattr(kind, "__metadata__"):
        yield from _leaves(kind.__origin__)
    elif isinstance(kind, types.UnionType) or str(get_origin(kind)) == "typing.Union":
        for one in get_args(kind):
            yield from _leaves(one)
    else:
        yield kind


# --- what is observed ---------------------------------------------------------------------------


def observations(spec: ModelSpec, dtype: torch.dtype) -> Iterator[Any]:
    """Yield the observations of a model, one after the other: plain data, or tensors by name."""
    layout = spec.layout
    yield [*spec.tensors.items()], layout.cache_per_token, layout.cache_per_memory_token
    yield spec.model.classes, spec.model.transcription
    model = zoo.build(spec, dtype=dtype)
    yield {name: t.clone() for name, t in model.state_dict().items()}
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random))
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.rand(buffer.shape, generator=random))
    arguments = inputs(spec, dtype)
    try:
        yield {"output": model.eval()(**arguments)}
    except (ValueError, IndexError) as error:
        yield str(error)
        return
    if getattr(model, "pooler", None) is not None:
        yield {"pooled": model.pooler(model.encode(arguments["source"]))}
    _, maps = model(**arguments, return_attention=True)
    yield {f"{kind} {i}": m for kind, ms in maps._asdict().items() for i, m in enumerate(ms)}
    torch.manual_seed(2)
    output = model.train()(**arguments)
    yield {"output": output}
    model.zero_grad()
    output.square().sum().backward()
    yield {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    yield dict(model.named_buffers())
    yield {"auxiliary loss": zoo.auxiliary_loss(model)}


def inputs(spec: ModelSpec, dtype: torch.dtype) -> dict[str, Any]:
    """Ids with token types and a mask that hides tokens at the start, vectors, or images; or ids
    with images or sounds in them."""
    random = torch.Generator().manual_seed(3)
    model: Any = spec.model
    found: dict[str, Any] = {}
    stacks = {"source": "encoder", "target": "decoder", "text": "text"}
    stacks |= {"image": "image", "sound": "sound"}
    for name, stack in stacks.items():
        if not hasattr(model, stack):
            continue
        embedding = getattr(model, stack).embedding
        if "tokens" in embedding.layout().parts:
            found[name] = _ids(random)
            found[name][0, 3] = found[name][1, -2:] = 0
            found[f"{name}_mask"] = torch.ones(2, LENGTH, dtype=torch.bool)
            found[f"{name}_mask"][0, :2] = False
        elif embedding.image_shape is not None:
            found[name] = torch.randn(2, *embedding.image_shape, generator=random).to(dtype)
        else:
            width = embedding.input_width or WIDTH
            found[name] = torch.randn(2, LENGTH, width, generator=random).to(dtype)
        if name == "source" and getattr(embedding, "n_types", 0):
            found["token_types"] = torch.randint(0, 2, (2, LENGTH), generator=random)
    if isinstance(model, SoundTextDecoder):
        heard, how = found.pop("sound"), model.generation.inserted_sounds
        found["sounds"] = [Spectrogram(one[None], HEARD) for one in heard]
        n_states = how.states_of(1, LENGTH, HEARD)
        own = found["target"]
        own[own == model.sound_id], own[:, 2 : 2 + n_states] = VOCAB - 1, model.sound_id
    if isinstance(model, NativeImageTextDecoder):
        _, side = found.pop("image"), model.generation.inserted_images.any_size.unit
        channels = model.image.embedding.channels
        found["images"] = torch.randn(2, channels, side, 2 * side, generator=random).to(dtype)
        own = found["target"]
        own[own == model.image_id], own[:, 2:4] = VOCAB - 1, model.image_id
    if isinstance(model, TiledImageTextDecoder):
        (channels, *sides), tiling = model.image.embedding.image_shape, model.tiling
        rows, columns = tiling.grid(*TILED)
        tiles = torch.randn(2, 1 + rows * columns, channels, *sides, generator=random).to(dtype)
        found["images"] = [TiledImage(one, *TILED) for one in tiles]
        del found["image"]
        own, n_states = found["target"], tiling.states_of(*TILED, 1 + rows * columns)
        own[own == model.image_id] = VOCAB - 1
        places = torch.full((2, n_states), model.image_id)
        found["target"] = torch.cat([own[:, :2], places, own[:, 2:]], 1)
        mask = found["target_mask"]
        found["target_mask"] = torch.cat([mask[:, :2], places > 0, mask[:, 2:]], 1)
    elif isinstance(model, ImageTextDecoder):
        found["images"] = found.pop("image")
        n_states = model.projector.n_states(N_PATCHES + (model.image_states == "all"))
        own, at = found["target"], slice(2, 2 + n_states)
        own[own == model.image_id], own[:, at] = VOCAB - 1, model.image_id
        if model.bidirectional == "prompt":
            found["prompt"] = torch.arange(LENGTH).expand(2, -1) < LENGTH - 2
    if getattr(model, "memory_width", None):
        found["memory"] = torch.randn(2, 5, model.memory_width, generator=random).to(dtype)
    return found


def _ids(random: torch.Generator) -> torch.Tensor:
    """Return ids of every token of the vocabulary except 0."""
    return torch.randperm(2 * LENGTH, generator=random).view(2, LENGTH) % (VOCAB - 1) + 1


def differ(one: Any, other: Any) -> bool:
    """Return whether two observations differ by more than rounding."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return bool(one != other)
    if one.keys() != other.keys() or any(one[n].shape != other[n].shape for n in one):
        return True
    return any(
        not torch.allclose(one[n].double(), other[n].double(), rtol=1e-8, atol=1e-10) for n in one
    )


COMPLETED: dict[str, tuple[Registry, ModelSpec]] = {}
"""The spec completed last, by its data, which most fields of a component have in common."""


def completed(data: str, registry: Registry) -> ModelSpec:
    """The spec of data as JSON."""
    if data not in COMPLETED or COMPLETED[data][0] is not registry:
        COMPLETED.clear()
        COMPLETED[data] = registry, complete(json.loads(data), registry)
    return COMPLETED[data][1]


def pairs(walked: Walked, registry: Registry) -> Iterator[tuple[Any, ModelSpec, ModelSpec]]:
    """Yield the allowed other values of the field, each with the spec without it and with it.

    Raises AssertionError if there are none, as nothing would be compared."""
    case, path = case_of(walked), (*place_of(walked), walked.name)
    data = start(walked, registry)
    before = completed(json.dumps(data), registry)
    compared, refused = 0, []
    for value in case.instead or other_values(walked, value_at(before, path), registry):
        try:
            other = merged(data, _at(place_of(walked), case.also))
            after = complete(with_value(other, path, value), registry)
        except zoo.SpecError as error:
            refused.append(f"{value!r}: {error}")
            continue
        compared += 1
        yield value, before, after
    assert compared, "\n".join([f"no other value of {walked} is allowed:", *refused])


BEFORE: dict[tuple[str, torch.dtype], Iterator[Any]] = {}
"""The observations of the model that was compared last, as far as they were needed."""


def observed_before(spec: ModelSpec, dtype: torch.dtype) -> Iterator[Any]:
    """`observations`, which are made once for all fields and values that have the same model."""
    key = (spec.digest, dtype)
    if key not in BEFORE:
        BEFORE.clear()
        (BEFORE[key],) = tee(observations(spec, dtype), 1)
    return copy(BEFORE[key])


def unchanged(walked: Walked, registry: Registry) -> list[Any]:
    """Return the other values of the field that change nothing."""
    dtype = case_of(walked).dtype
    return [
        value
        for value, before, after in pairs(walked, registry)
        if not any(
            differ(*pair)
            for pair in zip(
                observed_before(before, dtype), observations(after, dtype), strict=False
            )
        )
    ]


def shown(spec: ModelSpec) -> list[str]:
    """Return the lines of `zoo show`, without the digest, which differs between any two specs."""
    lines = summary_text(summary_data(spec)).splitlines()
    return [line for line in lines if spec.digest not in line]


# --- the tests ----------------------------------------------------------------------------------

SHIPPED = read_layers([shipped_registry()])
HOSTED = with_hosts(SHIPPED)
ALL = list(walk(SHIPPED))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """One thread computes such small tensors much faster than several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("walked", ALL, ids=str)
def test_every_field_changes_something(walked: Walked) -> None:
    assert unchanged(walked, HOSTED) == []


@pytest.mark.slow
@pytest.mark.parametrize("walked", ALL, ids=str)
def test_every_field_is_shown(walked: Walked) -> None:
    """`zoo show` distinguishes two models that differ in one value."""
    alike = [
        value for value, before, after in pairs(walked, HOSTED) if shown(before) == shown(after)
    ]
    assert alike == []


def test_no_entry_is_about_a_field_that_is_gone() -> None:
    names = {str(walked) for walked in ALL}
    assert not [pattern for pattern in FIELDS if not any(fnmatchcase(n, pattern) for n in names)]
    assert {f"{walked.slot}.{walked.kind}" for walked in ALL} >= COMPONENTS.keys()


PLUGIN = """
from typing import Annotated

from zoo.component import Component, Part
from zoo.slots import Norm


class Scale(Component):
    alive: float = 1.0
    dead: float = 1.0


class Scaled(Norm):
    alive: bool = True
    dead: bool = True
    scale: Annotated[Scale, Part()]

    def build(self):
        from torch import nn

        class Module(nn.Module):
            def forward(module, x):
                return x * (2.0 if self.alive else 1.0) * self.scale.alive

        return Module()
"""


@pytest.fixture
def with_dead_fields(tmp_path: Path) -> Registry:
    """Return the shipped registry with a norm, half of whose fields have no effect."""
    (tmp_path / "scaled.py").write_text(PLUGIN)
    path = tmp_path / "registry.toml"
    path.write_text('format = 1\n[norm]\nscaled = "scaled.py:Scaled"\n')
    return read_layers([shipped_registry(), path])


def test_the_walk_reaches_the_fields_of_a_new_component_and_finds_the_dead_ones(
    with_dead_fields: Registry,
) -> None:
    new = [walked for walked in walk(with_dead_fields) if walked.kind == "scaled"]
    assert {str(walked): bool(unchanged(walked, with_dead_fields)) for walked in new} == {
        "norm.scaled.alive": False,
        "norm.scaled.dead": True,
        "norm.scaled.scale.alive": False,
        "norm.scaled.scale.dead": True,
    }


def test_the_walk_takes_what_a_full_spec_states() -> None:
    """Compared with another list of all fields: those in the full form of a spec, which leaves out
    fields that have an effect only with other values."""
    walked = {(w.slot, w.kind): set[str]() for w in ALL}
    for one in ALL:
        walked[one.slot, one.kind].add(str(one.inside[0]) if one.inside else one.name)
    spec = zoo.read_spec("vaswani-base", registry=SHIPPED).to_dict()
    assert walked["builder", "encoder_decoder"] == spec.keys() - {"format", "name", "builder"}
    block = spec["decoder"]["block"]
    assert walked["block", "residual"] == block.keys() - {"kind"}
    fields = SHIPPED.plugin("attention", "multi_head").model_fields.items()
    at_times = {n for n, info in fields if any(isinstance(m, OnlyWith) for m in info.metadata)}
    stated = block["self_attn"].keys() - {"kind"}
    assert stated <= walked["attention", "multi_head"] <= stated | at_times
