"""Image processors that `transformers` has with torchvision alone."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F
from transformers.image_processing_backends import TorchvisionBackend
from transformers.image_utils import SizeDict

NAME = "torchvision.transforms.v2"


def torchvision_processor(model: str, name: str) -> Any:
    """The class of an image processor, with Pillow in the place of torchvision where images are
    resized, which rounds some values to a neighbouring byte instead; the rest is its own."""
    functional = ModuleType(f"{NAME}.functional")
    functional.InterpolationMode = Any  # type: ignore[attr-defined]  # of annotations
    functional.pad = padded  # type: ignore[attr-defined]
    parents = {one: ModuleType(one) for one in ("torchvision", "torchvision.transforms", NAME)}
    parents[NAME].functional = functional  # type: ignore[attr-defined]
    with mock.patch.dict(sys.modules, {**parents, functional.__name__: functional}):
        module = importlib.import_module(f"transformers.models.{model}.image_processing_{model}")
    theirs = getattr(module, name)

    class Processor(theirs):  # type: ignore[misc]
        def _preprocess(self, *given: Any, **more: Any) -> Any:
            with (
                mock.patch.object(TorchvisionBackend, "resize", resized),
                mock.patch.object(TorchvisionBackend, "normalize", normalised),
            ):
                return super()._preprocess(*given, **more)

    Processor.__name__ = name
    return Processor


def resized(
    _: object, image: torch.Tensor, size: SizeDict, resample: int, **more: Any
) -> torch.Tensor:
    each = [Image.fromarray(one.movedim(0, -1).numpy()) for one in image]
    made = [np.array(one.resize((size.width, size.height), resample)) for one in each]
    return torch.from_numpy(np.stack(made)).movedim(-1, 1)


def normalised(_: object, image: torch.Tensor, mean: Any, std: Any, **more: Any) -> torch.Tensor:
    mean, std = (torch.as_tensor(one, dtype=image.dtype) for one in (mean, std))
    return (image - mean[:, None, None]) / std[:, None, None]


def padded(images: torch.Tensor, padding: list[int], fill: list[int]) -> torch.Tensor:
    """Images with black on the right and below."""
    assert not any([*padding[:2], *fill])
    return F.pad(images, (0, padding[2], 0, padding[3]))
