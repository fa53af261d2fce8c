"""The images or sounds that stand in prompts, checked before the model runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch

from zoo.errors import InputError
from zoo.generation.prompts import Rows, read_images_in_text, read_sounds_in_text
from zoo.inputs.images import n_states_of
from zoo.inputs.in_texts import media_of_texts
from zoo.inputs.sounds import n_states_of as n_states_of_sound
from zoo.purpose import Generation
from zoo.transformer import Generating, InsertingImages, InsertingSounds, Pixels, Sounds


@dataclass(frozen=True, slots=True)
class Media:
    """What stands in prompts beside their tokens.

    Args:
        kind: what they are.
        values: all of them in their order.
        of_rows: how many of them stand in each prompt.
    """

    kind: Literal["images", "sounds"]
    values: Pixels | Sounds
    of_rows: tuple[int, ...]

    def to(self, device: torch.device) -> Media:
        """The same on another device."""
        if isinstance(self.values, torch.Tensor):
            return replace(self, values=self.values.to(device))
        moved = cast("Pixels | Sounds", tuple(one.to(device) for one in self.values))
        return replace(self, values=moved)

    def row(self, number: int) -> Media | None:
        """Those of one prompt alone; None if there are none in it."""
        first, n = sum(self.of_rows[:number]), self.of_rows[number]
        return replace(self, values=self.values[first : first + n], of_rows=(n,)) if n else None

    def insert(
        self, model: Generating, tokens: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, Any]:
        """The ids of the prompts with these in them, and what `decode` takes as `inserted`."""
        if self.kind == "images":
            with_images = cast("InsertingImages", model)
            return with_images.insert_images(tokens, cast("Pixels", self.values), target_mask=mask)
        with_sounds = cast("InsertingSounds", model)
        return with_sounds.insert_sounds(tokens, cast("Sounds", self.values), target_mask=mask)


def images_in(prompt: Rows, given: Pixels, how: Generation, name: str, dtype: torch.dtype) -> Media:
    """The images in prompts. Raises InputError if they fit neither the model nor the prompts."""
    stated = how.inserted_images
    if stated is None:
        hint = "a model whose encoder reads images takes them as `ids`" if how.image_shape else None
        raise InputError(f"{name} takes no images in its prompts", help=hint)
    images = read_images_in_text(given, stated, dtype)
    n_states = n_states_of(images, stated)
    return Media("images", images, _of_rows(prompt, n_states, stated.image_id, "image"))


def sounds_in(prompt: Rows, given: Sounds, how: Generation, name: str, dtype: torch.dtype) -> Media:
    """The sounds in prompts. Raises InputError if they fit neither the model nor the prompts."""
    stated = how.inserted_sounds
    if stated is None:
        raise InputError(f"{name} takes no sounds in its prompts")
    sounds = read_sounds_in_text(given, stated, dtype)
    n_states = [n_states_of_sound(sound, stated) for sound in sounds]
    return Media("sounds", sounds, _of_rows(prompt, n_states, stated.sound_id, "sound"))


def _of_rows(prompt: Rows, n_states: list[int], inserted_id: int, medium: str) -> tuple[int, ...]:
    n_places = [row.count(inserted_id) for row in prompt.lists()]
    try:
        return media_of_texts(n_places, n_states, inserted_id, medium)
    except ValueError as error:
        raise InputError(f"{medium}s: {error}") from None
