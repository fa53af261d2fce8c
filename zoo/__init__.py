"""A config-driven model zoo and plugin registry for Transformers.

    model = zoo.build("spec.toml")            # from a spec to a model
    zoo.save(model, "model.safetensors")      # one file that rebuilds itself
    model = zoo.load("model.safetensors")     # verified

Importing this package imports no torch; the functions that need it do.
"""

from __future__ import annotations

import sys  # nothing that Python has not: Ctrl-C before `zoo.__main__` would show a traceback

if sys.platform == "win32":
    # Files get their names by renaming onto old ones, are removed while they are open, and are read
    # by several threads at their own places, as Windows does not.
    raise ImportError("the zoo runs on Linux and macOS; on Windows, install it in WSL")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from zoo.auxiliary import auxiliary_loss
    from zoo.backends import attention_backend
    from zoo.benching.bench import bench
    from zoo.building import build
    from zoo.errors import (
        InputError,
        PluginError,
        RegistryError,
        SpecError,
        TrainingError,
        WeightsError,
        ZooError,
    )
    from zoo.exporting.export import export_folder
    from zoo.families.importing import import_folder
    from zoo.generation import (
        Beam,
        Draft,
        Generated,
        Greedy,
        Lookup,
        Sampling,
        arrange_weights,
        generate,
        quantize_weights,
        stream,
    )
    from zoo.loading import load
    from zoo.reading import read_spec
    from zoo.registry import Registry, load_registry
    from zoo.reports.diff import diff
    from zoo.reports.flops import flops
    from zoo.reports.listing import list_components, list_models
    from zoo.reports.results import results
    from zoo.reports.table import table
    from zoo.running.image_model import ImageModel
    from zoo.running.sound_model import SoundModel
    from zoo.running.text_model import TextModel
    from zoo.saving import save
    from zoo.spec import ModelSpec
    from zoo.training.scores import score
    from zoo.training.train import train
    from zoo.transformer import AttentionMaps, Transformer

__all__ = [
    "AttentionMaps",
    "Beam",
    "Draft",
    "Generated",
    "Greedy",
    "ImageModel",
    "InputError",
    "Lookup",
    "ModelSpec",
    "PluginError",
    "Registry",
    "RegistryError",
    "Sampling",
    "SoundModel",
    "SpecError",
    "TextModel",
    "TrainingError",
    "Transformer",
    "WeightsError",
    "ZooError",
    "arrange_weights",
    "attention_backend",
    "auxiliary_loss",
    "bench",
    "build",
    "diff",
    "export_folder",
    "flops",
    "generate",
    "import_folder",
    "list_components",
    "list_models",
    "load",
    "load_registry",
    "quantize_weights",
    "read_spec",
    "results",
    "save",
    "score",
    "stream",
    "table",
    "train",
]

__version__ = "0.1.0"

_HOMES = {
    "attention_backend": "backends",
    "auxiliary_loss": "auxiliary",
    "bench": "benching.bench",
    "build": "building",
    "diff": "reports.diff",
    "flops": "reports.flops",
    "export_folder": "exporting.export",
    "import_folder": "families.importing",
    "list_components": "reports.listing",
    "list_models": "reports.listing",
    "load": "loading",
    "read_spec": "reading",
    "results": "reports.results",
    "save": "saving",
    "score": "training.scores",
    "table": "reports.table",
    "train": "training.train",
    "arrange_weights": "generation",
    "generate": "generation",
    "quantize_weights": "generation",
    "stream": "generation",
    "Greedy": "generation",
    "Sampling": "generation",
    "Beam": "generation",
    "Draft": "generation",
    "Lookup": "generation",
    "Generated": "generation",
    "ImageModel": "running.image_model",
    "SoundModel": "running.sound_model",
    "TextModel": "running.text_model",
    "ModelSpec": "spec",
    "Transformer": "transformer",
    "AttentionMaps": "transformer",
    "Registry": "registry",
    "load_registry": "registry",
    "ZooError": "errors",
    "SpecError": "errors",
    "RegistryError": "errors",
    "InputError": "errors",
    "PluginError": "errors",
    "TrainingError": "errors",
    "WeightsError": "errors",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'zoo' has no attribute {name!r}")
    return getattr(import_module(f"zoo.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names for `help` and notebooks, including those not imported yet."""
    return [*__all__, "__version__"]
