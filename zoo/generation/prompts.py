"""Prompts and sources, checked and turned into tensors before the model runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from numbers import Integral
from typing import Any, TypeVar

import torch

from zoo.errors import InputError
from zoo.inputs.images import check_images, check_images_of_any_size, check_tiled_images
from zoo.inputs.sounds import check_sounds
from zoo.purpose import InsertedImages, InsertedSounds
from zoo.transformer import Pixels, Spectrogram, TiledImage

T = TypeVar("T")
Medium = TypeVar("Medium", torch.Tensor, TiledImage, Spectrogram)

Ids = torch.Tensor | Sequence[int] | Sequence[Sequence[int]]
"""Token ids: of one sequence, of several of different lengths, or a tensor (batch, length)."""

SHORTEN = "nothing is cut unasked: shorten it, or give its parts one by one"
"""The help for a text that is too long."""

_SCALE = "scale the pixels as they were in training"
"""The help for pixels that are not finite."""

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, slots=True)
class Rows:
    """Sequences as one tensor.

    Args:
        values: ids (batch, length), vectors (batch, length, width), or images (batch, channels,
            height, width).
        mask: (batch, length), False at padding; None where there is none.
    """

    values: torch.Tensor
    mask: torch.Tensor | None

    def to(self, device: torch.device) -> Rows:
        """The same on another device."""
        mask = None if self.mask is None else self.mask.to(device)
        return Rows(self.values.to(device), mask)

    def row(self, number: int) -> Rows:
        """One row alone, without padding."""
        values = self.values[number : number + 1]
        if self.mask is not None:
            values = values[:, self.mask[number]]
        return Rows(values, None)

    def lists(self) -> list[list[int]]:
        """The ids of each row, without padding."""
        rows: list[list[int]] = self.values.tolist()
        if self.mask is None:
            return rows
        pairs = zip(rows, self.mask.tolist(), strict=True)
        return [list(compress(row, mask)) for row, mask in pairs]


def read_ids(
    ids: Ids,
    mask: torch.Tensor | None = None,
    *,
    what: str,
    vocab: int,
    pad_id: int | None = None,
    pad: str = "right",
) -> Rows:
    """Turn sequences of ids into one tensor, padded on one side.

    Args:
        ids: the sequences.
        mask: with a tensor of ids, (batch, length), False at padding.
        what: the name of the argument, for messages.
        vocab: the size of the vocabulary.
        pad_id: the id that stands for padding in a tensor of ids, if there is one.
        pad: the side of the padding, `left` or `right`.

    Raises:
        InputError: there is no sequence or an empty one, an id is outside the vocabulary, or the
            mask is not boolean or of another shape than the ids.
    """
    rows = _rows(ids, mask, what, pad_id)
    if not rows:
        raise InputError(f"{what}: an empty batch")
    for number, row in enumerate(rows):
        if row.numel() == 0:
            raise InputError(f"{what}: sequence {number} is empty")
        outside = row[(row < 0) | (row >= vocab)]
        if outside.numel():
            where = f" in sequence {number}" if len(rows) > 1 else ""
            raise InputError(
                f"{what}: id {int(outside[0])}{where} is outside the vocabulary",
                help=f"the model has {vocab:,} tokens, with ids from 0 to {vocab - 1:,}",
            )
    lengths = [row.numel() for row in rows]
    longest = max(lengths)
    values = torch.zeros(len(rows), longest, dtype=torch.long, device="cpu")
    present = torch.zeros(len(rows), longest, dtype=torch.bool, device="cpu")
    for number, row in enumerate(rows):
        at = slice(longest - len(row), None) if pad == "left" else slice(len(row))
        values[number, at], present[number, at] = row, True
    return Rows(values, None if min(lengths) == longest else present)


def _rows(ids: Ids, mask: torch.Tensor | None, what: str, pad_id: int | None) -> list[torch.Tensor]:
    """Each sequence without its padding, (length,)."""
    if not isinstance(ids, torch.Tensor):
        if mask is not None:
            raise InputError(
                f"{what}: a mask goes with a tensor of ids; lists of ids need no padding"
            )
        try:
            rows: list[Any] = [ids] if isinstance(ids, str) else list(ids)
        except TypeError:  # `_row` reports it as not a sequence
            return [_row(ids, what)]
        if rows and isinstance(rows[0], Integral):
            rows = [rows]
        return [_row(row, what) for row in rows]
    if ids.dtype not in _INTEGERS:
        raise InputError(f"{what}: ids are integers, not {ids.dtype}")
    if ids.dim() not in (1, 2):
        raise InputError(f"{what}: ids are (length,) or (batch, length), not {tuple(ids.shape)}")
    _check_values(ids, what)
    batch = ids.detach().to("cpu", torch.long)
    batch = batch[None] if batch.dim() == 1 else batch
    present = torch.ones_like(batch, dtype=torch.bool)
    if mask is not None:
        present = check_token_mask(mask, ids.shape, what).cpu().reshape(batch.shape)
    if pad_id is not None:
        present = present & (batch != pad_id)
    return [row[there] for row, there in zip(batch, present, strict=True)]


def _row(row: object, what: str) -> torch.Tensor:
    try:
        found = row if isinstance(row, torch.Tensor) else torch.as_tensor(row, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        for one in row if isinstance(row, Sequence) else ():
            if isinstance(one, Integral) and int(one).bit_length() > 63:  # for which torch has none
                raise InputError(f"{what}: id {one} is outside the vocabulary") from None
        raise _no_sequence(row, what) from None
    with_bools = isinstance(row, Sequence) and any(isinstance(one, bool) for one in row)
    if found.dim() != 1 or (found.numel() and found.dtype not in _INTEGERS) or with_bools:
        raise _no_sequence(row, what)
    _check_values(found, what)
    return found.long().cpu()


def _no_sequence(row: object, what: str) -> InputError:
    """The error for what is no sequence of ids."""
    hint = (
        "`zoo.TextModel.load(...)` makes a model that takes texts" if isinstance(row, str) else None
    )
    return InputError(f"{what}: a sequence is a list of integers, not {row!r:.80}", help=hint)


def _check_values(tensor: torch.Tensor, what: str) -> None:
    """Raise InputError if a tensor does not hold each of its values."""
    if tensor.is_meta:
        raise InputError(f"{what}: a tensor on the device `meta` has no values")
    if tensor.layout not in (torch.strided, torch.jagged):
        message = f"{what}: the tensor must be dense, not {tensor.layout}"
        raise InputError(message, help="`.to_dense()` makes it so")


def check_token_mask(mask: torch.Tensor, shape: Sequence[int], what: str) -> torch.Tensor:
    """Return the mask after checking that it is a boolean tensor of this shape.

    Raises:
        InputError: it is not.
    """
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        is_tensor = isinstance(mask, torch.Tensor)
        found = mask.dtype if is_tensor else type(mask).__name__
        raise InputError(
            f"{what}: a mask is a boolean tensor, True = a token, not {found}",
            help=f"`{'mask' if is_tensor else 'torch.as_tensor(mask)'} != 0` is one",
        )
    _check_values(mask, what)
    if mask.shape != tuple(shape):
        raise InputError(
            f"{what}: the mask is {tuple(mask.shape)}; it must be {tuple(shape)}, as the ids are"
        )
    return mask


def read_vectors(
    x: object, mask: torch.Tensor | None, *, what: str, width: int | None, dtype: torch.dtype
) -> Rows:
    """Check vectors, and return them as (batch, length, width).

    Args:
        x: vectors of any floating-point dtype.
        mask: boolean (batch, length), False = padding.
        what: the name of the argument, for messages.
        width: the width of the model's vectors; None if it is not known here.
        dtype: the model's, to which the vectors are converted.

    Raises:
        InputError: `x` is not such a tensor, is empty, or holds a number that is not finite in this
            dtype; or the mask is not boolean or not (batch, length).
    """
    sizes = f"(batch, length, {width or 'width'})"
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.dim() != 3:
        raise InputError(f"{what}: vectors {sizes} of floating-point numbers")
    _check_values(x, what)
    if 0 in x.shape:
        raise InputError(f"{what}: an empty batch, {tuple(x.shape)}")
    if width not in (None, x.shape[2]):
        raise InputError(f"{what}: vectors are {sizes}, not {tuple(x.shape)}")
    x = x.to(dtype)
    if not bool(x.isfinite().all()):
        raise InputError(f"{what}: not every number is finite in {dtype}")
    if mask is not None:
        check_token_mask(mask, x.shape[:2], what)
    return Rows(x, mask)


def read_images(
    x: object,
    mask: torch.Tensor | None,
    *,
    what: str,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
) -> Rows:
    """Check images, and return them as (batch, channels, height, width).

    Args:
        x: images of any floating-point dtype, or one of them without a batch dimension.
        mask: refused, since no image has padding.
        what: the name of the argument, for messages.
        shape: the (channels, height, width) of the model's images.
        dtype: the model's, to which the images are converted.

    Raises:
        InputError: `x` is no tensor of such images, is empty, or holds a number that is not finite
            in this dtype; or there is a mask.
    """
    if isinstance(x, torch.Tensor) and x.shape == shape:
        x = x[None]
    images = _checked(what, check_images, x, shape)
    if mask is not None:
        raise InputError(
            f"{what}: images have no padding, so that a mask would hide nothing of them",
            help="leave `mask` out",
        )
    if not len(images):
        raise InputError(f"{what}: an empty batch, {tuple(images.shape)}")
    _check_values(images, what)
    images = images.to(dtype)
    for number, image in enumerate(images):
        _check_finite(image, f"{what}: image {number}", _SCALE)
    return Rows(images, None)


def read_images_in_text(x: object, how: InsertedImages, dtype: torch.dtype) -> Pixels:
    """Check the images that stand in prompts, and return them.

    Args:
        x: images of any floating-point dtype, as the model takes them (`zoo.transformer.Pixels`),
            or one of them alone, (channels, height, width).
        how: which images may stand there.
        dtype: the model's, to which the images are converted.

    Raises:
        InputError: they are no such images, there are none, or one holds a number that is not
            finite in this dtype.
    """
    if how.any_size is not None:
        x = x[None] if isinstance(x, torch.Tensor) and x.dim() == 3 else x
        images = _checked("images", check_images_of_any_size, x, how.shape[0], how.any_size)
        return _converted(images, lambda image: image, "image", dtype, _SCALE)
    if how.tiling is None:
        return read_images(x, None, what="images", shape=how.shape, dtype=dtype).values
    if isinstance(x, torch.Tensor):
        x = read_images(x, None, what="images", shape=how.shape, dtype=dtype).values
    tiled = _checked("images", check_tiled_images, x, how.shape, how.tiling)
    return _converted(tiled, lambda image: image.tiles, "image", dtype, _SCALE)


def read_sounds_in_text(
    x: object, how: InsertedSounds, dtype: torch.dtype
) -> tuple[Spectrogram, ...]:
    """Check the spectrograms of the sounds that stand in prompts, and return them.

    Args:
        x: spectrograms of any floating-point dtype, as the model takes them
            (`zoo.transformer.Sounds`).
        how: which sounds may stand there.
        dtype: the model's, to which they are converted.

    Raises:
        InputError: as `read_images_in_text`.
    """
    sounds = _checked("sounds", check_sounds, x, how)
    return _converted(sounds, lambda sound: sound.windows, "sound", dtype)


def _checked(what: str, check: Callable[..., T], *arguments: object) -> T:
    """Return what a check of `zoo.inputs` returns; its errors become an InputError."""
    try:
        return check(*arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: {error}") from None


def _converted(
    media: Sequence[Medium],
    values: Callable[[Medium], torch.Tensor],
    name: str,
    dtype: torch.dtype,
    help: str | None = None,
) -> tuple[Medium, ...]:
    """Return images or sounds in a dtype. Raises InputError if the `values` of one are absent or
    not finite."""
    for one in media:
        _check_values(values(one), f"{name}s")
    converted = tuple(one.to(dtype) for one in media)
    for number, one in enumerate(converted):
        _check_finite(values(one), f"{name}s: {name} {number}", help)
    return converted


def _check_finite(x: torch.Tensor, name: str, help: str | None) -> None:
    if not bool(x.isfinite().all()):
        raise InputError(f"{name} holds numbers that are not finite in {x.dtype}", help=help)


def check_length(
    length: int, longest: int | None, what: str, *, most_new: int = 0, help: str = SHORTEN
) -> None:
    """Raise InputError if `length` tokens and `most_new` more exceed the model's positions,
    `longest`. The last new token needs none: the model is never called with it. `help` is what
    the error says can be done, if fewer new ones would not do."""
    if longest is None or length + max(most_new - 1, 0) <= longest:
        return
    more = f" and {most_new} new ones" if most_new else ""
    left = longest - length + 1
    if most_new and left > 0:
        help = f"`max_new_tokens` can be {left} at most"
    raise InputError(
        f"{what}: {length} tokens{more} are longer than the model's {longest} positions", help=help
    )
