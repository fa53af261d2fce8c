"""Tiny checkpoints of transformers, in which every weight counts.

A model fresh from transformers hides mistakes: its norms do nothing, its biases are zero, its
attention is uniform. Here every saved tensor is random, buffers and padding rows included, from a
generator seeded with the names of the case and the tensor.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from families.cases import Case, sizes

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

MAX_PARAMETERS = 2_000_000


def make_config(case: Case) -> PreTrainedConfig:
    """The config of a case.

    Raises:
        ValueError: the case states a field that is read nowhere.
    """
    cls = CONFIG_MAPPING[case.model_type]
    known = set(cls().to_dict()) | set(cls.__dataclass_fields__) | {"num_labels"}
    for field in set(case.config) - known - set(cls.attribute_map):
        # Some fields are read and not declared, such as the position buckets of DeBERTa-v2.
        if not any(f"{field}" in source(c) for c in (cls, getattr(transformers, case.model_class))):
            raise ValueError(f"{case.name}: neither config nor model know `{field}`")
    usual = {k: v for k, v in sizes().items() if k in known and k not in cls.attribute_map}
    return cls(**(usual | dict(case.config)))


def source(cls: type) -> str:
    """The text of the module that a class is from."""
    return inspect.getsource(sys.modules[cls.__module__])


def make_model(case: Case) -> PreTrainedModel:
    """The model of a case, in float32 and evaluation mode, with all weights random.

    Raises:
        ValueError: the config makes a model that is not tiny.
    """
    cls = getattr(transformers, case.model_class)
    with torch.device("meta"):
        size = sum(p.numel() for p in cls(make_config(case)).parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"{case.name} is not tiny: {size} parameters; state more sizes")
    model, other = (initialised(case, cls, seed) for seed in (0, 1))
    if case.untied:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    others = other.state_dict()
    for name, tensor, owner in saved_tensors(model):
        if tensor.numel() and not is_computed(tensor, others[name]):
            fill(tensor, owner, generator(f"{case.name}:{name}"))
            for part, factor in case.shrunk.items():
                tensor.data *= factor if part in name else 1.0
    for name, table in model.named_buffers():
        for part, bound in case.numbers.items():
            if part in name:
                random = generator(f"{case.name}:{name}")
                table.copy_(torch.randint(bound, table.shape, generator=random))
    return model


def initialised(case: Case, cls: type[PreTrainedModel], seed: int) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = make_config(case)
        return cls._from_config(config, attn_implementation=case.attention).float().eval()


def saved_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor, nn.Module]]:
    """The name, the tensor and the owner of each tensor of floats in the state, tied ones once."""
    seen = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if tensor.is_floating_point() and id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor, model.get_submodule(name.rpartition(".")[0])


def is_computed(tensor: Tensor, other: Tensor) -> bool:
    """Whether a tensor is a table computed from the config, such as sinusoids or rotary
    frequencies: it has several values, and the same ones under another seed."""
    return torch.equal(tensor, other) and bool((tensor != tensor.flatten()[0]).any())


@torch.no_grad()
def fill(tensor: Tensor, owner: nn.Module, random: torch.Generator) -> None:
    """Random values of the size that a trained model has: 0.2 around the value of what starts as a
    constant, as norms and biases do, or around 1 for infinite bounds, and about 1 / sqrt(inputs)
    for matrices."""
    noise = torch.randn(tensor.shape, generator=random)
    if bool(tensor.isinf().all()):
        tensor.copy_(tensor.sign() + 0.2 * noise)
    elif bool((tensor == tensor.flatten()[0]).all()):
        tensor.add_(0.2 * noise)
    elif isinstance(owner, nn.Embedding):
        tensor.copy_(0.4 * noise)
    elif tensor.dim() < 2:
        tensor.copy_(0.2 * noise)
    else:
        inputs = tensor[0].numel() if isinstance(owner, nn.Conv1d | nn.Conv2d) else tensor.shape[-1]
        tensor.copy_(noise * inputs**-0.5)


def generator(name: str) -> torch.Generator:
    """A generator of random numbers, seeded with a name."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    return torch.Generator().manual_seed(seed)


def save(model: PreTrainedModel, case: Case, folder: Path) -> None:
    """Write what `save_pretrained` writes, with the config and the names of tensors that the case
    says to be published."""
    model.save_pretrained(folder)
    if case.renamed:
        rename(folder / "model.safetensors", case.renamed)
    gone = {key for key, value in case.published.items() if value is None}
    config = read_config(folder) | dict(case.published)
    write_config(folder, {key: value for key, value in config.items() if key not in gone})


def rename(file: Path, renamed: Mapping[str, str]) -> None:
    """Give the tensors of a file other names."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(file).items():
        for new, old in renamed.items():
            name = name.replace(new, old)
        tensors[name] = tensor
    save_file(tensors, file, {"format": "pt"})


def read_config(folder: Path) -> dict[str, Any]:
    """What config.json says."""
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True))


def without_defaults(folder: Path, case: Case) -> dict[str, Any]:
    """What config.json says, without all that transformers would take for granted."""
    defaults = json.loads(CONFIG_MAPPING[case.model_type]().to_json_string(use_diff=False))
    kept = {"model_type", "architectures"}
    config = read_config(folder)
    return {k: v for k, v in config.items() if k in kept or k not in defaults or v != defaults[k]}


def load(case: Case, folder: Path, may_lack: Collection[str] = ()) -> PreTrainedModel:
    """What transformers reads from a folder, which may lack some tensors.

    Raises:
        ValueError: it finds a tensor missing, unexpected or of the wrong shape.
    """
    cls = getattr(transformers, case.model_class)
    model, report = cls.from_pretrained(
        folder, attn_implementation=case.attention, output_loading_info=True
    )
    found = {what: sorted(set(names) - set(may_lack)) for what, names in report.items()}
    if complaints := {what: names for what, names in found.items() if names}:
        raise ValueError(f"transformers loads {folder} with {complaints}")
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()  # mapped weights are not aligned: other last bits
    return model.float().eval()
