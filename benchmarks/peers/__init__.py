"""The same models in other libraries, one module for each library.

The models have the weights of a model of `transformers` and compute the same; a docstring says
where a library can only have a model of the same sizes.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

MODULES = {
    "transformers": "hugging_face",
    "x-transformers": "x_transformers",
    "litgpt": "litgpt",
    "curated-transformers": "curated",
    "ctranslate2": "ctranslate2",
}
"""By the names of their packages."""


def peer(package: str) -> ModuleType | None:
    """The module for a library, None where it is not installed."""
    if versions()[package] is None:
        return None
    return import_module(f"{__name__}.{MODULES[package]}")


def versions() -> dict[str, str | None]:
    """The version of each library, None where it is not installed."""
    return {package: _version(package) for package in MODULES}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
