"""Modules of which some tensors are one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def tie(module: Module, ties: Mapping[str, str]) -> Module:
    """Replace each alias, the name of a parameter or buffer, by the tensor of its target, so that
    both are one. Returns the module."""
    for alias, target in ties.items():
        owner, _, attribute = alias.rpartition(".")
        source, _, its = target.rpartition(".")
        setattr(module.get_submodule(owner), attribute, getattr(module.get_submodule(source), its))
    return module
