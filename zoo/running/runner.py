"""Loading a model for `zoo run`, whether it takes texts, images or sounds."""

from __future__ import annotations

from zoo.loading import open_model
from zoo.registry import Registry
from zoo.running.image_model import ImageModel
from zoo.running.sound_model import SoundModel
from zoo.running.text_model import TextModel

Runner = TextModel | ImageModel | SoundModel
"""A model with what its folder holds for its inputs."""


def load_runner(
    path_or_name: str, *, of_texts: bool, device: str, dtype: str | None, registry: Registry
) -> Runner:
    """Load a model with what its folder holds for its inputs: sounds or images if it takes any,
    unless it is to be `of_texts`. Raises ZooError as `FolderModel.load`."""
    with open_model(path_or_name, device=device, dtype=dtype, registry=registry) as opened:
        kind: type[Runner] = TextModel
        if opened.spec.model.images and not of_texts:
            kind = ImageModel
        elif opened.spec.model.hears and not of_texts:
            kind = SoundModel
        return kind.of(opened)
