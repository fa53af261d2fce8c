"""The drivers, which call the module of a slot and check its outputs: which one is for a model."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

import torch

from zoo.building import build
from zoo.plugin_kit.by_token import FeedForwardDriver, HeadDriver, NormDriver
from zoo.plugin_kit.driver import Driver
from zoo.plugin_kit.embedding import EmbeddingDriver
from zoo.plugin_kit.hosts import (
    AttentionHost,
    BlockHost,
    EmbeddingHost,
    FeedForwardHost,
    HeadHost,
    NormHost,
    PositionHost,
    ReadingHost,
)
from zoo.plugin_kit.layers import AttentionDriver, BlockDriver
from zoo.plugin_kit.position import PositionDriver
from zoo.plugin_kit.whole_models import BuilderDriver
from zoo.slots import Builder
from zoo.spec import ModelSpec
from zoo.transformer import Transformer

DRIVERS: Mapping[type[Builder], type[Driver]] = {
    BlockHost: BlockDriver,
    AttentionHost: AttentionDriver,
    ReadingHost: AttentionDriver,
    FeedForwardHost: FeedForwardDriver,
    NormHost: NormDriver,
    PositionHost: PositionDriver,
    EmbeddingHost: EmbeddingDriver,
    HeadHost: HeadDriver,
}
"""The drivers of the models of hosts."""


def driver_for(spec: ModelSpec, model: Transformer, dtype: torch.dtype = torch.float32) -> Driver:
    """Return the driver for the model of a host, or of a builder."""
    return DRIVERS.get(type(spec.model), BuilderDriver)(spec, model, dtype)


def hosted(spec: ModelSpec, dtype: torch.dtype = torch.float64) -> Driver:
    """Return the driver of a model of `spec` in evaluation mode. Noise is added to its parameters:
    those that start at 0, such as gates, would hide the modules behind them."""
    model = build(spec, dtype=dtype).eval()
    random = torch.Generator()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            random.manual_seed(crc32(name.encode()))
            noise = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
            parameter.copy_(parameter.double() + 0.1 * noise)
    return driver_for(spec, model, dtype)
