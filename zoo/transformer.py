"""`Transformer`, the base class of all models: a module with a spec."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import torch
from torch import nn

from zoo.weights.held_tensors import owners

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from zoo.cache import Cache
    from zoo.spec import ModelSpec
    from zoo.weights.load_report import LoadReport


@dataclass(frozen=True, eq=False)
class TiledImage:
    """An image that is read as a whole and in tiles.

    Args:
        tiles: (n, channels, height, width): the image, resized to a tile, and then its tiles, row
            by row; the image alone if it has none.
        height: that of the image before it was resized, in pixels.
        width: its width.
    """

    tiles: torch.Tensor
    height: int
    width: int

    def to(self, where: torch.device | torch.dtype) -> Self:
        """The same on another device, or in another dtype."""
        return replace(self, tiles=self.tiles.to(where))


Pixels = torch.Tensor | Sequence[torch.Tensor | TiledImage]
"""Images (batch, channels, height, width), or of any size, each (channels, height, width), or with
their tiles."""


@dataclass(frozen=True, eq=False)
class Spectrogram:
    """The spectrogram of a sound, in windows of one length that follow each other.

    Args:
        windows: (n, frames, bands), the logarithms of the power in bands of mel.
        length: how many frames those of the sound itself are, of those of all windows; silence
            follows it in the last one.
    """

    windows: torch.Tensor
    length: int

    def to(self, where: torch.device | torch.dtype) -> Self:
        """The same on another device, or in another dtype."""
        return replace(self, windows=self.windows.to(where))


Sounds = torch.Tensor | Sequence[Spectrogram]
"""Spectrograms of sounds; a tensor (sounds, frames, bands) is of such as fill one window each."""


class AttentionMaps(NamedTuple):
    """The attention weights of every layer that attends, by kind; each is (batch, heads, query,
    key).

    The tuple of a kind that the model does not have is empty. Printed are the shapes.
    """

    encoder: tuple[torch.Tensor, ...] = ()
    decoder: tuple[torch.Tensor, ...] = ()
    cross: tuple[torch.Tensor, ...] = ()

    def __repr__(self) -> str:
        shapes = {kind: [tuple(one.shape) for one in maps] for kind, maps in self._asdict().items()}
        return f"AttentionMaps({', '.join(f'{kind}={found}' for kind, found in shapes.items())})"


class Transformer(nn.Module):
    """A model: what `zoo.build` and `zoo.load` return, and the base class of what builder plugins
    make.

    It is a `torch.nn.Module`. Calling it returns the output of its head; its inputs are those of
    its builder, and `help(model.forward)` describes them: a decoder takes ids (batch, length), an
    encoder-decoder those of the source and of the target. `encode` and `decode` return hidden
    states; a model without an encoder or a decoder does not have that method.

    `spec` is the `zoo.ModelSpec` that it was built from. `load_report` says what `zoo.load` did
    with each tensor. `origin` is plain data on where the weights came from, if the zoo did not
    initialise them; `zoo.load` sets it and `zoo.save` stores it again.

    A model that generates (`zoo.slots.Builder.generation`) has the methods of `Generating`.
    """

    spec: ModelSpec
    encode: Callable[..., Any]
    decode: Callable[..., Any]
    origin: dict[str, Any] | None = None
    load_report: LoadReport | None = None

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Apply `fn` as every module does. Tied parameters stay one, also to the meta device and
        from it, as by `to_empty`."""
        with self._ties_kept():
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load values as every module does. Tied parameters stay one, also with `assign`."""
        with self._ties_kept():
            return super().load_state_dict(state_dict, strict=strict, assign=assign)

    @contextmanager
    def _ties_kept(self) -> Generator[None]:
        """Tie what was tied before the block again after it: torch replaces tensors name by
        name."""
        held = owners(self)
        yield
        for (table, name), *others in held.values():
            for other, alias in others:
                other[alias] = table[name]

    def _repr_html_(self) -> str:
        """The HTML for notebooks: a drawing of the architecture, and its sizes."""
        from zoo.drawing import to_html

        return to_html(self.spec)


class Generating(Protocol):
    """The methods of a model that generates; `encode` and `memory_mask` only with an encoder.

    `encode` returns the memory, `decode` the states of the target, of the next tokens only with a
    cache, and `head` the logits of states.
    """

    def encode(self, source: torch.Tensor, *, source_mask: torch.Tensor | None) -> torch.Tensor: ...

    def memory_mask(
        self, source: torch.Tensor, source_mask: torch.Tensor | None
    ) -> torch.Tensor | None: ...

    def decode(
        self,
        target: torch.Tensor,
        memory: torch.Tensor | None,
        *,
        target_mask: torch.Tensor | None,
        memory_mask: torch.Tensor | None,
        cache: Cache | None,
    ) -> torch.Tensor: ...

    def head(self, states: torch.Tensor) -> torch.Tensor: ...


class Inserting(Generating, Protocol):
    """The method of a model that generates from texts with images or sounds in them."""

    def decode(
        self,
        target: torch.Tensor,
        memory: torch.Tensor | None,
        *,
        target_mask: torch.Tensor | None,
        memory_mask: torch.Tensor | None,
        cache: Cache | None,
        inserted: Any = None,
    ) -> torch.Tensor: ...


class InsertingImages(Inserting, Protocol):
    """The methods of a model that generates from texts with images in them."""

    def insert_images(
        self, target: torch.Tensor, images: Pixels, *, target_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, Any]:
        """The ids of texts, (batch, length), in which ids from the size of the vocabulary on stand
        for states of images; and what `decode` takes as `inserted`, such as these states."""
        ...


class InsertingSounds(Inserting, Protocol):
    """The methods of a model that generates from texts with sounds in them."""

    def insert_sounds(
        self, target: torch.Tensor, sounds: Sounds, *, target_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, Any]:
        """As `InsertingImages.insert_images`, of sounds."""
        ...


class EncodingImages(Protocol):
    """The method of a model that embeds images."""

    def encode_image(self, image: torch.Tensor) -> torch.Tensor:
        """The vector of each image, (batch, width), of images (batch, channels, height, width)."""
        ...


class EncodingSounds(Protocol):
    """The method of a model that embeds sounds."""

    def encode_sound(self, sound: torch.Tensor) -> torch.Tensor:
        """The vector of each sound, (batch, width), of waveforms (batch, samples, 1) or
        spectrograms (batch, frames, bands)."""
        ...


class Comparing(EncodingImages, Protocol):
    """The methods of a model that compares images with texts."""

    def encode_text(self, text: torch.Tensor) -> torch.Tensor:
        """The vector of each text, (batch, width), of ids (batch, length)."""
        ...

    def compare(self, images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        """The score of each text for each image, (images, texts), of their vectors."""
        ...


def held_in(model: object) -> str | None:
    """Return the attribute of a wrapper that holds a `Transformer`, as those of `torch.compile` and
    `DataParallel`, and a `zoo.TextModel`; None if there is none."""
    names = ("_orig_mod", "module", "transformer")
    return next((n for n in names if isinstance(getattr(model, n, None), Transformer)), None)


def expand_mask(mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return a (batch, key) or (batch, query, key) mask with its missing dimensions."""
    if mask is None or mask.dim() not in (2, 3):
        return mask
    return mask[:, None, None, :] if mask.dim() == 2 else mask[:, None, :, :]


def check_mask(mask: torch.Tensor, *, batch: int, query: int, key: int) -> torch.Tensor:
    """Check a mask, and return it as attention takes it: boolean, True = attend, (batch or 1, heads
    or 1, query or 1, key).

    Args:
        mask: (batch, key), (batch, query, key) or (batch, heads, query, key); a batch, heads or
            query of 1 is broadcast.

    Raises:
        TypeError: it is not a tensor, or not boolean.
        ValueError: it has another shape.
    """
    if not isinstance(mask, torch.Tensor):
        raise TypeError(f"a mask is a tensor, True = attend, not a {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(f"a mask is boolean, True = attend, not {mask.dtype}; compare with `!= 0`")
    full = expand_mask(mask)
    fits = (
        full is not None
        and full.dim() == 4
        and full.shape[0] in (1, batch)
        and full.shape[2] in (1, query)
        and full.shape[3] == key
    )
    if full is None or not fits:
        hint = "; one for all sequences is `mask[None]`" if mask.shape == (query, key) else ""
        raise ValueError(
            f"a mask of shape {tuple(mask.shape)} does not fit batch {batch}, {query} queries and "
            f"{key} keys: it is (batch, key), (batch, query, key) or (batch, heads, query, key)"
            f"{hint}"
        )
    return full
