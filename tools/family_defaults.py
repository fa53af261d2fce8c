"""Write what transformers takes for granted in a config.json: plugins/zoo_families/defaults.json.

python tools/family_defaults.py

For each model type that has a language model, a classifier of images or a recognizer of speech in
transformers, and some others, so that a new family needs no new file: the defaults of the fields of
its config class, `attribute_map`, the fields that have a second name, `nullable`, the fields that
may be null although their default is not, and `mixed`, those that may have values of other types
than their default. Values that change nothing of what a model computes are left out. For those that
a family reads, `classes`, the models that have it, with the parts of their checkpoints.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from families.cases import Case, all_cases  # noqa: E402
from families.checkpoints import make_config  # noqa: E402

FILE = ROOT / "plugins" / "zoo_families" / "defaults.json"

MODELS = (
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_CTC_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
)

OTHERS = {
    "vision-encoder-decoder",
    "dinov3_vit",
    "clip_text_model",
    "clip_vision_model",
    "siglip_text_model",
    "siglip_vision_model",
    "dpr",
    "mistral4",
    "openai_privacy_filter",
    "metaclip_2_text_model",
    "metaclip_2_vision_model",
    "chinese_clip",
    "chinese_clip_vision_model",
    "altclip",
    "altclip_vision_model",
    "mlcd_vision_model",
    "vit_mae",
    "audio-spectrogram-transformer",
    "audioflamingo3_encoder",
    "glmasr_encoder",
    "aya_vision",
    "cohere2_vision",
    "parakeet_encoder",
    "qwen2_audio_encoder",
    "voxtral_encoder",
    "aimv2_vision_model",
    "blip",
    "blip_text_model",
    "blip_vision_model",
    "gemma4_vision",
    "idefics3",
    "internvl",
    "internvl_vision",
    "lfm2_vl",
    "llama4_vision_model",
    "llava",
    "llava_next",
    "llava_onevision",
    "mistral3",
    "paligemma",
    "pixtral",
    "qwen2_5_vl",
    "qwen2_5_vl_text",
    "qwen2_5_vl_vision",
    "qwen2_vl",
    "qwen2_vl_text",
    "qwen2_vl_vision",
    "qwen3_5_moe_vision",
    "qwen3_5_vision",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen3_vl_moe_text",
    "qwen3_vl_moe_vision",
    "qwen3_vl_text",
    "qwen3_vl_vision",
    "siglip2_vision_model",
    "smolvlm",
}
"""An encoder of images or sounds under a language model, those without a classifier, models that
compare texts with images or texts and their encoders, and one that only classifies tokens, which no
list but those of all models names."""

INERT = {
    "_name_or_path",
    "architectures",
    "chunk_size_feed_forward",
    "dtype",
    "id2label",
    "initializer_range",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "transformers_version",
    "use_cache",
}
"""Fields that say nothing of the model."""

PRIVATE = {"_remove_final_layer_norm"}
"""Fields with a private name that do."""


def text() -> str:
    """The whole file, a line for each model type."""
    lines = [
        f"{json.dumps(model_type)}: {json.dumps(described(model_type))}"
        for model_type in sorted(OTHERS.union(*MODELS))
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def described(model_type: str) -> dict[str, Any]:
    """What the file says of a model type."""
    cases = [case for case in all_cases().values() if case.model_type == model_type]
    return {**fields(model_type), "classes": classes(cases)}


def fields(model_type: str) -> dict[str, Any]:
    """The fields of the config class of a model type: defaults, second names, what they may be."""
    cls: type[PreTrainedConfig] = CONFIG_MAPPING[model_type]
    found = {name: value for name, value in defaults(cls).items() if is_json(value)}
    # No fields, but they change what every weight means, and which file holds the weights.
    found |= {"quantization_config": None, "transformers_weights": None}
    if (theta := getattr(cls, "default_theta", None)) is not None:
        found["default_theta"] = theta  # of rotary positions; a class attribute and not a field
    for name, stored in cls.attribute_map.items():
        if found.get(name) is not None:
            found.setdefault(stored, found[name])
    types = {
        field.name: field.type
        for field in dataclasses.fields(cls)
        if found.get(field.name) is not None
    }
    mixed = (name for name, type_ in types.items() if takes_others(type_, type(found[name])))
    nullable = (name for name, type_ in types.items() if takes_none(type_))
    return {
        "attribute_map": sorted_by_key(cls.attribute_map),
        "defaults": sorted_by_key(found),
        "mixed": sorted(mixed),
        "nullable": sorted(nullable),
    }


def classes(cases: Iterable[Case]) -> dict[str, dict[str, list[str]]]:
    """The classes of models that transformers makes of the cases of a model type, by name. Each has
    the parts of its checkpoints, with which names of tensors begin: those `needed`, and as
    `optional` those that one may lack: what is tied to others, and all of the base model, whose
    config tells what it has."""
    parts: dict[str, set[str]] = {}
    needed: dict[str, set[str]] = {}
    for case in cases:
        for name in {*listed(case.model_type), *of_module(case)}:
            if (model := made(name, case)) is not None:
                tensors = model.state_dict()
                parts.setdefault(name, set()).update(parts_of(model, tensors))
                found = parts_of(model, own(model))
                needed[name] = needed.get(name, found) & found
    return {
        name: {"needed": sorted(needed[name]), "optional": sorted(parts[name] - needed[name])}
        for name in sorted(parts)
    }


def listed(model_type: str) -> Iterator[str]:
    """The names of the classes that the automatic ones of transformers know for a model type."""
    for name, mapping in vars(modeling_auto).items():
        if re.fullmatch(r"MODEL_.*MAPPING_NAMES", name):
            named = mapping.get(model_type, ())
            yield from (named,) if isinstance(named, str) else named


def of_module(case: Case) -> Iterator[str]:
    """The names of the classes that the module of a case's class has for its model type."""
    module = sys.modules[getattr(transformers, case.model_class).__module__]
    for name in module.__all__:
        cls = getattr(module, name)
        is_model = issubclass(cls, PreTrainedModel) and "pretrained" not in name.lower()
        if is_model and cls.config_class is CONFIG_MAPPING[case.model_type]:
            yield name


def made(name: str, case: Case) -> PreTrainedModel | None:
    """A model of a class, without weights; None if the class takes another config."""
    config = make_config(case)
    config.num_labels = 2  # which classes that answer questions need
    try:
        with torch.device("meta"):
            return getattr(transformers, name)(config)
    except (AttributeError, ValueError):
        return None


def own(model: PreTrainedModel) -> list[str]:
    """The names of the tensors that are neither tied to others nor in the base model."""
    tied = [
        re.compile(f"{re.escape(f'{name}.' if name else '')}{pattern}")
        for name, part in model.named_modules()
        if isinstance(part, PreTrainedModel)
        for pattern in part._tied_weights_keys or ()
    ]
    base = f"{model.base_model_prefix}." if model.base_model is not model else None
    if base is None and not re.search("For[A-Z]", type(model).__name__):
        return []
    return [
        key
        for key in model.state_dict()
        if not (base and key.startswith(base)) and not any(one.search(key) for one in tied)
    ]


def parts_of(model: PreTrainedModel, keys: Iterable[str]) -> set[str]:
    """What the names of tensors of a model begin with in checkpoints: one word or two, without
    numbers, and without the tensor's own if there are others."""
    tensors = model.state_dict()
    saved = revert_weight_conversion(model, {key: tensors[key] for key in keys})
    modules = (key.split(".")[:-1] or [key] for key in saved)
    return {".".join(one[:1] if one[1:2] and one[1].isdigit() else one[:2]) for one in modules}


def takes_none(type_: Any) -> bool:
    """Whether transformers, which checks types, takes None for a field."""
    return type_ is Any or type(None) in get_args(type_)


def takes_others(type_: Any, of_default: type) -> bool:
    """Whether transformers takes values of another type than the default's for a field, beside
    lists and integers as floats."""
    same = {float: {float, int}}.get(of_default, {of_default})
    return not {bool, int, float, str, dict}.intersection(get_args(type_)) <= same


def defaults(cls: type[PreTrainedConfig]) -> dict[str, Any]:
    """The default of each field; None where the class computes it."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.name in INERT or (field.name.startswith("_") and field.name not in PRIVATE):
            continue
        if type(field.default) is int and float in get_args(field.type):
            found[field.name] = float(field.default)  # or else only integers would be taken
        elif field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
        else:
            found[field.name] = None
    return found


def is_json(value: Any) -> bool:
    """Whether JSON can express a value."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def sorted_by_key(table: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(table.items()))


if __name__ == "__main__":
    FILE.write_text(text())
