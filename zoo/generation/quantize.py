"""Weights in 8 bits, which take less memory and are read faster."""

from __future__ import annotations

import torch
from torch import nn

from zoo.errors import InputError
from zoo.generation.decoding import check_transformer
from zoo.int8 import Int8Embedding, Int8Linear, Int8Matrix
from zoo.linear import LARGE, Linear
from zoo.transformer import Transformer

KINDS: dict[type[nn.Module], type[Int8Linear | Int8Embedding]] = {
    Linear: Int8Linear,
    nn.Embedding: Int8Embedding,
}
"""The modules whose weights are quantized, with what they become."""


def quantize_weights(model: Transformer) -> None:
    """Replace each large matrix by integers of 8 bits with a scale for each row, in place.

    These are the linear maps, the head and the tables of tokens, each if it has at least 65,536
    numbers; a table that is tied to the head stays one. A weight w is q s, with s = max |w| / 127
    of its row and q an integer, the nearest to w / s. Activations stay floats, and so do all other
    tensors, among them the stacked matrices of experts.

    The model needs a little more than a quarter of the memory of float32. Each matrix of floats is
    freed before the next one is quantized. The model computes on a CPU as before, in any dtype,
    with caches, beams and batches. It cannot be trained, arranged or saved: save it before. Its
    parameters do not require gradients any more. `spec` stays the same.

    Args:
        model: a model on the CPU.

    Raises:
        InputError: this is no `zoo.Transformer`; it is on another device, or this process has only
            a share of it; or a matrix holds numbers that are not finite.
    """
    check_transformer(model, "is quantized")
    holders = _holders(model)
    while holders:
        _, modules = holders.popitem()
        matrix = Int8Matrix(modules[0].get_parameter("weight"))
        for module in modules:
            del module._parameters["weight"]
            vars(module).pop("packed", None)  # a copy by `arrange_weights`
            module.__class__ = KINDS[type(module)]
            module.add_module("matrix", matrix)
    model.requires_grad_(False)


def _holders(model: Transformer) -> dict[int, list[nn.Module]]:
    """The modules to quantize, by the weight that they share. Raises as `quantize_weights`."""
    holders: dict[int, list[nn.Module]] = {}
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if type(module) in KINDS and weight is not None and weight.numel() >= LARGE:
            _check(model, f"{name}.weight", weight)
            holders.setdefault(id(weight), []).append(module)
    return holders


def _check(model: Transformer, name: str, weight: torch.Tensor) -> None:
    """Raise InputError if a weight cannot be quantized."""
    what = f"`{name}` of {model.spec.name}"
    if hasattr(weight, "device_mesh"):
        message = f"this process has but a share of {what}"
        raise InputError(message, help="load the model without a mesh")
    if weight.is_meta:
        raise InputError(f"{what} is on the meta device: it has no values")
    if not weight.is_cpu:
        message = f"{what} is on {weight.device}, and products with 8 bits are for CPUs"
        raise InputError(message, help="`model.cpu()` brings it there")
    if not all(bool(bound.isfinite()) for bound in weight.aminmax()):
        raise InputError(f"{what} holds NaN or infinity, for which there is no scale")
