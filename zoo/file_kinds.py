"""What a TOML file is, judged by its content: a spec, a recipe, a registry or a model's file."""

from __future__ import annotations

from pathlib import Path

from zoo.document import Document
from zoo.registering.registry_file import FILE_NAME as REGISTRY_NAME

OF_SPECS = ("builder", "extends")
"""Keys of which each spec has at least one, and recipes for training have none."""
OF_RECIPES = (
    "data",
    "tokenizer",
    "masking",
    "lora",
    "optimizer",
    "schedule",
    "training",
    "evaluation",
)
"""The tables that recipes have (`zoo.training.recipe`) and specs do not."""


def is_recipe(document: Document) -> bool:
    """Return whether a file is a recipe for training and not a spec, judged by its content.

    A file without `builder` and `extends` is a recipe if it names a model, or has a table that only
    recipes have.
    """
    if not document.data.keys().isdisjoint(OF_SPECS):
        return False
    names_a_model = isinstance(document.data.get("model"), str)
    return names_a_model or not document.data.keys().isdisjoint(OF_RECIPES)


def is_registry(document: Document) -> bool:
    """Return whether a file is a registry by its name, and not a spec by its content."""
    named = Path(document.name).name == REGISTRY_NAME
    return named and document.data.keys().isdisjoint(OF_SPECS)


def is_manifest(document: Document) -> bool:
    """Return whether a file describes a published model and is not a spec."""
    data = document.data
    return isinstance(data.get("source"), dict) and data.keys().isdisjoint(OF_SPECS)
